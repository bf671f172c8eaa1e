/* Attention's backward in f32, for any dtype; cpu_attention_backward.h tells how its sums are ordered. */
#include "device/cpu_attention_backward.h"

#include <omp.h>

/* A thread's memory. */
typedef struct room {
    float *keys, *keys_transposed, *values, *values_transposed, *dk, *dv; /* K_BLOCK rows */
    float *q, *dout;                                                      /* Q_BLOCK rows */
    float *p, *dp;                                                        /* [Q_BLOCK, K_BLOCK] */
} room;

static int64_t room_floats(const pl_attention_backward_args *args)
{
    int64_t width = padded(args->q.head_dim);
    return 6 * K_BLOCK * width + 2 * Q_BLOCK * width + 2 * Q_BLOCK * K_BLOCK;
}

static room room_at(float *at, const pl_attention_backward_args *args)
{
    int64_t width = padded(args->q.head_dim), block = K_BLOCK * width;
    room r = {.keys = at, .keys_transposed = at + block, .values = at + 2 * block, .values_transposed = at + 3 * block};
    r.dk = at + 4 * block;
    r.dv = at + 5 * block;
    r.q = at + 6 * block;
    r.dout = r.q + Q_BLOCK * width;
    r.p = r.dout + Q_BLOCK * width;
    r.dp = r.p + Q_BLOCK * K_BLOCK;
    return r;
}

/* The scratch space: pieces, turn counters, sums of dq [heads, Tq, width], rooms. */
typedef struct plan {
    int64_t pieces, turns, dq_floats;
} plan;

static plan plan_of(const pl_attention_backward_args *args)
{
    plan p = {.dq_floats = args->q.heads * args->q.t.shape[0] * padded(args->q.head_dim)};
    p.pieces = count_pieces(args);
    p.turns = count_turns(args, Q_BLOCK);
    return p;
}

int64_t PL_CPU(attention_backward_scratch)(pl_device *device, const pl_attention_backward_args *args)
{
#ifdef __AVX512BF16__
    if (args->q.t.dtype == PL_BF16) return PL_CPU(attention_bf16_backward_scratch)(device, args);
#endif
    plan p = plan_of(args);
    return aligned(p.pieces * (int64_t)sizeof(key_piece)) + aligned(p.turns * (int64_t)sizeof(atomic_int)) +
           (p.dq_floats + device->threads * room_floats(args)) * (int64_t)sizeof(float);
}

/* Of one row: p = exp(score - lse) from scores, dp = p * (dp - delta) (and the cap's slope); zero where not visible. */
PL_INLINE void differentiate(
    float *p, float *dp, int64_t n, int64_t low, int64_t high, float cap, float lse, float delta)
{
    bool all = low == 0 && high == n && n % PL_LANES == 0;
    for (int64_t j = 0; j < n; j += PL_LANES) {
        pl_vf z = capped_score(pl_vload(p + j), cap), e = pl_vexp(z - lse);
        pl_vf dz = e * (pl_vload(dp + j) - delta);
        if (cap > 0) dz *= 1 - z * z * (1 / (cap * cap));
        pl_vstore(p + j, all ? e : only_visible(e, j, low, high, 0));
        pl_vstore(dp + j, all ? dz : only_visible(dz, j, low, high, 0));
    }
}

/* c[n, width] += p[m, K_BLOCK]^T * x[m, width]; keys see only queries from their own position on. */
static void add_transposed(
    float *c, const float *p, const float *x, int64_t width, int64_t m, int64_t position, int64_t block, int64_t n)
{
    if (position >= block + n - 1) {
        product(p, 1, K_BLOCK, x, width, c, width, n, width, m, true);
        return;
    }
    for (int64_t j = 0; j < n; j += STRIP) {
        int64_t rows = at_most(n - j, STRIP), from = at_least(block + j - position, 0);
        if (from >= m) break;
        product(p + from * K_BLOCK + j, 1, K_BLOCK, x + from * width, width, c + j * width, width, rows, width,
            m - from, true);
    }
}

typedef struct context {
    const pl_attention_backward_args *args;
    atomic_int *turns;
    float *dq;
} context;

/* Queries [from, from + m) of one head against the piece's keys; leaves dscores in r->dp. */
static void one_head(
    const context *c, room *r, const pl_sequence *s, int h, int64_t from, int64_t m, int64_t block, int64_t n)
{
    const pl_attention_backward_args *args = c->args;
    int64_t dim = args->q.head_dim, width = padded(dim), row = s->q_begin + from;
    const float *lse = (const float *)args->lse.data + h * args->lse.stride + row;
    const float *delta = (const float *)args->delta.data + h * args->delta.stride + row;
    gather_rows(r->q, args->q, row, m, h, args->scale);
    gather_rows(r->dout, args->dout, row, m, h, 1);
    visible_scores(r->p, r->q, width, r->keys_transposed, m, dim, from, block, n);
    visible_scores(r->dp, r->dout, width, r->values_transposed, m, dim, from, block, n);
    for (int64_t i = 0; i < m; i++) {
        int64_t low, high;
        visible_keys(from + i, args->window, block, n, &low, &high);
        differentiate(r->p + i * K_BLOCK, r->dp + i * K_BLOCK, n, low, high, args->softcap, lse[i], delta[i]);
    }
    add_transposed(r->dv, r->p, r->dout, width, m, from, block, n);
    add_transposed(r->dk, r->dp, r->q, width, m, from, block, n);
}

static void work_on(const context *c, key_piece p, room *r)
{
    const pl_attention_backward_args *args = c->args;
    const pl_sequence *s = &args->sequences[p.sequence];
    int64_t dim = args->q.head_dim, width = padded(dim), block = (int64_t)p.block * K_BLOCK;
    int64_t n = at_most(K_BLOCK, s->k_len - block);
    int group = args->q.heads / args->k.heads;
    gather_rows(r->keys, args->k, s->k_begin + block, n, p.kv, 1);
    gather_rows(r->values, args->v, s->k_begin + block, n, p.kv, 1);
    transpose(r->keys_transposed, r->keys, n, dim);
    transpose(r->values_transposed, r->values, n, dim);
    memset(r->dk, 0, (size_t)(n * width) * sizeof(float));
    memset(r->dv, 0, (size_t)(n * width) * sizeof(float));
    for (int64_t b = block / Q_BLOCK; b * Q_BLOCK < s->q_len; b++) {
        int64_t from = b * Q_BLOCK, m = at_most(Q_BLOCK, s->q_len - from), first, last;
        key_blocks(s, args->window, from, from + m, &first, &last);
        if (p.block < first) break; /* later queries' windows have passed these keys */
        for (int h = p.kv * group; h < (p.kv + 1) * group; h++) {
            float *dq = c->dq + (h * args->q.t.shape[0] + s->q_begin + from) * width;
            one_head(c, r, s, h, from, m, block, n);
            wait_for(&c->turns[p.turns + b], p.block - first);
            add_visible(dq, r->dp, r->keys, width, m, from, block, n, p.block > first);
            if (p.block == last) scatter_rows(args->dq, s->q_begin + from, m, h, dq, args->scale);
        }
        next_turn(&c->turns[p.turns + b], p.block - first);
    }
    scatter_rows(args->dk, s->k_begin + block, n, p.kv, r->dk, 1);
    scatter_rows(args->dv, s->k_begin + block, n, p.kv, r->dv, 1);
}

int PL_CPU(attention_backward)(pl_device *device, pl_error *err, const pl_attention_backward_args *args, void *scratch)
{
    (void)err;
#ifdef __AVX512BF16__
    if (args->q.t.dtype == PL_BF16) {
        PL_CPU(attention_bf16_backward)(device, args, scratch);
        return 0;
    }
#endif
    plan sizes = plan_of(args);
    key_piece *list = scratch;
    context c = {.args = args};
    c.turns = (atomic_int *)((char *)scratch + aligned(sizes.pieces * (int64_t)sizeof(key_piece)));
    c.dq = (float *)((char *)c.turns + aligned(sizes.turns * (int64_t)sizeof(atomic_int)));
    float *rooms = c.dq + sizes.dq_floats;
    atomic_llong next = 0;
    list_pieces(args, Q_BLOCK, Q_BLOCK, sizes.pieces, list);
    for (int64_t i = 0; i < sizes.turns; i++) atomic_init(&c.turns[i], 0);
#pragma omp parallel num_threads(device->threads)
    {
        for (int i = 0; i < args->nsequences; i++) {
            int64_t begin = args->sequences[i].q_begin, end = begin + args->sequences[i].q_len;
#pragma omp for schedule(static) nowait
            for (int64_t t = begin; t < end; t++) {
                for (int h = 0; h < args->q.heads; h++) sum_delta(args, t, h);
            }
        }
#pragma omp barrier
        room r = room_at(rooms + omp_get_thread_num() * room_floats(args), args);
        /* Not an OpenMP loop: that pieces are begun in the order of the list is what keeps waiting safe. */
        for (int64_t i; (i = atomic_fetch_add(&next, 1)) < sizes.pieces;) work_on(&c, list[i], &r);
    }
    return 0;
}
