/* The optimizers' steps: one sweep over all that they touch. Plain loops, which the compiler vectorises. */
#include <math.h>

#include "device/kernel.h"

static void split_piece(uint16_t *restrict half, int16_t *restrict rest, const float *restrict x, int64_t n)
{
    for (int64_t i = 0; i < n; i++) half[i] = pl_f32_split(x[i], &rest[i]);
}

int PL_CPU(split)(pl_device *device, pl_error *err, pl_tensor half, pl_tensor rest, pl_tensor x)
{
    (void)err;
    pl_cut cut = pl_cut_pieces(x, true);
    int team = pl_team(device, 2 * pl_tensor_bytes(x));
#pragma omp parallel for num_threads(team) schedule(static)
    for (int64_t i = 0; i < cut.pieces; i++) {
        split_piece(pl_piece(&cut, half, i), pl_piece(&cut, rest, i), pl_piece(&cut, x, i), pl_piece_length(&cut, i));
    }
    return 0;
}

/* A piece of weights as f32: where it is, or joined in `room`, which begin and end one step of it. */
static float *begin_weights(const pl_cut *cut, pl_tensor w, pl_tensor rest, int64_t i, float *restrict room)
{
    if (pl_tensor_none(rest)) return pl_piece(cut, w, i);
    const uint16_t *restrict halves = pl_piece(cut, w, i);
    const int16_t *restrict rests = pl_piece(cut, rest, i);
    int64_t n = pl_piece_length(cut, i);
    for (int64_t k = 0; k < n; k++) room[k] = pl_f32_join(halves[k], rests[k]);
    return room;
}

static void end_weights(const pl_cut *cut, pl_tensor w, pl_tensor rest, int64_t i, const float *room)
{
    if (pl_tensor_none(rest)) return;
    split_piece(pl_piece(cut, w, i), pl_piece(cut, rest, i), room, pl_piece_length(cut, i));
}

typedef struct adamw_factors {
    float grad_scale, beta1, rest1, beta2, rest2, decay, rate, root_correction, eps;
} adamw_factors;

static void adamw_piece(float *restrict w, const float *restrict g, float *restrict m, float *restrict v, int64_t n,
    const adamw_factors *factors)
{
    const adamw_factors f = *factors;
    for (int64_t i = 0; i < n; i++) {
        float gi = f.grad_scale * g[i];
        float mi = f.beta1 * m[i] + f.rest1 * gi, vi = f.beta2 * v[i] + f.rest2 * gi * gi;
        m[i] = mi;
        v[i] = vi;
        w[i] = f.decay * w[i] - f.rate * mi / (sqrtf(vi) * f.root_correction + f.eps);
    }
}

int PL_CPU(adamw)(pl_device *device, pl_error *err, const pl_adamw_args *a)
{
    (void)err;
    double correction1 = 1 - pow(a->beta1, (double)a->step), correction2 = 1 - pow(a->beta2, (double)a->step);
    adamw_factors f = {
        .grad_scale = a->grad_scale,
        .beta1 = (float)a->beta1,
        .rest1 = (float)(1 - a->beta1),
        .beta2 = (float)a->beta2,
        .rest2 = (float)(1 - a->beta2),
        .decay = (float)(1 - a->lr * a->weight_decay),
        .rate = (float)(a->lr / correction1),
        .root_correction = (float)(1 / sqrt(correction2)),
        .eps = (float)a->eps,
    };
    pl_cut cut = pl_cut_pieces(a->w, true);
    int team = pl_team(device, 7 * pl_tensor_bytes(a->g));
#pragma omp parallel for num_threads(team) schedule(static)
    for (int64_t i = 0; i < cut.pieces; i++) {
        float room[PL_FLAT_PIECE], *w = begin_weights(&cut, a->w, a->rest, i, room);
        adamw_piece(
            w, pl_piece(&cut, a->g, i), pl_piece(&cut, a->m, i), pl_piece(&cut, a->v, i), pl_piece_length(&cut, i), &f);
        end_weights(&cut, a->w, a->rest, i, room);
    }
    return 0;
}

typedef struct sgd_factors {
    float grad_scale, weight_decay, lr, momentum, kept; /* kept: of the old m, 0 at the first step */
    bool nesterov;
} sgd_factors;

static void sgd_piece(
    float *restrict w, const float *restrict g, float *restrict m, int64_t n, const sgd_factors *factors)
{
    const sgd_factors f = *factors;
    if (!m) {
        for (int64_t i = 0; i < n; i++) w[i] -= f.lr * (f.grad_scale * g[i] + f.weight_decay * w[i]);
    } else {
        for (int64_t i = 0; i < n; i++) {
            float gi = f.grad_scale * g[i] + f.weight_decay * w[i];
            float mi = (f.kept == 0 ? 0 : f.kept * m[i]) + gi; /* a first m may hold anything */
            m[i] = mi;
            w[i] -= f.lr * (f.nesterov ? gi + f.momentum * mi : mi);
        }
    }
}

int PL_CPU(sgd)(pl_device *device, pl_error *err, const pl_sgd_args *a)
{
    (void)err;
    sgd_factors f = {
        .grad_scale = a->grad_scale,
        .weight_decay = (float)a->weight_decay,
        .lr = (float)a->lr,
        .momentum = (float)a->momentum,
        .kept = a->step == 1 ? 0 : (float)a->momentum,
        .nesterov = a->nesterov,
    };
    pl_cut cut = pl_cut_pieces(a->w, true);
    int team = pl_team(device, 5 * pl_tensor_bytes(a->g));
#pragma omp parallel for num_threads(team) schedule(static)
    for (int64_t i = 0; i < cut.pieces; i++) {
        float room[PL_FLAT_PIECE], *w = begin_weights(&cut, a->w, a->rest, i, room);
        sgd_piece(w, pl_piece(&cut, a->g, i), pl_tensor_none(a->m) ? NULL : pl_piece(&cut, a->m, i),
            pl_piece_length(&cut, i), &f);
        end_weights(&cut, a->w, a->rest, i, room);
    }
    return 0;
}
