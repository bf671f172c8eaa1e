#include <stdlib.h>

#include "cli/cli.h"

void cli_message(void *user, enum pl_log_level level, const char *message)
{
    (void)user;
    fprintf(stderr, "%s%s\n", level == PL_LOG_WARNING ? "warning: " : "", message);
}

int cli_print_json(pl_error *err, json_t *json)
{
    char *text = json ? json_dumps(json, JSON_INDENT(2) | JSON_REAL_PRECISION(15)) : NULL;
    json_decref(json);
    if (!text) return PL_FAIL_NOMEM(err);
    puts(text);
    free(text);
    return 0;
}
