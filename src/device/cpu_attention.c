/* Attention's forward. A piece of work is a block of queries of the heads that share a key head; it passes over the
   blocks of keys that it sees with an online softmax. Pieces are independent of each other, and what one computes does
   not depend on which thread takes it. Dao et al. 2022. */
#include "device/cpu_attention.h"

#include <float.h>
#include <math.h>
#include <omp.h>

#define HEADS_AT_ONCE 8 /* of a group, which share the packed keys */

typedef struct piece {
    int sequence, block, kv, head; /* the first of its heads */
} piece;

/* A thread's memory, all in floats. */
typedef struct room {
    float *keys, *transposed, *values, *scores;
    struct {
        float *q, *out, maximum[Q_BLOCK], sum[Q_BLOCK];
    } head[HEADS_AT_ONCE];
} room;

static int64_t room_floats(const pl_attention_args *args)
{
    int64_t width = padded(args->q.head_dim);
    return 3 * K_BLOCK * width + Q_BLOCK * K_BLOCK + HEADS_AT_ONCE * 2 * Q_BLOCK * width;
}

static room room_at(float *at, const pl_attention_args *args)
{
    int64_t width = padded(args->q.head_dim);
    room r = {.keys = at, .transposed = at + K_BLOCK * width, .values = at + 2 * K_BLOCK * width};
    r.scores = at + 3 * K_BLOCK * width;
    at = r.scores + Q_BLOCK * K_BLOCK;
    for (int h = 0; h < HEADS_AT_ONCE; h++) {
        r.head[h].q = at + 2 * h * Q_BLOCK * width;
        r.head[h].out = r.head[h].q + Q_BLOCK * width;
    }
    return r;
}

static int64_t count_pieces(const pl_attention_args *args)
{
    int64_t group = args->q.heads / args->k.heads, n = 0;
    for (int s = 0; s < args->nsequences; s++) n += blocks_in(args->sequences[s].q_len, Q_BLOCK);
    return n * args->k.heads * blocks_in(group, HEADS_AT_ONCE);
}

/* The long ones first: later queries see more. */
static void list_pieces(const pl_attention_args *args, piece *out)
{
    int group = args->q.heads / args->k.heads;
    for (int s = 0; s < args->nsequences; s++) {
        for (int64_t b = blocks_in(args->sequences[s].q_len, Q_BLOCK) - 1; b >= 0; b--) {
            for (int kv = 0; kv < args->k.heads; kv++) {
                for (int h = 0; h < group; h += HEADS_AT_ONCE) {
                    *out++ = (piece){.sequence = s, .block = (int)b, .kv = kv, .head = kv * group + h};
                }
            }
        }
    }
}

static int64_t list_bytes(int64_t pieces)
{
    return (pieces * (int64_t)sizeof(piece) + 63) / 64 * 64;
}

int64_t PL_CPU(attention_scratch)(pl_device *device, const pl_attention_args *args)
{
#ifdef __AVX512BF16__
    if (args->q.t.dtype == PL_BF16) return PL_CPU(attention_bf16_scratch)(device, args);
#endif
    return list_bytes(count_pieces(args)) + device->threads * room_floats(args) * (int64_t)sizeof(float);
}

/* Makes row s[n] of scores the exponentials exp(score - maximum), zero where a key is not visible; returns their sum.
 *maximum goes up to the largest score seen; *former is the factor that what was summed before must be given. */
PL_INLINE float soften(float *s, int64_t n, int64_t low, int64_t high, float softcap, float *maximum, float *former)
{
    pl_vf most = pl_vset(*maximum), sum = {0};
    bool all = low == 0 && high == n && n % PL_LANES == 0;
    if (!all || softcap > 0) {
        for (int64_t j = 0; j < n; j += PL_LANES) {
            pl_vf z = capped_score(pl_vload(s + j), softcap);
            pl_vstore(s + j, all ? z : only_visible(z, j, low, high, -INFINITY));
        }
    }
    for (int64_t j = 0; j < n; j += PL_LANES) most = pl_vmax(pl_vload(s + j), most);
    float now = pl_vmaximum(most);
    *former = now > *maximum ? pl_vexp(pl_vset(*maximum - now))[0] : 1;
    *maximum = now;
    for (int64_t j = 0; j < n; j += PL_LANES) {
        pl_vf p = pl_vexp(pl_vload(s + j) - now);
        sum += p;
        pl_vstore(s + j, p);
    }
    return pl_vsum(sum);
}

/* One head's queries against the packed block of keys [block, block + n). */
static void attend(const pl_attention_args *args, room *r, int h, int64_t m, int64_t position, int64_t block, int64_t n)
{
    int64_t dim = args->q.head_dim, width = padded(dim);
    float *q = r->head[h].q, *out = r->head[h].out;
    visible_scores(r->scores, q, width, r->transposed, m, dim, position, block, n);
    for (int64_t i = 0; i < m; i++) {
        int64_t low, high;
        float former;
        visible_keys(position + i, args->window, block, n, &low, &high);
        float sum = soften(r->scores + i * K_BLOCK, n, low, high, args->softcap, &r->head[h].maximum[i], &former);
        r->head[h].sum[i] = r->head[h].sum[i] * former + sum;
        if (former == 1) continue;
        for (int64_t d = 0; d < width; d += PL_LANES) {
            pl_vstore(out + i * width + d, former * pl_vload(out + i * width + d));
        }
    }
    add_visible(out, r->scores, r->values, width, m, position, block, n, true);
}

static void finish(const pl_attention_args *args, room *r, int h, int head, int64_t row, int64_t m)
{
    int64_t width = padded(args->q.head_dim);
    for (int64_t i = 0; i < m; i++) {
        float *out = r->head[h].out + i * width, sum = r->head[h].sum[i];
        scatter_rows(args->out, row + i, 1, head, out, 1 / sum);
        if (pl_tensor_none(args->lse)) continue;
        ((float *)args->lse.data)[head * args->lse.stride + row + i] = r->head[h].maximum[i] + logf(sum);
    }
}

static void work_on(const pl_attention_args *args, piece p, room *r)
{
    const pl_sequence *s = &args->sequences[p.sequence];
    int64_t dim = args->q.head_dim, width = padded(dim), shift = s->k_len - s->q_len;
    int64_t from = (int64_t)p.block * Q_BLOCK, m = at_most(Q_BLOCK, s->q_len - from), first, last;
    int group = args->q.heads / args->k.heads, heads = (int)at_most(HEADS_AT_ONCE, (p.kv + 1) * group - p.head);
    for (int h = 0; h < heads; h++) {
        gather_rows(r->head[h].q, args->q, s->q_begin + from, m, p.head + h, args->scale);
        memset(r->head[h].out, 0, (size_t)(m * width) * sizeof(float));
        for (int64_t i = 0; i < m; i++) {
            r->head[h].maximum[i] = -FLT_MAX;
            r->head[h].sum[i] = 0;
        }
    }
    key_blocks(s, args->window, from, from + m, &first, &last);
    for (int64_t b = first; b <= last; b++) {
        int64_t block = b * K_BLOCK, n = at_most(K_BLOCK, s->k_len - block);
        gather_rows(r->keys, args->k, s->k_begin + block, n, p.kv, 1);
        transpose(r->transposed, r->keys, n, dim);
        gather_rows(r->values, args->v, s->k_begin + block, n, p.kv, 1);
        for (int h = 0; h < heads; h++) attend(args, r, h, m, from + shift, block, n);
    }
    for (int h = 0; h < heads; h++) finish(args, r, h, p.head + h, s->q_begin + from, m);
}

int PL_CPU(attention)(pl_device *device, pl_error *err, const pl_attention_args *args, void *scratch)
{
    (void)err;
#ifdef __AVX512BF16__
    if (args->q.t.dtype == PL_BF16) {
        PL_CPU(attention_bf16)(device, args, scratch);
        return 0;
    }
#endif
    int64_t pieces = count_pieces(args);
    piece *list = scratch;
    float *rooms = (float *)((char *)scratch + list_bytes(pieces));
    list_pieces(args, list);
#pragma omp parallel num_threads(device->threads)
    {
        room r = room_at(rooms + omp_get_thread_num() * room_floats(args), args);
#pragma omp for schedule(dynamic, 1)
        for (int64_t i = 0; i < pieces; i++) work_on(args, list[i], &r);
    }
    return 0;
}
