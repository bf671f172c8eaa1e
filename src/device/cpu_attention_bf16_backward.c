/* Attention's backward in bf16, by tiles of it (cpu_tile_bf16.h): the same pieces and turns as in
   cpu_attention_backward.c. Of a block of queries and a block of keys it makes the scores and the gradient of the
   probabilities strip by strip, and from them, in bf16, the probabilities p and the scores' gradient ds in the forms in
   which the products want them:

       dv^T = dout^T p    dk^T = q^T ds    both right operands in pairs of queries; dout^T and q^T are packed beforehand
       dq   = ds k        ds as rows */
#include "device/cpu_attention_backward.h"

#ifdef __AVX512BF16__

#    include "device/cpu_tile_bf16.h"

#    include <omp.h>

#    define ROWS                                                                                                       \
        K_BLOCK /* queries of a block: a block of queries sees the block of keys of its number, and those before */
#    define STRIP_ROWS 32
#    define STRIPS (ROWS / STRIP_ROWS)
#    define KEY_STEPS (K_BLOCK / 32)
#    define KEY_TILES (K_BLOCK / 16)

typedef struct packing {
    int sequence, block, head;
    int64_t packed;
} packing;

typedef struct sizes {
    int64_t steps, tiles; /* of head_dim: in 32s, in 16s */
    int64_t rows;         /* of all sequences, each rounded up to whole strips */
    int64_t packings, pieces, turns;
} sizes;

static sizes sizes_of(const pl_attention_backward_args *args)
{
    sizes n = {.steps = blocks_in(args->q.head_dim, 32), .tiles = blocks_in(args->q.head_dim, 16)};
    n.pieces = count_pieces(args);
    n.turns = count_turns(args, ROWS);
    for (int s = 0; s < args->nsequences; s++) {
        n.rows += blocks_in(args->sequences[s].q_len, STRIP_ROWS) * STRIP_ROWS;
        n.packings += blocks_in(args->sequences[s].q_len, ROWS) * args->q.heads;
    }
    return n;
}

/* A thread's memory. */
typedef struct room {
    uint16_t *keys, *values; /* K_BLOCK, packed transposed */
    uint16_t *key_pairs;     /* packed in pairs */
    float *dk, *dv;          /* transposed: [16 * tiles, K_BLOCK] */
    uint16_t *q, *dout;      /* ROWS, packed as rows */
    float *scores, *dp;      /* [STRIP_ROWS, K_BLOCK] */
    uint16_t *p_pairs;       /* tiles [STRIPS, KEY_TILES] */
    uint16_t *ds_pairs;      /* the same */
    uint16_t *ds_rows;       /* tiles [ROWS / 16, KEY_STEPS] */
} room;

static int64_t room_bytes(const sizes *n)
{
    return K_BLOCK * (n->steps * 64 * 2 + n->tiles * 32) + 2 * K_BLOCK * n->tiles * 64 + 2 * ROWS * n->steps * 64 +
           2 * STRIP_ROWS * K_BLOCK * 4 + 3 * ROWS * K_BLOCK * 2;
}

static room room_at(char *at, const sizes *n)
{
    room r;
    r.keys = (uint16_t *)at;
    r.values = r.keys + K_BLOCK * n->steps * 32;
    r.key_pairs = r.values + K_BLOCK * n->steps * 32;
    r.dk = (float *)(r.key_pairs + K_BLOCK * n->tiles * 16);
    r.dv = r.dk + K_BLOCK * n->tiles * 16;
    r.q = (uint16_t *)(r.dv + K_BLOCK * n->tiles * 16);
    r.dout = r.q + ROWS * n->steps * 32;
    r.scores = (float *)(r.dout + ROWS * n->steps * 32);
    r.dp = r.scores + STRIP_ROWS * K_BLOCK;
    r.p_pairs = (uint16_t *)(r.dp + STRIP_ROWS * K_BLOCK);
    r.ds_pairs = r.p_pairs + ROWS * K_BLOCK;
    r.ds_rows = r.ds_pairs + ROWS * K_BLOCK;
    return r;
}

typedef struct context {
    const pl_attention_backward_args *args;
    sizes n;
    packing *packings;
    key_piece *pieces;
    atomic_int *turns;
    uint16_t *q, *dout; /* [heads, rows, 16 * tiles], packed as columns */
    float *dq;          /* the same, in f32 */
    char *rooms;
} context;

/* Lays the scratch space out from `at` on; returns its end. */
static char *lay_out(context *c, char *at, int threads)
{
    const sizes *n = &c->n;
    int64_t elements = c->args->q.heads * n->rows * 16 * n->tiles;
    c->packings = (packing *)at;
    at += aligned(n->packings * (int64_t)sizeof(packing));
    c->pieces = (key_piece *)at;
    at += aligned(n->pieces * (int64_t)sizeof(key_piece));
    c->turns = (atomic_int *)at;
    at += aligned(n->turns * (int64_t)sizeof(atomic_int));
    c->q = (uint16_t *)at;
    c->dout = c->q + elements;
    c->dq = (float *)(c->dout + elements);
    c->rooms = (char *)(c->dq + elements);
    return c->rooms + threads * room_bytes(n);
}

int64_t PL_CPU(attention_bf16_backward_scratch)(pl_device *device, const pl_attention_backward_args *args)
{
    context c = {.args = args, .n = sizes_of(args)};
    char *start = (char *)(uintptr_t)64; /* an aligned address that is only counted from */
    return lay_out(&c, start, device->threads) - start;
}

static void list_packings(const pl_attention_backward_args *args, packing *out)
{
    int64_t packed = 0;
    for (int s = 0; s < args->nsequences; s++) {
        for (int64_t b = 0; b < blocks_in(args->sequences[s].q_len, ROWS); b++) {
            for (int h = 0; h < args->q.heads; h++) *out++ = (packing){s, (int)b, h, packed};
        }
        packed += blocks_in(args->sequences[s].q_len, STRIP_ROWS) * STRIP_ROWS;
    }
}

/* Where row `from` (a multiple of STRIP_ROWS) of a sequence is among the packed rows of a head, in elements. */
PL_INLINE int64_t packed_at(const context *c, int h, int64_t packed, int64_t from)
{
    return (h * c->n.rows + packed + from) * 16 * c->n.tiles;
}

static void pack(const context *c, packing p)
{
    const pl_attention_backward_args *args = c->args;
    const pl_sequence *s = &args->sequences[p.sequence];
    int64_t from = (int64_t)p.block * ROWS, end = at_most(from + ROWS, s->q_len);
    tile_source q = tile_head(args->q, s->q_begin, s->q_len, p.head);
    tile_source dout = tile_head(args->dout, s->q_begin, s->q_len, p.head);
    int64_t at = packed_at(c, p.head, p.packed, from);
    for (int64_t i = from; i < end; i += STRIP_ROWS) {
        for (int64_t d = 0; d < c->n.tiles; d++, at += BF16_TILE) {
            pack_columns(c->q + at, q, i, 16 * d);
            pack_columns(c->dout + at, dout, i, 16 * d);
        }
    }
    for (int64_t t = s->q_begin + from; t < s->q_begin + end; t++) sum_delta(args, t, p.head);
}

/* What two neighbouring rows of scores and dp become: columns v * 16 .. of p and ds in pairs, and ds as rows. */
typedef struct row_pair {
    const float *score[2], *dp[2];
    float lse[2], delta[2];
    int64_t low[2], high[2];
    uint16_t *p_pairs, *ds_pairs, *ds_rows[2];
} row_pair;

PL_INLINE void differentiate(const row_pair *r, int64_t steps, float scale, float cap, bool all)
{
    for (int64_t u = 0; u < steps; u++) {
        pl_vf ds[2][2];
        for (int half = 0; half < 2; half++) {
            int64_t v = 2 * u + half;
            pl_vf p[2];
            for (int i = 0; i < 2; i++) {
                pl_vf z = capped_score(scale * pl_vload(r->score[i] + 16 * v), cap);
                pl_vf e = pl_vexp(z - r->lse[i]), dz = e * (pl_vload(r->dp[i] + 16 * v) - r->delta[i]);
                if (cap > 0) dz *= 1 - z * z * (1 / (cap * cap));
                p[i] = all ? e : only_visible(e, 16 * v, r->low[i], r->high[i], 0);
                ds[i][half] = all ? dz : only_visible(dz, 16 * v, r->low[i], r->high[i], 0);
            }
            _mm512_store_si512(r->p_pairs + v * BF16_TILE, bf16_pairs(p[0], p[1]));
            _mm512_store_si512(r->ds_pairs + v * BF16_TILE, bf16_pairs(ds[0][half], ds[1][half]));
        }
        for (int i = 0; i < 2; i++) _mm512_store_si512(r->ds_rows[i] + u * BF16_TILE, two_bf16(ds[i][0], ds[i][1]));
    }
}

/* Strip `t` of a block of queries: its scores and dp, and what comes of them, for the first `steps` * 32 keys. */
static void one_strip(const context *c, room *r, const pl_sequence *s, int h, int64_t from, int64_t m, int64_t block,
    int64_t n, int64_t t, int64_t steps)
{
    const pl_attention_backward_args *args = c->args;
    const float *lse = (const float *)args->lse.data + h * args->lse.stride + s->q_begin + from;
    const float *delta = (const float *)args->delta.data + h * args->delta.stride + s->q_begin + from;
    int64_t left = c->n.steps * BF16_TILE, strip = 2 * t * left;
    tile_operand q = {r->q + strip, left, BF16_TILE}, dout = {r->dout + strip, left, BF16_TILE};
    tile_operand keys = {r->keys, left, BF16_TILE}, values = {r->values, left, BF16_TILE};
    tile_product(q, keys, r->scores, K_BLOCK, 2, 2 * steps, c->n.steps, false);
    tile_product(dout, values, r->dp, K_BLOCK, 2, 2 * steps, c->n.steps, false);
    for (int64_t j = 0; j < STRIP_ROWS; j += 2) {
        row_pair pair = {.p_pairs = r->p_pairs + t * KEY_TILES * BF16_TILE + j / 2 * 32,
            .ds_pairs = r->ds_pairs + t * KEY_TILES * BF16_TILE + j / 2 * 32};
        bool all = args->softcap <= 0;
        for (int k = 0; k < 2; k++) {
            int64_t i = t * STRIP_ROWS + j + k;
            pair.score[k] = r->scores + (j + k) * K_BLOCK;
            pair.dp[k] = r->dp + (j + k) * K_BLOCK;
            pair.ds_rows[k] = r->ds_rows + i / 16 * KEY_STEPS * BF16_TILE + i % 16 * 32;
            if (i < m) {
                visible_keys(from + i, args->window, block, n, &pair.low[k], &pair.high[k]);
                pair.lse[k] = lse[i];
                pair.delta[k] = delta[i];
            }
            all = all && pair.low[k] == 0 && pair.high[k] >= 32 * steps;
        }
        if (all) {
            differentiate(&pair, steps, args->scale, 0, true);
        } else {
            differentiate(&pair, steps, args->scale, args->softcap, false);
        }
    }
}

/* dk and dv (transposed) of one head's queries. Key step k is seen by strips from the one on that reaches it. */
static void add_to_keys(
    const context *c, room *r, int h, int64_t packed, int64_t from, int64_t m, int64_t block, int64_t n)
{
    int64_t at = packed_at(c, h, packed, from), strips = blocks_in(m, STRIP_ROWS), steps = blocks_in(n, 32);
    int64_t each = from > block ? steps : 1; /* key steps at once: all where all strips see all */
    for (int64_t k = 0; k < steps; k += each) {
        int64_t first = from > block ? 0 : k;
        if (first >= strips) break;
        int64_t skip = first * c->n.tiles * BF16_TILE, right = first * KEY_TILES * BF16_TILE + 2 * k * BF16_TILE;
        tile_operand dout = {c->dout + at + skip, BF16_TILE, c->n.tiles * BF16_TILE}, q = dout;
        tile_operand p = {r->p_pairs + right, BF16_TILE, KEY_TILES * BF16_TILE}, ds = p;
        q.tiles = c->q + at + skip;
        ds.tiles = r->ds_pairs + right;
        tile_product(dout, p, r->dv + 32 * k, K_BLOCK, c->n.tiles, 2 * each, strips - first, true);
        tile_product(q, ds, r->dk + 32 * k, K_BLOCK, c->n.tiles, 2 * each, strips - first, true);
    }
}

/* Key steps that strip t sees of the block. */
PL_INLINE int64_t visible_steps(int64_t from, int64_t m, int64_t block, int64_t n, int64_t t)
{
    int64_t last = at_most(from + (t + 1) * STRIP_ROWS, from + m) - 1;
    return blocks_in(at_most(last + 1 - block, n), 32);
}

static void pack_block_rows(uint16_t *to, tile_source x, int64_t from, int64_t m, int64_t steps)
{
    for (int64_t i = 0; i < blocks_in(m, STRIP_ROWS) * STRIP_ROWS; i += 16) {
        for (int64_t d = 0; d < steps; d++, to += BF16_TILE) pack_rows(to, x, from + i, 32 * d);
    }
}

static void pack_block_keys(const context *c, room *r, const pl_sequence *s, int kv, int64_t block, int64_t n)
{
    tile_source k = tile_head(c->args->k, s->k_begin, s->k_len, kv),
                v = tile_head(c->args->v, s->k_begin, s->k_len, kv);
    uint16_t *keys = r->keys, *values = r->values, *pairs = r->key_pairs;
    for (int64_t i = 0; i < blocks_in(n, 32) * 32; i += 16) {
        for (int64_t d = 0; d < c->n.steps; d++, keys += BF16_TILE, values += BF16_TILE) {
            pack_transposed(keys, k, block + i, 32 * d);
            pack_transposed(values, v, block + i, 32 * d);
        }
        if (i % 32 != 0) continue;
        for (int64_t d = 0; d < c->n.tiles; d++, pairs += BF16_TILE) pack_pairs(pairs, k, block + i, 16 * d);
    }
}

/* Rows [block, block + n) of a head of dk or dv from their transposed sums. */
static void store_keys(const context *c, pl_heads to, const pl_sequence *s, int kv, const float *sum, int64_t block,
    int64_t n, float factor)
{
    for (int64_t i = 0; i < n; i += 16) {
        for (int64_t d = 0; d < c->n.tiles; d++) {
            pl_vf row[16];
            for (int l = 0; l < 16; l++) row[l] = pl_vload(sum + (16 * d + l) * K_BLOCK + i);
            pl_vtranspose(row);
            for (int64_t l = 0; l < at_most(16, n - i); l++) {
                void *at = (void *)(uintptr_t)head_row(to, s->k_begin + block + i + l, kv);
                pl_vput(PL_BF16, at, 16 * d, at_most(16, to.head_dim - 16 * d), factor * row[l]);
            }
        }
    }
}

static void work_on(const context *c, key_piece p, room *r)
{
    const pl_attention_backward_args *args = c->args;
    const pl_sequence *s = &args->sequences[p.sequence];
    int64_t block = (int64_t)p.block * K_BLOCK, n = at_most(K_BLOCK, s->k_len - block), width = 16 * c->n.tiles;
    int group = args->q.heads / args->k.heads;
    pack_block_keys(c, r, s, p.kv, block, n);
    memset(r->dk, 0, (size_t)(K_BLOCK * width) * sizeof(float));
    memset(r->dv, 0, (size_t)(K_BLOCK * width) * sizeof(float));
    for (int64_t b = p.block; b * ROWS < s->q_len; b++) {
        int64_t from = b * ROWS, m = at_most(ROWS, s->q_len - from), first, last;
        key_blocks(s, args->window, from, from + m, &first, &last);
        if (p.block < first) break; /* later queries' windows have passed these keys */
        for (int h = p.kv * group; h < (p.kv + 1) * group; h++) {
            pack_block_rows(r->q, tile_head(args->q, s->q_begin, s->q_len, h), from, m, c->n.steps);
            pack_block_rows(r->dout, tile_head(args->dout, s->q_begin, s->q_len, h), from, m, c->n.steps);
            for (int64_t t = 0; t < blocks_in(m, STRIP_ROWS); t++) {
                one_strip(c, r, s, h, from, m, block, n, t, visible_steps(from, m, block, n, t));
            }
            add_to_keys(c, r, h, p.packed, from, m, block, n);
            wait_for(&c->turns[p.turns + b], p.block - first);
            float *dq = c->dq + packed_at(c, h, p.packed, from);
            for (int64_t t = 0; t < blocks_in(m, STRIP_ROWS); t++) {
                tile_operand ds = {r->ds_rows + 2 * t * KEY_STEPS * BF16_TILE, KEY_STEPS * BF16_TILE, BF16_TILE};
                tile_operand keys = {r->key_pairs, BF16_TILE, c->n.tiles * BF16_TILE};
                tile_product(ds, keys, dq + t * STRIP_ROWS * width, width, 2, c->n.tiles,
                    visible_steps(from, m, block, n, t), p.block > first);
            }
            if (p.block == last) scatter_rows(args->dq, s->q_begin + from, m, h, dq, args->scale);
        }
        next_turn(&c->turns[p.turns + b], p.block - first);
    }
    store_keys(c, args->dk, s, p.kv, r->dk, block, n, args->scale);
    store_keys(c, args->dv, s, p.kv, r->dv, block, n, 1);
}

void PL_CPU(attention_bf16_backward)(pl_device *device, const pl_attention_backward_args *args, void *scratch)
{
    context c = {.args = args, .n = sizes_of(args)};
    atomic_llong next = 0;
    lay_out(&c, scratch, device->threads);
    list_packings(args, c.packings);
    list_pieces(args, ROWS, STRIP_ROWS, c.n.pieces, c.pieces);
    for (int64_t i = 0; i < c.n.turns; i++) atomic_init(&c.turns[i], 0);
#    pragma omp parallel num_threads(device->threads)
    {
        tile_config before;
        tiles_begin(&before);
        room r = room_at(c.rooms + omp_get_thread_num() * room_bytes(&c.n), &c.n);
#    pragma omp for schedule(dynamic, 1)
        for (int64_t i = 0; i < c.n.packings; i++) pack(&c, c.packings[i]);
        for (int64_t i; (i = atomic_fetch_add(&next, 1)) < c.n.pieces;) work_on(&c, c.pieces[i], &r);
        tiles_end(&before);
    }
}

#endif
