#include "model/arch_families.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/file.h"

/* Sizes beyond these are mistakes, and products of what is below them stay far from overflow. */
#define MAX_WIDTH (1 << 24)
#define MAX_HEADS (1 << 16)
#define MAX_LAYERS (1 << 16)

static const char *or_usual(const char *own, const char *usual)
{
    return own ? own : usual;
}

/* Grouped heads and the size of a head. num_key_value_heads null means "as many as heads", absent the default. */
static int read_heads(pl_config *c, const pl_family *f, pl_arch *a)
{
    const char *heads = or_usual(f->heads_field, "num_attention_heads");
    const char *hidden = or_usual(f->hidden_field, "hidden_size");
    PL_TRY(pl_config_int2(c, heads, f->usual_names_too ? "num_attention_heads" : NULL, 1, MAX_HEADS, &a->heads));
    if (a->kv_heads == 0 || pl_config_given(c, "num_key_value_heads") == PL_NULL) a->kv_heads = a->heads;
    PL_TRY(pl_config_int(c, "num_key_value_heads", 1, MAX_HEADS, &a->kv_heads));
    if (f->one_head_size && a->kv_heads != a->heads) {
        return PL_FAIL(c->err, PL_EUNSUPPORTED,
            "%s: num_key_value_heads is %lld and %s is %lld; %s has no grouped heads", c->where, (long long)a->kv_heads,
            heads, (long long)a->heads, a->model_type);
    }
    if (a->heads % a->kv_heads) {
        return PL_FAIL(c->err, PL_EINPUT, "%s: %s is %lld; it must be a multiple of num_key_value_heads, %lld%s",
            c->where, heads, (long long)a->heads, (long long)a->kv_heads,
            pl_config_value(c, "num_key_value_heads") ? "" : " (the default)");
    }
    bool given = pl_config_value(c, "head_dim") != NULL;
    if (a->head_dim == 0 && (!given || f->one_head_size) && a->hidden % a->heads) {
        return PL_FAIL(c->err, PL_EINPUT, "%s: %s is %lld; it must be a multiple of %s, %lld%s", c->where, hidden,
            (long long)a->hidden, heads, (long long)a->heads, f->one_head_size ? "" : ", or head_dim must be given");
    }
    if (a->head_dim == 0) a->head_dim = a->hidden / a->heads > 0 ? a->hidden / a->heads : 1;
    int64_t natural = a->head_dim;
    PL_TRY(pl_config_int(c, "head_dim", 1, MAX_HEADS, &a->head_dim));
    if (f->one_head_size && a->head_dim != natural) {
        return PL_FAIL(c->err, PL_EUNSUPPORTED, "%s: head_dim is %lld; %s always has %s / %s, here %lld", c->where,
            (long long)a->head_dim, a->model_type, hidden, heads, (long long)natural);
    }
    if (a->heads * a->head_dim <= MAX_WIDTH) return 0;
    return PL_FAIL(c->err, PL_EINPUT, "%s: %s (%lld) times head_dim (%lld) is more than %d", c->where, heads,
        (long long)a->heads, (long long)a->head_dim, MAX_WIDTH);
}

static int read_sizes(pl_config *c, const pl_family *f, pl_arch *a)
{
    bool too = f->usual_names_too;
    PL_TRY(pl_config_int(c, "vocab_size", 1, INT32_MAX, &a->vocab));
    PL_TRY(pl_config_int2(
        c, or_usual(f->hidden_field, "hidden_size"), too ? "hidden_size" : NULL, 1, MAX_WIDTH, &a->hidden));
    PL_TRY(pl_config_int2(c, or_usual(f->layers_field, "num_hidden_layers"), too ? "num_hidden_layers" : NULL, 1,
        MAX_LAYERS, &a->layers));
    PL_TRY(pl_config_int2(c, or_usual(f->positions_field, "max_position_embeddings"),
        too ? "max_position_embeddings" : NULL, 1, INT32_MAX - 16, &a->max_positions));
    PL_TRY(read_heads(c, f, a));
    if (a->intermediate == 0) a->intermediate = 4 * a->hidden;
    PL_TRY(pl_config_int(c, or_usual(f->intermediate_field, "intermediate_size"), 1, 4 * MAX_WIDTH, &a->intermediate));
    a->embed_dim = a->hidden;
    return 0;
}

static int read_numbers(pl_config *c, const pl_family *f, pl_arch *a)
{
    const char *eps = or_usual(f->eps_field, "rms_norm_eps");
    if (*eps) PL_TRY(pl_config_float(c, eps, 0, 1, &a->norm_eps));
    PL_TRY(pl_config_act(c, or_usual(f->act_field, "hidden_act"), &a->act));
    PL_TRY(pl_config_bool(c, "tie_word_embeddings", &a->tied));
    if (f->init_field) PL_TRY(pl_config_float(c, f->init_field, 0, 100, &a->init_std));
    float std = a->init_std;
    PL_TRY(pl_config_float(c, "initializer_range", 0, 100, &std));
    if (std > 0) a->init_std = std; /* HF takes 0 for "not given" */
    a->init_residual_std = a->init_std;
    if (f->attention_bias) {
        bool bias = a->q_bias;
        PL_TRY(pl_config_bool(c, "attention_bias", &bias));
        a->q_bias = a->k_bias = a->v_bias = a->o_bias = bias;
    } else if (a->q_bias) {
        bool bias = true;
        PL_TRY(pl_config_bool(c, "attention_bias", &bias));
        if (!bias) {
            pl_logf(c->log, PL_LOG_WARNING,
                "%s: attention_bias is false, but queries, keys and values of every %s have a bias", c->where,
                a->model_type);
        }
    }
    if (f->mlp_bias) PL_TRY(pl_config_bool(c, "mlp_bias", &a->mlp_bias));
    return 0;
}

static int read_dtype(pl_config *c, pl_arch *a)
{
    const char *name = NULL, *old = NULL;
    PL_TRY(pl_config_string(c, "torch_dtype", &old));
    PL_TRY(pl_config_string(c, "dtype", &name));
    a->file_dtype = PL_F32;
    if (!name) name = old;
    if (!name) return 0;
    if (!strncmp(name, "torch.", 6)) name += 6;
    if (!strcmp(name, "float32") || !strcmp(name, "float")) return 0;
    if (!strcmp(name, "bfloat16")) {
        a->file_dtype = PL_BF16;
        return 0;
    }
    if (!strcmp(name, "float16") || !strcmp(name, "half")) {
        a->file_dtype = PL_F16;
        return 0;
    }
    return PL_FAIL(
        c->err, PL_EUNSUPPORTED, "%s: dtype is \"%.40s\"; supported are float32, bfloat16 and float16", c->where, name);
}

/* A number or a list of them, or null for none; negative ones mean none too. */
static int read_eos(pl_config *c, pl_arch *a)
{
    pl_given given = pl_config_given(c, "eos_token_id");
    if (given == PL_ABSENT) return 0;
    a->neos = 0;
    if (given == PL_NULL) return 0;
    const json_t *value = pl_config_value(c, "eos_token_id");
    size_t count = json_is_array(value) ? json_array_size(value) : 1;
    if (count > (size_t)PL_COUNT(a->eos_tokens)) {
        return PL_FAIL(c->err, PL_EUNSUPPORTED, "%s: eos_token_id has %zu entries; at most %d are supported", c->where,
            count, PL_COUNT(a->eos_tokens));
    }
    for (size_t i = 0; i < count; i++) {
        const json_t *id = json_is_array(value) ? json_array_get(value, i) : value;
        int64_t number = 0;
        if (!pl_config_whole(id, &number) || number > INT32_MAX) {
            char text[64];
            return PL_FAIL(c->err, PL_EINPUT, "%s: eos_token_id is %s; expected a token id or a list of them", c->where,
                pl_config_show(value, text));
        }
        if (number >= 0) a->eos_tokens[a->neos++] = number;
    }
    return 0;
}

static int read_token(pl_config *c, const char *field, int64_t *out)
{
    if (pl_config_given(c, field) == PL_NULL) *out = -1;
    return pl_config_int(c, field, INT32_MIN, INT32_MAX, out);
}

static int read_tokens(pl_config *c, const pl_family *f, pl_arch *a)
{
    PL_TRY(read_token(c, "bos_token_id", &a->bos_token));
    PL_TRY(read_eos(c, a));
    pl_given given = pl_config_given(c, "pad_token_id");
    PL_TRY(read_token(c, "pad_token_id", &a->pad_token));
    if (a->bos_token < 0) a->bos_token = -1;
    if (!f->pads_embedding) {
        a->pad_token = -1;
        return 0;
    }
    /* torch counts a negative padding index from the end of the table. */
    int64_t id = given == PL_GIVEN && a->pad_token < 0 ? a->pad_token + a->vocab : a->pad_token;
    if (id < a->vocab && id >= (given == PL_GIVEN ? 0 : -1)) {
        a->pad_token = id;
        return 0;
    }
    return PL_FAIL(c->err, PL_EINPUT, "%s: pad_token_id is %lld%s; expected null or an id below vocab_size, %lld",
        c->where, (long long)a->pad_token, given == PL_ABSENT ? " (the default)" : "", (long long)a->vocab);
}

/* generation_config.json says what stops generation; what it leaves out is as in config.json. */
static int read_generation(pl_error *err, const pl_log *log, const char *where, const json_t *generation, pl_arch *a)
{
    if (!generation || json_is_null(generation)) return 0;
    if (!json_is_object(generation)) {
        return PL_FAIL(err, PL_EINPUT, "%s: generation_config.json is %s; expected an object", where,
            pl_json_type_name(generation));
    }
    char *name = NULL;
    PL_TRY(pl_format(err, &name, "%s (generation_config.json)", where));
    pl_config c = {.err = err, .log = log, .where = name, .object = generation};
    int rc = 0;
    if (pl_config_value(&c, "eos_token_id")) rc = read_eos(&c, a);
    if (rc == 0 && pl_config_value(&c, "bos_token_id")) rc = read_token(&c, "bos_token_id", &a->bos_token);
    free(name);
    return rc;
}

static bool slides_by_rule(const pl_family *f, const pl_arch *a, int64_t i, int64_t late, int64_t pattern)
{
    switch (f->windows) {
    case PL_WINDOW_ALWAYS: return true;
    case PL_WINDOW_LATE: return i >= late;
    case PL_WINDOW_ALTERNATE: return i % 2 == 0;
    case PL_WINDOW_PATTERN: return (i + 1) % pattern != 0;
    case PL_WINDOW_NOPE: return a->layer[i].rope < 0;
    default: return false;
    }
}

/* layer_types[i]: 1 sliding, 0 full, or an error. */
static int read_layer_type(pl_config *c, const json_t *list, int64_t i)
{
    static const char *const others[] = {"chunked_attention", "linear_attention", "mamba", "conv", "moe", "hybrid",
        "window_attention", "indexed_attention", "compressed_sparse_attention", "sparse", "dense"};
    const json_t *value = json_array_get(list, (size_t)i);
    const char *name = json_is_string(value) ? json_string_value(value) : "";
    if (!strcmp(name, "sliding_attention")) return 1;
    if (!strcmp(name, "full_attention") || !strcmp(name, "attention")) return 0;
    int code = PL_EINPUT;
    for (int k = 0; k < PL_COUNT(others); k++) {
        if (!strcmp(name, others[k])) code = PL_EUNSUPPORTED;
    }
    char text[64];
    return PL_FAIL(c->err, code, "%s: layer_types[%lld] is %s; expected \"full_attention\" or \"sliding_attention\"",
        c->where, (long long)i, pl_config_show(value, text));
}

/* What decides about the layers that layer_types does not name. */
typedef struct pl_window_fields {
    bool use;
    int64_t window, late, pattern;
} pl_window_fields;

static int read_window_fields(pl_config *c, const pl_family *f, pl_window_fields *w)
{
    *w = (pl_window_fields){.use = true, .window = f->window, .late = 28, .pattern = 6};
    if (f->windows == PL_WINDOW_NEVER) {
        w->use = false;
        return 0;
    }
    if (pl_config_given(c, "sliding_window") == PL_NULL) w->window = 0;
    if (pl_config_value(c, "sliding_window")) PL_TRY(pl_config_int(c, "sliding_window", 1, INT32_MAX, &w->window));
    if (f->windows == PL_WINDOW_LATE || f->windows == PL_WINDOW_NOPE) {
        w->use = false;
        PL_TRY(pl_config_bool(c, "use_sliding_window", &w->use));
    }
    if (f->windows == PL_WINDOW_LATE) PL_TRY(pl_config_int(c, "max_window_layers", 0, INT32_MAX, &w->late));
    if (f->windows != PL_WINDOW_PATTERN) return 0;
    PL_TRY(pl_config_int(c, "sliding_window_pattern", 1, INT32_MAX, &w->pattern));
    /* Files with an underscore have layer_types too, which count. */
    int64_t pattern = w->pattern;
    PL_TRY(pl_config_int(c, "_sliding_window_pattern", 1, INT32_MAX, &pattern));
    if (pattern == w->pattern || pl_config_value(c, "layer_types")) return 0;
    return PL_FAIL(c->err, PL_EINPUT,
        "%s: _sliding_window_pattern is %lld without layer_types; give layer_types or "
        "sliding_window_pattern",
        c->where, (long long)pattern);
}

static int read_windows(pl_config *c, const pl_family *f, pl_arch *a)
{
    pl_window_fields w;
    PL_TRY(read_window_fields(c, f, &w));
    const json_t *types = pl_config_value(c, "layer_types");
    if (types && (!json_is_array(types) || json_array_size(types) != (size_t)a->layers)) {
        return PL_FAIL(c->err, PL_EINPUT,
            "%s: layer_types has %lld entries; expected a list of %lld, one for each layer", c->where,
            (long long)json_array_size(types), (long long)a->layers);
    }
    bool says = f->windows != PL_WINDOW_NEVER && f->windows != PL_WINDOW_ALWAYS;
    for (int64_t i = 0; i < a->layers; i++) {
        bool slides = w.use && w.window > 0 && slides_by_rule(f, a, i, w.late, w.pattern);
        int named = types ? read_layer_type(c, types, i) : slides;
        if (named < 0) return named;
        if (named != slides && !says) {
            return PL_FAIL(c->err, PL_EUNSUPPORTED, "%s: layer_types[%lld] is %s; in model_type %s that layer is %s",
                c->where, (long long)i, named ? "sliding_attention" : "full_attention", a->model_type,
                slides ? "sliding" : "full");
        }
        if (named && !(w.use && w.window > 0)) {
            return PL_FAIL(c->err, PL_EINPUT, "%s: layer_types[%lld] is sliding_attention, but %s", c->where,
                (long long)i, w.use ? "sliding_window is null" : "use_sliding_window is false");
        }
        a->layer[i].window = named ? w.window : 0;
        if (f->rope_by_layer_type && named) a->layer[i].rope = 1;
    }
    /* Alternation is the rule even where no window is given; HF fails then too. */
    if ((f->windows == PL_WINDOW_ALTERNATE || f->windows == PL_WINDOW_PATTERN) && !types && w.window == 0) {
        return PL_FAIL(c->err, PL_EINPUT, "%s: sliding_window is null, but %s has sliding layers; give layer_types",
            c->where, a->model_type);
    }
    return 0;
}

/* smollm3: which layers go without a rotary embedding. The list may be longer than the model. */
static int read_nope(pl_config *c, pl_arch *a)
{
    int64_t interval = 4;
    PL_TRY(pl_config_int(c, "no_rope_layer_interval", 1, INT32_MAX, &interval));
    const json_t *list = pl_config_value(c, "no_rope_layers");
    if (list && (!json_is_array(list) || json_array_size(list) < (size_t)a->layers)) {
        return PL_FAIL(c->err, PL_EINPUT,
            "%s: no_rope_layers has %lld entries; expected a list of %lld, 1 for each layer with a rotary embedding",
            c->where, (long long)json_array_size(list), (long long)a->layers);
    }
    for (int64_t i = 0; i < a->layers; i++) {
        bool rotary = (i + 1) % interval != 0;
        if (list) {
            const json_t *v = json_array_get(list, (size_t)i);
            int64_t number = json_is_true(v);
            if (!json_is_boolean(v) && !(pl_config_whole(v, &number) && (number == 0 || number == 1))) {
                char text[64];
                return PL_FAIL(c->err, PL_EINPUT, "%s: no_rope_layers[%lld] is %s; expected 1 (rotary) or 0 (none)",
                    c->where, (long long)i, pl_config_show(v, text));
            }
            rotary = number == 1;
        }
        a->layer[i].rope = rotary ? 0 : -1;
    }
    return 0;
}

static int read_layers(pl_config *c, const pl_family *f, pl_arch *a)
{
    PL_TRY(pl_calloc(c->err, (size_t)a->layers, sizeof *a->layer, &a->layer));
    for (int64_t i = 0; i < a->layers; i++) {
        a->layer[i] =
            (pl_layer_spec){.rope = a->nropes ? 0 : -1, .score_scale = (float)(1 / sqrt((double)a->head_dim))};
    }
    if (f->windows == PL_WINDOW_NOPE) PL_TRY(read_nope(c, a));
    return read_windows(c, f, a);
}

/* Files of classifiers and the like hold another head than the one that is trained here. */
static int check_architectures(pl_config *c)
{
    static const char *const fine[] = {"ForCausalLM", "LMHeadModel", "DoubleHeadsModel", "Model"};
    const json_t *list = pl_config_value(c, "architectures"), *entry;
    if (!list) return 0;
    if (!json_is_array(list)) {
        return PL_FAIL(
            c->err, PL_EINPUT, "%s: architectures is %s; expected a list of names", c->where, pl_json_type_name(list));
    }
    size_t index;
    json_array_foreach((json_t *)(uintptr_t)list, index, entry)
    {
        const char *name = json_is_string(entry) ? json_string_value(entry) : "";
        bool ok = false;
        for (int i = 0; i < PL_COUNT(fine); i++) {
            size_t size = strlen(name), tail = strlen(fine[i]);
            ok = ok || (size >= tail && !strcmp(name + size - tail, fine[i]));
        }
        char text[64];
        if (!ok) {
            return PL_FAIL(c->err, PL_EUNSUPPORTED,
                "%s: architectures[%zu] is %s; only language models are supported "
                "(...ForCausalLM)",
                c->where, index, pl_config_show(entry, text));
        }
    }
    return 0;
}

static int read_all(pl_config *c, const pl_family *f, pl_arch *a)
{
    PL_TRY(check_architectures(c));
    PL_TRY(read_sizes(c, f, a));
    PL_TRY(read_numbers(c, f, a));
    PL_TRY(read_dtype(c, a));
    PL_TRY(read_tokens(c, f, a));
    PL_TRY(pl_config_ropes(c, f, a));
    PL_TRY(read_layers(c, f, a));
    PL_TRY(pl_config_dropouts(c, f->dropouts));
    if (f->read) PL_TRY(f->read(c, a));
    return pl_config_finish(c, a->model_type);
}

int pl_arch_parse(
    pl_error *err, const pl_log *log, const char *where, const json_t *config, const json_t *generation, pl_arch *arch)
{
    *arch = (pl_arch){0};
    if (!json_is_object(config)) {
        return PL_FAIL(err, PL_EINPUT, "%s: is %s; expected an object", where, pl_json_type_name(config));
    }
    pl_config c = {.err = err, .log = log, .where = where, .object = config};
    const char *type = NULL;
    PL_TRY(pl_config_string(&c, "model_type", &type));
    if (!type) return PL_FAIL(err, PL_EINPUT, "%s: model_type is missing", where);
    const pl_family *family = pl_family_find(type);
    if (!family) return pl_family_unknown(err, where, type);
    *arch = family->base;
    int rc = 0;
    PL_GO(fail, pl_strdup(err, type, &arch->model_type));
    PL_GO(fail, read_all(&c, family, arch));
    PL_GO(fail, read_generation(err, log, where, generation, arch));
    return 0;
fail:
    pl_arch_free(arch);
    return rc;
}

int pl_arch_read(pl_error *err, const pl_log *log, const char *folder, pl_arch *arch)
{
    *arch = (pl_arch){0};
    int rc = 0;
    char *path = NULL, *generation_path = NULL;
    json_t *config = NULL, *generation = NULL;
    PL_GO(done, pl_path_join(err, folder, "config.json", &path));
    PL_GO(done, pl_path_join(err, folder, "generation_config.json", &generation_path));
    PL_GO(done, pl_json_read(err, path, &config));
    if (pl_file_exists(generation_path)) PL_GO(done, pl_json_read(err, generation_path, &generation));
    rc = pl_arch_parse(err, log, path, config, generation, arch);
done:
    json_decref(generation);
    json_decref(config);
    free(generation_path);
    free(path);
    return rc;
}

void pl_arch_free(pl_arch *arch)
{
    for (int i = 0; i < PL_MAX_ROPES; i++) {
        free(arch->ropes[i].short_factor);
        free(arch->ropes[i].long_factor);
    }
    free(arch->layer);
    free(arch->model_type);
    *arch = (pl_arch){0};
}
