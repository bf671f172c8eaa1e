/* Activations, plain and gated. silu, gelu_quick and gelu_tanh are all x * sigmoid(g(x)):
   gelu_tanh by tanh(u) = 2 sigmoid(2u) - 1. gelu needs the normal distribution. */
#include "device/kernel.h"

typedef struct act_value {
    pl_vf value, slope;
} act_value;

PL_INLINE pl_vf clamp(pl_vf x, float limit)
{
    return pl_vmin(pl_vset(limit), pl_vmax(pl_vset(-limit), x)); /* in this order a NaN passes through */
}

/* x * sigmoid(g) and its slope, for the slope dg of g. */
PL_INLINE act_value sigmoid_gate(pl_vf x, pl_vf g, pl_vf dg)
{
    /* Beyond 80 the sigmoid is 0 or 1 in f32, even times the largest x, and e would overflow. */
    pl_vf e = pl_vexp(-clamp(g, 80)), v, s = pl_vreciprocal(pl_vset(1) + e);
    s = pl_vselect(g < pl_vset(-80), pl_vset(0), s);
    v = x * s;
    return (act_value){v, s + v * ((e * s) * dg)};
}

PL_INLINE act_value gelu_tanh(pl_vf x)
{
    const float k = 1.5957691216f, c = 0.044715f; /* k = 2 sqrt(2 / pi) */
    pl_vf xc = clamp(x, 30), x2 = xc * xc; /* the cube of a larger x overflows; the sigmoid is 0 or 1 long before */
    pl_vf g = xc * (pl_vset(k) + pl_vset(k * c) * x2);
    return sigmoid_gate(x, g, pl_vset(k) + pl_vset(3 * k * c) * x2);
}

/* The normal distribution's tail Phi(-a) for a >= 0 is exp(-a^2 / 2) * t * P(t), t = 1 / (1 + 0.35 a), P a polynomial
   fitted on a in [0, 14] with a relative error of 3.2e-8 (2e-7 when evaluated in f32). */
PL_INLINE act_value gelu(pl_vf x)
{
    pl_vf one = pl_vset(1), xc = clamp(x, 14), a = pl_vmax(xc, -xc), t = pl_vreciprocal(one + pl_vset(0.35f) * a);
    pl_vf p = pl_vset(-0.02914593f);
    p = p * t + pl_vset(0.14397168f);
    p = p * t + pl_vset(-0.25571423f);
    p = p * t + pl_vset(0.15917413f);
    p = p * t + pl_vset(-0.02310981f);
    p = p * t + pl_vset(0.105508f);
    p = p * t + pl_vset(0.11983287f);
    p = p * t + pl_vset(0.13986187f);
    p = p * t + pl_vset(0.1396214f);
    pl_vf bell = pl_vexp(pl_vset(-0.5f) * (a * a)), tail = bell * (t * p);
    pl_vf below = pl_vselect(x < pl_vset(0), tail, one - tail);
    return (act_value){x * below, below + pl_vset(0.3989422804f) * (xc * bell)};
}

PL_INLINE act_value activate(pl_act act, pl_vf x)
{
    switch (act) {
    case PL_ACT_SILU: return sigmoid_gate(x, x, pl_vset(1));
    case PL_ACT_GELU_QUICK: return sigmoid_gate(x, pl_vset(1.702f) * x, pl_vset(1.702f));
    case PL_ACT_GELU_TANH: return gelu_tanh(x);
    case PL_ACT_GELU: return gelu(x);
    default: /* PL_ACT_RELU */
        return (act_value){pl_vmax(pl_vset(0), x), pl_vselect(x > pl_vset(0), pl_vset(1), pl_vset(0))};
    }
}

PL_INLINE void forward(pl_act act, pl_dtype dtype, void *y, const void *x, const void *up, int64_t n)
{
    if (up) {
        PL_EACH(j, lanes, n, {
            pl_vf value = activate(act, pl_vget(dtype, x, j, lanes)).value;
            pl_vput(dtype, y, j, lanes, value * pl_vget(dtype, up, j, lanes));
        });
    } else {
        PL_EACH(j, lanes, n, { pl_vput(dtype, y, j, lanes, activate(act, pl_vget(dtype, x, j, lanes)).value); });
    }
}

/* dup and up NULL: plain; y NULL: not wanted. */
PL_INLINE void backward(
    pl_act act, pl_dtype dtype, void *dx, void *dup, void *y, const void *dy, const void *x, const void *up, int64_t n)
{
    if (up) {
        PL_EACH(j, lanes, n, {
            pl_vf d = pl_vget(dtype, dy, j, lanes), u = pl_vget(dtype, up, j, lanes);
            act_value v = activate(act, pl_vget(dtype, x, j, lanes));
            pl_vput(dtype, dx, j, lanes, d * u * v.slope);
            pl_vput(dtype, dup, j, lanes, d * v.value);
            if (y) pl_vput(dtype, y, j, lanes, v.value * u);
        });
    } else {
        PL_EACH(j, lanes, n, {
            act_value v = activate(act, pl_vget(dtype, x, j, lanes));
            pl_vput(dtype, dx, j, lanes, pl_vget(dtype, dy, j, lanes) * v.slope);
            if (y) pl_vput(dtype, y, j, lanes, v.value);
        });
    }
}

/* The activation and the dtype become constants: BODY(act, dtype) for the one that is asked for. */
#define FOR_ACT(act, dtype, BODY)                                                                                      \
    switch (act) {                                                                                                     \
    case PL_ACT_SILU: FOR_DTYPE(PL_ACT_SILU, dtype, BODY); break;                                                      \
    case PL_ACT_GELU: FOR_DTYPE(PL_ACT_GELU, dtype, BODY); break;                                                      \
    case PL_ACT_GELU_TANH: FOR_DTYPE(PL_ACT_GELU_TANH, dtype, BODY); break;                                            \
    case PL_ACT_GELU_QUICK: FOR_DTYPE(PL_ACT_GELU_QUICK, dtype, BODY); break;                                          \
    default: FOR_DTYPE(PL_ACT_RELU, dtype, BODY); break;                                                               \
    }
#define FOR_DTYPE(act, dtype, BODY)                                                                                    \
    if (dtype == PL_F32)                                                                                               \
        BODY(act, PL_F32);                                                                                             \
    else                                                                                                               \
        BODY(act, PL_BF16)

static void forward_piece(pl_act act, pl_dtype dtype, void *y, const void *x, const void *up, int64_t n)
{
#define BODY(a, d) forward(a, d, y, x, up, n)
    FOR_ACT(act, dtype, BODY)
#undef BODY
}

static void backward_piece(
    pl_act act, pl_dtype dtype, void *dx, void *dup, void *y, const void *dy, const void *x, const void *up, int64_t n)
{
#define BODY(a, d) backward(a, d, dx, dup, y, dy, x, up, n)
    FOR_ACT(act, dtype, BODY)
#undef BODY
}

static bool contiguous_or_none(pl_tensor t)
{
    return pl_tensor_none(t) || pl_tensor_contiguous(t);
}

static void *piece_or_null(const pl_cut *cut, pl_tensor t, int64_t i)
{
    return pl_tensor_none(t) ? NULL : pl_piece(cut, t, i);
}

/* Arithmetic takes about as long as streaming so many times the bytes of one operand. */
#define ACT_COST 4

int PL_CPU(act)(pl_device *device, pl_error *err, const pl_act_args *a)
{
    (void)err;
    pl_cut cut =
        pl_cut_pieces(a->x, pl_tensor_contiguous(a->x) && pl_tensor_contiguous(a->y) && contiguous_or_none(a->up));
    int team = pl_team(device, ACT_COST * pl_tensor_bytes(a->x));
#pragma omp parallel for num_threads(team) schedule(static)
    for (int64_t i = 0; i < cut.pieces; i++) {
        forward_piece(a->act, a->x.dtype, pl_piece(&cut, a->y, i), pl_piece(&cut, a->x, i),
            piece_or_null(&cut, a->up, i), pl_piece_length(&cut, i));
    }
    return 0;
}

int PL_CPU(act_backward)(pl_device *device, pl_error *err, const pl_act_backward_args *a)
{
    (void)err;
    bool flat = pl_tensor_contiguous(a->x) && pl_tensor_contiguous(a->dx) && pl_tensor_contiguous(a->dy) &&
                contiguous_or_none(a->up) && contiguous_or_none(a->dup) && contiguous_or_none(a->y);
    pl_cut cut = pl_cut_pieces(a->x, flat);
    int team = pl_team(device, 2 * ACT_COST * pl_tensor_bytes(a->x));
#pragma omp parallel for num_threads(team) schedule(static)
    for (int64_t i = 0; i < cut.pieces; i++) {
        backward_piece(a->act, a->x.dtype, pl_piece(&cut, a->dx, i), piece_or_null(&cut, a->dup, i),
            piece_or_null(&cut, a->y, i), pl_piece(&cut, a->dy, i), pl_piece(&cut, a->x, i),
            piece_or_null(&cut, a->up, i), pl_piece_length(&cut, i));
    }
    return 0;
}
