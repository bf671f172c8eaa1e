#include <stdio.h>
#include <string.h>

#include "api/config.h"
#include "api/data.h"

/* MemAvailable of /proc/meminfo, and the control group's bound if that is lower; INT64_MAX where neither is told. */
static int64_t available_bytes(void)
{
    int64_t best = INT64_MAX;
    char line[256];
    FILE *f = fopen("/proc/meminfo", "r");
    while (f && fgets(line, sizeof line, f)) {
        long long kib;
        if (sscanf(line, "MemAvailable: %lld kB", &kib) == 1) best = kib * 1024;
    }
    if (f) fclose(f);
    f = fopen("/sys/fs/cgroup/memory.max", "r");
    if (f) {
        long long bytes;
        if (fscanf(f, "%lld", &bytes) == 1 && bytes < best) best = bytes;
        fclose(f);
    }
    return best;
}

/* Without data: full micro-batches of full sequences. */
static void assume_largest(const pl_config *c, const pl_arch *arch, pl_run_data *data)
{
    int64_t length = c->data.sequence_length, rows = c->train.micro_batch;
    if (!pl_config_is_set(c, &c->data.sequence_length) && length > arch->max_positions) length = arch->max_positions;
    if (c->train.micro_batch_tokens > 0) rows = c->train.micro_batch_tokens / length;
    if (rows < 1) rows = 1;
    data->largest = (pl_loader_largest){.tokens = rows * length, .sequences = rows, .length = length};
    data->steps = pl_config_is_set(c, &c->train.steps) ? c->train.steps : 0;
    data->micro_batches = (int)c->train.accumulation;
}

/* A step's work: as if each of its micro-batches were the planned one. */
static void count_step(const pl_session *s, const pl_run_data *data, pl_plan *plan)
{
    plan->micro_batches = data->micro_batches;
    plan->gemm_flops = s->counted.gemm_flops;
    plan->attention_flops = s->counted.attention_flops;
    plan->other_flops = s->counted.other_flops;
    plan->step_flops = plan->gemm_flops + plan->attention_flops + plan->other_flops;
    plan->processes = s->processes;
    memcpy(plan->sent, s->traffic.sent, sizeof plan->sent);
    plan->disk_bytes = s->disk_bytes;
    plan->disk_read = s->disk_counted.read;
    plan->disk_written = s->disk_counted.written;
}

static void report(const pl_session *s, const pl_run_data *data, pl_plan *plan)
{
    pl_model_counts counts = pl_model_count(s->model);
    memcpy(plan->bytes, s->planned.peak, sizeof plan->bytes);
    plan->total = s->planned.total_peak;
    plan->available = available_bytes();
    plan->fits = plan->total <= plan->available;
    plan->trainable = counts.trainable;
    plan->all = counts.all;
    plan->steps = data->steps;
    plan->micro_tokens = data->largest.tokens;
    plan->micro_rows = data->largest.sequences;
    if (!data->dataset) return;
    plan->rows = pl_dataset_rows(data->dataset, PL_DATA_TRAIN);
    plan->tokens = pl_dataset_stats(data->dataset, PL_DATA_TRAIN)->tokens;
}

int pl_plan_run(pl_error *err, const pl_log *log, pl_config *config, pl_plan *plan)
{
    pl_session *s = NULL;
    pl_run_data data = {0};
    pl_batch planned = {0};
    int rc;
    *plan = (pl_plan){0};
    PL_GO(done, pl_config_check(err, config, PL_CMD_PLAN));
    PL_GO(done, pl_session_open(err, log, config, PL_PURPOSE_TRAIN, &s));
    if (config->data.files.count > 0) {
        pl_portion portion = pl_portion_of(config, s->processes, 0);
        PL_GO(done, pl_run_data_open(err, log, config, &s->model->arch, &portion, &data));
    } else {
        assume_largest(config, &s->model->arch, &data);
    }
    PL_GO(done, pl_run_data_plan(err, &data.largest, &planned));
    pl_work work = pl_run_data_work(&data, &planned);
    PL_GO(done, pl_session_plan(err, s, &work));
    count_step(s, &data, plan);
    report(s, &data, plan);
done:
    pl_batch_close(&planned);
    pl_run_data_close(&data);
    pl_session_close(s);
    return rc;
}
