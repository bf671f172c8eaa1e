/* plait train: what a person sees of a run, and how it is stopped. */
#include "cli/cli.h"
#include "cli/progress.h"

static void on_step(void *user, const pl_metrics *metrics)
{
    cli_progress_step(user, metrics);
}

static void on_message(void *user, enum pl_log_level level, const char *message)
{
    cli_progress_message(user, level, message);
}

static bool on_question(void *user)
{
    (void)user;
    return cli_signal() != 0;
}

int cli_train(pl_error *err, cli_run *run)
{
    cli_progress progress;
    cli_progress_open(&progress, stderr, run->config.log.every);
    cli_catch_signals();
    bool tells = !run->world || pl_world_rank(run->world) == 0;
    pl_log log = {.sink = tells ? on_message : NULL, .user = &progress};
    pl_train_observer observer = {.user = &progress, .step = on_step, .stop = on_question};
    int rc = pl_train(err, &log, &run->config, &observer);
    if (rc == 0) pl_logf(&log, PL_LOG_INFO, "the result is in %s", run->config.output);
    if (rc == PL_ESTOPPED) pl_logf(&log, PL_LOG_INFO, "%s", err->message);
    cli_progress_close(&progress);
    return rc;
}
