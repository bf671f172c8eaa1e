#include "op/check.h"

/* `rows` -1: any. */
static int check_heads(pl_run *run, const char *name, pl_heads x, pl_heads q, int heads, int64_t rows)
{
    PL_TRY(pl_check_matrix(run, name, x.t, pl_only(q.t.dtype), rows, -1));
    if (x.heads == heads && heads > 0 && x.head_dim == q.head_dim && x.head_dim > 0 && x.stride >= x.head_dim &&
        (x.heads - 1) * x.stride + x.head_dim <= x.t.shape[1]) {
        return 0;
    }
    return PL_FAIL(run->err, PL_EBUG, "%s has %d heads of %d, %lld apart, in %lld columns; %d of %d were expected",
        name, x.heads, x.head_dim, (long long)x.stride, (long long)x.t.shape[1], heads, q.head_dim);
}

static int check_sequences(pl_run *run, const pl_sequence *sequences, int n, int64_t q_rows, int64_t k_rows)
{
    for (int i = 0; i < n; i++) {
        const pl_sequence *s = &sequences[i];
        if (s->q_begin >= 0 && s->q_len >= 0 && s->q_begin + s->q_len <= q_rows && s->k_begin >= 0 &&
            s->k_len >= s->q_len && s->k_begin + s->k_len <= k_rows) {
            continue;
        }
        return PL_FAIL(run->err, PL_EBUG,
            "attention: sequence %d has queries %lld + %lld of %lld and keys %lld + %lld of %lld", i,
            (long long)s->q_begin, (long long)s->q_len, (long long)q_rows, (long long)s->k_begin, (long long)s->k_len,
            (long long)k_rows);
    }
    return 0;
}

/* What both directions read. */
static int check_inputs(
    pl_run *run, pl_heads q, pl_heads k, pl_heads v, const pl_sequence *sequences, int nsequences, int64_t window)
{
    PL_TRY(pl_check_there(run, "attention: q", q.t, PL_ANY));
    PL_TRY(check_heads(run, "attention: q", q, q, q.heads, -1));
    PL_TRY(check_heads(run, "attention: k", k, q, k.heads, -1));
    PL_TRY(check_heads(run, "attention: v", v, q, k.heads, k.t.shape[0]));
    PL_TRY(pl_check_that(run, q.heads % k.heads == 0, "attention: the heads are a multiple of the key heads"));
    PL_TRY(pl_check_that(run, window >= 0, "attention: the window is not negative"));
    return check_sequences(run, sequences, nsequences, q.t.shape[0], k.t.shape[0]);
}

static double triangle(double n)
{
    return n * (n + 1) / 2;
}

/* Pairs of a query and a key that it sees, of one head. Query i sees min(i + shift + 1, window) keys. */
static double visible_pairs(const pl_sequence *sequences, int n, int64_t window)
{
    double pairs = 0;
    for (int i = 0; i < n; i++) {
        double keys = (double)sequences[i].k_len, shift = keys - (double)sequences[i].q_len;
        pairs += triangle(keys) - triangle(shift);
        if (window == 0) continue;
        double far = keys - (double)window, far_shift = shift - (double)window;
        pairs -= triangle(far > 0 ? far : 0) - triangle(far_shift > 0 ? far_shift : 0);
    }
    return pairs;
}

static double heads_bytes(pl_heads x)
{
    return (double)(x.t.shape[0] * x.heads * x.head_dim * pl_dtype_size(x.t.dtype));
}

int pl_attention(pl_run *run, pl_attention_args args)
{
    const pl_device_ops *ops = run->device->ops;
    pl_heads q = args.q;
    int rc = 0;
    PL_TRY(check_inputs(run, q, args.k, args.v, args.sequences, args.nsequences, args.window));
    PL_TRY(check_heads(run, "attention: out", args.out, q, q.heads, q.t.shape[0]));
    if (!pl_tensor_none(args.lse)) {
        PL_TRY(pl_check_matrix(run, "attention: lse", args.lse, PL_ONLY_F32, q.heads, q.t.shape[0]));
    }
    PL_TRY(pl_run_meanwhile(run));
    int64_t mark = pl_stack_mark(run->work);
    void *scratch = NULL;
    PL_GO(end, pl_stack_push_bytes(run->err, run->work, ops->attention_scratch(run->device, &args), &scratch));
    PL_GO(end, ops->attention(run->device, run->err, &args, scratch));
    run->counters.attention_flops +=
        4 * visible_pairs(args.sequences, args.nsequences, args.window) * q.heads * q.head_dim;
    run->counters.bytes += heads_bytes(q) + heads_bytes(args.k) + heads_bytes(args.v) + heads_bytes(args.out) +
                           (double)pl_tensor_bytes(args.lse);
    run->counters.calls++;
end:
    pl_stack_pop(run->work, mark);
    return rc;
}

static int check_backward(pl_run *run, const pl_attention_backward_args *args)
{
    pl_heads q = args->q, k = args->k;
    int64_t rows = q.t.shape[0], k_rows = k.t.shape[0];
    PL_TRY(check_inputs(run, q, k, args->v, args->sequences, args->nsequences, args->window));
    PL_TRY(check_heads(run, "attention: out", args->out, q, q.heads, rows));
    PL_TRY(check_heads(run, "attention: dout", args->dout, q, q.heads, rows));
    PL_TRY(check_heads(run, "attention: dq", args->dq, q, q.heads, rows));
    PL_TRY(check_heads(run, "attention: dk", args->dk, q, k.heads, k_rows));
    PL_TRY(check_heads(run, "attention: dv", args->dv, q, k.heads, k_rows));
    PL_TRY(pl_check_matrix(run, "attention: lse", args->lse, PL_ONLY_F32, q.heads, rows));
    for (int i = 0; i < args->nsequences; i++) {
        const pl_sequence *s = &args->sequences[i];
        PL_TRY(pl_check_that(run, s->q_begin == s->k_begin && s->q_len == s->k_len,
            "attention: in the backward a sequence's keys are its queries"));
    }
    return 0;
}

int pl_attention_backward(pl_run *run, pl_attention_backward_args args)
{
    const pl_device_ops *ops = run->device->ops;
    pl_heads q = args.q;
    int rc = 0;
    PL_TRY(check_backward(run, &args));
    PL_TRY(pl_run_meanwhile(run));
    int64_t mark = pl_stack_mark(run->work);
    void *scratch = NULL;
    PL_GO(end, pl_stack_push(run->err, run->work, PL_F32, 2, (int64_t[]){q.heads, q.t.shape[0]}, &args.delta));
    PL_GO(end, pl_stack_push_bytes(run->err, run->work, ops->attention_backward_scratch(run->device, &args), &scratch));
    PL_GO(end, ops->attention_backward(run->device, run->err, &args, scratch));
    /* Five products: the scores again, the probabilities' gradient, and those of q, k and v. */
    run->counters.attention_flops +=
        10 * visible_pairs(args.sequences, args.nsequences, args.window) * q.heads * q.head_dim;
    run->counters.bytes +=
        4 * heads_bytes(q) + 2 * (heads_bytes(args.k) + heads_bytes(args.v)) + (double)pl_tensor_bytes(args.lse);
    run->counters.calls++;
end:
    pl_stack_pop(run->work, mark);
    return rc;
}
