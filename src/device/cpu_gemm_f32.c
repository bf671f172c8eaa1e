/* Products in f32, of operands of any dtype, which are widened as they are packed (that is exact).

   A sum is made in parts of up to K_BLOCK elements, and c in panels of columns. A panel of the right operand is packed
   once for all threads, as slivers of COLUMNS that lie in the order in which they are read, and stays in the
   second-level cache; then each thread takes blocks of ROWS of the left one, packs them into its first-level cache and
   goes along the slivers. That is the order of Goto and van de Geijn, "Anatomy of High-Performance Matrix
   Multiplication" (2008), with the panel's and the block's parts exchanged, since caches of the second level are large
   by now. Blocks are taken as threads come, so that a core which others use too does not hold up all.

   The order of every sum follows from the shapes alone. */
#include <omp.h>

#include "device/cpu_tile.h"
#include "device/kernel.h"

#define VECTORS 2
#define COLUMNS (VECTORS * PL_LANES) /* of a sliver */
#if PL_LANES == 16                   /* 32 registers: rows * VECTORS sums, and VECTORS + 1 operands */
#    define ROWS 14
#    define FEW_ROWS 8 /* of a block where there are not more */
#elif PL_LANES == 8
#    define ROWS 6
#    define FEW_ROWS 3
#else
#    define ROWS 4
#    define FEW_ROWS 2
#endif
#ifndef K_BLOCK
#    define K_BLOCK 512
#endif
//                /* of a sum: with ROWS, what half of the first-level cache has */
#define PANEL_BYTES ((int64_t)5 << 18) /* of packed columns: most of a second-level cache */
/* Columns of a panel where sums go in parts, each longer than half of K_BLOCK. */
#define WIDEST_PARTIAL (PANEL_BYTES / (K_BLOCK / 2 * 4))
#define WIDE 64
#define ALONE (1 << 16)  /* multiplications that are not worth a team */
#define ITEMS_A_THREAD 8 /* pieces of work in a panel, at least, so that threads end together */

/* One pair of operands: c += a b. */
typedef struct factor {
    pl_tensor a, b;
    bool transpose_a, transpose_b;
} factor;

typedef struct plan {
    const pl_gemm_args *args;
    int64_t m, n, k, k2;
    factor main, tail; /* the tail is there if k2 > 0 */
    int64_t k_block;   /* elements of main at a time */
    int64_t panel;     /* columns at a time */
    bool partial;      /* sums go through `sums`, since c is no f32 */
    float *right;      /* the panel: slivers, each [steps, COLUMNS] */
    float *sums;       /* [m, panel] */
    float *rooms;      /* for each thread: a block of rows, [steps, rows] */
} plan;

/* Where there are few rows or columns, packing costs more than it brings; below AVX-512 oneDNN is faster. */
bool PL_CPU(gemm_f32_takes)(const pl_gemm_args *g)
{
    return PL_LANES == 16 && g->a.dtype == PL_F32 && g->c.shape[0] >= WIDE && g->c.shape[1] >= WIDE;
}

static plan plan_of(const pl_gemm_args *g)
{
    plan p = {.args = g, .m = g->c.shape[0], .n = g->c.shape[1], .k = inner_length(g), .k2 = second_length(g)};
    p.main = (factor){g->a, g->b, g->transpose_a, g->transpose_b};
    p.tail = (factor){g->a2, g->b2, false, g->transpose_b2};
    p.k_block = blocks_in(p.k, blocks_in(p.k, K_BLOCK));
    p.partial = p.k > K_BLOCK && g->c.dtype != PL_F32;
    int64_t sliver = (p.k_block + p.k2) * COLUMNS * 4, slivers = at_least(PANEL_BYTES / sliver, 1);
    p.panel = blocks_in(blocks_in(p.n, blocks_in(p.n, slivers * COLUMNS)), COLUMNS) * COLUMNS;
    return p;
}

/* A thread's block, and a vector that packing writes beyond it. */
static int64_t room_floats(int64_t steps)
{
    return blocks_in(steps * ROWS + PL_LANES, 16) * 16;
}

static int64_t right_floats(int64_t columns, int64_t steps)
{
    return blocks_in(columns, COLUMNS) * COLUMNS * steps;
}

/* A bound that grows with every dimension: a plan knows the largest batch alone, and a smaller one, whose panels and
   parts are cut otherwise, must find its room. */
int64_t PL_CPU(gemm_f32_scratch)(pl_device *device, const pl_gemm_args *args)
{
    plan p = plan_of(args);
    int64_t steps = at_most(p.k, K_BLOCK) + p.k2, sums = 0;
    int64_t right = at_most(right_floats(p.n, steps), at_least(PANEL_BYTES / 4, COLUMNS * steps));
    if (p.partial) sums = blocks_in(p.m * at_most(p.n + COLUMNS, WIDEST_PARTIAL + COLUMNS), 16) * 16;
    return (right + sums + device->threads * room_floats(steps)) * 4;
}

/* ---- packing ---- */

PL_INLINE const void *element(pl_tensor t, int64_t i, int64_t j)
{
    return (const char *)pl_row(t, i) + j * pl_dtype_size(t.dtype);
}

PL_INLINE void put_run(float *to, pl_dtype dtype, const void *from, int64_t n, int64_t room)
{
    int64_t i = 0;
    for (; i + PL_LANES <= n; i += PL_LANES) pl_vstore(to + i, pl_vget(dtype, from, i, PL_LANES));
    for (; i < room; i += PL_LANES) pl_vstore(to + i, i < n ? pl_vget(dtype, from, i, n - i) : pl_vset(0));
}

/* to[l * width + r] = element l of row r, for `rows` rows (zeros beyond) and l of [from, from + count): PL_LANES of
   each at a time. A store may reach into what is stored next, the last one beyond the end. */
PL_INLINE void pack_across(
    float *to, int64_t width, pl_dtype dtype, pl_tensor t, int64_t row, int64_t rows, int64_t from, int64_t count)
{
    for (int64_t l = 0; l < count; l += PL_LANES) {
        pl_vf v[PL_LANES];
        int64_t lanes = at_most(count - l, PL_LANES);
        for (int r = 0; r < PL_LANES; r++) {
            if (r >= rows) {
                v[r] = pl_vset(0);
            } else if (lanes == PL_LANES) {
                v[r] = pl_vget(dtype, element(t, row + r, from + l), 0, PL_LANES);
            } else {
                v[r] = pl_vget(dtype, element(t, row + r, from + l), 0, lanes);
            }
        }
        pl_vtranspose(v);
        for (int64_t i = 0; i < lanes; i++) pl_vstore(to + (l + i) * width, v[i]);
    }
}

/* One sliver of an operand whose columns lie as rows: to[count, COLUMNS]. */
PL_INLINE void pack_sliver_across(
    float *to, pl_dtype dtype, pl_tensor t, int64_t column, int64_t columns, int64_t from, int64_t count)
{
    for (int v = 0; v < VECTORS; v++) {
        int64_t rows = at_least(at_most(columns - v * PL_LANES, PL_LANES), 0);
        pack_across(to + v * PL_LANES, COLUMNS, dtype, t, column + v * PL_LANES, rows, from, count);
    }
}

/* One step of all slivers. */
PL_INLINE void pack_step(float *to, int64_t sliver, pl_dtype dtype, const void *row, int64_t columns)
{
    for (int64_t j = 0; j < columns; j += COLUMNS, to += sliver) {
        put_run(to, dtype, (const char *)row + j * pl_dtype_size(dtype), at_most(columns - j, COLUMNS), COLUMNS);
    }
}

/* A part of the sum for a panel. */
typedef struct part {
    int64_t from, count; /* of main's elements */
    int64_t tail;        /* of the tail's: all of them in the last part */
    int64_t j, columns;  /* the panel's */
    bool first, last;
} part;

/* Every thread of a team comes here. */
PL_INLINE void pack_right_of(
    float *to, int64_t sliver, pl_dtype dtype, const factor *f, const part *t, int64_t from, int64_t count)
{
    if (f->transpose_b) {
#pragma omp for schedule(dynamic) nowait
        for (int64_t j = 0; j < t->columns; j += COLUMNS) {
            int64_t columns = at_most(t->columns - j, COLUMNS);
            pack_sliver_across(to + j / COLUMNS * sliver, dtype, f->b, t->j + j, columns, from, count);
        }
        return;
    }
#pragma omp for schedule(dynamic, 16) nowait
    for (int64_t l = 0; l < count; l++) {
        pack_step(to + l * COLUMNS, sliver, dtype, element(f->b, from + l, t->j), t->columns);
    }
}

static void pack_right(float *to, int64_t sliver, const factor *f, const part *t, int64_t from, int64_t count)
{
    if (f->b.dtype == PL_F32)
        pack_right_of(to, sliver, PL_F32, f, t, from, count);
    else
        pack_right_of(to, sliver, PL_BF16, f, t, from, count);
}

/* to[count, width]: rows [i, i + rows) of a, zeros up to width. */
PL_INLINE void pack_left_of(
    float *to, int64_t width, pl_dtype dtype, const factor *f, int64_t i, int64_t rows, int64_t from, int64_t count)
{
    if (!f->transpose_a) {
        pack_across(to, width, dtype, f->a, i, rows, from, count);
        return;
    }
    bool whole = i + PL_LANES <= f->a.shape[1];
    for (int64_t l = 0; l < count; l++, to += width) {
        const void *at = element(f->a, from + l, i);
        pl_vstore(to, whole ? pl_vget(dtype, at, 0, PL_LANES) : pl_vget(dtype, at, 0, rows));
    }
}

static void pack_left(float *to, int64_t width, const factor *f, int64_t i, int64_t rows, int64_t from, int64_t count)
{
    if (f->a.dtype == PL_F32)
        pack_left_of(to, width, PL_F32, f, i, rows, from, count);
    else
        pack_left_of(to, width, PL_BF16, f, i, rows, from, count);
}

/* ---- multiplying ---- */

/* Where a tile of sums goes: `rows` rows from i on of c and `columns` from j on, which is panel_j of the panel. */
typedef struct target {
    int64_t i, rows, j, panel_j, columns;
} target;

/* Up to a vector of a row. */
PL_INLINE void finish_lanes(
    const plan *p, const part *t, pl_dtype dtype, int64_t i, int64_t j, int64_t panel_j, int64_t lanes, pl_vf v)
{
    const pl_gemm_args *g = p->args;
    if (p->partial) {
        float *sum = p->sums + i * p->panel + panel_j;
        if (!t->first) v += pl_vget(PL_F32, sum, 0, lanes);
        if (!t->last) {
            pl_vput(PL_F32, sum, 0, lanes, v);
            return;
        }
    }
    bool begins = p->partial || t->first;
    void *row = pl_row(g->c, i);
    v *= pl_vset(g->alpha);
    if (begins && !pl_tensor_none(g->bias)) v += pl_vget(g->bias.dtype, g->bias.data, j, lanes);
    if (!begins || g->accumulate) v += pl_vget(dtype, row, j, lanes);
    pl_vput(dtype, row, j, lanes, v);
}

PL_INLINE void finish_of(const plan *p, const part *t, pl_dtype dtype, const target *to, const float *sums)
{
    for (int64_t r = 0; r < to->rows; r++) {
        for (int64_t c = 0; c < to->columns; c += PL_LANES) {
            pl_vf v = pl_vload(sums + r * COLUMNS + c);
            if (to->columns - c >= PL_LANES) {
                finish_lanes(p, t, dtype, to->i + r, to->j + c, to->panel_j + c, PL_LANES, v);
            } else {
                finish_lanes(p, t, dtype, to->i + r, to->j + c, to->panel_j + c, to->columns - c, v);
            }
        }
    }
}

static void finish(const plan *p, const part *t, const target *to, const float *sums)
{
    if (p->args->c.dtype == PL_F32)
        finish_of(p, t, PL_F32, to, sums);
    else
        finish_of(p, t, PL_BF16, to, sums);
}

/* Asks for the lines of c that a tile goes to. */
PL_INLINE void fetch(const plan *p, const target *to)
{
    for (int64_t r = 0; r < to->rows; r++) {
        const char *at = element(p->args->c, to->i + r, to->j);
        __builtin_prefetch(at, 1, 3);
        __builtin_prefetch(at + 64, 1, 3);
    }
}

/* A tile's sums over `steps`, in rows that are c_row apart. */
PL_INLINE void multiply(
    int rows, int64_t columns, const float *a, const float *b, float *c, int64_t c_row, int64_t steps, bool accumulate)
{
    if (rows == ROWS && columns > PL_LANES) {
        tile(ROWS, VECTORS, a, 1, ROWS, b, COLUMNS, c, c_row, steps, accumulate);
    } else if (rows == ROWS) {
        tile(ROWS, 1, a, 1, ROWS, b, COLUMNS, c, c_row, steps, accumulate);
    } else if (columns > PL_LANES) {
        tile(FEW_ROWS, VECTORS, a, 1, FEW_ROWS, b, COLUMNS, c, c_row, steps, accumulate);
    } else {
        tile(FEW_ROWS, 1, a, 1, FEW_ROWS, b, COLUMNS, c, c_row, steps, accumulate);
    }
}

/* Rows from i on, for the panel's slivers [first, end). */
static void multiply_block(
    const plan *p, const part *t, int64_t i, int64_t rows, int64_t first, int64_t end, float *room)
{
    _Alignas(64) float sums[ROWS * COLUMNS];
    const pl_gemm_args *g = p->args;
    int width = rows > FEW_ROWS ? ROWS : FEW_ROWS;
    int64_t steps = t->count + t->tail;
    pack_left(room, width, &p->main, i, rows, t->from, t->count);
    if (t->tail) pack_left(room + t->count * width, width, &p->tail, i, rows, 0, t->tail);
    /* Whole tiles may become part of c as they are. */
    bool adds = g->accumulate || !t->first, plain = g->c.dtype == PL_F32 && g->alpha == 1 && rows == width;
    if (!adds && !pl_tensor_none(g->bias)) plain = false;
    for (int64_t s = first; s < end; s++) {
        int64_t j = s * COLUMNS;
        const float *b = p->right + j * steps;
        target to = {i, rows, t->j + j, j, at_most(t->columns - j, COLUMNS)};
        fetch(p, &to);
        if (plain && to.columns == COLUMNS) {
            float *c = (float *)pl_row(g->c, i) + to.j;
            if (adds)
                multiply(width, COLUMNS, room, b, c, g->c.stride, steps, true);
            else
                multiply(width, COLUMNS, room, b, c, g->c.stride, steps, false);
        } else {
            multiply(width, to.columns, room, b, sums, COLUMNS, steps, false);
            finish(p, t, &to, sums);
        }
    }
}

/* Every thread of a team comes here too. */
static void multiply_part(const plan *p, const part *t, float *room)
{
    int64_t steps = t->count + t->tail, sliver = COLUMNS * steps, slivers = blocks_in(t->columns, COLUMNS);
    int64_t height = p->m > 2 * FEW_ROWS ? ROWS : FEW_ROWS, blocks = blocks_in(p->m, height);
    pack_right(p->right, sliver, &p->main, t, t->from, t->count);
    if (t->tail) pack_right(p->right + t->count * COLUMNS, sliver, &p->tail, t, 0, t->tail);
#pragma omp barrier
    int64_t cuts = at_most(blocks_in(ITEMS_A_THREAD * omp_get_num_threads(), blocks), slivers);
#pragma omp for schedule(dynamic)
    for (int64_t item = 0; item < blocks * cuts; item++) {
        int64_t i = item / cuts * height, cut = item % cuts;
        multiply_block(p, t, i, at_most(height, p->m - i), cut * slivers / cuts, (cut + 1) * slivers / cuts, room);
    }
}

static part part_at(const plan *p, int64_t j, int64_t from)
{
    part t = {.from = from, .count = at_most(p->k_block, p->k - from), .j = j, .columns = at_most(p->panel, p->n - j)};
    t.first = from == 0;
    t.last = from + t.count == p->k;
    t.tail = t.last ? p->k2 : 0;
    return t;
}

int PL_CPU(gemm_f32)(pl_device *device, pl_error *err, const pl_gemm_args *args, void *scratch)
{
    plan p = plan_of(args);
    int64_t steps = p.k_block + p.k2;
    p.right = scratch;
    p.sums = p.right + right_floats(p.panel, steps);
    p.rooms = p.sums + (p.partial ? blocks_in(p.m * p.panel, 16) * 16 : 0);
    float *end = p.rooms + device->threads * room_floats(steps);
    if ((char *)end - (char *)scratch > PL_CPU(gemm_f32_scratch)(device, args)) {
        return PL_FAIL(err, PL_EBUG, "a product takes more scratch than it asked for");
    }
#pragma omp parallel num_threads(p.m *p.n *(p.k + p.k2) < ALONE ? 1 : device->threads)
    {
        float *room = p.rooms + omp_get_thread_num() * room_floats(steps);
        for (int64_t j = 0; j < p.n; j += p.panel) {
            for (int64_t from = 0; from < p.k; from += p.k_block) {
                part t = part_at(&p, j, from);
                multiply_part(&p, &t, room);
            }
        }
    }
    return 0;
}
