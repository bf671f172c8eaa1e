/* What the tests of chat templates share: conversations in few words. */
#ifndef PL_TESTS_DATA_CHAT_TEST_H
#define PL_TESTS_DATA_CHAT_TEST_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/file.h"
#include "base/json.h"
#include "data/chat.h"

/* JSON with ' for ". */
static inline json_t *parse(const char *text)
{
    pl_error err = {0};
    json_t *out = NULL;
    char *copy = strdup(text);
    for (char *c = copy; *c; c++)
        if (*c == '\'') *c = '"';
    if (pl_json_parse(&err, "test", copy, strlen(copy), &out) < 0) fail_msg("%s", err.message);
    free(copy);
    return out;
}

static inline json_t *conversation(const char *messages)
{
    char text[2048];
    snprintf(text, sizeof text, "[%s]", messages);
    return parse(text);
}

#endif
