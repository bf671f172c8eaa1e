#include "model/adapt.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"

/* The last part of a module's name: "q_proj". */
static const char *leaf_of(const char *module)
{
    const char *dot = strrchr(module, '.');
    return dot ? dot + 1 : module;
}

/* A parameter's module: its name without the last part. */
static size_t module_length(const char *param)
{
    return (size_t)(strrchr(param, '.') - param);
}

/* Where a configuration came from, for messages. */
typedef struct origin {
    const char *where;
    bool typed; /* by the user, in the fields of a run; else the file of an adapter */
} origin;

/* How a message names a field: "lora.exclude", or "DIR: exclude_modules". */
static const char *name_field(const origin *o, const char *typed, const char *peft, char out[512])
{
    if (o->typed) {
        snprintf(out, 512, "lora.%s", typed);
    } else {
        snprintf(out, 512, "%s: %s", o->where, peft);
    }
    return out;
}

/* "q_proj, k_proj, ...": each leaf once. */
static int list_leaves(pl_error *err, const pl_model *model, pl_buf *out)
{
    for (int i = 0; i < model->nlinears; i++) {
        const char *leaf = leaf_of(model->linears[i]->name);
        bool seen = false;
        for (int j = 0; j < i && !seen; j++) seen = strcmp(leaf, leaf_of(model->linears[j]->name)) == 0;
        if (!seen) PL_TRY(pl_buf_printf(err, out, "%s%s", out->size ? ", " : "", leaf));
    }
    return 0;
}

/* Replaces all-linear, or nothing, by names. As PEFT: every linear of the blocks, the head left out. */
static int resolve_targets(pl_error *err, const pl_model *model, pl_lora_config *c, const char *where)
{
    if (c->target_modules.rule == PL_MODULES_NONE) {
        const char *targets = pl_lora_default_targets(model->arch.model_type);
        return pl_modules_parse(err, where, targets ? targets : "all-linear", &c->target_modules) < 0
                   ? err->code
                   : (targets ? 0 : resolve_targets(err, model, c, where));
    }
    if (c->target_modules.rule != PL_MODULES_ALL_LINEAR) return 0;
    pl_buf list = {0};
    int rc = 0;
    for (int i = 0; i < model->nlinears && rc == 0; i++) {
        const pl_linear *lin = model->linears[i];
        if (strcmp(lin->name, model->arch.head) == 0) continue;
        const char *leaf = leaf_of(lin->name);
        bool seen = false;
        for (int j = 0; j < i && !seen; j++) seen = strcmp(leaf, leaf_of(model->linears[j]->name)) == 0;
        if (!seen) rc = pl_buf_printf(err, &list, "%s%s", list.size ? "," : "", leaf);
    }
    if (rc == 0) rc = pl_modules_parse(err, where, pl_buf_text(&list), &c->target_modules);
    pl_buf_free(&list);
    return rc;
}

static int add_dora(pl_error *err, pl_model *model, pl_linear *lin, bool train)
{
    pl_param spec = {.ndim = 1,
        .shape = {lin->out},
        .split = PL_SPLIT_COLUMN,
        .role = PL_ROLE_ADAPTER,
        .trainable = train,
        .in_adapter = true,
        .keep_f32 = true,
        .init = PL_INIT_ONE, /* until pl_lora_start_magnitudes */
        .zero_row = -1};
    PL_TRY(pl_model_add_param(err, model, lin->unit, spec, lin->name, "lora_magnitude_vector", &lin->lora->magnitude));
    spec.role = PL_ROLE_DERIVED;
    spec.in_adapter = false;
    spec.trainable = false;
    return pl_model_add_param(err, model, lin->unit, spec, lin->name, "base_norm2", &lin->lora->norm2);
}

/* A base parameter that is trained and kept with the adapter. */
static void train_with_adapter(pl_param *p, bool train)
{
    p->trainable = train;
    p->in_adapter = true;
}

/* What the ways to begin ask of a layer. PiSSA and OLoRA change its weight. */
static int check_init(pl_error *err, const pl_linear *lin, const origin *o)
{
    char field[512];
    const pl_lora *lora = lin->lora;
    int64_t most = lin->in < lin->out ? lin->in : lin->out;
    const char *method = lora->init == PL_LORA_INIT_OLORA ? "olora" : "pissa";
    if (lora->init == PL_LORA_INIT_ORTHOGONAL && lora->rank % 2 != 0) {
        return PL_FAIL(err, PL_EUSAGE, "%s is %lld for %s; the orthogonal start needs an even one",
            name_field(o, "r", "r", field), (long long)lora->rank, lin->name);
    }
    if (!pl_linear_changes_base(lin)) return 0;
    if (lora->rank > most) {
        return PL_FAIL(err, PL_EUSAGE, "%s is %lld for %s; %s takes at most %lld of it (%lld x %lld)",
            name_field(o, "r", "r", field), (long long)lora->rank, lin->name, method, (long long)most,
            (long long)lin->out, (long long)lin->in);
    }
    if (!(lora->scaling > 0)) {
        return PL_FAIL(err, PL_EUSAGE, "%s is not above 0 for %s; %s needs that",
            name_field(o, "alpha", "lora_alpha", field), lin->name, method);
    }
    if (lora->init == PL_LORA_INIT_OLORA && lin->transposed) {
        return PL_FAIL(err, PL_EUNSUPPORTED,
            "%s: olora is not defined for %s, whose weight lies transposed (Conv1D); pissa is",
            name_field(o, "init", "init_lora_weights", field), lin->name);
    }
    if (pl_linear_borrows(lin)) {
        return PL_FAIL(err, PL_EUNSUPPORTED,
            "%s: %s changes the weight of %s, which it shares with the embedding; adapt other layers, or choose "
            "another "
            "start",
            name_field(o, "init", "init_lora_weights", field), method, lin->name);
    }
    lin->weight->is_private = true;
    return 0;
}

/* Declares A, B and what else the configuration asks for; their initial values as PEFT's. */
static int attach(pl_error *err, pl_model *model, pl_linear *lin, const pl_lora_config *c, bool train, float b_lr_ratio,
    const origin *o)
{
    int64_t r;
    double scaling;
    PL_TRY(pl_lora_rank(err, c, lin->name, &r));
    PL_TRY(pl_lora_scaling(err, c, lin->name, &scaling));
    PL_TRY(pl_calloc(err, 1, sizeof *lin->lora, &lin->lora));
    pl_lora *lora = lin->lora;
    *lora = (pl_lora){.rank = r,
        .scaling = (float)scaling,
        .dropout = (float)c->lora_dropout,
        .init = c->init_lora_weights,
        .niter = c->init_niter};
    PL_TRY(check_init(err, lin, o));

    pl_param a = {.ndim = 2,
        .shape = {r, lin->in},
        .role = PL_ROLE_ADAPTER,
        .trainable = train,
        .in_adapter = true,
        .decay = true,
        .init = PL_INIT_UNIFORM, /* Kaiming with a = sqrt 5 */
        .init_scale = 1 / sqrtf((float)lin->in),
        .zero_row = -1};
    if (c->init_lora_weights == PL_LORA_INIT_GAUSSIAN) {
        a.init = PL_INIT_NORMAL;
        a.init_scale = 1 / (float)r;
    }
    pl_param b = a;
    b.shape[0] = lin->out;
    b.shape[1] = r;
    b.split = PL_SPLIT_COLUMN;
    b.init = c->init_lora_weights == PL_LORA_INIT_RANDOM ? PL_INIT_UNIFORM : PL_INIT_ZERO;
    b.init_scale = 1 / sqrtf((float)r);
    b.lr_scale = b_lr_ratio;
    PL_TRY(pl_model_add_param(err, model, lin->unit, a, lin->name, "lora_A.weight", &lora->a));
    PL_TRY(pl_model_add_param(err, model, lin->unit, b, lin->name, "lora_B.weight", &lora->b));
    if (c->lora_bias) {
        b.ndim = 1;
        b.decay = false;
        b.init = PL_INIT_ZERO;
        PL_TRY(pl_model_add_param(err, model, lin->unit, b, lin->name, "lora_B.bias", &lora->b_bias));
    }
    if (c->use_dora) PL_TRY(add_dora(err, model, lin, train));
    if (c->bias == PL_LORA_BIAS_LORA_ONLY && lin->bias) train_with_adapter(lin->bias, train);
    return 0;
}

/* A tied head that trains apart from the embedding, or whose embedding trains apart from it, gets a weight of its own
   that starts from the shared one. */
static int untie_head(pl_error *err, pl_model *model, pl_linear *head)
{
    const pl_param *shared = head->weight;
    pl_param spec = {.ndim = 2,
        .shape = {shared->shape[0], shared->shape[1]},
        .split = shared->split,
        .decay = true,
        .init = shared->init,
        .init_scale = shared->init_scale,
        .zero_row = -1};
    PL_TRY(pl_model_add_param(err, model, head->unit, spec, head->name, "weight", &head->weight));
    return pl_strdup(err, shared->source_name ? shared->source_name : shared->name, &head->weight->source_name);
}

/* Each name by itself must mean something. */
static int check_saved(pl_error *err, const pl_model *model, const pl_lora_config *c)
{
    for (int n = 0; n < c->modules_to_save.count; n++) {
        const pl_lora_config one = {.modules_to_save = {1, &c->modules_to_save.items[n]}};
        bool found = pl_lora_saves(&one, model->arch.head); /* a tied one has no parameter yet */
        for (int i = 0; i < model->nparams && !found; i++) {
            const pl_param *p = model->params[i];
            char *module;
            if (p->role != PL_ROLE_BASE) continue;
            PL_TRY(pl_strndup(err, p->name, module_length(p->name), &module));
            found = pl_lora_saves(&one, module);
            free(module);
        }
        if (found) continue;
        return PL_FAIL(err, PL_EUSAGE,
            "lora.modules_to_save: '%s' is no module of this %s model; it has %s, %s and such",
            c->modules_to_save.items[n], model->arch.model_type, model->arch.head, model->arch.embed);
    }
    return 0;
}

static int save_modules(pl_error *err, pl_model *model, const pl_lora_config *c, bool train, const origin *o)
{
    if (c->modules_to_save.count == 0) return 0;
    if (o->typed) PL_TRY(check_saved(err, model, c));
    pl_linear *head = pl_model_find_linear(model, model->arch.head);
    bool tied = head && model->arch.tied;
    if (tied && (pl_lora_saves(c, head->name) || pl_lora_saves(c, model->arch.embed))) {
        PL_TRY(untie_head(err, model, head));
    }
    int saved = 0;
    for (int i = 0; i < model->nparams; i++) {
        pl_param *p = model->params[i];
        if (p->role != PL_ROLE_BASE) continue;
        char *module;
        PL_TRY(pl_strndup(err, p->name, module_length(p->name), &module));
        p->saved_module = pl_lora_saves(c, module);
        free(module);
        if (!p->saved_module) continue;
        train_with_adapter(p, train);
        saved++;
    }
    if (saved > 0) return 0;
    return PL_FAIL(err, PL_EUSAGE,
        "%s: modules_to_save names nothing that this model has; it has %s, %s and their like", o->where,
        model->arch.head, model->arch.embed);
}

static int nothing_matches(pl_error *err, const pl_model *model, const char *where, const char *pattern)
{
    pl_buf list = {0};
    int rc = list_leaves(err, model, &list);
    if (rc == 0) {
        rc = PL_FAIL(err, PL_EUSAGE, "%s: '%s' matches no linear layer of this %s model; it has %s", where, pattern,
            model->arch.model_type, pl_buf_text(&list));
    }
    pl_buf_free(&list);
    return rc;
}

/* What the configuration asks for beyond linear layers. */
static int refuse(pl_error *err, const pl_model *model, const pl_lora_config *c, const char *where)
{
    if (c->ntokens > 0) {
        return PL_FAIL(err, PL_EUNSUPPORTED, "%s: trainable_token_indices are not supported yet", where);
    }
    if (c->init_lora_weights == PL_LORA_INIT_LOFTQ) {
        return PL_FAIL(
            err, PL_EUNSUPPORTED, "%s: init_lora_weights 'loftq' needs 4-bit weights, which are not there yet", where);
    }
    const char *embeddings[] = {model->arch.embed, model->arch.positions};
    for (int i = 0; i < PL_COUNT(embeddings); i++) {
        pl_lora_match match = PL_LORA_NO;
        if (embeddings[i]) PL_TRY(pl_lora_matches(err, c, embeddings[i], &match));
        if (match != PL_LORA_YES) continue;
        return PL_FAIL(err, PL_EUNSUPPORTED,
            "%s: %s is an embedding, and LoRA is for linear layers here; it can be trained whole with modules_to_save",
            where, embeddings[i]);
    }
    return 0;
}

/* Whether any linear layer is matched by a list of names or a regular expression. */
static int matches_any(pl_error *err, const pl_model *model, pl_modules modules, bool *out)
{
    const pl_lora_config rule = {.target_modules = modules};
    *out = false;
    for (int i = 0; i < model->nlinears && !*out; i++) {
        pl_lora_match match;
        PL_TRY(pl_lora_matches(err, &rule, model->linears[i]->name, &match));
        *out = match == PL_LORA_YES;
    }
    return 0;
}

/* Each name of a list must match something by itself. */
static int check_modules(pl_error *err, const pl_model *model, const pl_modules *modules, const char *where)
{
    bool found;
    for (int n = 0; n < modules->names.count; n++) {
        PL_TRY(matches_any(err, model, (pl_modules){modules->rule, {1, &modules->names.items[n]}}, &found));
        if (!found) return nothing_matches(err, model, where, modules->names.items[n]);
    }
    return 0;
}

/* Each pattern must be for some layer that has an adapter. */
static int check_patterns(pl_error *err, const pl_model *model, const pl_lora_patterns *patterns, const char *field)
{
    for (int n = 0; n < patterns->count; n++) {
        pl_lora_pattern other = {patterns->items[n].key, 2};
        const pl_lora_config one = {.r = 1, .rank_pattern = {1, &other}};
        int64_t found = 1;
        for (int i = 0; i < model->nlinears && found == 1; i++) {
            if (model->linears[i]->lora) PL_TRY(pl_lora_rank(err, &one, model->linears[i]->name, &found));
        }
        if (found == 1) return nothing_matches(err, model, field, other.key);
    }
    return 0;
}

static int check_typed(pl_error *err, const pl_model *model, const pl_lora_config *c)
{
    PL_TRY(check_modules(err, model, &c->exclude_modules, "lora.exclude"));
    PL_TRY(check_patterns(err, model, &c->rank_pattern, "lora.rank_pattern"));
    PL_TRY(check_patterns(err, model, &c->alpha_pattern, "lora.alpha_pattern"));
    for (int i = 0; i < c->nlayers; i++) {
        if (c->layers_to_transform[i] < model->arch.layers) continue;
        return PL_FAIL(err, PL_EUSAGE, "lora.layers: there is no layer %lld; the model has %lld, counted from 0",
            (long long)c->layers_to_transform[i], (long long)model->arch.layers);
    }
    return 0;
}

/* No layer is left for an adapter: by what? */
static int none_left(pl_error *err, const pl_model *model, const pl_lora_config *c, const origin *o)
{
    const pl_names *names = &c->target_modules.names;
    bool found;
    PL_TRY(matches_any(err, model, c->target_modules, &found));
    if (!found) return nothing_matches(err, model, o->where, names->count ? names->items[0] : "");
    return PL_FAIL(err, PL_EUSAGE,
        "%s: no layer is left to adapt: exclude_modules, modules_to_save or layers_to_transform leave none of those "
        "that "
        "target_modules matches",
        o->where);
}

int pl_model_adapt(pl_error *err, pl_model *model, pl_lora_config *config, bool train, bool strict, float b_lr_ratio,
    const char *where)
{
    PL_TRY(resolve_targets(err, model, config, where));
    PL_TRY(refuse(err, model, config, where));
    const origin o = {where, strict};
    if (strict) PL_TRY(check_modules(err, model, &config->target_modules, where));
    int adapted = 0;
    config->fan_in_fan_out = false; /* as PEFT, whatever was said: it follows from the layers */
    for (int i = 0; i < model->nlinears; i++) {
        pl_lora_match match;
        PL_TRY(pl_lora_matches(err, config, model->linears[i]->name, &match));
        if (match != PL_LORA_YES) continue;
        PL_TRY(attach(err, model, model->linears[i], config, train, b_lr_ratio, &o));
        config->fan_in_fan_out |= model->linears[i]->transposed;
        adapted++;
    }
    if (adapted == 0) return none_left(err, model, config, &o);
    if (strict) PL_TRY(check_typed(err, model, config));
    for (int i = 0; i < model->nparams && config->bias == PL_LORA_BIAS_ALL; i++) {
        pl_param *p = model->params[i];
        if (p->role == PL_ROLE_BASE && strcmp(leaf_of(p->name), "bias") == 0) train_with_adapter(p, train);
    }
    return save_modules(err, model, config, train, &o);
}
