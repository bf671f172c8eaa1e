/* What the operators' wrappers share: checks of operands, whose messages name the operator and the operand, and the
   counters. A check that fails is PL_EBUG: model code is wrong, not the user. */
#ifndef PL_OP_CHECK_H
#define PL_OP_CHECK_H

#include "op/op.h"

/* Sets of dtypes. */
enum pl_dtypes {
    PL_ONLY_F32 = 1 << PL_F32,
    PL_ONLY_BF16 = 1 << PL_BF16,
    PL_ONLY_I32 = 1 << PL_I32,
    PL_ONLY_I16 = 1 << PL_I16,
    PL_ANY = 1 << PL_F32 | 1 << PL_BF16,
    PL_ANY_FLOAT = 1 << PL_F32 | 1 << PL_BF16 | 1 << PL_F16,
    PL_EVERY = (1 << PL_DTYPE_COUNT) - 1,
};
static inline unsigned pl_only(pl_dtype dtype)
{
    return 1u << dtype;
}

/* The operand is a vector [n] or a matrix [rows, columns] of one of the dtypes; -1 stands for any extent. */
int pl_check_vector(pl_run *run, const char *operand, pl_tensor t, unsigned dtypes, int64_t n);
int pl_check_matrix(pl_run *run, const char *operand, pl_tensor t, unsigned dtypes, int64_t rows, int64_t columns);
/* It has the shape of another (named `model`), whatever that is. */
int pl_check_like(pl_run *run, const char *operand, pl_tensor t, unsigned dtypes, const char *model, pl_tensor like);
/* It is there, of one of the dtypes. */
int pl_check_there(pl_run *run, const char *operand, pl_tensor t, unsigned dtypes);
/* Anything else that must hold; `what` says it in words. */
int pl_check_that(pl_run *run, bool holds, const char *what);

/* One call of an operator that is neither a matrix product nor attention. */
void pl_count(pl_run *run, double flops, double bytes);

#endif
