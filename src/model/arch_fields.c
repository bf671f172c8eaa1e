/* Reading config.json's fields one by one, remembering which were asked for, and judging the rest. */
#include "model/arch_families.h"

#include <stdio.h>
#include <string.h>

#include "base/buf.h"

pl_given pl_config_given(pl_config *c, const char *field)
{
    bool known = false;
    for (int i = 0; i < c->nused && !known; i++) known = !strcmp(c->used[i], field);
    if (!known && c->nused < PL_COUNT(c->used)) c->used[c->nused++] = field;
    const json_t *value = json_object_get(c->object, field);
    return !value ? PL_ABSENT : json_is_null(value) ? PL_NULL : PL_GIVEN;
}

const json_t *pl_config_value(pl_config *c, const char *field)
{
    return pl_config_given(c, field) == PL_GIVEN ? json_object_get(c->object, field) : NULL;
}

const char *pl_config_show(const json_t *value, char text[64])
{
    if (!value) return "nothing";
    memset(text, 0, 64); /* json_dumpb leaves out what does not fit, and terminates nothing */
    size_t size = json_dumpb(value, text, 59, JSON_COMPACT | JSON_ENCODE_ANY | JSON_REAL_PRECISION(9));
    if (size > 59) memcpy(text + strlen(text), "...", 4);
    return text;
}

bool pl_config_whole(const json_t *value, int64_t *out)
{
    double real = json_number_value(value);
    if (!json_is_number(value) || !(real > -9e15 && real < 9e15)) return false;
    *out = json_is_integer(value) ? json_integer_value(value) : (int64_t)real;
    return (double)*out == real;
}

int pl_config_int(pl_config *c, const char *field, int64_t low, int64_t high, int64_t *out)
{
    bool given = pl_config_given(c, field) == PL_GIVEN;
    PL_TRY(pl_json_int(c->err, c->where, c->object, field, out));
    if (*out >= low && *out <= high) return 0;
    return PL_FAIL(c->err, PL_EINPUT, "%s: %s is %lld%s; expected a whole number from %lld to %lld", c->where, field,
        (long long)*out, given ? "" : " (the default)", (long long)low, (long long)high);
}

int pl_config_real(pl_config *c, const char *field, double low, double high, double *out)
{
    bool given = pl_config_given(c, field) == PL_GIVEN;
    PL_TRY(pl_json_real(c->err, c->where, c->object, field, out));
    if (*out >= low && *out <= high) return 0;
    return PL_FAIL(c->err, PL_EINPUT, "%s: %s is %g%s; expected a number from %g to %g", c->where, field, *out,
        given ? "" : " (the default)", low, high);
}

int pl_config_float(pl_config *c, const char *field, double low, double high, float *out)
{
    if (!pl_config_value(c, field)) return 0;
    double value = 0;
    PL_TRY(pl_config_real(c, field, low, high, &value));
    *out = (float)value;
    return 0;
}

int pl_config_bool(pl_config *c, const char *field, bool *out)
{
    pl_config_given(c, field);
    return pl_json_bool(c->err, c->where, c->object, field, out);
}

int pl_config_string(pl_config *c, const char *field, const char **out)
{
    pl_config_given(c, field);
    return pl_json_string(c->err, c->where, c->object, field, out);
}

int pl_config_int2(pl_config *c, const char *field, const char *other, int64_t low, int64_t high, int64_t *out)
{
    if (!other || !pl_config_value(c, other)) return pl_config_int(c, field, low, high, out);
    int64_t alias = *out;
    PL_TRY(pl_config_int(c, other, low, high, &alias));
    *out = alias;
    PL_TRY(pl_config_int(c, field, low, high, out));
    if (*out == alias) return 0;
    return PL_FAIL(c->err, PL_EINPUT, "%s: %s is %lld and %s is %lld; they name the same thing", c->where, field,
        (long long)*out, other, (long long)alias);
}

int pl_config_act(pl_config *c, const char *field, pl_act *out)
{
    /* The tanh forms differ only in how they are written. */
    static const struct {
        const char *name;
        pl_act act;
    } acts[] = {{"silu", PL_ACT_SILU}, {"swish", PL_ACT_SILU}, {"gelu", PL_ACT_GELU}, {"gelu_python", PL_ACT_GELU},
        {"gelu_new", PL_ACT_GELU_TANH}, {"gelu_pytorch_tanh", PL_ACT_GELU_TANH}, {"gelu_python_tanh", PL_ACT_GELU_TANH},
        {"gelu_fast", PL_ACT_GELU_TANH}, {"gelu_accurate", PL_ACT_GELU_TANH}, {"quick_gelu", PL_ACT_GELU_QUICK},
        {"relu", PL_ACT_RELU}};
    const char *name = NULL;
    PL_TRY(pl_config_string(c, field, &name));
    if (!name) return 0;
    char known[256];
    size_t used = 0;
    for (int i = 0; i < PL_COUNT(acts); i++) {
        if (!strcmp(acts[i].name, name)) {
            *out = acts[i].act;
            return 0;
        }
        used += (size_t)snprintf(known + used, sizeof known - used, "%s%s", i ? ", " : "", acts[i].name);
    }
    return PL_FAIL(c->err, PL_EUNSUPPORTED, "%s: %s is \"%.60s\"; supported are %s", c->where, field, name, known);
}

/* Fields that say nothing about the computation: bookkeeping, generation (which has a file of its own), other tasks'
   heads, and how Hugging Face's code runs. A name that ends in * stands for all that begin so. */
static const char *const harmless[] = {"_attn_implementation*", "_commit_hash", "_experts_implementation*",
    "_flash_attn*", "_model_name_or_path", "_name_or_path", "_num_labels", "attn_implementation", "auto_map",
    "bad_words_ids", "begin_suppress_tokens", "cache_implementation", "chunk_size_feed_forward", "classifier_dropout",
    "cls_token_id", "cross_attention_hidden_size", "decoder_start_token_id", "diversity_penalty", "do_sample",
    "early_stopping", "encoder_no_repeat_ngram_size", "epsilon_cutoff", "eta_cutoff",
    "exponential_decay_length_penalty", "finetuning_task", "forced_bos_token_id", "forced_decoder_ids",
    "forced_eos_token_id", "gradient_checkpointing", "id2label", "is_decoder", "is_llama_config", "label2id",
    "length_penalty", "mask_token_id", "max_length", "max_new_tokens", "max_window_layers", "min_length",
    "min_new_tokens", "model_type", "n_ctx", "name_or_path", "no_repeat_ngram_size", "num_beam_groups", "num_beams",
    "num_labels", "num_return_sequences", "output_attentions", "output_hidden_states", "output_past", "output_scores",
    "predict_special_tokens", "prefix", "pretraining_tp", "problem_type", "remove_invalid_values", "repetition_penalty",
    "return_dict", "return_dict_in_generate", "sep_token_id", "summary_*", "suppress_tokens", "task_specific_params",
    "temperature", "tf_legacy_loss", "tie_encoder_decoder", "tie_last_hidden_states", "tokenizer_class", "top_k",
    "top_p", "torchscript", "transformers.js_config", "transformers_version", "typical_p", "unk_token_id", "unsloth_*",
    "use_bfloat16", "use_cache"};

/* Fields that would change the result, of families that do not have them. They are fine while they say nothing: null,
   false, 0, an empty list or object, or the neutral number. */
static const struct {
    const char *field;
    double neutral;
} refused[] = {{"add_cross_attention", 0}, {"alibi", 0}, {"attention_bias", 0}, {"attention_chunk_size", 0},
    {"attention_multiplier", 0}, {"attn_logit_softcapping", 0}, {"attn_output_gate", 0}, {"embedding_multiplier", 1},
    {"final_logit_softcapping", 0}, {"full_attn_mod", 1}, {"interpolate_factor", 1}, {"lm_head_bias", 0},
    {"is_encoder_decoder", 0}, {"logits_scaling", 1}, {"mlp_bias", 0}, {"mup_*", 0}, {"n_routed_experts", 0},
    {"n_shared_experts", 0}, {"no_rope_layers", 0}, {"num_experts", 0}, {"num_local_experts", 0},
    {"num_nextn_predict_layers", 0}, {"parallel_attn", 0}, {"partial_rotary_factor", 1}, {"per_layer_config", 0},
    {"pruned_heads", 0}, {"qk_layernorm", 0}, {"qk_norm", 0}, {"quantization_config", 0}, {"query_pre_attn_scalar", 0},
    {"residual_multiplier", 1}, {"rope_interleaved", 0}, {"text_config", 0}, {"use_bidirectional_attention", 0},
    {"use_mrope", 0}, {"use_qk_norm", 0}, {"use_sliding_window", 0}, {"vision_config", 0}};

static bool matches(const char *pattern, const char *name)
{
    size_t size = strlen(pattern);
    return pattern[size - 1] == '*' ? !strncmp(pattern, name, size - 1) : !strcmp(pattern, name);
}

static bool says_nothing(const json_t *value, double neutral)
{
    switch (json_typeof(value)) {
    case JSON_NULL:
    case JSON_FALSE: return true;
    case JSON_INTEGER:
    case JSON_REAL: return json_number_value(value) == 0 || json_number_value(value) == neutral;
    case JSON_STRING: return json_string_length(value) == 0;
    case JSON_ARRAY: return json_array_size(value) == 0;
    case JSON_OBJECT: return json_object_size(value) == 0;
    default: return false;
    }
}

static bool was_used(const pl_config *c, const char *field)
{
    for (int i = 0; i < c->nused; i++) {
        if (!strcmp(c->used[i], field)) return true;
    }
    return false;
}

static bool is_harmless(const char *field)
{
    for (int i = 0; i < PL_COUNT(harmless); i++) {
        if (matches(harmless[i], field)) return true;
    }
    return false;
}

/* 1: fine, nothing to say; 0: not in the list; < 0: an error. */
static int refuse(pl_config *c, const char *model_type, const char *field, const json_t *value)
{
    for (int i = 0; i < PL_COUNT(refused); i++) {
        if (!matches(refused[i].field, field)) continue;
        if (says_nothing(value, refused[i].neutral)) return 1;
        char text[64];
        return PL_FAIL(c->err, PL_EUNSUPPORTED, "%s: %s is %s; that is not supported for model_type %s", c->where,
            field, pl_config_show(value, text), model_type);
    }
    if (!strcmp(field, "is_causal") && !json_is_true(value)) {
        return PL_FAIL(
            c->err, PL_EUNSUPPORTED, "%s: is_causal is not true; plait trains causal language models only", c->where);
    }
    return !strcmp(field, "is_causal");
}

int pl_config_finish(pl_config *c, const char *model_type)
{
    int rc = 0;
    pl_buf unknown = {0};
    const char *field;
    json_t *value;
    /* jansson iterates over a const object but does not say so. */
    json_object_foreach((json_t *)(uintptr_t)c->object, field, value)
    {
        if (was_used(c, field) || is_harmless(field)) continue;
        PL_GO(done, refuse(c, model_type, field, value));
        if (rc || json_is_null(value)) continue;
        PL_GO(done, pl_buf_printf(c->err, &unknown, "%s%.60s", unknown.size ? ", " : "", field));
    }
    rc = 0;
    if (unknown.size) {
        pl_logf(c->log, PL_LOG_WARNING, "%s: not a field of %s, so it is not used: %s", c->where, model_type,
            pl_buf_text(&unknown));
    }
done:
    pl_buf_free(&unknown);
    return rc;
}

int pl_config_dropouts(pl_config *c, const char *const *by_default)
{
    static const char *const dropouts[] = {"attention_dropout", "attn_pdrop", "resid_pdrop", "embd_pdrop", "dropout",
        "hidden_dropout", "activation_dropout", "layerdrop"};
    int rc = 0;
    pl_buf text = {0};
    for (int i = 0; i < PL_COUNT(dropouts); i++) {
        double p = 0;
        for (const char *const *d = by_default; d && *d; d++) {
            if (!strcmp(*d, dropouts[i])) p = 0.1;
        }
        PL_GO(done, pl_config_real(c, dropouts[i], 0, 1, &p));
        if (p > 0) PL_GO(done, pl_buf_printf(c->err, &text, "%s%s %g", text.size ? ", " : "", dropouts[i], p));
    }
    if (text.size) {
        pl_logf(c->log, PL_LOG_INFO, "%s: plait trains without the dropout that this asks for (%s)", c->where,
            pl_buf_text(&text));
    }
done:
    pl_buf_free(&text);
    return rc;
}
