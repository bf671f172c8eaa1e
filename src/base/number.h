/* Numbers as text, the same in every locale. */
#ifndef PL_BASE_NUMBER_H
#define PL_BASE_NUMBER_H

#include <stdbool.h>
#include <stdint.h>

/* The whole text must be the number: no blanks, no hexadecimal, no "inf" or "nan". False, with *out as it was, if it is
   not one or if it lies beyond the type. */
bool pl_parse_int(const char *text, int64_t *out);
bool pl_parse_real(const char *text, double *out);
/* The shortest decimal form that reads back as the same double. */
#define PL_REAL_TEXT 32
void pl_print_real(double value, char out[PL_REAL_TEXT]);

#endif
