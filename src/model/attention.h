/* Attention's linears around the attention operator: q, k, v (apart or fused), their norms and rotary embedding, and o.
 */
#ifndef PL_MODEL_ATTENTION_H
#define PL_MODEL_ATTENTION_H

#include "model/linear.h"
#include "model/norm.h"

typedef struct pl_attention_module {
    const pl_arch *arch;
    const pl_layer_spec *layer;
    int index;                /* of the layer, in the KV cache */
    pl_linear *q, *k, *v, *o; /* fused: q gives all three, k and v are NULL */
    pl_norm_module q_norm, k_norm;
} pl_attention_module;

typedef struct pl_attention_saved {
    pl_tensor qkv; /* [T, (heads + 2 kv_heads) * head_dim], after norms and rotary embedding */
    pl_tensor raw; /* q and k before their norms, where there are any */
    pl_tensor out, lse;
    pl_norm_saved q_norm, k_norm;
    pl_linear_saved q, k, v, o;
} pl_attention_saved;

/* y [T, H] = o(attention(x)); x [T, H] is normed. y none: only what the backward needs is kept. */
int pl_attention_forward(
    pl_run *run, const pl_attention_module *att, pl_pass *pass, pl_attention_saved *saved, pl_tensor y, pl_tensor x);
/* dx [T, H] is overwritten (none: not wanted); x as in the forward, or none when nothing in here needs it. */
int pl_attention_module_backward(pl_run *run, const pl_attention_module *att, pl_pass *pass, pl_attention_saved *saved,
    pl_tensor dx, pl_tensor dy, pl_tensor x);
/* Whether the backward reads x; whether anything in here is trained. */
bool pl_attention_needs_x(const pl_attention_module *att);
bool pl_attention_trainable(const pl_attention_module *att);

#endif
