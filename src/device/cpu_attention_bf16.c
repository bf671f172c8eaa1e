/* Attention's forward in bf16, by tiles of it (cpu_tile_bf16.h). Keys and values are packed into tiles once; then a
   piece of work is a block of queries of one head, as in cpu_attention.c. Probabilities are rounded to bf16 for their
   product with the values, not for their sum. */
#include "device/cpu_attention.h"

#ifdef __AVX512BF16__

#    include "device/cpu_tile_bf16.h"

#    include <float.h>
#    include <math.h>
#    include <omp.h>

#    define ROWS 64       /* queries of a piece */
#    define STRIP_ROWS 32 /* queries whose scores are made at once */
#    define VECTORS (K_BLOCK / 16)

typedef struct piece {
    int sequence, block, head;
    int64_t packed; /* where the sequence's keys begin among the packed ones */
} piece;

typedef struct sizes {
    int64_t steps, tiles; /* of head_dim: in 32s, in 16s */
    int64_t packed_keys;  /* of all sequences, each rounded up to whole tiles */
    int64_t packings, pieces;
} sizes;

static sizes sizes_of(const pl_attention_args *args)
{
    sizes n = {.steps = blocks_in(args->q.head_dim, 32), .tiles = blocks_in(args->q.head_dim, 16)};
    for (int s = 0; s < args->nsequences; s++) {
        const pl_sequence *sequence = &args->sequences[s];
        if (sequence->q_len == 0) continue;
        n.packed_keys += blocks_in(sequence->k_len, 32) * 32;
        n.packings += blocks_in(sequence->k_len, K_BLOCK) * args->k.heads;
        n.pieces += blocks_in(sequence->q_len, ROWS) * args->q.heads;
    }
    return n;
}

/* A thread's memory. */
typedef struct room {
    uint16_t *q;   /* ROWS, packed as rows */
    uint16_t *p;   /* STRIP_ROWS by K_BLOCK, the same */
    float *scores; /* [STRIP_ROWS, K_BLOCK] */
    float *out;    /* [ROWS, 16 * tiles] */
    pl_vf sum[ROWS];
    float maximum[ROWS];
} room;

static int64_t room_bytes(const sizes *n)
{
    return ROWS * n->steps * 64 + STRIP_ROWS * K_BLOCK * 6 + ROWS * n->tiles * 64 + (int64_t)sizeof(room);
}

static room *room_at(char *at, const sizes *n)
{
    room *r = (room *)at;
    at += sizeof *r;
    r->q = (uint16_t *)at;
    at += ROWS * n->steps * 64;
    r->p = (uint16_t *)at;
    at += STRIP_ROWS * K_BLOCK * 2;
    r->scores = (float *)at;
    r->out = r->scores + STRIP_ROWS * K_BLOCK;
    return r;
}

typedef struct context {
    const pl_attention_args *args;
    sizes n;
    piece *packings, *pieces;
    uint16_t *keys, *values;
    char *rooms;
} context;

static int64_t list_bytes(int64_t pieces)
{
    return (pieces * (int64_t)sizeof(piece) + 63) / 64 * 64;
}

static int64_t packed_bytes(const pl_attention_args *args, const sizes *n, int64_t width)
{
    return args->k.heads * n->packed_keys * width * 2;
}

int64_t PL_CPU(attention_bf16_scratch)(pl_device *device, const pl_attention_args *args)
{
    sizes n = sizes_of(args);
    return list_bytes(n.packings) + list_bytes(n.pieces) + packed_bytes(args, &n, 32 * n.steps) +
           packed_bytes(args, &n, 16 * n.tiles) + device->threads * room_bytes(&n);
}

static context lay_out(const pl_attention_args *args, char *scratch)
{
    context c = {.args = args, .n = sizes_of(args)};
    c.packings = (piece *)scratch;
    scratch += list_bytes(c.n.packings);
    c.pieces = (piece *)scratch;
    scratch += list_bytes(c.n.pieces);
    c.keys = (uint16_t *)scratch;
    scratch += packed_bytes(args, &c.n, 32 * c.n.steps);
    c.values = (uint16_t *)scratch;
    c.rooms = scratch + packed_bytes(args, &c.n, 16 * c.n.tiles);
    piece *packing = c.packings, *out = c.pieces;
    int64_t packed = 0;
    for (int s = 0; s < args->nsequences; s++) {
        const pl_sequence *sequence = &args->sequences[s];
        if (sequence->q_len == 0) continue;
        for (int64_t b = blocks_in(sequence->k_len, K_BLOCK) - 1; b >= 0; b--) {
            for (int h = 0; h < args->k.heads; h++) *packing++ = (piece){s, (int)b, h, packed};
        }
        for (int64_t b = blocks_in(sequence->q_len, ROWS) - 1; b >= 0; b--) { /* the long ones first */
            for (int h = 0; h < args->q.heads; h++) *out++ = (piece){s, (int)b, h, packed};
        }
        packed += blocks_in(sequence->k_len, 32) * 32;
    }
    return c;
}

/* The packed keys from key `key` of a piece's sequence on (a multiple of 32), as the right operand. */
PL_INLINE tile_operand keys_at(const context *c, piece p, int head, int64_t key)
{
    int64_t at = (head * c->n.packed_keys + p.packed + key) * 32 * c->n.steps;
    return (tile_operand){c->keys + at, c->n.steps * BF16_TILE, BF16_TILE};
}

PL_INLINE tile_operand values_at(const context *c, piece p, int head, int64_t key)
{
    int64_t at = (head * c->n.packed_keys + p.packed + key) * 16 * c->n.tiles;
    return (tile_operand){c->values + at, BF16_TILE, c->n.tiles * BF16_TILE};
}

static void pack(const context *c, piece p)
{
    const pl_sequence *s = &c->args->sequences[p.sequence];
    int64_t block = (int64_t)p.block * K_BLOCK, end = at_most(block + K_BLOCK, s->k_len);
    tile_source k = tile_head(c->args->k, s->k_begin, s->k_len, p.head);
    tile_source v = tile_head(c->args->v, s->k_begin, s->k_len, p.head);
    for (int64_t key = block; key < end; key += 32) {
        uint16_t *to = (uint16_t *)keys_at(c, p, p.head, key).tiles;
        for (int64_t half = 0; half < 32; half += 16) {
            for (int64_t d = 0; d < c->n.steps; d++, to += BF16_TILE) pack_transposed(to, k, key + half, 32 * d);
        }
        to = (uint16_t *)values_at(c, p, p.head, key).tiles;
        for (int64_t d = 0; d < c->n.tiles; d++, to += BF16_TILE) pack_pairs(to, v, key, 16 * d);
    }
}

/* A row of scores (`vectors` of them, an even number) into probabilities exp(z - maximum), packed as row `row` of p;
   z = scale * score, capped. The keys outside [low, high) count as not there. */
PL_INLINE void soften(const float *score, int vectors, float scale, float cap, int64_t low, int64_t high,
    float *maximum, pl_vf *sum, float *former, uint16_t *p)
{
    pl_vf z[VECTORS], most = pl_vset(*maximum);
    bool all = low == 0 && high == 16 * vectors;
    for (int v = 0; v < vectors; v++) {
        z[v] = capped_score(scale * pl_vload(score + 16 * v), cap);
        if (!all) z[v] = only_visible(z[v], 16 * v, low, high, -INFINITY);
        most = pl_vmax(z[v], most);
    }
    float now = pl_vmaximum(most);
    *former = 1;
    if (now > *maximum) {
        *former = pl_vexp(pl_vset(*maximum - now))[0];
        *sum *= *former;
        *maximum = now;
    }
    for (int v = 0; v < vectors; v += 2) {
        pl_vf a = pl_vexp(z[v] - now), b = pl_vexp(z[v + 1] - now);
        *sum += a + b;
        _mm512_store_si512(p + v / 2 * BF16_TILE, two_bf16(a, b));
    }
}

/* STRIP_ROWS queries from row `i` of the piece on against the block's first `steps` * 32 keys. */
static void attend(
    const context *c, room *r, piece p, int64_t i, int64_t m, int64_t position, int64_t block, int64_t n, int64_t steps)
{
    const pl_attention_args *args = c->args;
    int64_t width = 16 * c->n.tiles, tiles = blocks_in(m, 16);
    int kv = p.head / (args->q.heads / args->k.heads);
    tile_operand q = {r->q + i * 32 * c->n.steps, c->n.steps * BF16_TILE, BF16_TILE};
    tile_product(q, keys_at(c, p, kv, block), r->scores, K_BLOCK, tiles, 2 * steps, c->n.steps, false);
    for (int64_t j = 0; j < m; j++) {
        int64_t low, high;
        float former, *score = r->scores + j * K_BLOCK, *maximum = &r->maximum[i + j];
        uint16_t *to = r->p + j / 16 * (K_BLOCK / 32) * BF16_TILE + j % 16 * 32;
        visible_keys(position + j, args->window, block, n, &low, &high);
        if (steps == K_BLOCK / 32 && low == 0 && high == K_BLOCK && args->softcap <= 0) {
            soften(score, VECTORS, args->scale, 0, 0, K_BLOCK, maximum, &r->sum[i + j], &former, to);
        } else {
            soften(score, (int)steps * 2, args->scale, args->softcap, low, high, maximum, &r->sum[i + j], &former, to);
        }
        if (former == 1) continue;
        float *out = r->out + (i + j) * width;
        for (int64_t d = 0; d < width; d += 16) pl_vstore(out + d, former * pl_vload(out + d));
    }
    tile_operand probabilities = {r->p, K_BLOCK / 32 * BF16_TILE, BF16_TILE};
    tile_product(probabilities, values_at(c, p, kv, block), r->out + i * width, width, tiles, c->n.tiles, steps, true);
}

static void work_on(const context *c, piece p, room *r)
{
    const pl_attention_args *args = c->args;
    const pl_sequence *s = &args->sequences[p.sequence];
    int64_t from = (int64_t)p.block * ROWS, m = at_most(ROWS, s->q_len - from), shift = s->k_len - s->q_len;
    int64_t width = 16 * c->n.tiles, first, last;
    tile_source q = tile_head(args->q, s->q_begin, s->q_len, p.head);
    uint16_t *to = r->q;
    for (int64_t i = 0; i < ROWS; i += 16) {
        for (int64_t d = 0; d < c->n.steps; d++, to += BF16_TILE) pack_rows(to, q, from + i, 32 * d);
    }
    memset(r->out, 0, (size_t)(ROWS * width) * sizeof(float));
    for (int64_t i = 0; i < ROWS; i++) {
        r->maximum[i] = -FLT_MAX;
        r->sum[i] = pl_vset(0);
    }
    key_blocks(s, args->window, from, from + m, &first, &last);
    for (int64_t b = first; b <= last; b++) {
        int64_t block = b * K_BLOCK, n = at_most(K_BLOCK, s->k_len - block);
        for (int64_t i = 0; i < m; i += STRIP_ROWS) {
            int64_t rows = at_most(STRIP_ROWS, m - i), position = from + i + shift;
            int64_t keys = at_most(position + rows - block, n);
            if (keys > 0) attend(c, r, p, i, rows, position, block, n, blocks_in(keys, 32));
        }
    }
    for (int64_t i = 0; i < m; i++) {
        float sum = pl_vsum(r->sum[i]);
        scatter_rows(args->out, s->q_begin + from + i, 1, p.head, r->out + i * width, 1 / sum);
        if (pl_tensor_none(args->lse)) continue;
        ((float *)args->lse.data)[p.head * args->lse.stride + s->q_begin + from + i] = r->maximum[i] + logf(sum);
    }
}

void PL_CPU(attention_bf16)(pl_device *device, const pl_attention_args *args, void *scratch)
{
    context c = lay_out(args, scratch);
#    pragma omp parallel num_threads(device->threads)
    {
        tile_config before;
        tiles_begin(&before);
        room *r = room_at(c.rooms + omp_get_thread_num() * room_bytes(&c.n), &c.n);
#    pragma omp for schedule(dynamic, 1)
        for (int64_t i = 0; i < c.n.packings; i++) pack(&c, c.packings[i]);
#    pragma omp for schedule(dynamic, 1)
        for (int64_t i = 0; i < c.n.pieces; i++) work_on(&c, c.pieces[i], r);
        tiles_end(&before);
    }
}

#endif
