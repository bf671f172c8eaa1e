/* Makes chosen allocations fail, in a program linked with --wrap for malloc, calloc, realloc, aligned_alloc,
   posix_memalign, strdup, strndup and mmap (tests/CMakeLists.txt does it for test_alloc_fail). Only calls from plait's
   own object files are caught, and what libraries take through hooks that alloc_fail_run installs (jansson). */
#ifndef PL_TESTS_SUPPORT_ALLOC_FAIL_H
#define PL_TESTS_SUPPORT_ALLOC_FAIL_H

#include "base/error.h"

/* Runs `call` twice as it is, and then again and again with one allocation failing: each in its turn; but where there
   are many, of those that one chain of callers makes (a tensor of each layer, say) only the first two and the last.
   Each time it must return PL_ENOMEM with a message, or succeed (where it can do without), and must leave no allocation
   of its own behind. Returns how many allocations there were; fails the test otherwise. */
int alloc_fail_run(const char *name, int (*call)(pl_error *err, void *user), void *user);

#endif
