/* The device seam: memory and about thirty operators. Only a device touches what a tensor's `data` points to;
   everything else allocates, copies in and out, and calls operators. Three devices exist: `cpu` (oneDNN for matrix
   products, our SIMD kernels for the rest), `ref` (plain loops: the oracle of the tests, whose memory is unreadable
   outside its operators) and `dry` (no memory, no arithmetic: for planning).

   Operators trust their arguments: the wrappers in op/ have checked shapes and dtypes, counted FLOPs and bytes, and
   found the scratch space that an operator says it needs. All arithmetic is in f32 unless said otherwise, whatever the
   dtype of the tensors; "any" below means f32 or bf16. Reductions run in an order that depends on shapes alone, never
   on the number of threads (oneDNN's own splitting excepted). A tensor of no dimensions (pl_tensor_none) stands for an
   optional operand that is absent. */
#ifndef PL_DEVICE_DEVICE_H
#define PL_DEVICE_DEVICE_H

#include "base/error.h"
#include "base/rng.h"
#include "tensor/tensor.h"

typedef struct pl_device pl_device;

/* Heads inside a matrix of rows: element (t, h, d) is at t * t.stride + h * stride + d from t.data. `t` is
   [T, heads * head_dim] when the heads are neighbours (stride == head_dim); in GPT-NeoX's fused projection they are
   not. */
typedef struct pl_heads {
    pl_tensor t;
    int heads, head_dim;
    int64_t stride;
} pl_heads;

/* One packed sequence: rows [q_begin, q_begin + q_len) of the queries see rows [k_begin, k_begin + k_len) of the keys,
   causally: query i (of q_len) stands at position i + k_len - q_len among the keys. In training q and k are the same
   rows; with a KV cache k_len is larger. Lives in host memory. */
typedef struct pl_sequence {
    int64_t q_begin, q_len, k_begin, k_len;
} pl_sequence;

/* c[m,n] = alpha * op(a) * op(b) + bias, or added to c when `accumulate`.
   op(a) is [m,k], op(b) is [k,n]; transposing means that the operand lies as [k,m] or [n,k].  a and b have one dtype
   (any); c has it too or is f32; bias [n] is any, only without accumulate and with alpha 1. All may be column blocks.
   f32 accumulation. c overlaps neither operand.
   With a second pair (a2 not none) the product is op(a) * op(b) + a2 * op(b2), both of a's dtype: a low-rank update is
   then part of one sum, and c is written once. */
typedef struct pl_gemm_args {
    pl_tensor c, a, b, bias, a2, b2;
    bool transpose_a, transpose_b, transpose_b2, accumulate;
    float alpha;
} pl_gemm_args;

/* Normalisation of each group of `weight.shape[0]` (= N) neighbours in each row of x: x and y are [T, G * N] (G = 1 for
   a hidden state; G = heads for q/k norm), `inv` and `mean` are f32 [T * G]. x, y any and of one dtype; weight and bias
   any. RMS (mean none):  y = x * inv * (offset + weight), inv = 1 / sqrt(mean(x^2) + eps); offset is 1 for Gemma, else
   0. Layer (mean not none): y = (x - mean) * inv * weight + bias, inv = 1 / sqrt(var + eps), population variance.
   weight or bias may be none (1 and 0); then N is `size`.   y may be x. Overwrites y, mean and inv.
   With `residual` not none: x is first replaced by x + residual_scale * residual (written back to x, rounded to its
   dtype), then normalised: one pass over memory for the residual stream and its norm. Then y must not be x; residual
   any. */
typedef struct pl_norm_args {
    pl_tensor y, mean, inv, x, weight, bias, residual;
    int64_t size;
    float eps, offset, residual_scale;
} pl_norm_args;

/* dx is overwritten, or added to when `accumulate`; dweight and dbias (f32 [N], none when frozen) are added to.
   x is what was normalised. dx may be dy, but not with accumulate. dx, dy, x any, of one dtype. */
typedef struct pl_norm_backward_args {
    pl_tensor dx, dweight, dbias, dy, x, mean, inv, weight;
    int64_t size;
    float offset;
    bool accumulate;
} pl_norm_backward_args;

/* In place: rotates pairs (d, d + rotary/2) of each head's first `rotary` dims by the angle of the row's position
   (GPT-NeoX's halves, as Hugging Face has them). cos, sin: f32 [P, rotary/2], with the attention factor inside;
   positions: i32 [T], each in [0, P). `backward` applies the transposed rotation. Su et al. 2021. */
typedef struct pl_rope_args {
    pl_heads x;
    pl_tensor cos, sin, positions;
    bool backward;
} pl_rope_args;

/* Causal attention inside each sequence, never an S x S matrix for a whole head set.  q [Tq, heads], k and v [Tk,
   kv_heads] (heads is a multiple of kv_heads), out like q; any, of one dtype. lse f32 [heads, Tq] is the log-sum-exp of
   the scores, for the backward; none in inference. score = scale * q.k, then softcap * tanh(score / softcap) if softcap
   > 0. window W > 0: key j is visible to query i when 0 <= i - j < W; 0: no window.  Rows that belong to no sequence
   are left alone. Dao et al. 2022; softcap as Gemma 2. */
typedef struct pl_attention_args {
    pl_heads out, q, k, v;
    pl_tensor lse;
    const pl_sequence *sequences;
    int nsequences;
    float scale, softcap;
    int64_t window;
} pl_attention_args;

/* dq, dk, dv are overwritten (rows in no sequence are left alone) and alias nothing; sequences have q == k rows here.
   delta f32 [heads, Tq] is scratch: the row sums of dout * out. */
typedef struct pl_attention_backward_args {
    pl_heads dq, dk, dv, dout, out, q, k, v;
    pl_tensor lse, delta;
    const pl_sequence *sequences;
    int nsequences;
    float scale, softcap;
    int64_t window;
} pl_attention_backward_args;

typedef enum pl_act { PL_ACT_SILU, PL_ACT_GELU, PL_ACT_GELU_TANH, PL_ACT_GELU_QUICK, PL_ACT_RELU, PL_ACT_COUNT } pl_act;

/* y = act(x), or act(x) * up when up is not none. All [T, N], any, of one dtype, possibly column blocks; y may be x or
   up. gelu: 0.5 x (1 + erf(x / sqrt 2)); gelu_tanh: HF's gelu_new and gelu_pytorch_tanh; gelu_quick: x sigmoid(1.702
   x). */
typedef struct pl_act_args {
    pl_tensor y, x, up;
    pl_act act;
} pl_act_args;

/* dx (and dup when up is not none) are overwritten; dx may be x or dy, dup may be up or dy (not the same one). When y
   is not none it is overwritten with the forward value again, so that it need not have been saved. y may not alias. */
typedef struct pl_act_backward_args {
    pl_tensor dx, dup, dy, x, up, y;
    pl_act act;
} pl_act_backward_args;

/* y[t] = scale * table[ids[t]] (+ position_table[positions[t] + position_offset] when not none).  y [T, H], the tables
   any, mixed; ids, positions i32 [T], within the tables. */
typedef struct pl_embed_args {
    pl_tensor y, table, ids, position_table, positions;
    float scale;
    int64_t position_offset;
} pl_embed_args;

/* dtable[ids[t] + offset] += scale * dy[t], in the order of t; dtable f32 [V, H], dy any [T, H], ids i32 [T] >= 0. */
typedef struct pl_embed_backward_args {
    pl_tensor dtable, dy, ids;
    float scale;
    int64_t offset; /* added to each id (learned positions) */
    bool has_skip;  /* rows whose id is `skip` add nothing: PyTorch's padding_idx */
    int64_t skip;
} pl_embed_backward_args;

/* Cross entropy of a chunk of tokens. logits [n, V] any; z = logit_scale * logits, then softcap * tanh(z / softcap) if
   softcap > 0. targets i32 [n]; a negative one is not trained and gives a zero row.  loss (f32 [n], may be none) is
   overwritten with each token's -log softmax(z)[target] (0 where not trained).  dlogits (may be none; any) is
   overwritten with grad_scale * d(sum of losses)/d(logits); it may alias the memory of logits row for row, in its own
   dtype. */
typedef struct pl_loss_args {
    pl_tensor logits, dlogits, targets, loss;
    float logit_scale, softcap, grad_scale;
} pl_loss_args;

/* In place, f32: g' = grad_scale * g; m = beta1 m + (1 - beta1) g'; v = beta2 v + (1 - beta2) g'^2;
   w = w - lr * weight_decay * w - lr / (1 - beta1^step) * m / (sqrt(v / (1 - beta2^step)) + eps). All flat, of one
   length. w may be bf16, with what it lacks of f32 in `rest`, i16, as pl_f32_split has it; else rest is none.
   torch.optim.AdamW; Loshchilov and Hutter 2019. */
typedef struct pl_adamw_args {
    pl_tensor w, rest, g, m, v;
    double lr, beta1, beta2, eps, weight_decay; /* 1 - beta2 would lose half of its digits in f32 */
    float grad_scale;
    int64_t step; /* from 1 */
} pl_adamw_args;

/* In place, f32: g' = grad_scale * g + weight_decay * w; m = momentum * m + g' (m = g' at step 1; m none when momentum
   is 0); w -= lr * m (or g'; nesterov: g' + momentum * m). w and rest as above. torch.optim.SGD. */
typedef struct pl_sgd_args {
    pl_tensor w, rest, g, m;
    double lr, momentum, weight_decay;
    float grad_scale;
    bool nesterov;
    int64_t step;
} pl_sgd_args;

/* y = x * keep / (1 - p), or added to y when `accumulate`. Element (t, j) has the number e = (first_row + t) * N + j;
   it is kept when word e % 4 of pl_rng_block(rng, e / 4) is >= p * 2^32. 0 <= p < 1. x, y [T, N] any, mixed, contiguous
   or column blocks; y may be x. The same call on a gradient is the backward. */
typedef struct pl_dropout_args {
    pl_tensor y, x;
    pl_rng rng;
    int64_t first_row;
    float p;
    bool accumulate;
} pl_dropout_args;

/* An operator's scratch space is asked for by its wrapper and handed over as `scratch` (64-byte aligned). */
typedef struct pl_device_ops {
    const char *name;

    /* Memory. `alloc` gives 64-byte aligned bytes, their content undefined; PL_ENOMEM. */
    int (*alloc)(pl_device *, pl_error *, int64_t bytes, void **out);
    void (*release)(pl_device *, void *data, int64_t bytes);
    void (*copy_in)(pl_device *, void *device_data, const void *host, int64_t bytes);
    void (*copy_out)(pl_device *, void *host, const void *device_data, int64_t bytes);
    /* Makes host memory (a file's mapping, read-only) usable as tensor data without copying it, or says that it cannot
       (returns NULL). Undone by unwrap. */
    void *(*wrap)(pl_device *, const void *host, int64_t bytes);
    void (*unwrap)(pl_device *, void *data, int64_t bytes);
    void (*destroy)(pl_device *);

    /* Whole tensors. copy converts between any two of f32, bf16 and f16 (or equal dtypes), same shape, column blocks
     * allowed. */
    int (*fill)(pl_device *, pl_error *, pl_tensor y, float value);
    int (*copy)(pl_device *, pl_error *, pl_tensor y, pl_tensor x);
    /* y = a + b_scale * b; y may be a or b; a none: y = b_scale * b. any, mixed. */
    int (*add)(pl_device *, pl_error *, pl_tensor y, pl_tensor a, pl_tensor b, float b_scale);
    /* out[N] f32 += sum over rows of x [T, N] any, or of x * y when y is not none. */
    int (*column_sums)(pl_device *, pl_error *, pl_tensor out, pl_tensor x, pl_tensor y, void *scratch);
    int64_t (*column_sums_scratch)(pl_device *, pl_tensor x);
    /* y [T, N] = x * factor[N] (+ addend [N] when not none); y may be x. any, mixed. */
    int (*scale_columns)(pl_device *, pl_error *, pl_tensor y, pl_tensor x, pl_tensor factor, pl_tensor addend);
    /* out[R] f32 = sum over columns of a * b, a and b [R, N] any (a may be b); `transposed`: of [N, R], over rows. */
    int (*row_dots)(pl_device *, pl_error *, pl_tensor out, pl_tensor a, pl_tensor b, bool transposed);
    /* *out (host memory) = sum of squares, sum: accumulated in double, in fixed blocks. x any. */
    int (*sum_squares)(pl_device *, pl_error *, double *out, pl_tensor x);
    int (*sum)(pl_device *, pl_error *, double *out, pl_tensor x);
    /* y = a / b; y = sqrt(x). f32 vectors; y may be an operand. */
    int (*divide)(pl_device *, pl_error *, pl_tensor y, pl_tensor a, pl_tensor b);
    int (*root)(pl_device *, pl_error *, pl_tensor y, pl_tensor x);
    /* In place, f32 [T, V]: z = scale * y, then softcap * tanh(z / softcap) if softcap > 0: logits in inference. */
    int (*soften)(pl_device *, pl_error *, pl_tensor y, float scale, float softcap);
    /* *out (host memory) = number of elements that are NaN or infinite. */
    int (*count_nonfinite)(pl_device *, pl_error *, int64_t *out, pl_tensor x);

    int (*gemm)(pl_device *, pl_error *, const pl_gemm_args *, void *scratch);
    int64_t (*gemm_scratch)(pl_device *, pl_error *, const pl_gemm_args *); /* < 0: an error */
    /* From so many rows of a on, a row of a product with b is the same to the bit whatever other rows there are:
       products of operands of this dtype. INT64_MAX: nobody knows. */
    int64_t (*gemm_alike_rows)(pl_device *, pl_dtype);
    int (*norm)(pl_device *, pl_error *, const pl_norm_args *);
    int (*norm_backward)(pl_device *, pl_error *, const pl_norm_backward_args *, void *scratch);
    int64_t (*norm_backward_scratch)(pl_device *, const pl_norm_backward_args *);
    int (*rope)(pl_device *, pl_error *, const pl_rope_args *);
    int (*attention)(pl_device *, pl_error *, const pl_attention_args *, void *scratch);
    int64_t (*attention_scratch)(pl_device *, const pl_attention_args *);
    int (*attention_backward)(pl_device *, pl_error *, const pl_attention_backward_args *, void *scratch);
    int64_t (*attention_backward_scratch)(pl_device *, const pl_attention_backward_args *);
    int (*act)(pl_device *, pl_error *, const pl_act_args *);
    int (*act_backward)(pl_device *, pl_error *, const pl_act_backward_args *);
    int (*embed)(pl_device *, pl_error *, const pl_embed_args *);
    int (*embed_backward)(pl_device *, pl_error *, const pl_embed_backward_args *);
    int (*loss)(pl_device *, pl_error *, const pl_loss_args *);
    int (*dropout)(pl_device *, pl_error *, const pl_dropout_args *);
    /* half bf16 and rest i16 = what pl_f32_split makes of x f32. Flat, of one length. */
    int (*split)(pl_device *, pl_error *, pl_tensor half, pl_tensor rest, pl_tensor x);
    int (*adamw)(pl_device *, pl_error *, const pl_adamw_args *);
    int (*sgd)(pl_device *, pl_error *, const pl_sgd_args *);
} pl_device_ops;

struct pl_device {
    const pl_device_ops *ops;
    int threads;      /* that operators may use, >= 1 */
    bool host_memory; /* its memory is the host's: messages between processes may come from it and go into it */
};

/* The CPU: oneDNN and SIMD kernels; threads >= 1. */
int pl_device_cpu(pl_error *err, int threads, pl_device **out);
/* The oracle. Its memory is PROT_NONE outside its operators and copies. Serial. */
int pl_device_ref(pl_error *err, pl_device **out);
/* Plans for `twin` (borrowed, must outlive it): its scratch sizes are the twin's, its memory is none. alloc gives NULL.
 */
int pl_device_dry(pl_error *err, pl_device *twin, pl_device **out);
void pl_device_close(pl_device *device); /* NULL is fine */

#endif
