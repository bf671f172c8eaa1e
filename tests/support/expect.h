/* Calls that must succeed, or fail with a message. For files that have included cmocka.h. */
#ifndef TEST_EXPECT_H
#define TEST_EXPECT_H

#include <string.h>

#include "base/error.h"

/* The call must succeed; `err` is the record that it was given. */
#define OK(call)                                                                                                       \
    do {                                                                                                               \
        if ((call) != 0) fail_msg("%s: %s", #call, err.message);                                                       \
    } while (0)

/* The call must fail with this code and a message that contains the text; the record is clean again afterwards. */
#define FAILS(call, expected, text)                                                                                    \
    do {                                                                                                               \
        int rc_ = (call);                                                                                              \
        if (rc_ != (expected)) fail_msg("%s: gave %d: %s", #call, rc_, err.message);                                   \
        if (!strstr(err.message, text)) fail_msg("%s: said: %s", #call, err.message);                                  \
        pl_error_clear(&err);                                                                                          \
    } while (0)

#endif
