/* An architecture is data: what a model's config.json says, as a table that one embedding, one decoder block and one
   head understand. A new dense family is a row in arch_families.c, not a file.

   A block computes, leaving out what a family has no name for:

       a = attention(norm_attn_pre(x));  a = norm_attn_post(a)
       sequential:  h = norm_attn_residual(x + residual_scale * a)
                    m = norm_mlp_post(mlp(norm_mlp_pre(h)))
                    y = norm_mlp_residual(h + residual_scale * m)
       parallel:    y = x + a + mlp(norm_mlp_pre(x))    (the mlp takes attention's normed input when norm_mlp_pre is
   absent) */
#ifndef PL_MODEL_ARCH_H
#define PL_MODEL_ARCH_H

#include "base/error.h"
#include "base/json.h"
#include "base/log.h"
#include "device/device.h"

typedef enum pl_norm_kind { PL_NORM_RMS, PL_NORM_LAYER } pl_norm_kind;
typedef enum pl_qkv_layout {
    PL_QKV_SPLIT,       /* q, k and v are linears of their own */
    PL_QKV_FUSED_BLOCK, /* one linear gives all queries, then all keys, then all values: gpt2, phi3 */
    PL_QKV_FUSED_HEAD   /* one linear gives q, k, v of head 0, then of head 1...: gpt_neox */
} pl_qkv_layout;
typedef enum pl_mlp_kind {
    PL_MLP_PLAIN,      /* fc2(act(fc1(x))) */
    PL_MLP_GATED,      /* down(act(gate(x)) * up(x)) */
    PL_MLP_GATED_FUSED /* the same with gate and up in one linear, gate first: phi3 */
} pl_mlp_kind;
typedef enum pl_qk_norm { PL_QK_NORM_NONE, PL_QK_NORM_HEAD, PL_QK_NORM_WHOLE } pl_qk_norm;

typedef enum pl_rope_kind {
    PL_ROPE_DEFAULT,
    PL_ROPE_LINEAR,
    PL_ROPE_DYNAMIC,
    PL_ROPE_LLAMA3,
    PL_ROPE_YARN,
    PL_ROPE_LONGROPE
} pl_rope_kind;

/* One rotary embedding; a model has at most two (Gemma 3: full and sliding layers). Fields that a kind has no use for
 * are 0. */
typedef struct pl_rope_spec {
    pl_rope_kind kind;
    int rotary; /* dims of a head that are rotated, even */
    double theta, factor;
    int64_t original_positions; /* original_max_position_embeddings, or HF's default for the kind */
    int64_t max_positions;
    double low_freq_factor, high_freq_factor;            /* llama3 */
    double beta_fast, beta_slow, mscale, mscale_all_dim; /* yarn */
    double attention_factor;                             /* < 0: not given, HF's formula */
    bool truncate;                                       /* yarn, default true */
    double *short_factor, *long_factor;                  /* longrope, [rotary / 2]; owned */
} pl_rope_spec;

#define PL_MAX_ROPES 2

/* What differs from layer to layer. */
typedef struct pl_layer_spec {
    int rope;          /* index into arch->ropes, or -1: no rotary embedding here */
    int64_t window;    /* sliding window in keys, 0: full */
    float score_scale; /* of q.k */
} pl_layer_spec;

typedef struct pl_arch {
    char *model_type; /* "llama" */
    int64_t vocab, hidden, layers, heads, kv_heads, head_dim, intermediate;
    int64_t max_positions; /* how long a sequence may be; learned positions: rows that may be used */

    /* Norms. A name is relative to its layer ("input_layernorm") and NULL where the family has none. */
    pl_norm_kind norm;
    float norm_eps, norm_offset; /* offset 1: Gemma's weight + 1 */
    bool norm_weight, norm_bias;
    const char *norm_attn_pre, *norm_attn_post, *norm_attn_residual;
    const char *norm_mlp_pre, *norm_mlp_post, *norm_mlp_residual;
    bool parallel;
    float residual_scale;

    /* Attention. With a fused layout `q` names the fused linear. */
    pl_qkv_layout qkv;
    const char *q, *k, *v, *o; /* "self_attn.q_proj" */
    bool q_bias, k_bias, v_bias, o_bias;
    pl_qk_norm qk_norm; /* RMS over each head, or over all heads at once; before the rotary embedding */
    const char *q_norm, *k_norm;
    float attention_softcap;
    int nropes;
    pl_rope_spec ropes[PL_MAX_ROPES];
    pl_layer_spec *layer; /* [layers], owned */

    /* The mlp: plain has fc1 = up and fc2 = down; fused has gate_up in `gate`. */
    pl_mlp_kind mlp;
    const char *gate, *up, *down;
    bool mlp_bias;
    pl_act act;

    bool conv1d; /* linears of the blocks lie as [in, out]: gpt2 */

    /* Outside the blocks; names are full. */
    const char *layer_prefix; /* "model.layers." */
    const char *embed;        /* "model.embed_tokens" */
    int64_t embed_dim;        /* of the table; differs from hidden only with project_in (opt) */
    float embed_scale;
    const char *positions; /* learned positions: "transformer.wpe"; NULL: none */
    int64_t position_offset, position_rows;
    const char *project_in, *project_out; /* linears without bias around the blocks (opt), or NULL */
    const char *norm_final;               /* NULL: none */
    const char *head;                     /* "lm_head" */
    bool tied, head_bias;
    float logit_scale, logit_softcap;
    const char *base_prefix; /* "model." : files of a bare base model leave it out */

    /* Random initialisation as the family's HF code does it. */
    float init_std;          /* linears and embeddings: normal; biases 0; norms 1 (0 where norm_offset is 1) */
    float init_residual_std; /* weights of `o` and `down` (gpt2 divides by sqrt(2 layers)); else init_std */
    int64_t pad_token;       /* its embedding row starts at zero, and lookups of it give that row no gradient (torch's
                                padding_idx; a tied head's gradient does reach it); -1: none, also in the families
                                whose embedding has no padding row (gpt2, gpt_neox) */

    /* Generation. */
    int64_t bos_token; /* -1: none */
    int64_t eos_tokens[8];
    int neos;
    pl_dtype file_dtype; /* what config.json says the weights are; PL_F32 when it does not */
} pl_arch;

/* Reads config.json's object (and generation_config.json's, which may be NULL) into *arch. Both of the spellings that
   HF uses are read, absent fields get HF's defaults for the family, and a field that would change the result is never
   ignored: an unknown model_type or value is PL_EUNSUPPORTED that names it, an impossible one PL_EINPUT. What HF would
   do in training and plait does not (dropout inside the model) is told to `log`. `where` is the file's name, for
   messages. */
int pl_arch_parse(
    pl_error *err, const pl_log *log, const char *where, const json_t *config, const json_t *generation, pl_arch *arch);
/* FOLDER/config.json and FOLDER/generation_config.json. */
int pl_arch_read(pl_error *err, const pl_log *log, const char *folder, pl_arch *arch);
void pl_arch_free(pl_arch *arch); /* {0} is fine */

/* Inverse frequencies [rotary / 2] and the factor on cos and sin, for a batch whose largest position is length - 1
   (longrope and dynamic depend on it). Follows transformers' modeling_rope_utils. */
void pl_rope_frequencies(const pl_rope_spec *rope, int64_t length, double *inverse, double *attention_factor);
/* Whether two lengths give the same frequencies. */
bool pl_rope_same(const pl_rope_spec *rope, int64_t length_a, int64_t length_b);

#endif
