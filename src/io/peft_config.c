/* adapter_config.json, to and fro. */
#include <math.h>
#include <stdlib.h>
#include <strings.h>

#include "base/json.h"
#include "io/peft.h"

/* ---- reading ---- */

typedef struct source {
    const char *where;
    const char *key;
    const json_t *value; /* not null */
} source;

static int wrong(pl_error *err, const source *s, const char *expected)
{
    return PL_FAIL(
        err, PL_EINPUT, "%s: %s is %s; %s was expected", s->where, s->key, pl_json_type_name(s->value), expected);
}

static int get_text(pl_error *err, const source *s, const json_t *value, const char **out)
{
    if (!json_is_string(value) || strlen(json_string_value(value)) != json_string_length(value)) {
        return wrong(err, s, "text");
    }
    *out = json_string_value(value);
    return 0;
}

static int get_names(pl_error *err, const source *s, pl_names *out)
{
    if (!json_is_array(s->value)) return wrong(err, s, "a list of names");
    for (size_t i = 0; i < json_array_size(s->value); i++) {
        const char *name;
        PL_TRY(get_text(err, s, json_array_get(s->value, i), &name));
        PL_TRY(pl_names_add(err, out, name));
    }
    return 0;
}

static int get_ids(pl_error *err, const source *s, const json_t *list, int *count, int64_t **out)
{
    size_t n = json_array_size(list);
    if (!json_is_array(list) || n > 1 << 24) return wrong(err, s, "a list of whole numbers");
    PL_TRY(pl_calloc(err, n, sizeof **out, out));
    for (size_t i = 0; i < n; i++) {
        const json_t *item = json_array_get(list, i);
        if (!json_is_integer(item) || json_integer_value(item) < 0)
            return wrong(err, s, "a list of whole numbers >= 0");
        (*out)[i] = json_integer_value(item);
    }
    *count = (int)n;
    return 0;
}

static int get_modules(pl_error *err, const source *s, pl_modules *out)
{
    if (!json_is_string(s->value)) {
        out->rule = PL_MODULES_LIST;
        if (!json_is_array(s->value)) return wrong(err, s, "a list of names or a regular expression");
        return get_names(err, s, &out->names);
    }
    const char *text;
    PL_TRY(get_text(err, s, s->value, &text));
    if (strcasecmp(text, "all-linear") == 0) {
        out->rule = PL_MODULES_ALL_LINEAR;
        return 0;
    }
    out->rule = PL_MODULES_REGEX;
    return pl_names_add(err, &out->names, text);
}

static int get_patterns(pl_error *err, const source *s, pl_lora_patterns *out)
{
    if (!json_is_object(s->value)) return wrong(err, s, "an object of names and numbers");
    const char *key;
    json_t *item;
    json_object_foreach((json_t *)s->value, key, item)
    {
        if (!json_is_number(item)) {
            return PL_FAIL(err, PL_EINPUT, "%s: %s of \"%s\" is %s; a number was expected", s->where, s->key, key,
                pl_json_type_name(item));
        }
        PL_TRY(pl_lora_patterns_add(err, out, key, json_number_value(item)));
    }
    return 0;
}

/* One number or a list of them. */
static int get_layers(pl_error *err, const source *s, pl_lora_config *c)
{
    if (json_is_array(s->value)) return get_ids(err, s, s->value, &c->nlayers, &c->layers_to_transform);
    if (!json_is_integer(s->value)) return wrong(err, s, "a layer's number or a list of them");
    PL_TRY(pl_calloc(err, 1, sizeof *c->layers_to_transform, &c->layers_to_transform));
    c->layers_to_transform[0] = json_integer_value(s->value);
    c->nlayers = 1;
    return 0;
}

static int get_layers_pattern(pl_error *err, const source *s, pl_names *out)
{
    if (!json_is_string(s->value)) return get_names(err, s, out);
    const char *text;
    PL_TRY(get_text(err, s, s->value, &text));
    return *text ? pl_names_add(err, out, text) : 0;
}

static int get_init(pl_error *err, const source *s, pl_lora_config *c)
{
    if (json_is_boolean(s->value))
        return pl_lora_init_parse(err, s->where, json_is_true(s->value) ? "true" : "false", c);
    const char *text;
    PL_TRY(get_text(err, s, s->value, &text));
    return pl_lora_init_parse(err, s->where, text, c);
}

static int get_loftq(pl_error *err, const source *s, pl_lora_config *c)
{
    if (!json_is_object(s->value)) return wrong(err, s, "an object");
    PL_TRY(pl_json_int(err, s->where, s->value, "loftq_bits", &c->loftq_bits));
    return pl_json_int(err, s->where, s->value, "loftq_iter", &c->loftq_iter);
}

/* A list of ids for the input embedding, or an object of module names and lists. */
static int get_tokens(pl_error *err, const source *s, pl_lora_config *c)
{
    bool object = json_is_object(s->value);
    size_t n = object ? json_object_size(s->value) : 1;
    PL_TRY(pl_calloc(err, n, sizeof *c->tokens, &c->tokens));
    c->ntokens = (int)n;
    if (!object) return get_ids(err, s, s->value, &c->tokens[0].count, &c->tokens[0].ids);
    pl_lora_tokens *tokens = c->tokens;
    const char *key;
    json_t *item;
    json_object_foreach((json_t *)s->value, key, item)
    {
        PL_TRY(pl_strdup(err, key, &tokens->module));
        PL_TRY(get_ids(err, s, item, &tokens->count, &tokens->ids));
        tokens++;
    }
    return 0;
}

static int get_copy(pl_error *err, const source *s, char **out)
{
    const char *text;
    PL_TRY(get_text(err, s, s->value, &text));
    return pl_strdup(err, text, out);
}

/* What is read. */
static int get_field(pl_error *err, const source *s, const json_t *object, pl_lora_config *c, bool *known)
{
    const char *text;
#define FIELD(name, expr)                                                                                              \
    if (strcmp(s->key, name) == 0) return expr
    *known = true;
    FIELD("r", pl_json_int(err, s->where, object, s->key, &c->r));
    FIELD("lora_alpha", pl_json_real(err, s->where, object, s->key, &c->lora_alpha));
    FIELD("lora_dropout", pl_json_real(err, s->where, object, s->key, &c->lora_dropout));
    FIELD("use_rslora", pl_json_bool(err, s->where, object, s->key, &c->use_rslora));
    FIELD("use_dora", pl_json_bool(err, s->where, object, s->key, &c->use_dora));
    FIELD("lora_bias", pl_json_bool(err, s->where, object, s->key, &c->lora_bias));
    FIELD("fan_in_fan_out", pl_json_bool(err, s->where, object, s->key, &c->fan_in_fan_out));
    FIELD("inference_mode", pl_json_bool(err, s->where, object, s->key, &c->inference_mode));
    FIELD("target_modules", get_modules(err, s, &c->target_modules));
    FIELD("exclude_modules", get_modules(err, s, &c->exclude_modules));
    FIELD("modules_to_save", get_names(err, s, &c->modules_to_save));
    FIELD("rank_pattern", get_patterns(err, s, &c->rank_pattern));
    FIELD("alpha_pattern", get_patterns(err, s, &c->alpha_pattern));
    FIELD("layers_to_transform", get_layers(err, s, c));
    FIELD("layers_pattern", get_layers_pattern(err, s, &c->layers_pattern));
    FIELD("init_lora_weights", get_init(err, s, c));
    FIELD("loftq_config", get_loftq(err, s, c));
    FIELD("trainable_token_indices", get_tokens(err, s, c));
    FIELD("task_type", get_copy(err, s, &c->task_type));
    FIELD("base_model_name_or_path", get_copy(err, s, &c->base_model_name_or_path));
    FIELD("revision", get_copy(err, s, &c->revision));
    if (strcmp(s->key, "bias") == 0) {
        PL_TRY(get_text(err, s, s->value, &text));
        return pl_lora_bias_parse(err, s->where, text, &c->bias);
    }
    *known = false;
    return 0;
#undef FIELD
}

/* PEFT's other fields. What `harmless` ones say plays no part once an adapter exists, or only together with one of the
   others or with an init_lora_weights that is refused. */
static const struct {
    const char *name;
    bool harmless;
    const char *preset; /* what PEFT 0.21 writes: JSON */
} others[] = {
    {"alora_invocation_tokens", false, "null"},
    {"arrow_config", false, "null"},
    {"auto_mapping", true, "null"},
    {"corda_config", true, "null"},
    {"ensure_weight_tying", false, "false"},
    {"eva_config", true, "null"},
    {"kasa_config", false, "null"},
    {"layer_replication", false, "null"},
    {"lora_ga_config", true, "null"},
    {"megatron_config", false, "null"},
    {"megatron_core", true, "\"megatron.core\""},
    {"monteclora_config", false, "null"},
    {"peft_type", true, "\"LORA\""}, /* looked at before all others */
    {"peft_version", true, "\"0.21.2\""},
    {"qalora_group_size", true, "16"},
    {"runtime_config", true, NULL}, /* PEFT ignores it in a file and never writes it */
    {"target_parameters", false, "null"},
    {"use_bdlora", false, "null"},
    {"use_qalora", false, "false"},
    {"velora_config", false, "null"},
};

static bool says_nothing(const json_t *value)
{
    return json_is_null(value) || json_is_false(value) || (json_is_object(value) && json_object_size(value) == 0) ||
           (json_is_array(value) && json_array_size(value) == 0) ||
           (json_is_string(value) && json_string_length(value) == 0);
}

static int check_other(pl_error *err, const char *where, const char *key, const json_t *value)
{
    const char *why = "is unknown; a newer PEFT may have written it";
    int code = PL_EINPUT;
    if (says_nothing(value)) return 0;
    for (int i = 0; i < PL_COUNT(others); i++) {
        if (strcmp(key, others[i].name) != 0) continue;
        if (others[i].harmless) return 0;
        code = PL_EUNSUPPORTED;
        why = "is not supported";
    }
    char *text = json_dumps(value, JSON_COMPACT | JSON_ENCODE_ANY);
    if (!text) return PL_FAIL_NOMEM(err);
    int rc = PL_FAIL(err, code, "%s: %.128s is %.200s; this field %s", where, key, text, why);
    free(text);
    return rc;
}

static int check_type(pl_error *err, const char *where, const json_t *document)
{
    const char *type = NULL;
    if (!json_is_object(document)) {
        return PL_FAIL(err, PL_EINPUT, "%s: is %s; an object was expected", where, pl_json_type_name(document));
    }
    PL_TRY(pl_json_string(err, where, document, "peft_type", &type));
    if (!type) return PL_FAIL(err, PL_EINPUT, "%s: peft_type is missing; \"LORA\" was expected", where);
    if (strcmp(type, "LORA") == 0) return 0;
    return PL_FAIL(err, PL_EUNSUPPORTED, "%s: peft_type is \"%s\"; only \"LORA\" is supported", where, type);
}

int pl_lora_config_parse(pl_error *err, const char *where, const json_t *document, pl_lora_config *c)
{
    pl_lora_config_init(c);
    int rc = 0;
    PL_GO(failed, check_type(err, where, document));
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)document, key, value)
    {
        bool known = false;
        source s = {where, key, value};
        if (json_is_null(value)) continue;
        PL_GO(failed, get_field(err, &s, document, c, &known));
        if (!known) PL_GO(failed, check_other(err, where, key, value));
    }
    PL_GO(failed, pl_lora_config_check(err, where, c));
    return 0;
failed:
    pl_lora_config_free(c);
    return rc;
}

int pl_lora_config_read(pl_error *err, const char *path, pl_lora_config *c)
{
    *c = (pl_lora_config){0};
    json_t *document;
    PL_TRY(pl_json_read(err, path, &document));
    int rc = pl_lora_config_parse(err, path, document, c);
    json_decref(document);
    return rc;
}

/* ---- writing ---- */

/* Each of these gives a new value, NULL when memory runs out. */

static json_t *put_number(double value)
{
    bool whole = value == floor(value) && fabs(value) < 9e15;
    return whole ? json_integer((json_int_t)value) : json_real(value);
}

static json_t *put_text(const char *text)
{
    return text ? json_string(text) : json_null();
}

static json_t *put_names(const pl_names *names)
{
    json_t *list = json_array();
    for (int i = 0; i < names->count; i++) {
        if (json_array_append_new(list, json_string(names->items[i])) != 0) {
            json_decref(list);
            return NULL;
        }
    }
    return list;
}

static json_t *put_ids(const int64_t *ids, int count)
{
    json_t *list = json_array();
    for (int i = 0; i < count; i++) {
        if (json_array_append_new(list, json_integer(ids[i])) != 0) {
            json_decref(list);
            return NULL;
        }
    }
    return list;
}

static json_t *put_modules(const pl_modules *modules)
{
    switch (modules->rule) {
    case PL_MODULES_NONE: return json_null();
    case PL_MODULES_LIST: return put_names(&modules->names);
    case PL_MODULES_REGEX: return json_string(modules->names.items[0]);
    case PL_MODULES_ALL_LINEAR: return json_string("all-linear");
    }
    return NULL;
}

static json_t *put_patterns(const pl_lora_patterns *patterns)
{
    json_t *object = json_object();
    for (int i = 0; i < patterns->count; i++) {
        if (json_object_set_new(object, patterns->items[i].key, put_number(patterns->items[i].value)) != 0) {
            json_decref(object);
            return NULL;
        }
    }
    return object;
}

static json_t *put_init(const pl_lora_config *c)
{
    char text[32];
    if (c->init_lora_weights == PL_LORA_INIT_DEFAULT) return json_true();
    if (c->init_lora_weights == PL_LORA_INIT_RANDOM) return json_false();
    return json_string(pl_lora_init_name(c, text));
}

static json_t *put_loftq(const pl_lora_config *c)
{
    if (c->init_lora_weights != PL_LORA_INIT_LOFTQ) return json_object();
    return json_pack("{s:I, s:I}", "loftq_bits", (json_int_t)c->loftq_bits, "loftq_iter", (json_int_t)c->loftq_iter);
}

static json_t *put_tokens(const pl_lora_config *c)
{
    if (!c->ntokens) return json_null();
    if (!c->tokens[0].module) return put_ids(c->tokens[0].ids, c->tokens[0].count);
    json_t *object = json_object();
    for (int i = 0; i < c->ntokens; i++) {
        if (json_object_set_new(object, c->tokens[i].module, put_ids(c->tokens[i].ids, c->tokens[i].count)) != 0) {
            json_decref(object);
            return NULL;
        }
    }
    return object;
}

static int put_fields(const pl_lora_config *c, json_t *out)
{
    int failed = 0;
#define PUT(name, value) failed |= json_object_set_new(out, name, value)
    PUT("alpha_pattern", put_patterns(&c->alpha_pattern));
    PUT("base_model_name_or_path", put_text(c->base_model_name_or_path));
    PUT("bias", json_string(pl_lora_bias_name(c->bias)));
    PUT("exclude_modules", put_modules(&c->exclude_modules));
    PUT("fan_in_fan_out", json_boolean(c->fan_in_fan_out));
    PUT("inference_mode", json_true());
    PUT("init_lora_weights", put_init(c));
    PUT("layers_pattern", c->layers_pattern.count ? put_names(&c->layers_pattern) : json_null());
    PUT("layers_to_transform", c->nlayers ? put_ids(c->layers_to_transform, c->nlayers) : json_null());
    PUT("loftq_config", put_loftq(c));
    PUT("lora_alpha", put_number(c->lora_alpha));
    PUT("lora_bias", json_boolean(c->lora_bias));
    PUT("lora_dropout", json_real(c->lora_dropout));
    PUT("modules_to_save", c->modules_to_save.count ? put_names(&c->modules_to_save) : json_null());
    PUT("r", json_integer(c->r));
    PUT("rank_pattern", put_patterns(&c->rank_pattern));
    PUT("revision", put_text(c->revision));
    PUT("target_modules", put_modules(&c->target_modules));
    PUT("task_type", put_text(c->task_type));
    PUT("trainable_token_indices", put_tokens(c));
    PUT("use_dora", json_boolean(c->use_dora));
    PUT("use_rslora", json_boolean(c->use_rslora));
    for (int i = 0; i < PL_COUNT(others); i++) {
        if (others[i].preset) PUT(others[i].name, json_loads(others[i].preset, JSON_DECODE_ANY, NULL));
    }
#undef PUT
    return failed;
}

static int by_key(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* Sorts the fields but leaves what is inside of them in its order: that of rank_pattern and alpha_pattern matters. */
static int sorted(pl_error *err, json_t *fields, json_t **out)
{
    size_t n = 0;
    const char **keys, *key;
    json_t *value;
    *out = NULL;
    PL_TRY(pl_calloc(err, json_object_size(fields), sizeof *keys, &keys));
    json_object_foreach(fields, key, value) keys[n++] = key;
    qsort(keys, n, sizeof *keys, by_key);
    json_t *object = json_object();
    int failed = !object;
    for (size_t i = 0; i < n; i++) failed |= json_object_set(object, keys[i], json_object_get(fields, keys[i]));
    free(keys);
    if (failed) {
        json_decref(object);
        return PL_FAIL_NOMEM(err);
    }
    *out = object;
    return 0;
}

int pl_lora_config_text(pl_error *err, const pl_lora_config *c, pl_buf *out)
{
    int rc = 0;
    json_t *fields = json_object(), *object = NULL;
    if (!fields || put_fields(c, fields) != 0) {
        rc = PL_FAIL_NOMEM(err);
        goto done;
    }
    PL_GO(done, sorted(err, fields, &object));
    rc = pl_json_text(err, object, JSON_ENSURE_ASCII, out);
done:
    json_decref(fields);
    json_decref(object);
    return rc;
}
