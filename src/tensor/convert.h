/* Runs of elements from one type to another, in host memory. */
#ifndef PL_TENSOR_CONVERT_H
#define PL_TENSOR_CONVERT_H

#include "tensor/tensor.h"

/* Whether pl_convert knows the way: between any two of f32, bf16 and f16, and from any type to itself. */
bool pl_convertible(pl_dtype to, pl_dtype from);

/* to[0..n) = from[0..n), rounding to nearest even where the result is narrower. Neither pointer need be aligned to its
   element (a safetensors file may begin its data anywhere); they must not overlap. PL_EBUG if not pl_convertible. */
int pl_convert(pl_error *err, void *to, pl_dtype to_dtype, const void *from, pl_dtype from_dtype, int64_t n);

#endif
