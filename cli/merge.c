#include "cli/cli.h"

int cli_merge(pl_error *err, cli_run *run)
{
    (void)run;
    return PL_FAIL(err, PL_EBUG, "this command is not built yet");
}
