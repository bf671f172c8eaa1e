#include "model/lora_config.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <math.h>
#include <pcre2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/buf.h"

/* ---- lists of names ---- */

void pl_modules_free(pl_modules *modules)
{
    pl_names_free(&modules->names);
    modules->rule = PL_MODULES_NONE;
}

/* Adds what lies between the commas of text, without the blanks around it. */
static int add_listed(pl_error *err, const char *where, const char *text, pl_names *names)
{
    for (const char *at = text;; at++) {
        at += strspn(at, " \t");
        size_t n = strcspn(at, ","), next = n;
        while (n > 0 && (at[n - 1] == ' ' || at[n - 1] == '\t')) n--;
        if (n == 0) return PL_FAIL(err, PL_EINPUT, "%s: \"%s\" has an empty name in its list", where, text);
        char *name;
        PL_TRY(pl_strndup(err, at, n, &name));
        int rc = pl_names_add(err, names, name);
        free(name);
        PL_TRY(rc);
        at += next;
        if (!*at) return 0;
    }
}

int pl_modules_parse(pl_error *err, const char *where, const char *text, pl_modules *modules)
{
    pl_modules_free(modules);
    int rc;
    if (strcasecmp(text, "all-linear") == 0) {
        modules->rule = PL_MODULES_ALL_LINEAR;
        return 0;
    }
    if (strpbrk(text, "^$*+?()[]{}|\\")) {
        modules->rule = PL_MODULES_REGEX;
        rc = pl_names_add(err, &modules->names, text);
    } else {
        modules->rule = PL_MODULES_LIST;
        rc = add_listed(err, where, text, &modules->names);
    }
    if (rc < 0) pl_modules_free(modules);
    return rc;
}

int pl_lora_patterns_add(pl_error *err, pl_lora_patterns *patterns, const char *key, double value)
{
    pl_lora_pattern *items = realloc(patterns->items, ((size_t)patterns->count + 1) * sizeof *items);
    if (!items) return PL_FAIL_NOMEM(err);
    patterns->items = items;
    PL_TRY(pl_strdup(err, key, &items[patterns->count].key));
    items[patterns->count++].value = value;
    return 0;
}

static void patterns_free(pl_lora_patterns *patterns)
{
    for (int i = 0; i < patterns->count; i++) free(patterns->items[i].key);
    free(patterns->items);
}

static int patterns_copy(pl_error *err, const pl_lora_patterns *from, pl_lora_patterns *to)
{
    for (int i = 0; i < from->count; i++) {
        PL_TRY(pl_lora_patterns_add(err, to, from->items[i].key, from->items[i].value));
    }
    return 0;
}

/* ---- the value ---- */

void pl_lora_config_init(pl_lora_config *c)
{
    *c = (pl_lora_config){.r = 8, .lora_alpha = 8, .init_niter = -1, .loftq_bits = 4, .loftq_iter = 1};
}

void pl_lora_config_free(pl_lora_config *c)
{
    pl_modules_free(&c->target_modules);
    pl_modules_free(&c->exclude_modules);
    pl_names_free(&c->modules_to_save);
    pl_names_free(&c->layers_pattern);
    patterns_free(&c->rank_pattern);
    patterns_free(&c->alpha_pattern);
    free(c->layers_to_transform);
    for (int i = 0; i < c->ntokens; i++) {
        free(c->tokens[i].module);
        free(c->tokens[i].ids);
    }
    free(c->tokens);
    free(c->task_type);
    free(c->base_model_name_or_path);
    free(c->revision);
    *c = (pl_lora_config){0};
}

static int text_copy(pl_error *err, const char *from, char **to)
{
    *to = NULL;
    return from ? pl_strdup(err, from, to) : 0;
}

static int ids_copy(pl_error *err, const int64_t *from, int count, int64_t **to)
{
    *to = NULL;
    if (!count) return 0;
    PL_TRY(pl_calloc(err, (size_t)count, sizeof **to, to));
    memcpy(*to, from, (size_t)count * sizeof **to);
    return 0;
}

static int tokens_copy(pl_error *err, const pl_lora_config *from, pl_lora_config *to)
{
    if (!from->ntokens) return 0;
    PL_TRY(pl_calloc(err, (size_t)from->ntokens, sizeof *to->tokens, &to->tokens));
    to->ntokens = from->ntokens;
    for (int i = 0; i < from->ntokens; i++) {
        PL_TRY(text_copy(err, from->tokens[i].module, &to->tokens[i].module));
        PL_TRY(ids_copy(err, from->tokens[i].ids, from->tokens[i].count, &to->tokens[i].ids));
        to->tokens[i].count = from->tokens[i].count;
    }
    return 0;
}

int pl_lora_config_copy(pl_error *err, const pl_lora_config *from, pl_lora_config *to)
{
    int rc = 0;
    *to = *from; /* the plain fields; what is owned is taken out again and copied below */
    to->target_modules.names = to->exclude_modules.names = (pl_names){0};
    to->modules_to_save = to->layers_pattern = (pl_names){0};
    to->rank_pattern = to->alpha_pattern = (pl_lora_patterns){0};
    to->layers_to_transform = NULL;
    to->ntokens = 0;
    to->tokens = NULL;
    to->task_type = to->base_model_name_or_path = to->revision = NULL;
    PL_GO(failed, pl_names_copy(err, &from->target_modules.names, &to->target_modules.names));
    PL_GO(failed, pl_names_copy(err, &from->exclude_modules.names, &to->exclude_modules.names));
    PL_GO(failed, pl_names_copy(err, &from->modules_to_save, &to->modules_to_save));
    PL_GO(failed, pl_names_copy(err, &from->layers_pattern, &to->layers_pattern));
    PL_GO(failed, patterns_copy(err, &from->rank_pattern, &to->rank_pattern));
    PL_GO(failed, patterns_copy(err, &from->alpha_pattern, &to->alpha_pattern));
    PL_GO(failed, ids_copy(err, from->layers_to_transform, from->nlayers, &to->layers_to_transform));
    PL_GO(failed, tokens_copy(err, from, to));
    PL_GO(failed, text_copy(err, from->task_type, &to->task_type));
    PL_GO(failed, text_copy(err, from->base_model_name_or_path, &to->base_model_name_or_path));
    PL_GO(failed, text_copy(err, from->revision, &to->revision));
    return 0;
failed:
    pl_lora_config_free(to);
    return rc;
}

/* ---- regular expressions ---- */

/* Python's `re` and PCRE2 agree on what such patterns use; (?P<name>...) is known to both. `around` has one %s for the
   pattern; `ends` asks for a match to the very end of the subject. *number, if wanted, is the group "idx" (-1: none).
 */
static int regex(pl_error *err, const char *field, const char *around, const char *pattern, bool ends,
    const char *subject, bool *matched, int64_t *number)
{
    char *text = NULL;
    pcre2_code *code = NULL;
    pcre2_match_data *data = NULL;
    int rc = pl_format(
        err, &text, "%.*s%s%s", (int)strcspn(around, "%"), around, pattern, around + strcspn(around, "%") + 2);
    if (rc < 0) return rc;
    int fault;
    size_t at;
    uint32_t options = PCRE2_UTF | PCRE2_UCP | PCRE2_ANCHORED | (ends ? PCRE2_ENDANCHORED : 0);
    code = pcre2_compile((PCRE2_SPTR)text, PCRE2_ZERO_TERMINATED, options, &fault, &at, NULL);
    if (!code) {
        char why[128] = "";
        pcre2_get_error_message(fault, (PCRE2_UCHAR *)why, sizeof why);
        rc = fault == PCRE2_ERROR_HEAP_FAILED
                 ? PL_FAIL_NOMEM(err)
                 : PL_FAIL(err, PL_EINPUT, "%s: \"%s\" is not a regular expression: %s", field, pattern, why);
        goto done;
    }
    data = pcre2_match_data_create_from_pattern(code, NULL);
    if (!data) {
        rc = PL_FAIL_NOMEM(err);
        goto done;
    }
    int found = pcre2_match(code, (PCRE2_SPTR)subject, PCRE2_ZERO_TERMINATED, 0, 0, data, NULL);
    if (found < 0 && found != PCRE2_ERROR_NOMATCH) {
        char why[128] = "";
        pcre2_get_error_message(found, (PCRE2_UCHAR *)why, sizeof why);
        rc = found == PCRE2_ERROR_NOMEMORY || found == PCRE2_ERROR_HEAPLIMIT
                 ? PL_FAIL_NOMEM(err)
                 : PL_FAIL(err, PL_EINPUT, "%s: \"%s\" cannot be matched with %s: %s", field, pattern, subject, why);
        goto done;
    }
    *matched = found > 0;
    if (number) {
        PCRE2_UCHAR digits[20];
        size_t size = sizeof digits;
        bool got = *matched && pcre2_substring_copy_byname(data, (PCRE2_SPTR) "idx", digits, &size) == 0;
        *number = got ? strtoll((const char *)digits, NULL, 10) : -1;
    }
done:
    pcre2_match_data_free(data);
    pcre2_code_free(code);
    free(text);
    return rc;
}

/* ---- the rules ---- */

static bool ends_with(const char *name, size_t size, const char *end)
{
    size_t n = strlen(end);
    return n <= size && memcmp(name + size - n, end, n) == 0;
}

static bool listed(const pl_names *names, const char *module)
{
    size_t size = strlen(module);
    for (int i = 0; i < names->count; i++) {
        size_t n = strlen(names->items[i]);
        if (ends_with(module, size, names->items[i]) && (n == size || module[size - n - 1] == '.')) return true;
    }
    return false;
}

static bool named(const pl_names *names, const char *module)
{
    for (int i = 0; i < names->count; i++) {
        if (strcmp(names->items[i], module) == 0) return true;
    }
    return false;
}

static int excluded(pl_error *err, const pl_lora_config *c, const char *module, bool *out)
{
    *out = false;
    if (c->exclude_modules.rule == PL_MODULES_REGEX) {
        PL_TRY(regex(err, "exclude_modules", "%s", c->exclude_modules.names.items[0], true, module, out, NULL));
    } else {
        *out = listed(&c->exclude_modules.names, module);
    }
    for (int i = 0; i < c->modules_to_save.count && !*out; i++) {
        const char *name = c->modules_to_save.items[i];
        PL_TRY(regex(err, "modules_to_save", "(^|.*\\.)%s($|\\..*)", name, false, module, out, NULL));
    }
    return 0;
}

/* Whether the module's layer is one of layers_to_transform. */
static int in_layers(pl_error *err, const pl_lora_config *c, const char *module, bool *out)
{
    bool matched = false;
    int64_t layer = -1;
    if (c->layers_pattern.count == 0) {
        PL_TRY(
            regex(err, "layers_to_transform", "%s", ".*?\\.[^.]*\\.(?P<idx>\\d+)\\.", false, module, &matched, &layer));
    }
    for (int i = 0; i < c->layers_pattern.count && !matched; i++) {
        PL_TRY(regex(err, "layers_pattern", "(?:^|.*?\\.)%s\\.(?P<idx>\\d+)\\.", c->layers_pattern.items[i], false,
            module, &matched, &layer));
    }
    *out = false;
    for (int i = 0; i < c->nlayers && layer >= 0; i++) *out |= c->layers_to_transform[i] == layer;
    return 0;
}

int pl_lora_matches(pl_error *err, const pl_lora_config *c, const char *module, pl_lora_match *out)
{
    bool yes = false;
    *out = PL_LORA_NO;
    switch (c->target_modules.rule) {
    case PL_MODULES_REGEX: break;
    case PL_MODULES_LIST: break;
    case PL_MODULES_NONE: return PL_FAIL(err, PL_EBUG, "target_modules are not known yet");
    case PL_MODULES_ALL_LINEAR: return PL_FAIL(err, PL_EBUG, "all-linear was not replaced by the model's linears");
    }
    PL_TRY(excluded(err, c, module, &yes));
    if (yes) {
        *out = PL_LORA_EXCLUDED;
        return 0;
    }
    const pl_names *names = &c->target_modules.names;
    if (c->target_modules.rule == PL_MODULES_REGEX) {
        PL_TRY(regex(err, "target_modules", "%s", names->items[0], true, module, &yes, NULL));
    } else if (named(names, module)) {
        yes = true; /* whatever its layer */
    } else {
        yes = listed(names, module);
        if (yes && c->nlayers) PL_TRY(in_layers(err, c, module, &yes));
    }
    *out = yes ? PL_LORA_YES : PL_LORA_NO;
    return 0;
}

bool pl_lora_saves(const pl_lora_config *c, const char *module)
{
    for (const char *dot = module; dot; dot = strchr(dot + 1, '.')) {
        const char *end = strchr(dot + 1, '.');
        size_t size = end ? (size_t)(end - module) : strlen(module);
        for (int i = 0; i < c->modules_to_save.count; i++) {
            if (ends_with(module, size, c->modules_to_save.items[i])) return true;
        }
    }
    return false;
}

static int by_pattern(
    pl_error *err, const char *field, const pl_lora_patterns *patterns, const char *module, double *value)
{
    for (int i = 0; i < patterns->count; i++) {
        bool matched;
        PL_TRY(regex(err, field, "(.*\\.)?(%s)$", patterns->items[i].key, false, module, &matched, NULL));
        if (!matched) continue;
        *value = patterns->items[i].value;
        return 0;
    }
    return 0;
}

int pl_lora_rank(pl_error *err, const pl_lora_config *c, const char *module, int64_t *out)
{
    double r = (double)c->r;
    PL_TRY(by_pattern(err, "rank_pattern", &c->rank_pattern, module, &r));
    *out = (int64_t)r;
    return 0;
}

int pl_lora_scaling(pl_error *err, const pl_lora_config *c, const char *module, double *out)
{
    int64_t r;
    double alpha = c->lora_alpha;
    PL_TRY(pl_lora_rank(err, c, module, &r));
    PL_TRY(by_pattern(err, "alpha_pattern", &c->alpha_pattern, module, &alpha));
    *out = alpha / (c->use_rslora ? sqrt((double)r) : (double)r);
    return 0;
}

const char *pl_lora_default_targets(const char *model_type)
{
    static const char *const families[][2] = {
        {"llama", "q_proj,v_proj"},
        {"mistral", "q_proj,v_proj"},
        {"mixtral", "q_proj,v_proj"},
        {"qwen2", "q_proj,v_proj"},
        {"qwen3", "q_proj,v_proj"},
        {"gemma", "q_proj,v_proj"},
        {"gemma2", "q_proj,v_proj"},
        {"gemma3_text", "q_proj,v_proj"},
        {"opt", "q_proj,v_proj"},
        {"phi", "q_proj,v_proj,fc1,fc2"},
        {"gpt2", "c_attn"},
        {"gpt_neox", "query_key_value"},
    };
    for (int i = 0; i < PL_COUNT(families); i++) {
        if (strcmp(families[i][0], model_type) == 0) return families[i][1];
    }
    return NULL;
}

/* ---- names of values, and what goes together ---- */

static const struct {
    const char *name;
    pl_lora_init init;
} inits[] = {
    {"true", PL_LORA_INIT_DEFAULT},
    {"false", PL_LORA_INIT_RANDOM},
    {"gaussian", PL_LORA_INIT_GAUSSIAN},
    {"pissa", PL_LORA_INIT_PISSA},
    {"olora", PL_LORA_INIT_OLORA},
    {"orthogonal", PL_LORA_INIT_ORTHOGONAL},
    {"loftq", PL_LORA_INIT_LOFTQ},
    {"eva", PL_LORA_INIT_EVA},
};
static const char *const biases[] = {"none", "all", "lora_only"};

const char *pl_lora_init_name(const pl_lora_config *c, char text[32])
{
    for (int i = 0; i < PL_COUNT(inits); i++) {
        if (inits[i].init == c->init_lora_weights) snprintf(text, 32, "%s", inits[i].name);
    }
    if (c->init_lora_weights == PL_LORA_INIT_PISSA && c->init_niter >= 0) {
        snprintf(text, 32, "pissa_niter_%lld", (long long)c->init_niter);
    }
    return text;
}

int pl_lora_init_parse(pl_error *err, const char *where, const char *text, pl_lora_config *c)
{
    static const char *const others[] = {"corda", "mica", "lora_ga"};
    for (int i = 0; i < PL_COUNT(inits); i++) {
        if (strcmp(text, inits[i].name) != 0) continue;
        c->init_lora_weights = inits[i].init;
        c->init_niter = -1;
        return 0;
    }
    static const char niter[] = "pissa_niter_";
    const char *digits = text + sizeof niter - 1;
    if (strncmp(text, niter, sizeof niter - 1) == 0 && *digits && strspn(digits, "0123456789") == strlen(digits) &&
        strlen(digits) < 6) {
        c->init_lora_weights = PL_LORA_INIT_PISSA;
        c->init_niter = strtoll(digits, NULL, 10);
        return 0;
    }
    for (int i = 0; i < PL_COUNT(others); i++) {
        if (strncmp(text, others[i], strlen(others[i])) == 0) {
            return PL_FAIL(err, PL_EUNSUPPORTED, "%s: init_lora_weights \"%s\" is not supported", where, text);
        }
    }
    return PL_FAIL(err, PL_EINPUT,
        "%s: init_lora_weights is \"%s\"; it may be true, false, gaussian, pissa, pissa_niter_N, olora, orthogonal, "
        "loftq or eva",
        where, text);
}

const char *pl_lora_bias_name(pl_lora_bias bias)
{
    return biases[bias];
}

int pl_lora_bias_parse(pl_error *err, const char *where, const char *text, pl_lora_bias *out)
{
    for (int i = 0; i < PL_COUNT(biases); i++) {
        if (strcmp(text, biases[i]) != 0) continue;
        *out = (pl_lora_bias)i;
        return 0;
    }
    return PL_FAIL(err, PL_EINPUT, "%s: bias is \"%s\"; it may be none, all or lora_only", where, text);
}

static int check_regexes(pl_error *err, const pl_lora_config *c)
{
    bool matched;
    double value;
    int64_t layer;
    PL_TRY(excluded(err, c, "", &matched));
    if (c->target_modules.rule == PL_MODULES_REGEX) {
        PL_TRY(regex(err, "target_modules", "%s", c->target_modules.names.items[0], true, "", &matched, NULL));
    }
    for (int i = 0; i < c->modules_to_save.count; i++) {
        PL_TRY(regex(err, "modules_to_save", "(%s)", c->modules_to_save.items[i], false, "", &matched, NULL));
    }
    for (int i = 0; i < c->layers_pattern.count; i++) {
        PL_TRY(regex(err, "layers_pattern", "(%s)", c->layers_pattern.items[i], false, "", &matched, &layer));
    }
    /* by_pattern stops at the first match, so each is tried alone. */
    for (int i = 0; i < c->rank_pattern.count; i++) {
        PL_TRY(by_pattern(err, "rank_pattern", &(pl_lora_patterns){1, &c->rank_pattern.items[i]}, "", &value));
    }
    for (int i = 0; i < c->alpha_pattern.count; i++) {
        PL_TRY(by_pattern(err, "alpha_pattern", &(pl_lora_patterns){1, &c->alpha_pattern.items[i]}, "", &value));
    }
    return 0;
}

static int check_ranges(pl_error *err, const char *where, const pl_lora_config *c)
{
    if (c->r < 1) return PL_FAIL(err, PL_EINPUT, "%s: r is %lld; it must be at least 1", where, (long long)c->r);
    if (!isfinite(c->lora_alpha)) return PL_FAIL(err, PL_EINPUT, "%s: lora_alpha is not finite", where);
    if (!(c->lora_dropout >= 0 && c->lora_dropout < 1)) {
        return PL_FAIL(
            err, PL_EINPUT, "%s: lora_dropout is %g; it must be at least 0 and below 1", where, c->lora_dropout);
    }
    for (int i = 0; i < c->rank_pattern.count; i++) {
        const pl_lora_pattern *p = &c->rank_pattern.items[i];
        if (!(p->value >= 1 && p->value <= 1 << 30) || p->value != floor(p->value)) {
            return PL_FAIL(err, PL_EINPUT, "%s: rank_pattern of \"%s\" is %g; a whole number >= 1 was expected", where,
                p->key, p->value);
        }
    }
    for (int i = 0; i < c->nlayers; i++) {
        if (c->layers_to_transform[i] < 0) {
            return PL_FAIL(err, PL_EINPUT, "%s: layers_to_transform holds %lld; layers are counted from 0", where,
                (long long)c->layers_to_transform[i]);
        }
    }
    return 0;
}

int pl_lora_config_check(pl_error *err, const char *where, const pl_lora_config *c)
{
    PL_TRY(check_ranges(err, where, c));
    bool by_text = c->target_modules.rule == PL_MODULES_REGEX || c->target_modules.rule == PL_MODULES_ALL_LINEAR;
    bool plain_init = c->init_lora_weights == PL_LORA_INIT_DEFAULT || c->init_lora_weights == PL_LORA_INIT_RANDOM;
    const char *clash = NULL;
    if (c->exclude_modules.rule == PL_MODULES_ALL_LINEAR) clash = "exclude_modules cannot be all-linear";
    if (by_text && c->nlayers) clash = "layers_to_transform needs target_modules to be a list";
    if (by_text && c->layers_pattern.count) clash = "layers_pattern needs target_modules to be a list";
    if (c->layers_pattern.count && !c->nlayers) clash = "layers_pattern needs layers_to_transform beside it";
    if (c->lora_bias && c->use_dora) clash = "lora_bias and use_dora cannot be combined";
    if (c->lora_bias && !plain_init) clash = "lora_bias needs init_lora_weights to be true or false";
    if (clash) return PL_FAIL(err, PL_EINPUT, "%s: %s", where, clash);
    int rc = check_regexes(err, c);
    if (rc == PL_EINPUT) pl_error_prefix(err, "%s", where);
    return rc;
}
