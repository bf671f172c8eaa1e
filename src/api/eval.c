#include <math.h>

#include "api/config.h"
#include "api/data.h"
#include "base/clock.h"

static int run(pl_error *err, pl_session *s, pl_run_data *data, pl_batch *batch, pl_eval_result *r)
{
    double sum = 0, begin = pl_clock();
    for (int64_t step = 0; step < data->steps; step++) {
        double part;
        PL_TRY(pl_loader_fill(err, data->train, step, 0, batch));
        PL_TRY(pl_engine_evaluate(s->engine, batch, &part));
        sum += part;
        r->rows += batch->nsequences;
        r->tokens += batch->tokens;
        r->targets += batch->ntargets;
    }
    r->seconds = pl_clock() - begin;
    r->loss = sum / (double)r->targets;
    r->perplexity = exp(r->loss);
    r->peak_bytes = s->mem.total_peak;
    if (isfinite(r->loss)) return 0;
    PL_TRY(pl_session_check_finite(err, s));
    return PL_FAIL(err, PL_ENUMERIC,
        "the loss is %s, though all weights are numbers: they are too large for the model to compute with",
        isnan(r->loss) ? "NaN" : "infinite");
}

int pl_eval(pl_error *err, const pl_log *log, pl_config *config, pl_eval_result *result)
{
    pl_session *s = NULL;
    pl_run_data data = {0};
    pl_batch batch = {0}, planned = {0};
    int rc;
    *result = (pl_eval_result){0};
    PL_GO(done, pl_config_check(err, config, PL_CMD_EVAL));
    PL_GO(done, pl_session_open(err, log, config, PL_PURPOSE_USE, &s));
    PL_GO(done, pl_run_data_open(err, log, config, &s->model->arch, NULL, &data));
    PL_GO(done, pl_batch_open(err, &batch, data.largest.tokens, (int)data.largest.sequences));
    PL_GO(done, pl_run_data_plan(err, &data.largest, &planned));
    pl_work work = pl_run_data_work(&data, &planned);
    work.training = false;
    work.evaluates = true;
    PL_GO(done, pl_session_start(err, s, &work));
    rc = run(err, s, &data, &batch, result);
done:
    pl_session_close(s);
    pl_run_data_close(&data);
    pl_batch_close(&batch);
    pl_batch_close(&planned);
    return rc;
}
