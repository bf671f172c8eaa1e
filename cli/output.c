#include "cli/cli.h"

void cli_message(void *user, enum pl_log_level level, const char *message)
{
    (void)user;
    fprintf(stderr, "%s%s\n", level == PL_LOG_WARNING ? "warning: " : "", message);
}

void cli_print_error(const pl_error *err, const cli_command *command, int rc)
{
    if (rc == PL_ESTOPPED) return;
    fprintf(stderr, "plait%s%s: %s\n", command ? " " : "", command ? command->name : "", err->message);
    if (err->code == PL_EBUG) {
        fprintf(stderr, "This is a fault of plait %s itself (%s:%d); please report it.\n", pl_version(), err->file,
            err->line);
    }
    fflush(stderr);
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
