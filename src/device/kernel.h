/* What the CPU's kernels share beyond vectors: lanes of any floating-point type, operands cut into pieces that threads
   take, and the rule for when threads pay. */
#ifndef PL_DEVICE_KERNEL_H
#define PL_DEVICE_KERNEL_H

#include "device/cpu.h"

PL_INLINE int64_t at_most(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

PL_INLINE int64_t at_least(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* The last may be smaller. */
PL_INLINE int64_t blocks_in(int64_t n, int64_t block)
{
    return (n + block - 1) / block;
}

/* Elements of a sum of the first pair's. */
PL_INLINE int64_t inner_length(const pl_gemm_args *args)
{
    return args->transpose_a ? args->a.shape[0] : args->a.shape[1];
}

/* Of the second pair's, which may be none. */
PL_INLINE int64_t second_length(const pl_gemm_args *args)
{
    return pl_tensor_none(args->a2) ? 0 : args->a2.shape[1];
}

/* The `lanes` (<= PL_LANES) elements from element i on. In kernels `dtype` and mostly `lanes` are constants after
   inlining, so that nothing is left of the choices. Lanes beyond are 0. */
PL_INLINE pl_vf pl_vget(pl_dtype dtype, const void *data, int64_t i, int64_t lanes)
{
    if (dtype == PL_F32) {
        const float *p = (const float *)data + i;
        return lanes == PL_LANES ? pl_vload(p) : pl_vload_part(p, lanes);
    }
    const uint16_t *p = (const uint16_t *)data + i;
    return lanes == PL_LANES ? pl_vload_bf16(p) : pl_vload_bf16_part(p, lanes);
}

PL_INLINE void pl_vput(pl_dtype dtype, void *data, int64_t i, int64_t lanes, pl_vf v)
{
    if (dtype == PL_F32) {
        float *p = (float *)data + i;
        if (lanes == PL_LANES)
            pl_vstore(p, v);
        else
            pl_vstore_part(p, v, lanes);
        return;
    }
    uint16_t *p = (uint16_t *)data + i;
    if (lanes == PL_LANES)
        pl_vstore_bf16(p, v);
    else
        pl_vstore_bf16_part(p, v, lanes);
}

/* for (j, lanes) over n elements by vectors: PL_EACH(j, lanes, n, statement) gives the statement a constant number of
   lanes but for the last few elements. */
#define PL_EACH(j, lanes, n, ...)                                                                                      \
    do {                                                                                                               \
        int64_t j = 0;                                                                                                 \
        for (const int64_t lanes = PL_LANES; j + lanes <= (n); j += lanes) __VA_ARGS__                                 \
        if (j < (n)) {                                                                                                 \
            const int64_t lanes = (n)-j;                                                                               \
            __VA_ARGS__                                                                                                \
        }                                                                                                              \
    } while (0)

/* Starting a team of threads costs some microseconds, in which one thread streams about so many bytes. */
#define PL_BYTES_A_TEAM ((int64_t)64 << 10)

/* How many threads to use for work that streams so many bytes: all or one, because a team that keeps its size is
   started fastest. */
static inline int pl_team(const pl_device *device, int64_t bytes)
{
    return bytes < PL_BYTES_A_TEAM ? 1 : device->threads;
}

/* Elementwise operands of one shape, cut into pieces of neighbours: rows, or equal runs where all operands are
   contiguous. Piece i of operand t begins at pl_piece(cut, t, i). */
typedef struct pl_cut {
    int64_t pieces, length, last; /* elements of a piece, of the last one */
    bool flat;
} pl_cut;

#define PL_FLAT_PIECE 4096

static inline pl_cut pl_cut_pieces(pl_tensor t, bool all_contiguous)
{
    int64_t n = pl_tensor_numel(t);
    if (n == 0) return (pl_cut){0};
    if (!all_contiguous) {
        int64_t columns = n / t.shape[0];
        return (pl_cut){.pieces = t.shape[0], .length = columns, .last = columns};
    }
    int64_t pieces = (n + PL_FLAT_PIECE - 1) / PL_FLAT_PIECE;
    return (pl_cut){.pieces = pieces, .length = PL_FLAT_PIECE, .last = n - (pieces - 1) * PL_FLAT_PIECE, .flat = true};
}

static inline void *pl_piece(const pl_cut *cut, pl_tensor t, int64_t i)
{
    return (char *)t.data + i * (cut->flat ? cut->length : t.stride) * pl_dtype_size(t.dtype);
}

static inline int64_t pl_piece_length(const pl_cut *cut, int64_t i)
{
    return i == cut->pieces - 1 ? cut->last : cut->length;
}

/* Row i of a matrix. */
static inline void *pl_row(pl_tensor t, int64_t i)
{
    return (char *)t.data + i * t.stride * pl_dtype_size(t.dtype);
}

/* Reductions over the rows of a matrix go by blocks of rows, whose number depends on the shape alone; each makes a
   partial result, and those are added in order. */
static inline int64_t pl_row_blocks(int64_t rows)
{
    int64_t blocks = (rows + 63) / 64;
    return blocks > 64 ? 64 : blocks;
}

#endif
