/* config.json and generation_config.json as users have them: what is refused, what is told, what overrides what. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "base/buf.h"
#include "base/file.h"
#include "model/arch.h"

#define MODELS PLAIT_TEST_DIR "/golden/models/"

/* Collects what the library tells, a line a message. */
static void collect(void *user, enum pl_log_level level, const char *message)
{
    pl_error err = {0};
    pl_buf_printf(&err, user, "%s%s\n", level == PL_LOG_WARNING ? "warning: " : "", message);
}

/* A small model of a family, with `patch` (JSON) over it; a field that the patch gives as "-" is taken out. */
static json_t *small_config(const char *model_type, const char *patch)
{
    bool gpt2 = !strcmp(model_type, "gpt2");
    json_t *config = json_pack("{s:s, s:i, s:i, s:i, s:i, s:i, s:n}", "model_type", model_type, "vocab_size", 96,
        gpt2 ? "n_embd" : "hidden_size", 48, gpt2 ? "n_layer" : "num_hidden_layers", 3,
        gpt2 ? "n_head" : "num_attention_heads", 6, gpt2 ? "n_positions" : "max_position_embeddings", 64,
        "pad_token_id");
    pl_error err = {0};
    json_t *fields;
    if (pl_json_parse(&err, patch, patch, strlen(patch), &fields) < 0) fail_msg("%s", err.message);
    assert_int_equal(json_object_update(config, fields), 0);
    const char *key;
    json_t *value;
    json_object_foreach(fields, key, value)
    {
        if (json_is_string(value) && !strcmp(json_string_value(value), "-")) json_object_del(config, key);
    }
    json_decref(fields);
    return config;
}

/* What is wrong with a file, and what is said about it. */
static void refusals(void **state)
{
    (void)state;
    static const struct {
        const char *model_type, *patch;
        int code;
        const char *says[3];
    } cases[] = {
        {"llama", "{\"model_type\": \"-\"}", PL_EINPUT, {"model_type is missing"}},
        {"llama", "{\"model_type\": 7}", PL_EINPUT, {"model_type", "a string"}},
        {"lama", "{}", PL_EUNSUPPORTED, {"model_type lama", "llama, mistral", "granite"}},
        {"mixtral", "{}", PL_EUNSUPPORTED, {"mixtral is a mixture of experts, which is not supported yet"}},
        {"qwen3_moe", "{}", PL_EUNSUPPORTED, {"qwen3_moe is a mixture of experts"}},
        {"gemma3", "{}", PL_EUNSUPPORTED, {"vision", "gemma3_text"}},
        {"llama", "{\"architectures\": [\"LlamaForSequenceClassification\"]}", PL_EUNSUPPORTED,
            {"architectures[0] is \"LlamaForSequenceClassification\""}},
        {"llama", "{\"architectures\": \"LlamaForCausalLM\"}", PL_EINPUT, {"architectures is a string"}},

        {"llama", "{\"vocab_size\": 0}", PL_EINPUT, {"vocab_size is 0", "from 1"}},
        {"llama", "{\"vocab_size\": \"96\"}", PL_EINPUT, {"vocab_size", "a whole number"}},
        {"llama", "{\"vocab_size\": 2147483648}", PL_EINPUT, {"vocab_size is 2147483648", "to 2147483647"}},
        {"llama", "{\"vocab_size\": 99999999999999999999}", PL_EINPUT, {"vocab_size"}},
        {"llama", "{\"hidden_size\": 99999999999999999999}", PL_EINPUT, {"hidden_size"}},
        {"llama", "{\"hidden_size\": -48}", PL_EINPUT, {"hidden_size is -48"}},
        {"llama", "{\"hidden_size\": 48.5}", PL_EINPUT, {"hidden_size"}},
        {"llama", "{\"hidden_size\": 4611686018427387904}", PL_EINPUT, {"hidden_size is 4611686018427387904"}},
        {"llama", "{\"hidden_size\": 50}", PL_EINPUT, {"hidden_size is 50", "multiple of num_attention_heads, 6"}},
        {"llama", "{\"num_hidden_layers\": 0}", PL_EINPUT, {"num_hidden_layers is 0"}},
        {"llama", "{\"num_attention_heads\": 0}", PL_EINPUT, {"num_attention_heads is 0"}},
        {"llama", "{\"num_key_value_heads\": 4}", PL_EINPUT, {"num_attention_heads is 6", "num_key_value_heads, 4"}},
        {"llama", "{\"num_key_value_heads\": 0}", PL_EINPUT, {"num_key_value_heads is 0"}},
        {"llama", "{\"num_key_value_heads\": 12}", PL_EINPUT, {"num_key_value_heads, 12"}},
        {"mistral", "{}", PL_EINPUT, {"num_key_value_heads, 8 (the default)"}},
        {"llama", "{\"head_dim\": 0}", PL_EINPUT, {"head_dim is 0"}},
        {"llama", "{\"head_dim\": 7}", PL_EINPUT, {"turns 7 dims", "even"}},
        {"llama", "{\"num_attention_heads\": 60000, \"hidden_size\": 60000, \"head_dim\": 60000}", PL_EINPUT,
            {"num_attention_heads (60000) times head_dim (60000)"}},
        {"llama", "{\"intermediate_size\": -1}", PL_EINPUT, {"intermediate_size is -1"}},
        {"llama", "{\"max_position_embeddings\": 0}", PL_EINPUT, {"max_position_embeddings is 0"}},
        {"llama", "{\"rms_norm_eps\": -1e-6}", PL_EINPUT, {"rms_norm_eps is -1e-06"}},
        {"llama", "{\"rms_norm_eps\": \"1e-6\"}", PL_EINPUT, {"rms_norm_eps", "a number"}},
        {"llama", "{\"hidden_act\": \"gelu_10\"}", PL_EUNSUPPORTED, {"hidden_act is \"gelu_10\"", "silu, swish"}},
        {"llama", "{\"hidden_act\": true}", PL_EINPUT, {"hidden_act", "a string"}},
        {"llama", "{\"tie_word_embeddings\": \"yes\"}", PL_EINPUT, {"tie_word_embeddings", "true or false"}},
        {"llama", "{\"pad_token_id\": 96}", PL_EINPUT, {"pad_token_id is 96", "vocab_size, 96"}},
        {"phi3", "{\"pad_token_id\": \"-\"}", PL_EINPUT, {"pad_token_id is 32000 (the default)"}},
        {"llama", "{\"pad_token_id\": -97}", PL_EINPUT, {"pad_token_id"}},
        {"llama", "{\"eos_token_id\": \"2\"}", PL_EINPUT, {"eos_token_id is \"2\""}},
        {"llama", "{\"eos_token_id\": [1, [2]]}", PL_EINPUT, {"eos_token_id is [1,[2]]"}},
        {"llama", "{\"eos_token_id\": [1, 2, 3, 4, 5, 6, 7, 8, 9]}", PL_EUNSUPPORTED, {"9 entries", "at most 8"}},
        {"llama", "{\"torch_dtype\": \"float64\"}", PL_EUNSUPPORTED, {"dtype is \"float64\""}},
        {"llama", "{\"dtype\": \"float8_e4m3fn\"}", PL_EUNSUPPORTED, {"float8_e4m3fn"}},
        {"llama", "{\"attention_dropout\": 2}", PL_EINPUT, {"attention_dropout is 2"}},

        {"llama", "{\"rope_theta\": 0}", PL_EINPUT, {"rope_theta is 0"}},
        {"llama", "{\"rope_theta\": \"1e4\"}", PL_EINPUT, {"rope_theta", "a number"}},
        {"llama", "{\"rope_scaling\": \"linear\"}", PL_EINPUT, {"rope_scaling is a string"}},
        {"llama", "{\"rope_scaling\": {\"rope_type\": \"ntk\", \"factor\": 2}}", PL_EUNSUPPORTED,
            {"rope_scaling: rope_type is \"ntk\"", "llama3, yarn"}},
        {"llama", "{\"rope_scaling\": {\"rope_type\": \"su\", \"factor\": 2}}", PL_EUNSUPPORTED, {"\"su\""}},
        {"llama", "{\"rope_scaling\": {\"rope_type\": \"linear\", \"type\": \"dynamic\", \"factor\": 2}}", PL_EINPUT,
            {"rope_type is \"linear\" and type is \"dynamic\""}},
        {"llama", "{\"rope_scaling\": {\"type\": \"linear\"}}", PL_EINPUT, {"factor is missing"}},
        {"llama", "{\"rope_scaling\": {\"type\": \"yarn\"}}", PL_EINPUT, {"factor is missing"}},
        {"llama", "{\"rope_scaling\": {\"type\": \"linear\", \"factor\": 0}}", PL_EINPUT, {"factor is 0"}},
        {"llama", "{\"rope_scaling\": {\"type\": \"linear\", \"factor\": -2}}", PL_EINPUT, {"factor is -2"}},
        {"llama", "{\"head_dim\": 2, \"rope_scaling\": {\"type\": \"dynamic\", \"factor\": 2}}", PL_EINPUT,
            {"turns 2 dims", "at least 4"}},
        {"llama", "{\"rope_scaling\": {\"rope_type\": \"llama3\", \"factor\": 8, \"high_freq_factor\": 4}}", PL_EINPUT,
            {"low_freq_factor is missing", "llama3"}},
        {"llama",
            "{\"rope_scaling\": {\"rope_type\": \"llama3\", \"factor\": 8, \"low_freq_factor\": 4, "
            "\"high_freq_factor\": 4}}",
            PL_EINPUT, {"high_freq_factor is 4"}},
        {"llama",
            "{\"rope_scaling\": {\"rope_type\": \"yarn\", \"factor\": 8, \"original_max_position_embeddings\": 0}}",
            PL_EINPUT, {"original_max_position_embeddings is 0"}},
        {"llama", "{\"rope_theta\": 1, \"rope_scaling\": {\"rope_type\": \"yarn\", \"factor\": 8}}", PL_EINPUT,
            {"rope_theta is 1", "yarn"}},
        {"llama", "{\"partial_rotary_factor\": 0.5}", PL_EUNSUPPORTED,
            {"partial_rotary_factor is 0.5", "llama rotates whole heads"}},
        {"llama", "{\"rope_parameters\": {\"rope_type\": \"default\", \"partial_rotary_factor\": 0.5}}",
            PL_EUNSUPPORTED, {"rope_parameters: partial_rotary_factor is 0.5"}},
        {"llama", "{\"rope_parameters\": {\"full_attention\": {\"rope_theta\": 1e4}}}", PL_EUNSUPPORTED,
            {"differ by layer type"}},
        {"gemma3_text", "{\"num_key_value_heads\": 3, \"rope_parameters\": {\"rope_type\": \"linear\", \"factor\": 2}}",
            PL_EINPUT, {"rope_parameters has rope_type", "full_attention"}},
        {"phi3", "{\"rope_scaling\": {\"type\": \"linear\", \"factor\": 2}}", PL_EUNSUPPORTED,
            {"rope_type is \"linear\"", "phi3"}},
        {"phi3", "{\"rope_scaling\": {\"type\": \"su\", \"short_factor\": [1, 1, 1, 1]}}", PL_EINPUT,
            {"long_factor is missing"}},
        {"phi3",
            "{\"rope_scaling\": {\"type\": \"longrope\", \"short_factor\": [1, 1, 1], \"long_factor\": [1, 1, 1]}}",
            PL_EINPUT, {"short_factor has 3 entries", "4 numbers"}},
        {"phi3",
            "{\"rope_scaling\": {\"type\": \"longrope\", \"short_factor\": [1, 1, 1, 0], \"long_factor\": [1, 1, 1, "
            "1]}}",
            PL_EINPUT, {"short_factor[3] is 0"}},
        {"phi3",
            "{\"rope_scaling\": {\"type\": \"longrope\", \"short_factor\": [1, 1, 1, 1], \"long_factor\": [1, 1, 1, "
            "\"x\"]}}",
            PL_EINPUT, {"long_factor[3] is \"x\""}},
        {"phi3", "{\"rope_scaling\": {\"type\": \"longrope\", \"short_factor\": 1, \"long_factor\": 2}}", PL_EINPUT,
            {"short_factor"}},
        {"phi", "{\"partial_rotary_factor\": 0.4}", PL_EINPUT, {"turns 3 dims"}},
        {"phi", "{\"partial_rotary_factor\": 0}", PL_EINPUT, {"turns 0 dims"}},
        {"phi", "{\"partial_rotary_factor\": 1.5}", PL_EINPUT, {"partial_rotary_factor is 1.5"}},
        {"gpt_neox", "{\"rotary_emb_base\": 500, \"rope_theta\": 10000}", PL_EINPUT,
            {"rope_theta is 10000", "rotary_emb_base", "500"}},

        {"llama", "{\"layer_types\": [\"full_attention\"]}", PL_EINPUT, {"layer_types has 1 entries", "list of 3"}},
        {"llama", "{\"layer_types\": \"full_attention\"}", PL_EINPUT, {"layer_types"}},
        {"llama", "{\"layer_types\": [\"full_attention\", \"full_attention\", \"sliding_attention\"]}", PL_EUNSUPPORTED,
            {"layer_types[2] is sliding_attention", "llama"}},
        {"qwen3", "{\"num_key_value_heads\": 3, \"layer_types\": [\"full_attention\", \"full\", \"full_attention\"]}",
            PL_EINPUT, {"layer_types[1] is \"full\""}},
        {"qwen3",
            "{\"num_key_value_heads\": 3, \"layer_types\": [\"full_attention\", \"linear_attention\", "
            "\"full_attention\"]}",
            PL_EUNSUPPORTED, {"layer_types[1] is \"linear_attention\""}},
        {"qwen3", "{\"num_key_value_heads\": 3, \"layer_types\": [\"full_attention\", 3, \"full_attention\"]}",
            PL_EINPUT, {"layer_types[1] is 3"}},
        {"qwen2",
            "{\"num_key_value_heads\": 3, \"layer_types\": [\"full_attention\", \"sliding_attention\", "
            "\"full_attention\"]}",
            PL_EINPUT, {"layer_types[1] is sliding_attention", "use_sliding_window is false"}},
        {"gemma2", "{\"num_key_value_heads\": 3, \"sliding_window\": null}", PL_EINPUT, {"sliding_window is null"}},
        {"gemma2",
            "{\"num_key_value_heads\": 3, \"sliding_window\": null, \"layer_types\": [\"full_attention\", "
            "\"full_attention\", \"sliding_attention\"]}",
            PL_EINPUT, {"layer_types[2]", "sliding_window is null"}},
        {"mistral", "{\"num_key_value_heads\": 3, \"sliding_window\": 0}", PL_EINPUT, {"sliding_window is 0"}},
        {"mistral",
            "{\"num_key_value_heads\": 3, \"layer_types\": [\"full_attention\", \"sliding_attention\", "
            "\"sliding_attention\"]}",
            PL_EUNSUPPORTED, {"layer_types[0] is full_attention"}},
        {"qwen2", "{\"num_key_value_heads\": 3, \"max_window_layers\": -1}", PL_EINPUT, {"max_window_layers is -1"}},
        {"gemma3_text", "{\"num_key_value_heads\": 3, \"sliding_window_pattern\": 0}", PL_EINPUT,
            {"sliding_window_pattern is 0"}},
        {"gemma3_text", "{\"num_key_value_heads\": 3, \"_sliding_window_pattern\": 2}", PL_EINPUT,
            {"_sliding_window_pattern is 2 without layer_types"}},
        {"gemma3_text", "{\"num_key_value_heads\": 3, \"attn_logit_softcapping\": 50.0}", PL_EUNSUPPORTED,
            {"attn_logit_softcapping is 50"}},
        {"gemma2", "{\"num_key_value_heads\": 3, \"final_logit_softcapping\": 0}", PL_EINPUT,
            {"final_logit_softcapping is 0"}},
        {"gemma2", "{\"num_key_value_heads\": 3, \"query_pre_attn_scalar\": 0}", PL_EINPUT,
            {"query_pre_attn_scalar is 0"}},
        {"gemma", "{\"num_key_value_heads\": 3, \"use_bidirectional_attention\": true}", PL_EUNSUPPORTED,
            {"use_bidirectional_attention is true"}},
        {"gemma", "{\"num_key_value_heads\": 3, \"hidden_act\": \"gelu\", \"hidden_activation\": \"relu\"}", PL_EINPUT,
            {"hidden_act and hidden_activation differ"}},
        {"smollm3", "{\"num_key_value_heads\": 3, \"no_rope_layers\": [1, 0]}", PL_EINPUT,
            {"no_rope_layers has 2 entries"}},
        {"smollm3", "{\"num_key_value_heads\": 3, \"no_rope_layers\": [1, 0, 2]}", PL_EINPUT,
            {"no_rope_layers[2] is 2"}},
        {"smollm3", "{\"num_key_value_heads\": 3, \"no_rope_layer_interval\": 0}", PL_EINPUT,
            {"no_rope_layer_interval is 0"}},

        {"gpt2", "{\"n_embd\": 50}", PL_EINPUT, {"n_embd is 50", "multiple of n_head, 6"}},
        {"gpt2", "{\"hidden_size\": 96}", PL_EINPUT, {"n_embd is 48 and hidden_size is 96"}},
        {"gpt2", "{\"n_inner\": 0}", PL_EINPUT, {"n_inner is 0"}},
        {"gpt2", "{\"add_cross_attention\": true}", PL_EUNSUPPORTED, {"add_cross_attention is true"}},
        {"gpt2", "{\"num_key_value_heads\": 2}", PL_EUNSUPPORTED, {"num_key_value_heads is 2", "no grouped heads"}},
        {"gpt2", "{\"pruned_heads\": {\"0\": [1]}}", PL_EUNSUPPORTED, {"pruned_heads is {\"0\":[1]}"}},
        {"gpt_neox", "{\"head_dim\": 10}", PL_EUNSUPPORTED, {"head_dim is 10", "always", "8"}},
        {"phi", "{\"qk_layernorm\": true}", PL_EUNSUPPORTED, {"qk_layernorm is true"}},
        {"opt", "{\"word_embed_proj_dim\": 0}", PL_EINPUT, {"word_embed_proj_dim is 0"}},
        {"opt", "{\"enable_bias\": 1}", PL_EINPUT, {"enable_bias", "true or false"}},
        {"granite", "{\"logits_scaling\": 0}", PL_EINPUT, {"logits_scaling is 0"}},
        {"granite", "{\"attention_multiplier\": 1e300}", PL_EINPUT, {"attention_multiplier is 1e+300"}},

        {"llama", "{\"quantization_config\": {\"quant_method\": \"bitsandbytes\", \"load_in_4bit\": true}}",
            PL_EUNSUPPORTED, {"quantization_config is {\"quant_method\":\"bitsandbytes\""}},
        {"llama", "{\"is_encoder_decoder\": true}", PL_EUNSUPPORTED, {"is_encoder_decoder is true", "llama"}},
        {"llama", "{\"attn_logit_softcapping\": 50.0}", PL_EUNSUPPORTED, {"attn_logit_softcapping is 50"}},
        {"llama", "{\"embedding_multiplier\": 12}", PL_EUNSUPPORTED, {"embedding_multiplier is 12"}},
        {"llama", "{\"num_local_experts\": 8}", PL_EUNSUPPORTED, {"num_local_experts is 8"}},
        {"llama", "{\"rope_interleaved\": true}", PL_EUNSUPPORTED, {"rope_interleaved is true"}},
        {"llama", "{\"is_causal\": false}", PL_EUNSUPPORTED, {"is_causal is not true"}},
        {"llama", "{\"per_layer_config\": {\"0\": {\"head_dim\": 4}}}", PL_EUNSUPPORTED, {"per_layer_config"}},
        {"qwen2", "{\"num_key_value_heads\": 3, \"use_mrope\": true}", PL_EUNSUPPORTED, {"use_mrope is true"}},
        {"mistral", "{\"num_key_value_heads\": 3, \"attention_bias\": true}", PL_EUNSUPPORTED,
            {"attention_bias is true", "mistral"}},
        {"olmo2", "{\"mlp_bias\": true}", PL_EUNSUPPORTED, {"mlp_bias is true"}},
    };
    for (int i = 0; i < PL_COUNT(cases); i++) {
        pl_error err = {0};
        pl_log log = {0};
        pl_arch arch;
        json_t *config = small_config(cases[i].model_type, cases[i].patch);
        int rc = pl_arch_parse(&err, &log, "x/config.json", config, NULL, &arch);
        if (rc != cases[i].code) fail_msg("%s %s: %d %s", cases[i].model_type, cases[i].patch, rc, err.message);
        if (strncmp(err.message, "x/config.json: ", 15)) fail_msg("%s", err.message);
        for (int k = 0; k < 3 && cases[i].says[k]; k++) {
            if (!strstr(err.message, cases[i].says[k])) fail_msg("\"%s\" lacks \"%s\"", err.message, cases[i].says[k]);
        }
        assert_null(arch.layer);
        assert_null(arch.model_type);
        json_decref(config);
    }
}

/* What is told besides: unknown fields in one line, dropout, contradictions that have a rule. */
static void told(void **state)
{
    (void)state;
    static const struct {
        const char *model_type, *patch, *log;
    } cases[] = {
        {"llama", "{}", ""},
        {"llama",
            "{\"_name_or_path\": \"x\", \"use_cache\": true, \"pretraining_tp\": 2, \"unsloth_fixed\": true, "
            "\"auto_map\": {}, \"transformers.js_config\": {}, \"temperature\": 0.6, \"rope_interleaved\": false, "
            "\"is_decoder\": true, \"pruned_heads\": {}, \"quantization_config\": null, \"logits_scaling\": 1.0}",
            ""},
        {"llama", "{\"hiden_act\": \"relu\", \"sliding_window\": 7, \"nothing\": null}",
            "warning: c: not a field of llama, so it is not used: hiden_act, sliding_window\n"},
        {"llama", "{\"attention_dropout\": 0.25}",
            "c: plait trains without the dropout that this asks for (attention_dropout 0.25)\n"},
        {"gpt2", "{}",
            "c: plait trains without the dropout that this asks for (attn_pdrop 0.1, resid_pdrop 0.1, embd_pdrop "
            "0.1)\n"},
        {"gpt2", "{\"attn_pdrop\": 0, \"resid_pdrop\": 0.0, \"embd_pdrop\": 0}", ""},
        {"llama", "{\"rope_scaling\": {\"rope_type\": \"default\", \"factor\": 2, \"mscale\": 1}}",
            "warning: c: rope_scaling: not a field of llama, so it is not used: factor, mscale\n"},
        {"llama", "{\"rope_scaling\": {\"type\": \"yarn\", \"factor\": 4.0, \"original_max_position_embeddings\": 32}}",
            "warning: c: rope_scaling: factor is 4, but max_position_embeddings / original_max_position_embeddings is "
            "2; the factor counts\n"},
        {"llama",
            "{\"rope_scaling\": {\"type\": \"linear\", \"factor\": 4.0}, \"rope_parameters\": {\"rope_theta\": 5}}",
            "warning: c: has both rope_scaling and rope_parameters; rope_scaling counts\n"},
        {"llama", "{\"use_sliding_window\": false, \"max_window_layers\": 28}", ""},
        {"phi3",
            "{\"full_attn_mod\": 1, \"interpolate_factor\": 1, \"lm_head_bias\": false, \"mlp_bias\": false, "
            "\"attention_bias\": false}",
            ""},
        {"qwen2", "{\"num_key_value_heads\": 3, \"attention_bias\": true}", ""},
        {"qwen2", "{\"num_key_value_heads\": 3, \"attention_bias\": false}",
            "warning: c: attention_bias is false, but queries, keys and values of every qwen2 have a bias\n"},
        {"mistral",
            "{\"num_key_value_heads\": 3, \"sliding_window\": null, \"layer_types\": [\"full_attention\", "
            "\"full_attention\", \"full_attention\"]}",
            ""},
    };
    for (int i = 0; i < PL_COUNT(cases); i++) {
        pl_error err = {0};
        pl_buf text = {0};
        pl_log log = {collect, &text};
        pl_arch arch;
        json_t *config = small_config(cases[i].model_type, cases[i].patch);
        if (pl_arch_parse(&err, &log, "c", config, NULL, &arch) < 0) fail_msg("%s", err.message);
        assert_string_equal(pl_buf_text(&text), cases[i].log);
        pl_arch_free(&arch);
        pl_buf_free(&text);
        json_decref(config);
    }
}

static void generation_overrides(void **state)
{
    (void)state;
    static const struct {
        const char *generation;
        int64_t bos;
        int neos;
        int64_t eos[3];
        int code;
    } cases[] = {
        {"null", 1, 1, {2}, 0},
        {"{}", 1, 1, {2}, 0},
        {"{\"eos_token_id\": null}", 1, 1, {2}, 0},
        {"{\"eos_token_id\": 9, \"bos_token_id\": 4, \"temperature\": 0.7}", 4, 1, {9}, 0},
        {"{\"eos_token_id\": [9, 8, 7]}", 1, 3, {9, 8, 7}, 0},
        {"{\"eos_token_id\": -1}", 1, 0, {0}, 0},
        {"{\"eos_token_id\": [9.0, 8]}", 1, 2, {9, 8}, 0},
        {"{\"eos_token_id\": 9.5}", 0, 0, {0}, PL_EINPUT},
        {"{\"eos_token_id\": \"</s>\"}", 0, 0, {0}, PL_EINPUT},
        {"[]", 0, 0, {0}, PL_EINPUT},
    };
    for (int i = 0; i < PL_COUNT(cases); i++) {
        pl_error err = {0};
        pl_log log = {0};
        pl_arch arch;
        json_t *config = small_config("llama", "{}"),
               *generation = json_loads(cases[i].generation, JSON_DECODE_ANY, NULL);
        assert_int_equal(pl_arch_parse(&err, &log, "c", config, generation, &arch), cases[i].code);
        if (cases[i].code) {
            assert_non_null(strstr(err.message, "generation_config.json"));
        } else {
            assert_int_equal(arch.bos_token, cases[i].bos);
            assert_int_equal(arch.neos, cases[i].neos);
            for (int k = 0; k < arch.neos; k++) assert_int_equal(arch.eos_tokens[k], cases[i].eos[k]);
        }
        pl_arch_free(&arch);
        json_decref(config);
        json_decref(generation);
    }
}

static void dtypes(void **state)
{
    (void)state;
    static const struct {
        const char *patch;
        pl_dtype dtype;
    } cases[] = {{"{}", PL_F32}, {"{\"dtype\": \"bfloat16\"}", PL_BF16}, {"{\"torch_dtype\": \"float16\"}", PL_F16},
        {"{\"torch_dtype\": \"float16\", \"dtype\": \"float32\"}", PL_F32},
        {"{\"torch_dtype\": \"torch.bfloat16\"}", PL_BF16}, {"{\"torch_dtype\": null}", PL_F32}};
    for (int i = 0; i < PL_COUNT(cases); i++) {
        pl_error err = {0};
        pl_log log = {0};
        pl_arch arch;
        json_t *config = small_config("llama", cases[i].patch);
        assert_int_equal(pl_arch_parse(&err, &log, "c", config, NULL, &arch), 0);
        assert_int_equal(arch.file_dtype, cases[i].dtype);
        pl_arch_free(&arch);
        json_decref(config);
    }
}

/* gpt2 scales what writes to the residual stream down; no other family does. */
static void initial_weights(void **state)
{
    (void)state;
    static const struct {
        const char *model_type, *patch;
        double std, residual;
    } cases[] = {{"llama", "{\"initializer_range\": 0.5}", 0.5, 0.5},
        {"llama", "{\"initializer_range\": 0}", 0.02, 0.02},
        {"gpt2", "{\"initializer_range\": 0.6}", 0.6, 0.24494897427831780}, {"opt", "{\"init_std\": 0.3}", 0.3, 0.3},
        {"opt", "{\"init_std\": 0.3, \"initializer_range\": 0.7}", 0.7, 0.7}};
    for (int i = 0; i < PL_COUNT(cases); i++) {
        pl_error err = {0};
        pl_log log = {0};
        pl_arch arch;
        json_t *config = small_config(cases[i].model_type, cases[i].patch);
        assert_int_equal(pl_arch_parse(&err, &log, "c", config, NULL, &arch), 0);
        assert_float_equal(arch.init_std, cases[i].std, 1e-7);
        assert_float_equal(arch.init_residual_std, cases[i].residual, 1e-7);
        pl_arch_free(&arch);
        json_decref(config);
    }
}

static void folders(void **state)
{
    (void)state;
    pl_error err = {0};
    pl_log log = {0};
    pl_arch arch;
    assert_int_equal(pl_arch_read(&err, &log, MODELS "llama", &arch), 0);
    assert_string_equal(arch.model_type, "llama");
    pl_arch_free(&arch);
    assert_int_equal(pl_arch_read(&err, &log, MODELS "mixtral", &arch), PL_EUNSUPPORTED);
    assert_non_null(strstr(err.message, "mixtral/config.json: model_type mixtral"));
    pl_error_clear(&err);
    assert_int_equal(pl_arch_read(&err, &log, MODELS "nowhere", &arch), PL_ENOENT);
    pl_arch_free(&arch);
}

/* Configurations as they were published. Those that cannot be read say why. */
static void published(void **state)
{
    (void)state;
    static const struct {
        const char *file, *says; /* NULL: is read, and nothing is unknown */
    } special[] = {{"Mixtral-8x7B-Instruct-v0.1.json", "mixture of experts"},
        {"Qwen3.5-9B-transformers-v5-nested.json", "model_type qwen3_5"},
        {"bitsandbytes-quantization_config-fp4.json", "model_type is missing"}};
    const char *folder = PLAIT_TEST_DIR "/../../shared/data/configs/model-config-json";
    DIR *dir = opendir(folder);
    if (!dir) skip();
    int read = 0;
    for (struct dirent *d; (d = readdir(dir));) {
        size_t size = strlen(d->d_name);
        if (size < 6 || strcmp(d->d_name + size - 5, ".json")) continue;
        const char *says = NULL;
        for (int i = 0; i < PL_COUNT(special); i++) {
            if (!strcmp(d->d_name, special[i].file)) says = special[i].says;
        }
        pl_error err = {0};
        pl_buf text = {0};
        pl_log log = {collect, &text};
        pl_arch arch = {0};
        char *path;
        json_t *config;
        assert_int_equal(pl_path_join(&err, folder, d->d_name, &path), 0);
        assert_int_equal(pl_json_read(&err, path, &config), 0);
        int rc = pl_arch_parse(&err, &log, d->d_name, config, NULL, &arch);
        if (says ? rc == 0 || !strstr(err.message, says) : rc != 0) fail_msg("%s: %s", d->d_name, err.message);
        if (strstr(pl_buf_text(&text), "warning") && strcmp(d->d_name, "llama-7b-decapoda-style.json")) {
            fail_msg("%s", pl_buf_text(&text));
        }
        read += rc == 0;
        pl_arch_free(&arch);
        pl_buf_free(&text);
        json_decref(config);
        free(path);
    }
    closedir(dir);
    assert_true(read > 15);
    static const char *const models[] = {"babyllama-tok105-llama", "capp-gpt2", "stories260K-llama"};
    for (int i = 0; i < PL_COUNT(models); i++) {
        pl_error err = {0};
        pl_log log = {0};
        pl_arch arch;
        char path[512];
        snprintf(path, sizeof path, "%s/../../shared/data/models/%s", PLAIT_TEST_DIR, models[i]);
        if (pl_arch_read(&err, &log, path, &arch) < 0) fail_msg("%s", err.message);
        pl_arch_free(&arch);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(refusals), cmocka_unit_test(told),
        cmocka_unit_test(generation_overrides), cmocka_unit_test(dtypes), cmocka_unit_test(initial_weights),
        cmocka_unit_test(folders), cmocka_unit_test(published)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
