/* Shared by the operators' tests. A case lists its operands; op_check makes them, filled alike, on the oracle `ref` and
   on `cpu` with one and with several threads, runs the same call on each, and compares. Failures end the test with a
   message that names the case and the element. */
#ifndef PL_TESTS_SUPPORT_OP_CASES_H
#define PL_TESTS_SUPPORT_OP_CASES_H

#include "op/op.h"

#define OP_MAX_OPERANDS 16

/* A run on a device of its own, with plenty of scratch. */
typedef struct op_context {
    pl_error err;
    pl_device *device;
    pl_mem mem;
    pl_stack work;
    pl_run run;
    struct op_block {
        void *data;
        int64_t bytes;
    } blocks[4 * OP_MAX_OPERANDS]; /* released by op_close */
    int nblocks;
} op_context;

/* threads: 0 = the oracle, else the CPU with so many. */
void op_open(op_context *context, int threads);
void op_close(op_context *context);

typedef enum op_fill {
    OP_NORMAL, /* scale * a roughly normal number, within 3.5 (scale 0 means 1) */
    OP_ZERO,
    OP_INDEX, /* i32: whole numbers in [0, limit) */
    OP_RANGE, /* i32: 0, 1, 2, ... */
} op_fill;

typedef struct op_operand {
    pl_dtype dtype;
    int64_t rows, columns; /* columns 0: of one dimension; rows 0: absent (pl_tensor_none) */
    int64_t gap; /* > 0: a block of columns with so many foreign elements after each row and before the first */
    int alias;   /* k > 0: this operand is operand k of the list, counted from 1; nothing else is read */
    op_fill fill;
    double scale;
    int64_t limit;
    /* How far the CPU's result may be from the oracle's: at most `tolerance` times the oracle's largest magnitude in
       this operand. 0: bit for bit the same, which is what inputs must be. */
    double tolerance;
} op_operand;

/* Runs the operator on the tensors of the case; user is the case's settings. */
typedef int (*op_call)(pl_run *run, const pl_tensor *operands, const void *user);

/* ref against cpu with 1, 2 and 3 threads and with the kernels of older machines: the CPU's bits must not depend on the
   number of threads, what is between the rows of column blocks must be untouched, and the results must agree within the
   tolerances. */
void op_check(const char *name, const op_operand *operands, int n, op_call call, const void *user);
/* The same but for the bits: for gemm, whose sums oneDNN may split among threads. */
void op_check_any_order(const char *name, const op_operand *operands, int n, op_call call, const void *user);

/* The building blocks of op_check, for tests that need something else. A tensor with its guards, filled from `seed`. */
pl_tensor op_make(op_context *context, const op_operand *operand, uint64_t seed);
/* All elements as doubles (rounded to the dtype when put), in row-major order. op_get's result is to be freed. */
void op_put(op_context *context, pl_tensor t, const double *values);
double *op_get(op_context *context, pl_tensor t);

/* Compares dx with central differences of L(x) = sum(dy * y(x)), where `forward` reads x and overwrites y: every
   element of x, or about `samples` of them. Five points with step h: for a function whose derivatives are about 1 the
   error is h^4 / 30 + 1e-7 / h; with the usual h = 2^-5 in f32 that is 4e-6. `tolerance` is relative to dx's largest
   magnitude. */
void op_check_gradient(const char *name, op_context *context, op_call forward, const pl_tensor *operands,
    const void *user, pl_tensor y, pl_tensor dy, pl_tensor x, pl_tensor dx, double h, int samples, double tolerance);

#endif
