/* Starts of LoRA by what defines them; against PEFT's own they are compared in test_golden_adapters. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "model/lora_init.h"

/* Everything is made in double precision and rounded to f32 once: 6e-8 of an element, and sums of those. */
#define CLOSE 1e-6

typedef struct made {
    pl_lora_start start;
    float *before, *after, *a, *b; /* the weight as it lies */
} made;

/* Element (o, i) of the weight, however it lies. */
static double at(const made *m, const float *weight, int64_t o, int64_t i)
{
    return (double)(m->start.transposed ? weight[i * m->start.out + o] : weight[o * m->start.in + i]);
}

static double adapter_at(const made *m, int64_t o, int64_t i)
{
    double sum = 0;
    for (int64_t k = 0; k < m->start.r; k++) {
        sum += (double)m->b[o * m->start.r + k] * (double)m->a[k * m->start.in + i];
    }
    return (double)m->start.scaling * sum;
}

/* A weight of the given rank (0: full) with singular values that fall slowly. */
static float *make_weight(int64_t n, int64_t rows, int64_t rank)
{
    pl_rng rng = {.seed = 3};
    float *w = calloc((size_t)n, sizeof *w);
    int64_t cols = n / rows;
    for (int64_t e = 0; e < n && rank == 0; e++) w[e] = (float)pl_rng_normal(&rng, (uint64_t)e);
    for (int64_t k = 0; k < rank; k++) {
        for (int64_t e = 0; e < n; e++) {
            uint64_t u = (uint64_t)(1000 * (k + 1) + e / cols), v = (uint64_t)(5000 * (k + 1) + e % cols);
            w[e] += (float)(pl_rng_normal(&rng, u) * pl_rng_normal(&rng, v));
        }
    }
    return w;
}

static made make(pl_lora_start start, int64_t rank)
{
    made m = {.start = start};
    size_t n = (size_t)(start.in * start.out);
    m.before = make_weight((int64_t)n, start.transposed ? start.in : start.out, rank);
    m.after = malloc(n * sizeof *m.after);
    memcpy(m.after, m.before, n * sizeof *m.after);
    m.a = malloc((size_t)(start.r * start.in) * sizeof *m.a);
    m.b = malloc((size_t)(start.r * start.out) * sizeof *m.b);
    pl_error err = {0};
    m.start.name = "layer";
    if (pl_lora_start_make(&err, &m.start, m.after, m.a, m.b) < 0) fail_msg("%s", err.message);
    return m;
}

static void drop(made *m)
{
    free(m->before);
    free(m->after);
    free(m->a);
    free(m->b);
}

static double largest(const float *x, int64_t n)
{
    double most = 0;
    for (int64_t i = 0; i < n; i++) most = fmax(most, fabs((double)x[i]));
    return most;
}

/* What is left of the weight and what the adapter gives are the weight. */
static void check_sum(const made *m)
{
    double most = largest(m->before, m->start.in * m->start.out);
    for (int64_t o = 0; o < m->start.out; o++) {
        for (int64_t i = 0; i < m->start.in; i++) {
            double sum = at(m, m->after, o, i) + adapter_at(m, o, i), want = at(m, m->before, o, i);
            if (!(fabs(sum - want) <= CLOSE * most)) fail_msg("(%d, %d): %g, not %g", (int)o, (int)i, sum, want);
        }
    }
}

/* The largest singular value of what is left, by power iterations: from below, so that it can only be too small. */
static double rest_norm(const made *m)
{
    int64_t in = m->start.in, out = m->start.out;
    double *x = malloc((size_t)in * sizeof *x), *y = malloc((size_t)out * sizeof *y), norm = 0;
    for (int64_t i = 0; i < in; i++) x[i] = 1 + (double)(i % 3);
    for (int round = 0; round < 200; round++) {
        double length = 0;
        for (int64_t o = 0; o < out; o++) {
            y[o] = 0;
            for (int64_t i = 0; i < in; i++) y[o] += at(m, m->after, o, i) * x[i];
        }
        for (int64_t i = 0; i < in; i++) {
            x[i] = 0;
            for (int64_t o = 0; o < out; o++) x[i] += at(m, m->after, o, i) * y[o];
            length += x[i] * x[i];
        }
        norm = sqrt(sqrt(length));
        for (int64_t i = 0; i < in; i++) x[i] /= length > 0 ? sqrt(length) : 1;
    }
    free(x);
    free(y);
    return norm;
}

static double dot(const float *x, int64_t x_step, const float *y, int64_t y_step, int64_t n)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += (double)x[i * x_step] * (double)y[i * y_step];
    return sum;
}

/* Rows of a are orthogonal, so are columns of b; both have sigma / scaling as the squares of their lengths, the largest
   first. */
static void check_singular(const made *m, bool exact)
{
    int64_t r = m->start.r, in = m->start.in, out = m->start.out;
    double first = dot(m->a, 1, m->a, 1, in), last = INFINITY;
    for (int64_t j = 0; j < r; j++) {
        for (int64_t k = 0; k <= j; k++) {
            double of_a = dot(m->a + j * in, 1, m->a + k * in, 1, in), of_b = dot(m->b + j, r, m->b + k, r, out);
            if (j != k) assert_true(fabs(of_a) <= CLOSE * first && fabs(of_b) <= CLOSE * first);
            if (j != k) continue;
            assert_true(fabs(of_a - of_b) <= CLOSE * first);
            assert_true(of_a <= last + CLOSE * first);
            last = of_a;
        }
    }
    if (!exact) return;
    /* What is left has no part along any of them. */
    double most = largest(m->before, in * out);
    for (int64_t k = 0; k < r; k++) {
        for (int64_t o = 0; o < out; o++) {
            double sum = 0;
            for (int64_t i = 0; i < in; i++) sum += at(m, m->after, o, i) * (double)m->a[k * in + i];
            assert_true(fabs(sum) <= CLOSE * most * sqrt(first) * (double)in);
        }
        for (int64_t i = 0; i < in; i++) {
            double sum = 0;
            for (int64_t o = 0; o < out; o++) sum += at(m, m->after, o, i) * (double)m->b[o * r + k];
            assert_true(fabs(sum) <= CLOSE * most * sqrt(first) * (double)out);
        }
    }
}

static const struct {
    int64_t in, out, r;
    bool transposed;
} shapes[] = {{48, 112, 4, false}, {112, 48, 4, false}, {40, 120, 5, true}, {160, 40, 4, true}, {33, 33, 33, false},
    {7, 50, 7, false}, {50, 7, 1, false}, {1, 9, 1, false}, {1200, 1100, 3, false}, {1100, 1300, 3, true}};

static void test_pissa(void **state)
{
    (void)state;
    for (int i = 0; i < PL_COUNT(shapes); i++) {
        made m = make((pl_lora_start){.init = PL_LORA_INIT_PISSA,
                          .niter = -1,
                          .in = shapes[i].in,
                          .out = shapes[i].out,
                          .r = shapes[i].r,
                          .transposed = shapes[i].transposed,
                          .scaling = 0.5f + (float)i},
            0);
        check_sum(&m);
        check_singular(&m, true);
        double sigma = (double)m.start.scaling *
                       dot(m.a + (m.start.r - 1) * m.start.in, 1, m.a + (m.start.r - 1) * m.start.in, 1, m.start.in);
        /* None larger was left. */
        assert_true(rest_norm(&m) <= sigma * (1 + CLOSE));
        drop(&m);
    }
}

/* Enough iterations come to the exact one; none gives a worse split, of the same weight all the same. */
static void test_pissa_niter(void **state)
{
    (void)state;
    for (int i = 0; i < PL_COUNT(shapes); i++) {
        pl_lora_start start = {.init = PL_LORA_INIT_PISSA,
            .niter = -1,
            .in = shapes[i].in,
            .out = shapes[i].out,
            .r = shapes[i].r,
            .transposed = shapes[i].transposed,
            .scaling = 2,
            .domain = 5};
        if (start.in > 200) continue;
        made exact = make(start, 0);
        start.niter = 0;
        made rough = make(start, 0);
        start.niter = 400;
        made fine = make(start, 0), again = make(start, 0);
        check_sum(&rough);
        check_sum(&fine);
        check_singular(&fine, false);
        double best = rest_norm(&exact), most = largest(exact.before, start.in * start.out);
        assert_true(fabs(rest_norm(&fine) - best) <= 1e-4 * best + CLOSE * most);
        if (start.r < 7) assert_true(rest_norm(&rough) > best * (1 + 1e-4) || start.in == 1);
        assert_memory_equal(fine.a, again.a, (size_t)(start.r * start.in) * sizeof *fine.a);
        assert_memory_equal(fine.b, again.b, (size_t)(start.r * start.out) * sizeof *fine.b);
        drop(&exact);
        drop(&rough);
        drop(&fine);
        drop(&again);
    }
}

/* Fewer singular values than r: what is beyond them is zero, not noise. */
static void test_low_rank(void **state)
{
    (void)state;
    for (int niter = -1; niter <= 2; niter += 3) {
        pl_lora_start start = {.init = PL_LORA_INIT_PISSA, .niter = niter, .in = 30, .out = 50, .r = 6, .scaling = 2};
        made m = make(start, 2);
        check_sum(&m);
        assert_true(largest(m.after, 30 * 50) <= CLOSE * largest(m.before, 30 * 50));
        assert_true(largest(m.a, 2 * 30) > 0.1);
        drop(&m);
    }
    float zero[12] = {0}, a[6], b[8];
    pl_error err = {0};
    pl_lora_start start = {.name = "layer", .init = PL_LORA_INIT_PISSA, .niter = -1, .in = 3, .out = 4, .r = 2};
    start.scaling = 1;
    assert_int_equal(pl_lora_start_make(&err, &start, zero, a, b), 0);
    assert_true(largest(a, 6) == 0 && largest(b, 8) == 0 && largest(zero, 12) == 0);
}

static void test_olora(void **state)
{
    (void)state;
    for (int i = 0; i < PL_COUNT(shapes); i++) {
        if (shapes[i].transposed) continue;
        int64_t in = shapes[i].in, out = shapes[i].out, r = shapes[i].r;
        made m = make(
            (pl_lora_start){.init = PL_LORA_INIT_OLORA, .niter = -1, .in = in, .out = out, .r = r, .scaling = 2}, 0);
        check_sum(&m);
        double most = largest(m.before, in * out);
        for (int64_t k = 0; k < r; k++) {
            for (int64_t j = 0; j <= k; j++) {
                assert_true(fabs(dot(m.b + k, r, m.b + j, r, out) - (j == k)) <= CLOSE);
            }
            for (int64_t j = 0; j < in; j++) { /* R = Q' W, triangular */
                double want = dot(m.b + k, r, m.before + j, in, out);
                if (j < k) assert_true(m.a[k * in + j] == 0);
                assert_true(fabs((double)m.a[k * in + j] - want) <= CLOSE * most * sqrt((double)out));
            }
        }
        drop(&m);
    }
}

static void test_orthogonal(void **state)
{
    (void)state;
    pl_lora_start start = {.init = PL_LORA_INIT_ORTHOGONAL, .in = 20, .out = 30, .r = 6, .scaling = 1, .seed = 1};
    made m = make(start, 0), again = make(start, 0);
    start.seed = 2;
    made other = make(start, 0);
    for (int64_t o = 0; o < 30; o++) {
        for (int64_t i = 0; i < 20; i++) assert_true(fabs(adapter_at(&m, o, i)) <= CLOSE);
    }
    /* Deviation 1/10 by sqrt(1/2), a row of an orthogonal matrix having length 1 over r places. */
    double square = dot(m.a, 1, m.a, 1, 6 * 20) / (6 * 20), square_b = dot(m.b, 1, m.b, 1, 6 * 30) / (6 * 30);
    assert_true(square > 0.003 && square < 0.008 && square_b > 0.003 && square_b < 0.008);
    assert_memory_equal(m.before, m.after, 600 * sizeof(float));
    assert_memory_equal(m.a, again.a, 120 * sizeof(float));
    assert_memory_not_equal(m.a, other.a, 120 * sizeof(float));
    drop(&m);
    drop(&again);
    drop(&other);
}

static void test_not_finite(void **state)
{
    (void)state;
    float w[6] = {1, 2, NAN, 4, 5, 6}, a[3], b[2];
    for (int init = PL_LORA_INIT_PISSA; init <= PL_LORA_INIT_OLORA; init++) {
        pl_error err = {0};
        pl_lora_start start = {
            .name = "q_proj", .init = (pl_lora_init)init, .niter = -1, .in = 3, .out = 2, .r = 1, .scaling = 1};
        assert_int_equal(pl_lora_start_make(&err, &start, w, a, b), PL_ENUMERIC);
        assert_non_null(strstr(err.message, "q_proj"));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_pissa), cmocka_unit_test(test_pissa_niter),
        cmocka_unit_test(test_low_rank), cmocka_unit_test(test_olora), cmocka_unit_test(test_orthogonal),
        cmocka_unit_test(test_not_finite)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
