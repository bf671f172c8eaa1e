/* plait merge: a model with an adapter worked into its weights. */
#include "cli/cli.h"

int cli_merge(pl_error *err, cli_run *run)
{
    pl_log log = {.sink = cli_message};
    PL_TRY(pl_merge(err, &log, &run->config));
    printf("%s\n", run->config.output);
    return 0;
}
