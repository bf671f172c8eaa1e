/* plait eval: loss and perplexity. */
#include "base/json.h"
#include "cli/cli.h"

#include <stdlib.h>

static int print_json(pl_error *err, const pl_eval_result *r)
{
    json_t *json = json_pack("{s:f, s:f, s:I, s:I, s:I, s:f, s:I}", "loss", r->loss, "perplexity", r->perplexity,
        "rows", (json_int_t)r->rows, "tokens", (json_int_t)r->tokens, "targets", (json_int_t)r->targets, "seconds",
        r->seconds, "peak_bytes", (json_int_t)r->peak_bytes);
    return cli_print_json(err, json);
}

int cli_eval(pl_error *err, cli_run *run)
{
    pl_eval_result r;
    pl_log log = {.sink = cli_message};
    PL_TRY(pl_eval(err, &log, &run->config, &r));
    if (run->config.json) return print_json(err, &r);
    printf("loss        %.6f\nperplexity  %.4f\ntokens      %lld trained of %lld, in %lld sequences\n", r.loss,
        r.perplexity, (long long)r.targets, (long long)r.tokens, (long long)r.rows);
    return 0;
}
