/* bf16 products on AMX. The right operand is packed into tiles by panels of columns that stay in the second-level
   cache; then threads take blocks of rows. A left operand that lies as tiles want it (not transposed, whole steps of
   32) is read in place, but for rows at its end that do not fill a tile; another one is packed too. Where b is the
   larger operand and lies transposed, as a weight does in a forward, c^T = b^T a^T is made instead: then b is read in
   place and a, the smaller, is packed.

   A sum over more than K_BLOCK elements is made in parts: in c itself where that is f32, else in f32 beside the panel.
   The order of every sum follows from the shapes alone. */
#include "device/cpu.h"

#ifdef __AMX_BF16__

#    include <omp.h>

#    include "device/cpu_tile_bf16.h"

#    define K_BLOCK 2048          /* elements of a sum that stay in the tiles' accumulators */
#    define PANEL_BYTES (1 << 20) /* of packed columns: half of the second-level cache */
/* Columns of a panel where sums go in parts, each longer than half of K_BLOCK. */
#    define WIDEST_PARTIAL (PANEL_BYTES / (K_BLOCK / 64 * 64))
#    define LEFT_BYTES (8 << 20) /* of a packed left operand */
#    define ALONE (1 << 18)      /* multiplications that are not worth a team */
#    define ROWS 64              /* of a block */
#    define SMALL_ROWS 32        /* where there are few blocks */
#    define ITEMS_A_THREAD 4     /* pieces of work in a panel, at least, so that threads end together */

/* One pair of operands: c += a b. */
typedef struct factor {
    pl_tensor a, b;
    bool transpose_a, transpose_b;
    int64_t k;
} factor;

typedef struct plan {
    const pl_gemm_args *args;
    bool swapped; /* it is c^T that is made: all below is of that product */
    int64_t m, n;
    factor main, tail; /* tail.k 0: there is none */
    int64_t k_block;   /* elements of main.k at a time, a multiple of 32 unless it is all */
    int64_t panel;     /* columns at a time, a multiple of 32 unless it is all */
    int64_t rows;      /* of a block */
    int64_t steps;     /* most steps of 32 that a panel has, the tail's among them */
    bool partial;      /* sums go through `sums` */
    bool gathered;     /* the left operand is packed */
    int64_t tall;      /* rows of c at a time: all, unless the left operand would be too much */
    uint16_t *right;   /* the panel: columns of tiles, each with its steps in order */
    uint16_t *left;    /* gathered: rows of tiles, each with its steps in order */
    float *sums;       /* [tall, panel] */
    uint16_t *rooms;   /* for each thread: a block of rows, packed */
} plan;

static int64_t steps_of(int64_t k)
{
    return blocks_in(k, 32);
}

static bool swaps(const pl_gemm_args *g)
{
    bool lies_right = g->transpose_b && !g->transpose_a && (pl_tensor_none(g->a2) || g->transpose_b2);
    return lies_right && g->c.shape[1] > g->c.shape[0] && g->a.shape[1] % 32 == 0;
}

/* The product that is made: its operands and c's shape. */
static void take_operands(plan *p, const pl_gemm_args *g)
{
    int64_t k = inner_length(g), k2 = second_length(g);
    p->swapped = swaps(g);
    p->m = g->c.shape[p->swapped];
    p->n = g->c.shape[!p->swapped];
    p->main = (factor){g->a, g->b, g->transpose_a, g->transpose_b, k};
    p->tail = (factor){g->a2, g->b2, false, g->transpose_b2, k2};
    if (!p->swapped) return;
    p->main = (factor){g->b, g->a, false, true, k};
    p->tail = (factor){g->b2, g->a2, false, true, k2};
}

static int64_t room_bytes(const plan *p)
{
    return p->rows * p->steps * 64;
}

static int64_t right_bytes(const plan *p)
{
    return blocks_in(p->panel, 16) * p->steps * BF16_TILE * 2;
}

static int64_t left_bytes(const plan *p)
{
    return p->gathered ? blocks_in(p->tall, 16) * steps_of(p->k_block) * BF16_TILE * 2 : 0;
}

static int64_t sums_bytes(const plan *p)
{
    return p->partial ? blocks_in(p->tall * p->panel * 4, 64) * 64 : 0;
}

/* Of a panel; it has 32 columns at least. */
static int64_t panel_bytes(int64_t steps)
{
    return steps * 64 * 32 > PANEL_BYTES ? steps * 64 * 32 : PANEL_BYTES;
}

static bool gathers(const plan *p)
{
    return p->main.transpose_a || p->main.k % 32 != 0;
}

static plan plan_of(const pl_gemm_args *g, int threads)
{
    plan p = {.args = g};
    take_operands(&p, g);
    int64_t blocks = blocks_in(p.main.k, K_BLOCK);
    p.k_block = blocks > 1 ? blocks_in(blocks_in(p.main.k, blocks), 32) * 32 : p.main.k;
    p.partial = blocks > 1 && g->c.dtype != PL_F32;
    p.steps = steps_of(p.k_block) + steps_of(p.tail.k);
    int64_t columns = panel_bytes(p.steps) / (p.steps * 64) / 32 * 32, panels = blocks_in(p.n, columns);
    p.panel = panels > 1 ? blocks_in(blocks_in(p.n, panels), 32) * 32 : p.n;
    p.rows = blocks_in(p.m, ROWS) < 4 * threads ? SMALL_ROWS : ROWS;
    p.gathered = gathers(&p);
    int64_t most = LEFT_BYTES / (steps_of(p.k_block) * 64) / ROWS * ROWS;
    p.tall = p.gathered ? at_most(p.m, most) : p.m;
    return p;
}

/* A bound on what a product takes, which grows with every dimension: a plan knows the largest batch alone, and a
   smaller one, whose panels and parts are cut otherwise, must find its room. */
int64_t PL_CPU(gemm_amx_scratch)(pl_device *device, const pl_gemm_args *args)
{
    plan p = {0};
    take_operands(&p, args);
    int64_t steps = at_most(steps_of(p.main.k), K_BLOCK / 32) + steps_of(p.tail.k), column = steps * 64;
    int64_t right = at_most(blocks_in(p.n, 16) * 16 * column, panel_bytes(steps)), left = 0, sums = 0;
    if (gathers(&p)) left = at_most(blocks_in(p.m, 16) * 16 * column, LEFT_BYTES);
    if (p.main.k > K_BLOCK && args->c.dtype != PL_F32)
        sums = blocks_in(p.m * at_most(p.n, WIDEST_PARTIAL) * 4, 64) * 64;
    return right + left + sums + device->threads * ROWS * column;
}

bool PL_CPU(gemm_amx_takes)(const pl_gemm_args *args)
{
    return args->a.dtype == PL_BF16 && args->c.shape[0] > 0 && args->c.shape[1] > 0 && inner_length(args) > 0;
}

/* ---- packing ---- */

static tile_source source_of(pl_tensor t)
{
    return (tile_source){(const uint16_t *)t.data, t.stride, t.shape[0], t.shape[1]};
}

/* Whole columns of tiles of b^T from column j on, for the sum's elements [from, from + count). */
PL_INLINE void pack_right_column(uint16_t *tiles, const factor *f, int64_t j, int64_t from, int64_t count)
{
    tile_source s = source_of(f->b);
    for (int64_t step = 0; step < steps_of(count); step++) {
        pack_transposed(tiles + step * BF16_TILE, s, j, from + step * 32);
    }
}

/* A step of b from element `from` on, for all of a panel's columns; tiles of neighbours are `below` apart. */
PL_INLINE void pack_right_step(
    uint16_t *tiles, int64_t below, const factor *f, int64_t j, int64_t columns, int64_t from)
{
    tile_source s = source_of(f->b);
    int64_t c = 0;
    for (; c + 32 <= columns && tile_whole(s, from, 32, j + c, 32); c += 32) {
        pack_two_pairs(tiles + c / 16 * below, tiles + (c / 16 + 1) * below, s, from, j + c);
    }
    for (; c < columns; c += 16) pack_pairs(tiles + c / 16 * below, s, from, j + c);
}

/* Rows of 16 from i on. */
PL_INLINE void pack_left(uint16_t *tiles, const factor *f, int64_t i, int64_t from, int64_t count)
{
    tile_source s = source_of(f->a);
    for (int64_t step = 0; step < steps_of(count); step++) {
        pack_rows(tiles + step * BF16_TILE, s, i, from + step * 32);
    }
}

/* The left operand's rows as the tiles' loads see them. */
typedef struct left {
    const char *at;
    int64_t row, step, below; /* bytes from row to row, step to step, and to the 16 rows below */
} left;

static left packed_left(const uint16_t *tiles, int64_t steps)
{
    return (left){(const char *)tiles, 64, BF16_TILE * 2, steps * BF16_TILE * 2};
}

/* Rows [i, i + rows) of a left operand that lies as tiles want it; in place, or where they do not fill a tile, or the
   sum no step, packed into room, which then moves on. */
static left left_rows(const factor *f, int64_t i, int64_t rows, int64_t from, int64_t count, uint16_t **room)
{
    if (rows % 16 == 0 && count % 32 == 0) {
        const uint16_t *at = (const uint16_t *)f->a.data + i * f->a.stride + from;
        return (left){(const char *)at, f->a.stride * 2, 64, f->a.stride * 32};
    }
    int64_t steps = steps_of(count), tiles = blocks_in(rows, 16);
    uint16_t *at = *room;
    for (int64_t r = 0; r < tiles; r++) pack_left(at + r * steps * BF16_TILE, f, i + r * 16, from, count);
    *room += tiles * steps * BF16_TILE;
    return packed_left(at, steps);
}

/* ---- what becomes of a square's sums ---- */

/* How sums reach c. */
typedef struct finish {
    bool to_sums, from_sums; /* a part that is not the last; one that is not the first */
    bool accumulate, bias;   /* into c, in this part */
    bool plain;              /* none of these: sums become bf16 and that is all */
} finish;

/* A square of sums that waits to be written, piece by piece while the next square is multiplied. A piece is a row; of
   c^T it is 16 rows by 16 columns. */
typedef struct square {
    const plan *plan;
    const finish *finish;
    float *sums; /* [32, 32] */
    int64_t i, j, panel_j, rows, columns;
    int64_t top; /* the first row that has sums */
    int piece, pieces;
} square;

static square square_at(
    const plan *p, const finish *f, float *sums, int64_t i, int64_t rows, int64_t j, int64_t columns)
{
    square q = {.plan = p, .finish = f, .sums = sums, .i = i, .j = j, .rows = rows, .columns = columns};
    q.pieces = (int)(p->swapped ? blocks_in(rows, 16) * blocks_in(columns, 16) : rows);
    return q;
}

/* Up to 16 sums of row i of the square, from column j on, with those of former parts. False: they wait for the next. */
PL_INLINE bool whole_sums(const square *q, int64_t i, int64_t j, int64_t lanes, pl_vf *v)
{
    const finish *f = q->finish;
    *v = pl_vload(q->sums + i * 32 + j);
    if (!f->from_sums && !f->to_sums) return true;
    float *sum = q->plan->sums + (q->i + i - q->top) * q->plan->panel + q->panel_j + j;
    if (f->from_sums) *v += lanes == 16 ? pl_vload(sum) : pl_vload_part(sum, lanes);
    if (!f->to_sums) return true;
    if (lanes == 16)
        pl_vstore(sum, *v);
    else
        pl_vstore_part(sum, *v, lanes);
    return false;
}

/* Up to 16 columns of a row of c. */
PL_INLINE void write_lanes(const square *q, int64_t i, int64_t j, int64_t lanes, pl_vf v)
{
    const pl_gemm_args *g = q->plan->args;
    char *row = (char *)g->c.data + i * g->c.stride * (g->c.dtype == PL_F32 ? 4 : 2);
    v *= pl_vset(g->alpha);
    if (q->finish->bias) v += pl_vget(g->bias.dtype, g->bias.data, j, lanes);
    if (q->finish->accumulate) v += pl_vget(g->c.dtype, row, j, lanes);
    pl_vput(g->c.dtype, row, j, lanes, v);
}

PL_INLINE void finish_row(const square *q, int64_t r)
{
    if (q->finish->plain && q->columns == 32) {
        const float *from = q->sums + r * 32;
        uint16_t *to = (uint16_t *)q->plan->args->c.data + (q->i + r) * q->plan->args->c.stride + q->j;
        _mm512_storeu_si512(to, two_bf16(pl_vload(from), pl_vload(from + 16)));
        return;
    }
    for (int64_t j = 0; j < q->columns; j += 16) {
        pl_vf v;
        int64_t lanes = at_most(q->columns - j, 16);
        if (whole_sums(q, r, j, lanes, &v)) write_lanes(q, q->i + r, q->j + j, lanes, v);
    }
}

/* 16 rows and columns of c^T. */
static void finish_transposed(const square *q, int64_t i, int64_t j)
{
    pl_vf v[16];
    int64_t rows = at_most(q->rows - i, 16), columns = at_most(q->columns - j, 16);
    for (int64_t r = rows; r < 16; r++) v[r] = pl_vset(0);
    for (int64_t r = 0; r < rows; r++) (void)whole_sums(q, i + r, j, columns, &v[r]);
    if (q->finish->to_sums) return;
    pl_vtranspose(v);
    for (int64_t c = 0; c < columns; c++) write_lanes(q, q->j + j + c, q->i + i, rows, v[c]);
}

PL_INLINE void finish_piece(square *q)
{
    int piece = q->piece++;
    if (q->plan->swapped) {
        int across = q->columns > 16 ? 2 : 1;
        finish_transposed(q, piece / across * 16, piece % across * 16);
    } else {
        finish_row(q, piece);
    }
}

static void finish_square(square *q)
{
    while (q->piece < q->pieces) finish_piece(q);
}

/* Asks for the lines of c that a square will be written to. */
PL_INLINE void fetch_square(const square *q)
{
    pl_tensor c = q->plan->args->c;
    bool swapped = q->plan->swapped;
    int64_t size = c.dtype == PL_F32 ? 4 : 2, rows = swapped ? q->columns : q->rows;
    const char *at = (const char *)c.data + ((swapped ? q->j : q->i) * c.stride + (swapped ? q->i : q->j)) * size;
    for (int64_t r = 0; r < rows; r++, at += c.stride * size) {
        __builtin_prefetch(at, 1, 3);
        if (size == 4) __builtin_prefetch(at + 64, 1, 3);
    }
}

/* ---- multiplying ---- */

/* Up to 2 x 2 tiles of sums, over steps of 32 elements; in each some pieces of the square before are finished. */
PL_INLINE void steps(
    int m, int n, left l, const uint16_t *b, int64_t b_below, int64_t count, square *before, int pieces)
{
    for (int64_t s = 0; s < count; s++) {
        const char *a_at = l.at + s * l.step;
        const uint16_t *b_at = b + s * BF16_TILE;
        AMX_LOAD(4, a_at, l.row);
        AMX_LOAD(6, b_at, 64);
        if (n == 2) AMX_LOAD(7, b_at + b_below, 64);
        if (m == 2) AMX_LOAD(5, a_at + l.below, l.row);
        AMX_MULTIPLY(0, 4, 6);
        if (n == 2) AMX_MULTIPLY(1, 4, 7);
        if (m == 2) AMX_MULTIPLY(2, 5, 6);
        if (m == 2 && n == 2) AMX_MULTIPLY(3, 5, 7);
        for (int r = 0; r < pieces && before->piece < before->pieces; r++) finish_piece(before);
    }
}

/* sums[32, 32] over both pairs of operands. b: the panel's columns, `below` (in bf16) to the next 16; the tail's tiles
   follow main's. */
PL_INLINE void multiply_square(int m, int n, float *sums, left main, int64_t main_steps, left tail, int64_t tail_steps,
    const uint16_t *b, int64_t below, square *before)
{
    AMX_ZERO(0);
    if (n == 2) AMX_ZERO(1);
    if (m == 2) AMX_ZERO(2);
    if (m == 2 && n == 2) AMX_ZERO(3);
    int pieces = (int)blocks_in(before->pieces, main_steps);
    steps(m, n, main, b, below, main_steps, before, pieces);
    steps(m, n, tail, b + main_steps * BF16_TILE, below, tail_steps, before, 0);
    AMX_STORE(0, sums, 128);
    if (n == 2) AMX_STORE(1, sums + 16, 128);
    if (m == 2) AMX_STORE(2, sums + 16 * 32, 128);
    if (m == 2 && n == 2) AMX_STORE(3, sums + 16 * 32 + 16, 128);
    finish_square(before);
}

/* A part of the sum for a panel. */
typedef struct part {
    int64_t from, count; /* of main's elements */
    int64_t tail;        /* of the tail's: all of them in the last part */
    int64_t i, rows;     /* of c */
    int64_t j, columns;  /* the panel's */
    bool packs_left;     /* else it is there from the panel before */
    finish finish;
} part;

static int64_t part_steps(const part *t)
{
    return steps_of(t->count) + steps_of(t->tail);
}

/* Brings some rows of the block below nearer, a share with each pair of columns. */
static void fetch_below(const plan *p, const part *t, int64_t i, int64_t pair, int64_t pairs)
{
    const factor *f = &p->main;
    if (p->gathered || i + 2 * p->rows > p->m) return;
    for (int64_t r = pair * p->rows / pairs; r < (pair + 1) * p->rows / pairs; r++) {
        const char *at = (const char *)f->a.data + ((i + p->rows + r) * f->a.stride + t->from) * 2;
        for (int64_t b = 0; b < t->count * 2; b += 64) __builtin_prefetch(at + b, 0, 2);
    }
}

/* Columns [first, end) (of 16s) of the panel for a block of rows. */
static void multiply(const plan *p, const part *t, int64_t i, int64_t first, int64_t end, uint16_t *room)
{
    _Alignas(64) float sums[2][32 * 32];
    int64_t rows = at_most(p->rows, t->i + t->rows - i), below = part_steps(t) * BF16_TILE;
    int64_t main_steps = steps_of(t->count), tail_steps = steps_of(t->tail);
    left main = p->gathered ? packed_left(p->left + (i - t->i) / 16 * main_steps * BF16_TILE, main_steps)
                            : left_rows(&p->main, i, rows, t->from, t->count, &room);
    left tail = t->tail ? left_rows(&p->tail, i, rows, 0, t->tail, &room) : (left){0};
    square before = {0};
    int turn = 0;
    for (int64_t c = first; c < end; c += 2) {
        const uint16_t *b = p->right + c * below;
        for (int64_t r = 0; r < rows; r += 32, turn ^= 1) {
            square q = square_at(p, &t->finish, sums[turn], i + r, at_most(32, rows - r), t->j + c * 16,
                at_most(32, t->columns - c * 16));
            q.panel_j = c * 16;
            q.top = t->i;
            left a = main, a2 = tail;
            a.at += r / 16 * main.below;
            if (a2.at) a2.at += r / 16 * tail.below;
            fetch_square(&q);
            if (q.rows > 16 && q.columns > 16) {
                multiply_square(2, 2, sums[turn], a, main_steps, a2, tail_steps, b, below, &before);
            } else if (q.columns > 16) {
                multiply_square(1, 2, sums[turn], a, main_steps, a2, tail_steps, b, below, &before);
            } else if (q.rows > 16) {
                multiply_square(2, 1, sums[turn], a, main_steps, a2, tail_steps, b, below, &before);
            } else {
                multiply_square(1, 1, sums[turn], a, main_steps, a2, tail_steps, b, below, &before);
            }
            before = q;
        }
        fetch_below(p, t, i, (c - first) / 2, blocks_in(end - first, 2));
    }
    finish_square(&before);
}

/* Every thread of a team comes here. The left operand is packed as it lies in memory: by rows, or where it is
   transposed by the 32 of its rows that are a step. */
static void pack_whole_left(const plan *p, const part *t)
{
    int64_t steps = steps_of(t->count), tiles = blocks_in(t->rows, 16);
    if (!p->main.transpose_a) {
#    pragma omp for schedule(static) nowait
        for (int64_t r = 0; r < tiles; r++) {
            pack_left(p->left + r * steps * BF16_TILE, &p->main, t->i + r * 16, t->from, t->count);
        }
        return;
    }
    tile_source s = source_of(p->main.a);
#    pragma omp for schedule(static) nowait
    for (int64_t step = 0; step < steps; step++) {
        for (int64_t r = 0; r < tiles; r++) {
            pack_columns(p->left + (r * steps + step) * BF16_TILE, s, t->from + step * 32, t->i + r * 16);
        }
    }
}

/* So is the right one. */
static void pack_panel(
    uint16_t *tiles, int64_t below, const factor *f, int64_t j, int64_t columns, int64_t from, int64_t count)
{
    if (f->transpose_b) {
#    pragma omp for schedule(static) nowait
        for (int64_t c = 0; c < blocks_in(columns, 16); c++) {
            pack_right_column(tiles + c * below, f, j + c * 16, from, count);
        }
        return;
    }
#    pragma omp for schedule(static) nowait
    for (int64_t step = 0; step < steps_of(count); step++) {
        pack_right_step(tiles + step * BF16_TILE, below, f, j, columns, from + step * 32);
    }
}

/* Every thread of a team comes here too. */
static void multiply_part(const plan *p, const part *t, uint16_t *room)
{
    int64_t tiles = blocks_in(t->columns, 16), blocks = blocks_in(t->rows, p->rows), below = part_steps(t) * BF16_TILE;
    if (p->gathered && t->packs_left) pack_whole_left(p, t);
    pack_panel(p->right, below, &p->main, t->j, t->columns, t->from, t->count);
    if (t->tail) {
        uint16_t *behind = p->right + steps_of(t->count) * BF16_TILE;
        pack_panel(behind, below, &p->tail, t->j, t->columns, 0, t->tail);
    }
#    pragma omp barrier
    int64_t pairs = blocks_in(tiles, 2), wanted = blocks_in(ITEMS_A_THREAD * omp_get_num_threads(), blocks);
    int64_t cuts = at_most(wanted, pairs);
#    pragma omp for schedule(dynamic)
    for (int64_t item = 0; item < blocks * cuts; item++) {
        int64_t i = t->i + item / cuts * p->rows, cut = item % cuts;
        multiply(p, t, i, cut * pairs / cuts * 2, at_most((cut + 1) * pairs / cuts * 2, tiles), room);
    }
}

/* The part that comes at this turn: panels within parts of the sum where c itself takes the sums, so that a packed left
   operand serves all panels; else parts within panels. */
static part part_at(const plan *p, int64_t i, int64_t turn, int64_t panels, int64_t parts)
{
    const pl_gemm_args *g = p->args;
    int64_t panel = p->partial ? turn / parts : turn % panels, number = p->partial ? turn % parts : turn / panels;
    bool first = number == 0, last = number == parts - 1;
    part t = {.from = number * p->k_block, .tail = last ? p->tail.k : 0, .i = i, .j = panel * p->panel};
    t.count = at_most(p->k_block, p->main.k - t.from);
    t.rows = at_most(p->tall, p->m - i);
    t.columns = at_most(p->panel, p->n - t.j);
    t.packs_left = panel == 0 || p->partial;
    finish *f = &t.finish;
    f->to_sums = p->partial && !last;
    f->from_sums = p->partial && !first;
    f->bias = !pl_tensor_none(g->bias) && (p->partial ? last : first);
    f->accumulate = g->accumulate || (!p->partial && !first);
    f->plain = !f->to_sums && !f->from_sums && !f->bias && !f->accumulate && g->alpha == 1 && g->c.dtype == PL_BF16;
    return t;
}

int PL_CPU(gemm_amx)(pl_device *device, pl_error *err, const pl_gemm_args *args, void *scratch)
{
    plan p = plan_of(args, device->threads);
    char *at = scratch;
    p.right = (uint16_t *)at;
    at += right_bytes(&p);
    p.left = (uint16_t *)at;
    at += left_bytes(&p);
    p.sums = (float *)at;
    at += sums_bytes(&p);
    p.rooms = (uint16_t *)at;
    at += device->threads * room_bytes(&p);
    if (at - (char *)scratch > PL_CPU(gemm_amx_scratch)(device, args)) {
        return PL_FAIL(err, PL_EBUG, "a product takes more scratch than it asked for");
    }
    int64_t panels = blocks_in(p.n, p.panel), parts = blocks_in(p.main.k, p.k_block), work = p.m * p.n * p.main.k;
#    pragma omp parallel num_threads(work < ALONE ? 1 : device->threads)
    {
        tile_config before;
        tiles_begin(&before);
        uint16_t *room = p.rooms + omp_get_thread_num() * room_bytes(&p) / 2;
        for (int64_t i = 0; i < p.m; i += p.tall) {
            for (int64_t turn = 0; turn < panels * parts; turn++) {
                part t = part_at(&p, i, turn, panels, parts);
                multiply_part(&p, &t, room);
            }
        }
        tiles_end(&before);
    }
    return 0;
}

#endif
