#include "model/lora_init.h"

#include <cblas.h>
#include <lapacke.h>
#include <math.h>
#include <stdlib.h>

#include "base/buf.h"

/* Elements of the weight that exist in double precision at a time. */
#define BLOCK ((int64_t)1 << 20)

/* The weight as it lies, M [rows, cols], to be written as left' right (times the scaling) plus a rest. Sets of vectors
   lie one vector after the other: left [r, rows], right [r, cols]. To LAPACK, which counts by columns, that is a matrix
   whose columns are the vectors. */
typedef struct split {
    const pl_lora_start *start;
    float *weight;
    int64_t rows, cols, r;
    double *left, *right;
    double *block;
} split;

static int64_t lesser(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static int64_t block_rows(const split *s)
{
    int64_t rows = BLOCK / s->cols;
    return rows < 1 ? 1 : lesser(rows, s->rows);
}

static int64_t block_cols(const split *s)
{
    int64_t cols = BLOCK / s->rows;
    return cols < 1 ? 1 : lesser(cols, s->cols);
}

/* block [nr, nc] = M[r0.., c0..] */
static void load_block(const split *s, int64_t r0, int64_t nr, int64_t c0, int64_t nc)
{
    for (int64_t i = 0; i < nr; i++) {
        const float *from = s->weight + (r0 + i) * s->cols + c0;
        double *to = s->block + i * nc;
        for (int64_t j = 0; j < nc; j++) to[j] = (double)from[j];
    }
}

/* y [k, rows] = x [k, cols] M' */
static void times(const split *s, int64_t k, const double *x, double *y)
{
    int64_t step = block_rows(s);
    for (int64_t r0 = 0; r0 < s->rows; r0 += step) {
        int64_t n = lesser(step, s->rows - r0);
        load_block(s, r0, n, 0, s->cols);
        cblas_dgemm(CblasRowMajor, CblasNoTrans, CblasTrans, (int)k, (int)n, (int)s->cols, 1, x, (int)s->cols, s->block,
            (int)s->cols, 0, y + r0, (int)s->rows);
    }
}

/* y [k, cols] = x [k, rows] M */
static void times_transposed(const split *s, int64_t k, const double *x, double *y)
{
    int64_t step = block_rows(s);
    for (int64_t r0 = 0; r0 < s->rows; r0 += step) {
        int64_t n = lesser(step, s->rows - r0);
        load_block(s, r0, n, 0, s->cols);
        cblas_dgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, (int)k, (int)s->cols, (int)n, 1, x + r0, (int)s->rows,
            s->block, (int)s->cols, r0 == 0 ? 0 : 1, y, (int)s->cols);
    }
}

static int lapack_failed(pl_error *err, const split *s, const char *what, lapack_int info)
{
    if (info == LAPACK_WORK_MEMORY_ERROR || info == LAPACK_TRANSPOSE_MEMORY_ERROR) return PL_FAIL_NOMEM(err);
    return PL_FAIL(err, PL_ENUMERIC, "%s: the %s of its weight failed (%lld)", s->start->name, what, (long long)info);
}

/* The eigenvectors [k, n] of the k largest eigenvalues of gram [n, n], the largest first; only its upper triangle (by
   rows) is read, and nothing of it is left. */
static int largest_eigenvectors(pl_error *err, const split *s, int64_t n, double *gram, int64_t k, double *vectors)
{
    double *values = NULL;
    lapack_int *support = NULL, found = 0;
    int rc;
    PL_GO(done, pl_calloc(err, (size_t)n, sizeof *values, &values));
    PL_GO(done, pl_calloc(err, 2 * (size_t)n, sizeof *support, &support));
    lapack_int info = LAPACKE_dsyevr(LAPACK_COL_MAJOR, 'V', 'I', 'L', (lapack_int)n, gram, (lapack_int)n, 0, 0,
        (lapack_int)(n - k + 1), (lapack_int)n, 0, &found, values, vectors, (lapack_int)n, support);
    if (info != 0 || found != k) rc = lapack_failed(err, s, "singular value decomposition", info);
    for (int64_t i = 0; i < k / 2; i++) cblas_dswap((int)n, vectors + i * n, 1, vectors + (k - 1 - i) * n, 1);
done:
    free(values);
    free(support);
    return rc;
}

/* Makes vectors [k, n] orthonormal; what they span stays. */
static int orthonormalize(pl_error *err, const split *s, int64_t k, int64_t n, double *vectors)
{
    double *tau;
    PL_TRY(pl_calloc(err, (size_t)k, sizeof *tau, &tau));
    lapack_int info = LAPACKE_dgeqrf(LAPACK_COL_MAJOR, (lapack_int)n, (lapack_int)k, vectors, (lapack_int)n, tau);
    if (info == 0) {
        info =
            LAPACKE_dorgqr(LAPACK_COL_MAJOR, (lapack_int)n, (lapack_int)k, (lapack_int)k, vectors, (lapack_int)n, tau);
    }
    free(tau);
    return info == 0 ? 0 : lapack_failed(err, s, "QR decomposition", info);
}

static void scale_vector(double *v, int64_t n, double factor)
{
    for (int64_t i = 0; i < n; i++) v[i] *= factor;
}

/* From unit vectors u_i and what M makes of them, sigma_i v_i, to sqrt(sigma_i / scaling) of both. A singular value
   that is zero but for rounding, with a direction that is none, leaves zeros. */
static void share_singular_values(const split *s, double *unit, int64_t nu, double *image, int64_t ni)
{
    double largest = 0;
    for (int64_t i = 0; i < s->r; i++) largest = fmax(largest, cblas_dnrm2((int)ni, image + i * ni, 1));
    for (int64_t i = 0; i < s->r; i++) {
        double sigma = cblas_dnrm2((int)ni, image + i * ni, 1), scaling = (double)s->start->scaling;
        bool none = sigma <= 1e-8 * largest;
        scale_vector(unit + i * nu, nu, none ? 0 : sqrt(sigma / scaling));
        scale_vector(image + i * ni, ni, none ? 0 : 1 / sqrt(sigma * scaling));
    }
}

/* gram = M' M or M M', whichever is smaller. */
static void make_gram(const split *s, double *gram)
{
    if (s->cols <= s->rows) {
        int64_t step = block_rows(s);
        for (int64_t r0 = 0; r0 < s->rows; r0 += step) {
            int64_t n = lesser(step, s->rows - r0);
            load_block(s, r0, n, 0, s->cols);
            cblas_dsyrk(CblasRowMajor, CblasUpper, CblasTrans, (int)s->cols, (int)n, 1, s->block, (int)s->cols,
                r0 == 0 ? 0 : 1, gram, (int)s->cols);
        }
        return;
    }
    int64_t step = block_cols(s);
    for (int64_t c0 = 0; c0 < s->cols; c0 += step) {
        int64_t n = lesser(step, s->cols - c0);
        load_block(s, 0, s->rows, c0, n);
        cblas_dsyrk(CblasRowMajor, CblasUpper, CblasNoTrans, (int)s->rows, (int)n, 1, s->block, (int)n, c0 == 0 ? 0 : 1,
            gram, (int)s->rows);
    }
}

static int pissa_exact(pl_error *err, split *s)
{
    int64_t n = lesser(s->rows, s->cols);
    double *gram;
    PL_TRY(pl_calloc(err, (size_t)n, (size_t)n * sizeof *gram, &gram));
    make_gram(s, gram);
    bool right = s->cols <= s->rows; /* the eigenvectors are the right singular vectors */
    int rc = largest_eigenvectors(err, s, n, gram, s->r, right ? s->right : s->left);
    free(gram);
    if (rc < 0) return rc;
    if (right) {
        times(s, s->r, s->right, s->left);
        share_singular_values(s, s->right, s->cols, s->left, s->rows);
    } else {
        times_transposed(s, s->r, s->left, s->right);
        share_singular_values(s, s->left, s->rows, s->right, s->cols);
    }
    return 0;
}

/* Streams count from 1: below lie the numbers of parameters that are plainly random. */
static void fill_normal(const pl_lora_start *start, uint64_t stream, int64_t n, double *out)
{
    pl_rng rng = {.seed = start->seed, .stream = PL_RNG_INIT, .domain = start->domain};
    for (int64_t i = 0; i < n; i++) out[i] = pl_rng_normal(&rng, stream << 48 | (uint64_t)i);
}

/* vectors [r, n] = turn [r, r] vectors */
static int rotate(pl_error *err, const split *s, int64_t n, const double *turn, double *vectors)
{
    double *copy;
    size_t size = (size_t)s->r * (size_t)n;
    PL_TRY(pl_calloc(err, size, sizeof *copy, &copy));
    for (size_t i = 0; i < size; i++) copy[i] = vectors[i];
    cblas_dgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, (int)s->r, (int)n, (int)s->r, 1, turn, (int)s->r, copy,
        (int)n, 0, vectors, (int)n);
    free(copy);
    return 0;
}

/* Power iterations on the taller side's r vectors Q, then the small decomposition of Q' M. */
static int pissa_iterated(pl_error *err, split *s)
{
    bool tall = s->rows >= s->cols;
    int64_t r = s->r, nlong = tall ? s->rows : s->cols, nshort = tall ? s->cols : s->rows;
    double *q = tall ? s->left : s->right, *x = tall ? s->right : s->left, *gram = NULL, *turn = NULL;
    void (*to_long)(const split *, int64_t, const double *, double *) = tall ? times : times_transposed;
    void (*to_short)(const split *, int64_t, const double *, double *) = tall ? times_transposed : times;
    int rc;
    fill_normal(s->start, 1, r * nshort, x);
    for (int64_t i = 0; i <= s->start->niter; i++) {
        if (i > 0) {
            to_short(s, r, q, x);
            PL_TRY(orthonormalize(err, s, r, nshort, x));
        }
        to_long(s, r, x, q);
        PL_TRY(orthonormalize(err, s, r, nlong, q));
    }
    to_short(s, r, q, x);
    PL_GO(done, pl_calloc(err, (size_t)r, (size_t)r * sizeof *gram, &gram));
    PL_GO(done, pl_calloc(err, (size_t)r, (size_t)r * sizeof *turn, &turn));
    cblas_dsyrk(CblasRowMajor, CblasUpper, CblasNoTrans, (int)r, (int)nshort, 1, x, (int)nshort, 0, gram, (int)r);
    PL_GO(done, largest_eigenvectors(err, s, r, gram, r, turn));
    PL_GO(done, rotate(err, s, nlong, turn, q));
    PL_GO(done, rotate(err, s, nshort, turn, x));
    share_singular_values(s, q, nlong, x, nshort);
done:
    free(gram);
    free(turn);
    return rc;
}

/* Householder's reflections of the first r columns are those of the whole matrix. */
static int olora(pl_error *err, split *s)
{
    for (int64_t j = 0; j < s->r; j++) {
        for (int64_t i = 0; i < s->rows; i++) s->left[j * s->rows + i] = (double)s->weight[i * s->cols + j];
    }
    PL_TRY(orthonormalize(err, s, s->r, s->rows, s->left));
    times_transposed(s, s->r, s->left, s->right);
    for (int64_t i = 1; i < s->r; i++) {
        for (int64_t j = 0; j < i; j++) s->right[i * s->cols + j] = 0; /* R is triangular */
    }
    return 0;
}

/* Rounds both factors to f32, in which they are kept, and takes their product away: what is left and what they give
   then add up. */
static void take_away(const split *s)
{
    for (int64_t i = 0; i < s->r * s->rows; i++) s->left[i] = (double)(float)s->left[i];
    for (int64_t i = 0; i < s->r * s->cols; i++) s->right[i] = (double)(float)s->right[i];
    int64_t step = block_rows(s);
    for (int64_t r0 = 0; r0 < s->rows; r0 += step) {
        int64_t n = lesser(step, s->rows - r0);
        cblas_dgemm(CblasRowMajor, CblasTrans, CblasNoTrans, (int)n, (int)s->cols, (int)s->r, (double)s->start->scaling,
            s->left + r0, (int)s->rows, s->right, (int)s->cols, 0, s->block, (int)s->cols);
        float *w = s->weight + r0 * s->cols;
        for (int64_t e = 0; e < n * s->cols; e++) w[e] = (float)((double)w[e] - s->block[e]);
    }
}

/* Of the sets left and right, one lies as `a` does and the other is b transposed. */
static void hand_out(const split *s, float *a, float *b)
{
    const pl_lora_start *t = s->start;
    const double *down = t->transposed ? s->left : s->right, *up = t->transposed ? s->right : s->left;
    for (int64_t e = 0; e < t->r * t->in; e++) a[e] = (float)down[e];
    for (int64_t i = 0; i < t->out; i++) {
        for (int64_t k = 0; k < t->r; k++) b[i * t->r + k] = (float)up[k * t->out + i];
    }
}

static int decompose(pl_error *err, const pl_lora_start *t, float *weight, float *a, float *b)
{
    split s = {.start = t,
        .weight = weight,
        .rows = t->transposed ? t->in : t->out,
        .cols = t->transposed ? t->out : t->in,
        .r = t->r};
    for (int64_t e = 0; e < t->in * t->out; e++) {
        if (isfinite(weight[e])) continue;
        return PL_FAIL(err, PL_ENUMERIC, "%s: its weight holds NaN or infinity, and cannot be decomposed", t->name);
    }
    int rc;
    size_t block = (size_t)(block_rows(&s) * s.cols), other = (size_t)(block_cols(&s) * s.rows);
    PL_GO(done, pl_calloc(err, (size_t)(s.r * s.rows), sizeof *s.left, &s.left));
    PL_GO(done, pl_calloc(err, (size_t)(s.r * s.cols), sizeof *s.right, &s.right));
    PL_GO(done, pl_calloc(err, block > other ? block : other, sizeof *s.block, &s.block));
    if (t->init == PL_LORA_INIT_OLORA) {
        PL_GO(done, olora(err, &s));
    } else {
        PL_GO(done, t->niter < 0 ? pissa_exact(err, &s) : pissa_iterated(err, &s));
    }
    take_away(&s);
    hand_out(&s, a, b);
done:
    free(s.left);
    free(s.right);
    free(s.block);
    return rc;
}

/* Two halves of the rows of one random orthogonal matrix, each times a random matrix: a = Q_even' N / 10, b = M' Q_odd
   / 10, so that b a = 0. */
static int orthogonal(pl_error *err, const pl_lora_start *t, float *a, float *b)
{
    int64_t r = t->r, half = r / 2, widest = t->in > t->out ? t->in : t->out;
    split s = {.start = t, .r = r};
    double *q = NULL, *noise = NULL;
    int rc;
    PL_GO(done, pl_calloc(err, (size_t)r, (size_t)r * sizeof *q, &q));
    PL_GO(done, pl_calloc(err, (size_t)widest, (size_t)half * sizeof *noise, &noise));
    fill_normal(t, 1, r * r, q);
    PL_GO(done, orthonormalize(err, &s, r, r, q));
    fill_normal(t, 2, t->in * half, noise); /* [in, half] */
    for (int64_t k = 0; k < r; k++) {
        for (int64_t i = 0; i < t->in; i++) {
            double sum = 0;
            for (int64_t j = 0; j < half; j++) sum += noise[i * half + j] * q[2 * j * r + k];
            a[k * t->in + i] = (float)(sum / 10);
        }
    }
    fill_normal(t, 3, t->out * half, noise); /* [out, half] */
    for (int64_t i = 0; i < t->out; i++) {
        for (int64_t k = 0; k < r; k++) {
            double sum = 0;
            for (int64_t j = 0; j < half; j++) sum += noise[i * half + j] * q[(2 * j + 1) * r + k];
            b[i * r + k] = (float)(sum / 10);
        }
    }
done:
    free(q);
    free(noise);
    return rc;
}

int pl_lora_start_make(pl_error *err, const pl_lora_start *start, float *weight, float *a, float *b)
{
    if (start->init == PL_LORA_INIT_ORTHOGONAL) return orthogonal(err, start, a, b);
    return decompose(err, start, weight, a, b);
}

int64_t pl_lora_start_bytes(const pl_lora_start *t)
{
    int64_t n = lesser(t->in, t->out), sides = t->in + t->out, wide = 8 * t->r * sides;
    if (t->init == PL_LORA_INIT_ORTHOGONAL) return 8 * t->r * t->r + 4 * t->r * sides;
    int64_t block = 8 * lesser(t->in * t->out, BLOCK + sides);
    if (t->init == PL_LORA_INIT_OLORA) return wide + block;
    return wide + block + (t->niter < 0 ? 8 * n * n : wide / 2 + 16 * t->r * t->r);
}
