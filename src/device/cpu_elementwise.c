/* fill, copy, add, scale_columns: one pass over memory each. */
#include "device/kernel.h"

int PL_CPU(fill)(pl_device *device, pl_error *err, pl_tensor y, float value)
{
    (void)err;
    pl_cut cut = pl_cut_pieces(y, pl_tensor_contiguous(y));
    int team = pl_team(device, pl_tensor_bytes(y));
    int32_t whole = y.dtype == PL_I32 || y.dtype == PL_I16 || y.dtype == PL_U8 ? (int32_t)value : 0;
    uint16_t half = y.dtype == PL_BF16 ? pl_f32_to_bf16(value) : pl_f32_to_f16(value);
#pragma omp parallel for num_threads(team) schedule(static)
    for (int64_t i = 0; i < cut.pieces; i++) {
        int64_t n = pl_piece_length(&cut, i);
        void *p = pl_piece(&cut, y, i);
        switch (y.dtype) {
        case PL_F32:
            for (int64_t j = 0; j < n; j++) ((float *)p)[j] = value;
            break;
        case PL_I32:
            for (int64_t j = 0; j < n; j++) ((int32_t *)p)[j] = whole;
            break;
        case PL_I16:
            for (int64_t j = 0; j < n; j++) ((int16_t *)p)[j] = (int16_t)whole;
            break;
        case PL_U8: memset(p, (uint8_t)whole, (size_t)n); break;
        default:
            for (int64_t j = 0; j < n; j++) ((uint16_t *)p)[j] = half;
        }
    }
    return 0;
}

PL_INLINE pl_vf load_f16(const uint16_t *p)
{
#if defined __AVX512F__
    return (pl_vf)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p));
#elif defined __F16C__
    return (pl_vf)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p));
#else
    float lane[PL_LANES];
    for (int i = 0; i < PL_LANES; i++) lane[i] = pl_f16_to_f32(p[i]);
    return pl_vload(lane);
#endif
}

PL_INLINE void store_f16(uint16_t *p, pl_vf v)
{
#if defined __AVX512F__
    _mm256_storeu_si256((__m256i *)p, _mm512_cvtps_ph((__m512)v, _MM_FROUND_TO_NEAREST_INT));
#elif defined __F16C__
    _mm_storeu_si128((__m128i *)p, _mm256_cvtps_ph((__m256)v, _MM_FROUND_TO_NEAREST_INT));
#else
    for (int i = 0; i < PL_LANES; i++) p[i] = pl_f32_to_f16(v[i]);
#endif
}

/* As pl_vget and pl_vput, with f16 too. */
PL_INLINE pl_vf get_any(pl_dtype dtype, const void *data, int64_t i, int64_t lanes)
{
    if (dtype != PL_F16) return pl_vget(dtype, data, i, lanes);
    if (lanes == PL_LANES) return load_f16((const uint16_t *)data + i);
    uint16_t lane[PL_LANES] = {0};
    memcpy(lane, (const uint16_t *)data + i, (size_t)lanes * sizeof *lane);
    return load_f16(lane);
}

PL_INLINE void put_any(pl_dtype dtype, void *data, int64_t i, int64_t lanes, pl_vf v)
{
    if (dtype != PL_F16) {
        pl_vput(dtype, data, i, lanes, v);
    } else if (lanes == PL_LANES) {
        store_f16((uint16_t *)data + i, v);
    } else {
        uint16_t lane[PL_LANES];
        store_f16(lane, v);
        memcpy((uint16_t *)data + i, lane, (size_t)lanes * sizeof *lane);
    }
}

PL_INLINE void convert(pl_dtype to, void *y, pl_dtype from, const void *x, int64_t n)
{
    PL_EACH(j, lanes, n, { put_any(to, y, j, lanes, get_any(from, x, j, lanes)); });
}

static void copy_piece(pl_dtype to, void *y, pl_dtype from, const void *x, int64_t n)
{
    if (to == from)
        memmove(y, x, (size_t)(n * pl_dtype_size(to)));
    else if (to == PL_F32 && from == PL_BF16)
        convert(PL_F32, y, PL_BF16, x, n);
    else if (to == PL_F32)
        convert(PL_F32, y, PL_F16, x, n);
    else if (to == PL_BF16 && from == PL_F32)
        convert(PL_BF16, y, PL_F32, x, n);
    else if (to == PL_BF16)
        convert(PL_BF16, y, PL_F16, x, n);
    else if (from == PL_F32)
        convert(PL_F16, y, PL_F32, x, n);
    else
        convert(PL_F16, y, PL_BF16, x, n);
}

int PL_CPU(copy)(pl_device *device, pl_error *err, pl_tensor y, pl_tensor x)
{
    (void)err;
    pl_cut cut = pl_cut_pieces(y, pl_tensor_contiguous(y) && pl_tensor_contiguous(x));
    int team = pl_team(device, pl_tensor_bytes(y) + pl_tensor_bytes(x));
#pragma omp parallel for num_threads(team) schedule(static)
    for (int64_t i = 0; i < cut.pieces; i++) {
        copy_piece(y.dtype, pl_piece(&cut, y, i), x.dtype, pl_piece(&cut, x, i), pl_piece_length(&cut, i));
    }
    return 0;
}

/* y = a + scale * b; a NULL: y = scale * b. */
PL_INLINE void add_lanes(
    pl_dtype ty, void *y, pl_dtype ta, const void *a, pl_dtype tb, const void *b, float scale, int64_t n)
{
    pl_vf factor = pl_vset(scale);
    if (a) {
        PL_EACH(
            j, lanes, n, { pl_vput(ty, y, j, lanes, pl_vget(ta, a, j, lanes) + factor * pl_vget(tb, b, j, lanes)); });
    } else {
        PL_EACH(j, lanes, n, { pl_vput(ty, y, j, lanes, factor * pl_vget(tb, b, j, lanes)); });
    }
}

static void add_piece(
    pl_dtype ty, void *y, pl_dtype ta, const void *a, pl_dtype tb, const void *b, float scale, int64_t n)
{
    if (ty == PL_F32 && ta == PL_F32 && tb == PL_F32)
        add_lanes(PL_F32, y, PL_F32, a, PL_F32, b, scale, n);
    else if (ty == PL_F32 && ta == PL_F32)
        add_lanes(PL_F32, y, PL_F32, a, PL_BF16, b, scale, n);
    else if (ty == PL_BF16 && ta == PL_BF16 && tb == PL_BF16)
        add_lanes(PL_BF16, y, PL_BF16, a, PL_BF16, b, scale, n);
    else
        add_lanes(ty, y, ta, a, tb, b, scale, n);
}

int PL_CPU(add)(pl_device *device, pl_error *err, pl_tensor y, pl_tensor a, pl_tensor b, float b_scale)
{
    (void)err;
    bool alone = pl_tensor_none(a);
    if (alone) a.dtype = y.dtype;
    pl_cut cut =
        pl_cut_pieces(y, pl_tensor_contiguous(y) && pl_tensor_contiguous(b) && (alone || pl_tensor_contiguous(a)));
    int team = pl_team(device, pl_tensor_bytes(y) + pl_tensor_bytes(a) + pl_tensor_bytes(b));
#pragma omp parallel for num_threads(team) schedule(static)
    for (int64_t i = 0; i < cut.pieces; i++) {
        add_piece(y.dtype, pl_piece(&cut, y, i), a.dtype, alone ? NULL : pl_piece(&cut, a, i), b.dtype,
            pl_piece(&cut, b, i), b_scale, pl_piece_length(&cut, i));
    }
    return 0;
}

PL_INLINE void scale_row(
    pl_dtype ty, void *y, pl_dtype tx, const void *x, pl_tensor factor, pl_tensor addend, int64_t n)
{
    if (addend.data) {
        PL_EACH(j, lanes, n, {
            pl_vf f = pl_vget(factor.dtype, factor.data, j, lanes), c = pl_vget(addend.dtype, addend.data, j, lanes);
            pl_vput(ty, y, j, lanes, pl_vget(tx, x, j, lanes) * f + c);
        });
    } else {
        PL_EACH(j, lanes, n,
            { pl_vput(ty, y, j, lanes, pl_vget(tx, x, j, lanes) * pl_vget(factor.dtype, factor.data, j, lanes)); });
    }
}

int PL_CPU(scale_columns)(
    pl_device *device, pl_error *err, pl_tensor y, pl_tensor x, pl_tensor factor, pl_tensor addend)
{
    (void)err;
    int team = pl_team(device, pl_tensor_bytes(y) + pl_tensor_bytes(x));
    int64_t n = x.shape[1];
    if (pl_tensor_none(addend)) addend.data = NULL;
#pragma omp parallel for num_threads(team) schedule(static)
    for (int64_t i = 0; i < x.shape[0]; i++) {
        if (y.dtype == PL_F32 && x.dtype == PL_F32) {
            scale_row(PL_F32, pl_row(y, i), PL_F32, pl_row(x, i), factor, addend, n);
        } else if (y.dtype == PL_BF16 && x.dtype == PL_BF16) {
            scale_row(PL_BF16, pl_row(y, i), PL_BF16, pl_row(x, i), factor, addend, n);
        } else {
            scale_row(y.dtype, pl_row(y, i), x.dtype, pl_row(x, i), factor, addend, n);
        }
    }
    return 0;
}
