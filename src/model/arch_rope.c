/* config.json's rotary embeddings: rope_theta with rope_scaling, as files were until transformers 4, or rope_parameters
   since 5. Follows RotaryEmbeddingConfigMixin. */
#include "model/arch_families.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"

#define MAX_FACTOR 1e9
#define MAX_THETA 1e18
#define MAX_POSITIONS INT32_MAX

static bool is_phi3(const pl_family *family)
{
    return !strcmp(family->model_type, "phi3");
}

static const char *const kinds[] = {"default", "linear", "dynamic", "llama3", "yarn", "longrope"}; /* pl_rope_kind */

static int read_kind(pl_config *d, bool phi3, pl_rope_kind *out)
{
    const char *name = NULL, *old = NULL;
    PL_TRY(pl_config_string(d, "rope_type", &name));
    PL_TRY(pl_config_string(d, "type", &old));
    if (name && old && strcmp(name, old)) {
        return PL_FAIL(d->err, PL_EINPUT, "%s: rope_type is \"%.40s\" and type is \"%.40s\"; they name the same thing",
            d->where, name, old);
    }
    if (!name) name = old ? old : "default";
    /* Phi-3's first files said "su", and for a while "yarn", for what is now called longrope. */
    const char *meant = phi3 && (!strcmp(name, "su") || !strcmp(name, "yarn")) ? "longrope" : name;
    for (int i = 0; i < PL_COUNT(kinds); i++) {
        if (strcmp(kinds[i], meant)) continue;
        *out = (pl_rope_kind)i;
        if (!phi3 || i == PL_ROPE_DEFAULT || i == PL_ROPE_LONGROPE) return 0;
        return PL_FAIL(
            d->err, PL_EUNSUPPORTED, "%s: rope_type is \"%s\"; phi3 knows default and longrope", d->where, name);
    }
    return PL_FAIL(d->err, PL_EUNSUPPORTED,
        "%s: rope_type is \"%.40s\"; supported are default, linear, dynamic, llama3, yarn and longrope", d->where,
        name);
}

static int need(pl_config *d, const char *field, const char *kind)
{
    if (pl_config_value(d, field)) return 0;
    return PL_FAIL(d->err, PL_EINPUT, "%s: %s is missing; rope_type %s needs it", d->where, field, kind);
}

static int read_factors(pl_config *d, const char *field, int count, double **out)
{
    PL_TRY(need(d, field, "longrope"));
    const json_t *list = pl_config_value(d, field);
    if (!json_is_array(list) || json_array_size(list) != (size_t)count) {
        return PL_FAIL(d->err, PL_EINPUT,
            "%s: %s has %lld entries; expected a list of %d numbers (half the rotary dims)", d->where, field,
            json_is_array(list) ? (long long)json_array_size(list) : 0LL, count);
    }
    PL_TRY(pl_calloc(d->err, (size_t)count, sizeof **out, out));
    for (int i = 0; i < count; i++) {
        const json_t *v = json_array_get(list, (size_t)i);
        double f = json_number_value(v);
        if (!(f > 1e-9 && f < MAX_FACTOR)) {
            char text[64];
            return PL_FAIL(d->err, PL_EINPUT, "%s: %s[%d] is %s; expected a positive number", d->where, field, i,
                pl_config_show(v, text));
        }
        (*out)[i] = f;
    }
    return 0;
}

/* original_max_position_embeddings: beside the rope's parameters it has precedence over the one among them. */
static int read_original(pl_config *c, pl_config *d, const pl_family *family, const pl_arch *arch, pl_rope_spec *rope)
{
    rope->original_positions = arch->max_positions;
    PL_TRY(pl_config_int(d, "original_max_position_embeddings", 1, MAX_POSITIONS, &rope->original_positions));
    if (family->rope_by_layer_type) return 0;
    if (is_phi3(family)) rope->original_positions = 4096; /* the default of the field beside */
    return pl_config_int(c, "original_max_position_embeddings", 1, MAX_POSITIONS, &rope->original_positions);
}

static int read_llama3(pl_config *d, pl_rope_spec *rope)
{
    PL_TRY(need(d, "low_freq_factor", "llama3"));
    PL_TRY(need(d, "high_freq_factor", "llama3"));
    PL_TRY(pl_config_real(d, "low_freq_factor", 1e-9, MAX_FACTOR, &rope->low_freq_factor));
    PL_TRY(pl_config_real(d, "high_freq_factor", 1e-9, MAX_FACTOR, &rope->high_freq_factor));
    if (rope->high_freq_factor > rope->low_freq_factor) return 0;
    return PL_FAIL(d->err, PL_EINPUT, "%s: high_freq_factor is %g; it must be above low_freq_factor, %g", d->where,
        rope->high_freq_factor, rope->low_freq_factor);
}

static int read_yarn(pl_config *c, pl_config *d, const pl_arch *arch, pl_rope_spec *rope)
{
    double ratio = (double)arch->max_positions / (double)rope->original_positions;
    if (rope->factor == 0) rope->factor = ratio; /* "factor": null */
    if (ratio != 1 && ratio != rope->factor) {
        pl_logf(c->log, PL_LOG_WARNING,
            "%s: factor is %g, but max_position_embeddings / original_max_position_embeddings is %g; the factor counts",
            d->where, rope->factor, ratio);
    }
    PL_TRY(pl_config_real(d, "beta_fast", 0, MAX_FACTOR, &rope->beta_fast));
    PL_TRY(pl_config_real(d, "beta_slow", 0, MAX_FACTOR, &rope->beta_slow));
    if (rope->beta_fast == 0) rope->beta_fast = 32;
    if (rope->beta_slow == 0) rope->beta_slow = 1;
    PL_TRY(pl_config_real(d, "mscale", 0, MAX_FACTOR, &rope->mscale));
    PL_TRY(pl_config_real(d, "mscale_all_dim", 0, MAX_FACTOR, &rope->mscale_all_dim));
    PL_TRY(pl_config_real(d, "attention_factor", -1, MAX_FACTOR, &rope->attention_factor));
    rope->truncate = pl_config_given(d, "truncate") != PL_NULL;
    PL_TRY(pl_config_bool(d, "truncate", &rope->truncate));
    if (rope->theta > 1) return 0;
    return PL_FAIL(d->err, PL_EINPUT, "%s: rope_theta is %g; yarn needs more than 1", d->where, rope->theta);
}

static int read_longrope(pl_config *d, const pl_arch *arch, pl_rope_spec *rope)
{
    if (rope->factor == 0) rope->factor = (double)arch->max_positions / (double)rope->original_positions;
    PL_TRY(pl_config_real(d, "attention_factor", -1, MAX_FACTOR, &rope->attention_factor));
    if (rope->original_positions < 2 && rope->attention_factor < 0) {
        return PL_FAIL(d->err, PL_EINPUT, "%s: original_max_position_embeddings is %lld; longrope needs 2 or more",
            d->where, (long long)rope->original_positions);
    }
    PL_TRY(read_factors(d, "short_factor", rope->rotary / 2, &rope->short_factor));
    return read_factors(d, "long_factor", rope->rotary / 2, &rope->long_factor);
}

/* `theta` and `partial` are what counts when the dictionary does not say. */
static int read_rope(pl_config *c, pl_config *d, const pl_family *family, const pl_arch *arch, double theta,
    double partial, pl_rope_spec *rope)
{
    *rope = (pl_rope_spec){.theta = theta, .max_positions = arch->max_positions, .attention_factor = -1};
    PL_TRY(read_kind(d, is_phi3(family), &rope->kind));
    PL_TRY(pl_config_real(d, "rope_theta", 1e-9, MAX_THETA, &rope->theta));
    PL_TRY(pl_config_real(d, "partial_rotary_factor", 0, 1, &partial));
    if (family->partial_rotary == 0 && partial != 1) {
        return PL_FAIL(c->err, PL_EUNSUPPORTED, "%s: partial_rotary_factor is %g; %s rotates whole heads", d->where,
            partial, family->model_type);
    }
    rope->rotary = (int)((double)arch->head_dim * partial);
    int least = rope->kind == PL_ROPE_DYNAMIC ? 4 : 2;
    if (rope->rotary < least || rope->rotary % 2) {
        return PL_FAIL(c->err, PL_EINPUT,
            "%s: the rotary embedding turns %d dims of a head (head_dim %lld, of which a part of %g); expected an even "
            "number of at least %d",
            d->where, rope->rotary, (long long)arch->head_dim, partial, least);
    }
    if (is_phi3(family)) pl_config_given(c, "original_max_position_embeddings"); /* a field of every phi3 */
    if (rope->kind == PL_ROPE_DEFAULT) return 0;
    bool optional =
        rope->kind == PL_ROPE_LONGROPE || (rope->kind == PL_ROPE_YARN && pl_config_given(d, "factor") == PL_NULL);
    if (!optional) PL_TRY(need(d, "factor", kinds[rope->kind]));
    if (pl_config_value(d, "factor")) PL_TRY(pl_config_real(d, "factor", 1e-9, MAX_FACTOR, &rope->factor));
    if (rope->kind >= PL_ROPE_LLAMA3) PL_TRY(read_original(c, d, family, arch, rope));
    switch (rope->kind) {
    case PL_ROPE_LLAMA3: return read_llama3(d, rope);
    case PL_ROPE_YARN: return read_yarn(c, d, arch, rope);
    case PL_ROPE_LONGROPE: return read_longrope(d, arch, rope);
    default: return 0;
    }
}

/* Reads one embedding from `object`, which messages call `name`, and tells what it has besides. */
static int read_dict(pl_config *c, const char *name, const json_t *object, const pl_family *family, const pl_arch *arch,
    double theta, double partial, pl_rope_spec *rope)
{
    char *where = NULL;
    PL_TRY(pl_format(c->err, &where, "%s: %s", c->where, name));
    pl_config d = {.err = c->err, .log = c->log, .where = where, .object = object};
    int rc = read_rope(c, &d, family, arch, theta, partial, rope);
    if (rc == 0) rc = pl_config_finish(&d, family->model_type);
    free(where);
    return rc;
}

/* *out is NULL when the field is absent, null or empty. */
static int get_object(pl_config *c, const json_t *from, const char *field, const json_t **out)
{
    const json_t *value = json_object_get(from, field);
    *out = NULL;
    if (!value || json_is_null(value)) return 0;
    if (!json_is_object(value)) {
        return PL_FAIL(
            c->err, PL_EINPUT, "%s: %s is %s; expected an object", c->where, field, pl_json_type_name(value));
    }
    if (json_object_size(value)) *out = value;
    return 0;
}

/* A field that has two names, the family's own and the usual one, which older files write as well. */
static int read_either(pl_config *c, const char *own, const char *usual, double low, double high, double *out)
{
    if (!own) return pl_config_real(c, usual, low, high, out);
    PL_TRY(pl_config_real(c, own, low, high, out));
    double other = *out;
    PL_TRY(pl_config_real(c, usual, low, high, &other));
    if (other == *out) return 0;
    return PL_FAIL(c->err, PL_EINPUT, "%s: %s is %g, but %s, which counts here, is %g; set both to the same value",
        c->where, usual, other, own, *out);
}

/* A scaled embedding is there for sequences longer than those that the model was trained with, which many
   configurations leave in max_position_embeddings. */
static void lengthen(pl_arch *arch)
{
    const pl_rope_spec *rope = &arch->ropes[0];
    int64_t trained = rope->kind == PL_ROPE_YARN ? rope->original_positions : arch->max_positions;
    bool scaled = rope->kind == PL_ROPE_LINEAR || rope->kind == PL_ROPE_DYNAMIC || rope->kind == PL_ROPE_YARN;
    double positions = scaled ? fmin((double)trained * rope->factor, (double)MAX_POSITIONS) : 0;
    if (positions > (double)arch->max_positions) arch->max_positions = (int64_t)positions;
}

static int read_single(
    pl_config *c, const pl_family *family, const json_t *scaling, const json_t *parameters, pl_arch *arch)
{
    double theta = family->theta, partial = family->partial_rotary > 0 ? family->partial_rotary : 1;
    PL_TRY(read_either(c, family->theta_field, "rope_theta", 1e-9, MAX_THETA, &theta));
    PL_TRY(read_either(c, family->partial_field, "partial_rotary_factor", 0, 1, &partial));
    const json_t *object = scaling ? scaling : parameters;
    if (scaling && parameters && !json_equal(scaling, parameters)) {
        pl_logf(c->log, PL_LOG_WARNING, "%s: has both rope_scaling and rope_parameters; rope_scaling counts", c->where);
    }
    if (json_object_get(object, "full_attention") || json_object_get(object, "sliding_attention")) {
        return PL_FAIL(c->err, PL_EUNSUPPORTED,
            "%s: rope_parameters differ by layer type; model_type %s has one rotary embedding for all layers", c->where,
            family->model_type);
    }
    arch->nropes = 1;
    PL_TRY(read_dict(
        c, scaling ? "rope_scaling" : "rope_parameters", object, family, arch, theta, partial, &arch->ropes[0]));
    lengthen(arch);
    return 0;
}

/* Gemma 3: ropes[0] is that of the full layers, which alone are scaled, ropes[1] that of the sliding ones. */
static int read_by_layer_type(
    pl_config *c, const pl_family *family, const json_t *scaling, const json_t *parameters, pl_arch *arch)
{
    double theta = family->theta, local = 1e4;
    PL_TRY(pl_config_real(c, "rope_theta", 1e-9, MAX_THETA, &theta));
    PL_TRY(pl_config_real(c, "rope_local_base_freq", 1e-9, MAX_THETA, &local));
    const json_t *full, *sliding;
    PL_TRY(get_object(c, parameters, "full_attention", &full));
    PL_TRY(get_object(c, parameters, "sliding_attention", &sliding));
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)parameters, key, value)
    {
        (void)value;
        if (strcmp(key, "full_attention") && strcmp(key, "sliding_attention")) {
            return PL_FAIL(c->err, PL_EINPUT,
                "%s: rope_parameters has %.40s; for model_type %s it holds full_attention and sliding_attention",
                c->where, key, family->model_type);
        }
    }
    /* json_copy would drop what it has no memory for, and say nothing. */
    json_t *merged = json_object();
    if (!merged || (full && json_object_update(merged, (json_t *)(uintptr_t)full)) ||
        (scaling && json_object_update(merged, (json_t *)(uintptr_t)scaling))) {
        json_decref(merged);
        return PL_FAIL_NOMEM(c->err);
    }
    arch->nropes = 2;
    int rc = read_dict(
        c, full ? "rope_parameters.full_attention" : "rope_scaling", merged, family, arch, theta, 1, &arch->ropes[0]);
    json_decref(merged);
    PL_TRY(rc);
    return read_dict(c, "rope_parameters.sliding_attention", sliding, family, arch, local, 1, &arch->ropes[1]);
}

int pl_config_ropes(pl_config *c, const pl_family *family, pl_arch *arch)
{
    if (family->theta == 0) return 0;
    const json_t *scaling, *parameters;
    pl_config_given(c, "rope_scaling");
    pl_config_given(c, "rope_parameters");
    PL_TRY(get_object(c, c->object, "rope_scaling", &scaling));
    PL_TRY(get_object(c, c->object, "rope_parameters", &parameters));
    if (family->rope_by_layer_type) return read_by_layer_type(c, family, scaling, parameters, arch);
    return read_single(c, family, scaling, parameters, arch);
}
