#include "base/number.h"

#include <ctype.h>
#include <errno.h>
#include <float.h>
#include <locale.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *skip_digits(const char *p)
{
    while (*p >= '0' && *p <= '9') p++;
    return p;
}

bool pl_parse_int(const char *text, int64_t *out)
{
    const char *digits = text + (*text == '-' || *text == '+');
    const char *end = skip_digits(digits);
    if (end == digits || *end) return false;
    errno = 0;
    long long value = strtoll(text, NULL, 10);
    if (errno != 0) return false;
    *out = value;
    return true;
}

/* [+-] digits [. digits] [e [+-] digits], with a digit before or after the point. */
static bool looks_real(const char *p)
{
    p += *p == '-' || *p == '+';
    const char *whole = p;
    p = skip_digits(p);
    bool digits = p != whole;
    if (*p == '.') {
        const char *fraction = ++p;
        p = skip_digits(p);
        digits = digits || p != fraction;
    }
    if (!digits) return false;
    if (*p == 'e' || *p == 'E') {
        p++;
        p += *p == '-' || *p == '+';
        const char *exponent = p;
        p = skip_digits(p);
        if (p == exponent) return false;
    }
    return *p == 0;
}

bool pl_parse_real(const char *text, double *out)
{
    char copy[128];
    size_t n = strlen(text);
    if (!looks_real(text) || n + 8 > sizeof copy) return false;
    /* strtod wants the locale's own decimal point, which may be longer than one byte. */
    const char *point = strchr(text, '.'), *local = localeconv()->decimal_point;
    if (point) {
        int head = (int)(point - text);
        snprintf(copy, sizeof copy, "%.*s%.7s%s", head, text, local, point + 1);
    } else {
        memcpy(copy, text, n + 1);
    }
    double value = strtod(copy, NULL);
    if (!isfinite(value)) return false;
    *out = value;
    return true;
}

void pl_print_real(double value, char out[PL_REAL_TEXT])
{
    /* Up to 15 digits always come back, so fewer are those with zeros at their end, which %g leaves out. Only numbers
       near zero hold fewer. */
    for (int digits = fabs(value) < DBL_MIN ? 1 : 15; digits <= 17; digits++) {
        snprintf(out, PL_REAL_TEXT, "%.*g", digits, value);
        if (digits == 17 || strtod(out, NULL) == value) break;
    }
    const char *local = localeconv()->decimal_point;
    char *point = strcmp(local, ".") == 0 ? NULL : strstr(out, local);
    if (!point) return;
    *point = '.';
    size_t n = strlen(local);
    memmove(point + 1, point + n, strlen(point + n) + 1);
}
