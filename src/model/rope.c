/* Rotary frequencies, in double precision. The formulas and their defaults are those of transformers'
   modeling_rope_utils, which computes them in single precision. */
#include <math.h>

#include "model/arch.h"

static double clamp01(double x)
{
    return x < 0 ? 0 : x > 1 ? 1 : x;
}

/* Long waves are stretched by `factor`, short ones kept, and those between blended by wavelength. */
static double llama3(const pl_rope_spec *r, double f)
{
    double original = (double)r->original_positions, wavelength = 2 * M_PI / f;
    if (wavelength > original / r->low_freq_factor) return f / r->factor;
    if (wavelength < original / r->high_freq_factor) return f;
    double smooth = (original / wavelength - r->low_freq_factor) / (r->high_freq_factor - r->low_freq_factor);
    return (1 - smooth) * f / r->factor + smooth * f;
}

/* The (fractional) index of the pair that turns `turns` times over the original positions. */
static double yarn_index(const pl_rope_spec *r, double turns)
{
    return r->rotary * log((double)r->original_positions / (turns * 2 * M_PI)) / (2 * log(r->theta));
}

static double yarn_mscale(double factor, double mscale)
{
    return factor <= 1 ? 1 : 0.1 * mscale * log(factor) + 1;
}

static double yarn(const pl_rope_spec *r, double *inverse)
{
    double low = yarn_index(r, r->beta_fast), high = yarn_index(r, r->beta_slow);
    if (r->truncate) {
        low = floor(low);
        high = ceil(high);
    }
    low = fmax(low, 0);
    high = fmin(high, r->rotary - 1);
    if (low == high) high += 0.001;
    for (int i = 0; i < r->rotary / 2; i++) {
        double stretched = clamp01((i - low) / (high - low));
        inverse[i] = inverse[i] / r->factor * stretched + inverse[i] * (1 - stretched);
    }
    if (r->attention_factor >= 0) return r->attention_factor;
    if (r->mscale > 0 && r->mscale_all_dim > 0) {
        return yarn_mscale(r->factor, r->mscale) / yarn_mscale(r->factor, r->mscale_all_dim);
    }
    return yarn_mscale(r->factor, 1);
}

static double longrope(const pl_rope_spec *r, int64_t length, double *inverse)
{
    const double *factors = length > r->original_positions ? r->long_factor : r->short_factor;
    for (int i = 0; i < r->rotary / 2; i++) inverse[i] /= factors[i];
    if (r->attention_factor >= 0) return r->attention_factor;
    return r->factor <= 1 ? 1 : sqrt(1 + log(r->factor) / log((double)r->original_positions));
}

/* The base grows with what exceeds the trained length, so that the longest wave always fits. */
static double dynamic_theta(const pl_rope_spec *r, int64_t length)
{
    double times = (double)(length > r->max_positions ? length : r->max_positions) / (double)r->max_positions;
    return r->theta * pow(r->factor * times - (r->factor - 1), r->rotary / (r->rotary - 2.0));
}

void pl_rope_frequencies(const pl_rope_spec *r, int64_t length, double *inverse, double *attention_factor)
{
    double theta = r->kind == PL_ROPE_DYNAMIC ? dynamic_theta(r, length) : r->theta;
    for (int i = 0; i < r->rotary / 2; i++) inverse[i] = pow(theta, -2.0 * i / r->rotary);
    *attention_factor = 1;
    switch (r->kind) {
    case PL_ROPE_DEFAULT:
    case PL_ROPE_DYNAMIC: break;
    case PL_ROPE_LINEAR:
        for (int i = 0; i < r->rotary / 2; i++) inverse[i] /= r->factor;
        break;
    case PL_ROPE_LLAMA3:
        for (int i = 0; i < r->rotary / 2; i++) inverse[i] = llama3(r, inverse[i]);
        break;
    case PL_ROPE_YARN: *attention_factor = yarn(r, inverse); break;
    case PL_ROPE_LONGROPE: *attention_factor = longrope(r, length, inverse); break;
    }
}

bool pl_rope_same(const pl_rope_spec *r, int64_t length_a, int64_t length_b)
{
    if (r->kind == PL_ROPE_LONGROPE) return (length_a > r->original_positions) == (length_b > r->original_positions);
    if (r->kind != PL_ROPE_DYNAMIC) return true;
    return length_a == length_b || (length_a <= r->max_positions && length_b <= r->max_positions);
}
