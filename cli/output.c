#include "cli/cli.h"

void cli_message(void *user, enum pl_log_level level, const char *message)
{
    (void)user;
    fprintf(stderr, "%s%s\n", level == PL_LOG_WARNING ? "warning: " : "", message);
}

int cli_print_json(pl_error *err, json_t *json)
{
    pl_buf text = {0};
    int rc = json ? pl_json_text(err, json, 0, &text) : PL_FAIL_NOMEM(err);
    json_decref(json);
    if (rc == 0) puts(pl_buf_text(&text));
    pl_buf_free(&text);
    return rc;
}
