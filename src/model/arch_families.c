/* The table of families. A row says what all models of a family share and what Hugging Face takes for a field that
   config.json leaves out; what only one family has is read by a function beside its row. The values follow
   configuration_*.py and modeling_*.py of transformers 5. */
#include "model/arch_families.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define LIMIT 1e6 /* of multipliers and the like: whatever is beyond is a mistake */

/* Llama's names, which most families took over. */
#define LLAMA_LINEARS                                                                                                  \
    .q = "self_attn.q_proj", .k = "self_attn.k_proj", .v = "self_attn.v_proj", .o = "self_attn.o_proj",                \
    .mlp = PL_MLP_GATED, .gate = "mlp.gate_proj", .up = "mlp.up_proj", .down = "mlp.down_proj"
#define LLAMA_OUTSIDE                                                                                                  \
    .layer_prefix = "model.layers.", .embed = "model.embed_tokens", .norm_final = "model.norm", .head = "lm_head",     \
    .base_prefix = "model."
#define PRE_NORMS .norm_attn_pre = "input_layernorm", .norm_mlp_pre = "post_attention_layernorm"
#define GEMMA_NORMS                                                                                                    \
    .norm_offset = 1, .norm_attn_pre = "input_layernorm", .norm_attn_post = "post_attention_layernorm",                \
    .norm_mlp_pre = "pre_feedforward_layernorm", .norm_mlp_post = "post_feedforward_layernorm"
#define RMS .norm = PL_NORM_RMS, .norm_weight = true
#define LAYER_NORM .norm = PL_NORM_LAYER, .norm_weight = true, .norm_bias = true
#define PLAIN_SCALES .residual_scale = 1, .embed_scale = 1, .logit_scale = 1
#define TOKENS(bos, eos, pad) .bos_token = (bos), .eos_tokens = {(eos)}, .neos = (eos) >= 0, .pad_token = (pad)
#define ALL_BIASES .q_bias = true, .k_bias = true, .v_bias = true, .o_bias = true, .mlp_bias = true

/* Adds up what Hugging Face gives for an absent field; a null turns a cap off. */
static int read_softcaps(pl_config *c, pl_arch *arch)
{
    if (pl_config_given(c, "attn_logit_softcapping") == PL_NULL) arch->attention_softcap = 0;
    if (pl_config_given(c, "final_logit_softcapping") == PL_NULL) arch->logit_softcap = 0;
    PL_TRY(pl_config_float(c, "attn_logit_softcapping", 1e-6, LIMIT, &arch->attention_softcap));
    return pl_config_float(c, "final_logit_softcapping", 1e-6, LIMIT, &arch->logit_softcap);
}

/* Every Gemma multiplies its embeddings by sqrt(hidden), and since 2025 has a switch that drops the causal mask. */
static int read_gemma_common(pl_config *c, pl_arch *arch)
{
    bool bidirectional = false;
    PL_TRY(pl_config_bool(c, "use_bidirectional_attention", &bidirectional));
    if (bidirectional) {
        return PL_FAIL(c->err, PL_EUNSUPPORTED,
            "%s: use_bidirectional_attention is true; plait trains causal language models only", c->where);
    }
    arch->embed_scale = (float)sqrt((double)arch->hidden);
    return 0;
}

/* The first releases say hidden_act "gelu" and mean its tanh form; later ones say it in hidden_activation. */
static int read_gemma(pl_config *c, pl_arch *arch)
{
    const json_t *named = pl_config_value(c, "hidden_act");
    if (json_is_string(named) && !strcmp(json_string_value(named), "gelu")) arch->act = PL_ACT_GELU_TANH;
    pl_act other = arch->act;
    PL_TRY(pl_config_act(c, "hidden_activation", &other));
    if (other != arch->act) {
        return PL_FAIL(
            c->err, PL_EINPUT, "%s: hidden_act and hidden_activation differ; set both to the same function", c->where);
    }
    return read_gemma_common(c, arch);
}

static int read_gemma2(pl_config *c, pl_arch *arch)
{
    PL_TRY(read_gemma_common(c, arch));
    PL_TRY(read_softcaps(c, arch));
    pl_config_given(c, "hidden_act"); /* a copy of hidden_activation that nothing reads */
    double scalar = 256;
    PL_TRY(pl_config_real(c, "query_pre_attn_scalar", 1e-6, LIMIT, &scalar));
    for (int64_t i = 0; i < arch->layers; i++) arch->layer[i].score_scale = (float)(1 / sqrt(scalar));
    return 0;
}

/* Its attention has a soft cap in the configuration alone. */
static int read_gemma3(pl_config *c, pl_arch *arch)
{
    PL_TRY(read_gemma2(c, arch));
    if (arch->attention_softcap == 0) return 0;
    return PL_FAIL(c->err, PL_EUNSUPPORTED,
        "%s: attn_logit_softcapping is %g; Hugging Face's gemma3 ignores it, so set it to null", c->where,
        (double)arch->attention_softcap);
}

static int read_gpt2(pl_config *c, pl_arch *arch)
{
    bool scale = true, by_layer = false, reorder = false, cross = false;
    PL_TRY(pl_config_bool(c, "scale_attn_weights", &scale));
    PL_TRY(pl_config_bool(c, "scale_attn_by_inverse_layer_idx", &by_layer));
    /* It changes the order of operations in half precision only, so that nothing overflows. */
    PL_TRY(pl_config_bool(c, "reorder_and_upcast_attn", &reorder));
    PL_TRY(pl_config_bool(c, "add_cross_attention", &cross));
    if (cross) {
        return PL_FAIL(c->err, PL_EUNSUPPORTED,
            "%s: add_cross_attention is true; plait has no encoder for it to attend to", c->where);
    }
    for (int64_t i = 0; i < arch->layers; i++) {
        double s = scale ? 1 / sqrt((double)arch->head_dim) : 1;
        arch->layer[i].score_scale = (float)(by_layer ? s / (double)(i + 1) : s);
    }
    arch->position_rows = arch->max_positions;
    arch->init_residual_std = (float)(arch->init_std / sqrt(2 * (double)arch->layers));
    return 0;
}

static int read_gpt_neox(pl_config *c, pl_arch *arch)
{
    return pl_config_bool(c, "use_parallel_residual", &arch->parallel);
}

static int read_phi(pl_config *c, pl_arch *arch)
{
    (void)arch;
    bool qk_layernorm = false;
    PL_TRY(pl_config_bool(c, "qk_layernorm", &qk_layernorm));
    if (!qk_layernorm) return 0;
    return PL_FAIL(
        c->err, PL_EUNSUPPORTED, "%s: qk_layernorm is true; LayerNorm of queries and keys is not supported", c->where);
}

/* opt-350m normalises after the residual, has no final norm, and a narrower embedding. */
static int read_opt(pl_config *c, pl_arch *arch)
{
    bool before = true, bias = true, affine = true, no_final = false;
    PL_TRY(pl_config_bool(c, "do_layer_norm_before", &before));
    PL_TRY(pl_config_bool(c, "enable_bias", &bias));
    PL_TRY(pl_config_bool(c, "layer_norm_elementwise_affine", &affine));
    PL_TRY(pl_config_bool(c, "_remove_final_layer_norm", &no_final));
    PL_TRY(pl_config_int(c, "word_embed_proj_dim", 1, 1 << 24, &arch->embed_dim));
    if (!before) {
        arch->norm_attn_residual = arch->norm_attn_pre;
        arch->norm_mlp_residual = arch->norm_mlp_pre;
        arch->norm_attn_pre = arch->norm_mlp_pre = NULL;
    }
    if (!before || no_final) arch->norm_final = NULL;
    arch->q_bias = arch->k_bias = arch->v_bias = arch->o_bias = arch->mlp_bias = bias;
    arch->norm_weight = arch->norm_bias = affine;
    if (arch->embed_dim != arch->hidden) {
        arch->project_in = "model.decoder.project_in";
        arch->project_out = "model.decoder.project_out";
    }
    arch->position_rows = arch->max_positions + arch->position_offset;
    return 0;
}

static int read_granite(pl_config *c, pl_arch *arch)
{
    double logits = 1, attention = 1;
    PL_TRY(pl_config_float(c, "embedding_multiplier", -LIMIT, LIMIT, &arch->embed_scale));
    PL_TRY(pl_config_float(c, "residual_multiplier", -LIMIT, LIMIT, &arch->residual_scale));
    PL_TRY(pl_config_real(c, "attention_multiplier", -LIMIT, LIMIT, &attention));
    PL_TRY(pl_config_real(c, "logits_scaling", 1e-6, LIMIT, &logits));
    arch->logit_scale = (float)(1 / logits);
    for (int64_t i = 0; i < arch->layers; i++) arch->layer[i].score_scale = (float)attention;
    return 0;
}

static const char *const gpt2_dropouts[] = {"resid_pdrop", "embd_pdrop", "attn_pdrop", NULL};
static const char *const opt_dropouts[] = {"dropout", NULL};

/* clang-format off */
static const pl_family families[] = {
    {.model_type = "llama", .attention_bias = true, .mlp_bias = true, .theta = 1e4, .pads_embedding = true,
     .base = {LLAMA_LINEARS, LLAMA_OUTSIDE, PRE_NORMS, RMS, PLAIN_SCALES, TOKENS(1, 2, -1), .act = PL_ACT_SILU,
        .vocab = 32000, .hidden = 4096, .layers = 32, .heads = 32, .intermediate = 11008, .max_positions = 2048,
        .norm_eps = 1e-6f, .init_std = 0.02f}},
    {.model_type = "mistral", .theta = 1e4, .windows = PL_WINDOW_ALWAYS, .window = 4096, .pads_embedding = true,
     .base = {LLAMA_LINEARS, LLAMA_OUTSIDE, PRE_NORMS, RMS, PLAIN_SCALES, TOKENS(1, 2, -1), .act = PL_ACT_SILU,
        .vocab = 32000, .hidden = 4096, .layers = 32, .heads = 32, .kv_heads = 8, .intermediate = 14336,
        .max_positions = 131072, .norm_eps = 1e-6f, .init_std = 0.02f}},
    {.model_type = "qwen2", .theta = 1e4, .windows = PL_WINDOW_LATE, .window = 4096, .pads_embedding = true,
     .base = {LLAMA_LINEARS, LLAMA_OUTSIDE, PRE_NORMS, RMS, PLAIN_SCALES, TOKENS(-1, -1, -1), .act = PL_ACT_SILU,
        .q_bias = true, .k_bias = true, .v_bias = true,
        .vocab = 151936, .hidden = 4096, .layers = 32, .heads = 32, .kv_heads = 32, .intermediate = 22016,
        .max_positions = 32768, .norm_eps = 1e-6f, .init_std = 0.02f}},
    {.model_type = "qwen3", .attention_bias = true, .theta = 1e4, .windows = PL_WINDOW_LATE, .window = 4096,
     .pads_embedding = true,
     .base = {LLAMA_LINEARS, LLAMA_OUTSIDE, PRE_NORMS, RMS, PLAIN_SCALES, TOKENS(-1, -1, -1), .act = PL_ACT_SILU,
        .qk_norm = PL_QK_NORM_HEAD, .q_norm = "self_attn.q_norm", .k_norm = "self_attn.k_norm",
        .vocab = 151936, .hidden = 4096, .layers = 32, .heads = 32, .kv_heads = 32, .head_dim = 128,
        .intermediate = 22016, .max_positions = 32768, .norm_eps = 1e-6f, .init_std = 0.02f}},
    {.model_type = "gemma", .attention_bias = true, .theta = 1e4, .pads_embedding = true, .read = read_gemma,
     .base = {LLAMA_LINEARS, LLAMA_OUTSIDE, PRE_NORMS, RMS, PLAIN_SCALES, TOKENS(2, 1, 0), .act = PL_ACT_GELU_TANH,
        .norm_offset = 1, .tied = true,
        .vocab = 256000, .hidden = 3072, .layers = 28, .heads = 16, .kv_heads = 16, .head_dim = 256,
        .intermediate = 24576, .max_positions = 8192, .norm_eps = 1e-6f, .init_std = 0.02f}},
    {.model_type = "gemma2", .attention_bias = true, .act_field = "hidden_activation", .theta = 1e4,
     .windows = PL_WINDOW_ALTERNATE, .window = 4096, .pads_embedding = true, .read = read_gemma2,
     .base = {LLAMA_LINEARS, LLAMA_OUTSIDE, GEMMA_NORMS, RMS, PLAIN_SCALES, TOKENS(2, 1, 0), .act = PL_ACT_GELU_TANH,
        .tied = true, .attention_softcap = 50, .logit_softcap = 30,
        .vocab = 256000, .hidden = 2304, .layers = 26, .heads = 8, .kv_heads = 4, .head_dim = 256,
        .intermediate = 9216, .max_positions = 8192, .norm_eps = 1e-6f, .init_std = 0.02f}},
    {.model_type = "gemma3_text", .attention_bias = true, .act_field = "hidden_activation", .theta = 1e6,
     .rope_by_layer_type = true, .windows = PL_WINDOW_PATTERN, .window = 4096, .pads_embedding = true, .read = read_gemma3,
     .base = {LLAMA_LINEARS, LLAMA_OUTSIDE, GEMMA_NORMS, RMS, PLAIN_SCALES, TOKENS(2, 1, 0), .act = PL_ACT_GELU_TANH,
        .tied = true, .qk_norm = PL_QK_NORM_HEAD, .q_norm = "self_attn.q_norm", .k_norm = "self_attn.k_norm",
        .vocab = 262208, .hidden = 2304, .layers = 26, .heads = 8, .kv_heads = 4, .head_dim = 256,
        .intermediate = 9216, .max_positions = 131072, .norm_eps = 1e-6f, .init_std = 0.02f}},
    {.model_type = "gpt2", .hidden_field = "n_embd", .layers_field = "n_layer", .heads_field = "n_head",
     .intermediate_field = "n_inner", .positions_field = "n_positions", .usual_names_too = true,
     .act_field = "activation_function", .eps_field = "layer_norm_epsilon", .one_head_size = true,
     .dropouts = gpt2_dropouts, .read = read_gpt2,
     .base = {LAYER_NORM, ALL_BIASES, PLAIN_SCALES, TOKENS(50256, 50256, -1), .act = PL_ACT_GELU_TANH, .tied = true,
        .norm_attn_pre = "ln_1", .norm_mlp_pre = "ln_2", .qkv = PL_QKV_FUSED_BLOCK, .q = "attn.c_attn",
        .o = "attn.c_proj", .mlp = PL_MLP_PLAIN, .up = "mlp.c_fc", .down = "mlp.c_proj", .conv1d = true,
        .layer_prefix = "transformer.h.", .embed = "transformer.wte", .positions = "transformer.wpe",
        .norm_final = "transformer.ln_f", .head = "lm_head", .base_prefix = "transformer.",
        .vocab = 50257, .hidden = 768, .layers = 12, .heads = 12, .max_positions = 1024,
        .norm_eps = 1e-5f, .init_std = 0.02f}},
    {.model_type = "gpt_neox", .eps_field = "layer_norm_eps", .one_head_size = true, .attention_bias = true,
     .theta = 1e4, .partial_rotary = 0.25, .theta_field = "rotary_emb_base", .partial_field = "rotary_pct",
     .read = read_gpt_neox,
     .base = {LAYER_NORM, ALL_BIASES, PLAIN_SCALES, PRE_NORMS, TOKENS(0, 2, -1), .act = PL_ACT_GELU,
        .parallel = true, .qkv = PL_QKV_FUSED_HEAD, .q = "attention.query_key_value", .o = "attention.dense",
        .mlp = PL_MLP_PLAIN, .up = "mlp.dense_h_to_4h", .down = "mlp.dense_4h_to_h",
        .layer_prefix = "gpt_neox.layers.", .embed = "gpt_neox.embed_in", .norm_final = "gpt_neox.final_layer_norm",
        .head = "embed_out", .base_prefix = "gpt_neox.",
        .vocab = 50432, .hidden = 6144, .layers = 44, .heads = 64, .intermediate = 24576, .max_positions = 2048,
        .norm_eps = 1e-5f, .init_std = 0.02f}},
    {.model_type = "phi", .eps_field = "layer_norm_eps", .theta = 1e4, .partial_rotary = 0.5, .pads_embedding = true,
     .read = read_phi,
     .base = {LAYER_NORM, ALL_BIASES, PLAIN_SCALES, TOKENS(1, 2, -1), .act = PL_ACT_GELU_TANH,
        .norm_attn_pre = "input_layernorm", .parallel = true, .q = "self_attn.q_proj", .k = "self_attn.k_proj",
        .v = "self_attn.v_proj", .o = "self_attn.dense", .mlp = PL_MLP_PLAIN, .up = "mlp.fc1", .down = "mlp.fc2",
        .layer_prefix = "model.layers.", .embed = "model.embed_tokens", .norm_final = "model.final_layernorm",
        .head = "lm_head", .head_bias = true, .base_prefix = "model.",
        .vocab = 51200, .hidden = 2048, .layers = 24, .heads = 32, .intermediate = 8192, .max_positions = 2048,
        .norm_eps = 1e-5f, .init_std = 0.02f}},
    {.model_type = "phi3", .theta = 1e4, .partial_rotary = 1, .windows = PL_WINDOW_ALWAYS, .pads_embedding = true,
     .base = {LLAMA_OUTSIDE, PRE_NORMS, RMS, PLAIN_SCALES, TOKENS(1, 32000, 32000), .act = PL_ACT_SILU,
        .qkv = PL_QKV_FUSED_BLOCK, .q = "self_attn.qkv_proj", .o = "self_attn.o_proj",
        .mlp = PL_MLP_GATED_FUSED, .gate = "mlp.gate_up_proj", .down = "mlp.down_proj",
        .vocab = 32064, .hidden = 3072, .layers = 32, .heads = 32, .intermediate = 8192, .max_positions = 4096,
        .norm_eps = 1e-5f, .init_std = 0.02f}},
    {.model_type = "opt", .intermediate_field = "ffn_dim", .act_field = "activation_function", .eps_field = "",
     .init_field = "init_std", .one_head_size = true, .pads_embedding = true, .dropouts = opt_dropouts,
     .read = read_opt,
     .base = {LAYER_NORM, ALL_BIASES, PLAIN_SCALES, TOKENS(2, 2, 1), .act = PL_ACT_RELU, .tied = true,
        .norm_attn_pre = "self_attn_layer_norm", .norm_mlp_pre = "final_layer_norm", .q = "self_attn.q_proj",
        .k = "self_attn.k_proj", .v = "self_attn.v_proj", .o = "self_attn.out_proj", .mlp = PL_MLP_PLAIN,
        .up = "fc1", .down = "fc2", .layer_prefix = "model.decoder.layers.", .embed = "model.decoder.embed_tokens",
        .positions = "model.decoder.embed_positions", .position_offset = 2,
        .norm_final = "model.decoder.final_layer_norm", .head = "lm_head", .base_prefix = "model.",
        .vocab = 50272, .hidden = 768, .layers = 12, .heads = 12, .intermediate = 3072, .max_positions = 2048,
        .norm_eps = 1e-5f, .init_std = 0.02f}},
    {.model_type = "smollm3", .attention_bias = true, .mlp_bias = true, .theta = 2e6, .windows = PL_WINDOW_NOPE,
     .pads_embedding = true,
     .base = {LLAMA_LINEARS, LLAMA_OUTSIDE, PRE_NORMS, RMS, PLAIN_SCALES, TOKENS(128000, 128001, 128004),
        .act = PL_ACT_SILU, .tied = true,
        .vocab = 128256, .hidden = 2048, .layers = 36, .heads = 16, .kv_heads = 4, .intermediate = 11008,
        .max_positions = 32768, .norm_eps = 1e-6f, .init_std = 0.02f}},
    {.model_type = "olmo2", .attention_bias = true, .theta = 1e4, .pads_embedding = true,
     .base = {LLAMA_LINEARS, LLAMA_OUTSIDE, RMS, PLAIN_SCALES, TOKENS(-1, 50279, 1), .act = PL_ACT_SILU,
        .norm_attn_post = "post_attention_layernorm", .norm_mlp_post = "post_feedforward_layernorm",
        .qk_norm = PL_QK_NORM_WHOLE, .q_norm = "self_attn.q_norm", .k_norm = "self_attn.k_norm",
        .vocab = 50304, .hidden = 4096, .layers = 32, .heads = 32, .intermediate = 11008, .max_positions = 2048,
        .norm_eps = 1e-5f, .init_std = 0.02f}},
    {.model_type = "granite", .attention_bias = true, .mlp_bias = true, .theta = 1e4, .pads_embedding = true,
     .read = read_granite,
     .base = {LLAMA_LINEARS, LLAMA_OUTSIDE, PRE_NORMS, RMS, PLAIN_SCALES, TOKENS(1, 2, -1), .act = PL_ACT_SILU,
        .vocab = 32000, .hidden = 4096, .layers = 32, .heads = 32, .intermediate = 11008, .max_positions = 2048,
        .norm_eps = 1e-6f, .init_std = 0.02f}},
};
/* clang-format on */

/* Those that are asked for most, so that the message can say why they do not work. */
static const char *const mixtures[] = {"mixtral", "qwen2_moe", "qwen3_moe", "qwen3_next", "olmoe", "phimoe", "dbrx",
    "deepseek_v2", "deepseek_v3", "deepseek_v32", "granitemoe", "granitemoeshared", "granitemoehybrid", "gpt_oss",
    "jetmoe", "llama4", "llama4_text", "ernie4_5_moe", "glm4_moe", "hunyuan_v1_moe", "minimax", "minimax_m2", "dots1",
    "flex_olmo", "bailing_moe", "nllb-moe", "switch_transformers", "jamba", "kimi_k2", "qwen3_5_moe"};

const pl_family *pl_family_find(const char *model_type)
{
    for (int i = 0; i < PL_COUNT(families); i++) {
        if (!strcmp(families[i].model_type, model_type)) return &families[i];
    }
    return NULL;
}

int pl_family_unknown(pl_error *err, const char *where, const char *model_type)
{
    char names[512];
    size_t used = 0;
    for (int i = 0; i < PL_COUNT(families) && used < sizeof names; i++) {
        used += (size_t)snprintf(names + used, sizeof names - used, "%s%s", i ? ", " : "", families[i].model_type);
    }
    const char *why = "is not supported";
    for (int i = 0; i < PL_COUNT(mixtures); i++) {
        if (!strcmp(mixtures[i], model_type)) why = "is a mixture of experts, which is not supported yet";
    }
    if (!strcmp(model_type, "gemma3")) why = "has a vision tower; only its text model (gemma3_text) is supported";
    return PL_FAIL(err, PL_EUNSUPPORTED, "%s: model_type %.80s %s; supported are %s", where, model_type, why, names);
}
