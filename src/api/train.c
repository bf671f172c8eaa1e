#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "api/agreement.h"
#include "api/checkpoint.h"
#include "api/config.h"
#include "api/data.h"
#include "api/output.h"
#include "api/save.h"
#include "base/clock.h"
#include "base/file.h"
#include "train/lr.h"

typedef struct training {
    pl_error *err;
    const pl_log *log;
    pl_config *config;
    const pl_train_observer *observer;
    pl_comm *world; /* the processes that train together; NULL: this one alone */
    bool leads;     /* it writes the output folder, and tells */
    double *busy_s; /* [processes]: what each worked in the last step, without its waiting for the others */
    pl_run_data data;
    pl_session *session;
    pl_progress_state state;
    int64_t resumes_at; /* the checkpoint's step; -1: from the start */
    pl_portion portion;
    pl_batch batch;   /* of the validation */
    pl_output output; /* the first process's */
    bool stopped;
    pl_checkpoint *checkpoint;     /* that is being written in the background, until the next step's update */
    pl_disk_counts moved;          /* of what is offloaded, in the last step */
    double profiled_s;             /* of the steps that the profile has counted */
    double begin, model_s, data_s; /* the clock at the start, and what was spent until the first step */
} training;

/* ---- several processes ---- */

/* After a part of which others must know how it went. */
static int agree(training *t, int rc)
{
    return t->world ? pl_comm_agree(t->err, t->world, rc) : rc;
}

/* What one process does for all. */
static int lead(training *t, int (*what)(training *))
{
    return agree(t, t->leads ? what(t) : 0);
}

/* ---- the output folder ---- */

static int claim_output(training *t)
{
    PL_TRY(pl_output_claim(t->err, t->config, &t->output));
    return pl_checkpoint_sweep(t->err, t->config->output);
}

static int keep_output(training *t)
{
    return pl_output_keep(t->err, t->config, &t->output);
}

/* ---- metrics.jsonl ---- */

static int metrics_path(training *t, char **out)
{
    return pl_path_join(t->err, t->config->output, "metrics.jsonl", out);
}

/* The step of a line, or -1. */
static int64_t line_step(const char *line, size_t size)
{
    pl_error ignored = {0};
    json_t *json;
    int64_t step = -1;
    if (pl_json_parse(&ignored, "metrics.jsonl", line, size, &json) < 0) return -1;
    pl_json_int(&ignored, "metrics.jsonl", json, "step", &step);
    json_decref(json);
    return step;
}

/* Steps after the checkpoint will be done again, so their lines go. */
static int cut_metrics(training *t)
{
    char *path;
    pl_buf text = {0};
    PL_TRY(metrics_path(t, &path));
    int rc = 0;
    size_t keep = 0;
    if (!pl_file_exists(path)) goto done;
    PL_GO(done, pl_file_read(t->err, path, &text));
    for (size_t at = 0; at < text.size;) {
        const char *end = memchr(text.data + at, '\n', text.size - at);
        size_t size = end ? (size_t)(end - (text.data + at)) : text.size - at;
        int64_t step = end ? line_step(text.data + at, size) : -1;
        if (step < 0 || step > t->state.step) break;
        at += size + 1;
        keep = at;
    }
    if (keep < text.size) rc = pl_file_write(t->err, path, text.data, keep);
done:
    pl_buf_free(&text);
    free(path);
    return rc;
}

/* *out is the caller's to give back, whatever comes of it. */
static int memory_object(pl_error *err, const pl_mem *mem, json_t **out)
{
    *out = json_object();
    int failed = *out == NULL;
    for (int tag = 0; tag < PL_MEM_TAG_COUNT && !failed; tag++) {
        json_t *bytes = json_integer((json_int_t)mem->peak[tag]);
        failed = json_object_set_new(*out, pl_mem_tag_name((pl_mem_tag)tag), bytes) != 0;
    }
    return failed ? PL_FAIL_NOMEM(err) : 0;
}

/* What the step moved from the disk and to it, and how long it waited for that. */
static int add_disk(training *t, json_t *json)
{
    json_t *bytes = json_pack("{s:I, s:I}", "read", (json_int_t)t->moved.read, "written", (json_int_t)t->moved.written);
    bool added = bytes && json_object_set_new(json, "disk_bytes", bytes) == 0 &&
                 json_object_set_new(json, "disk_waited_s", json_real(t->moved.waited_s)) == 0;
    return added ? 0 : PL_FAIL_NOMEM(t->err);
}

/* What each process worked, so that one which is slower than the others shows. */
static int add_processes(training *t, json_t *json)
{
    json_t *busy = json_array();
    int failed = !busy;
    for (int r = 0; r < t->world->size && !failed; r++)
        failed = json_array_append_new(busy, json_real(t->busy_s[r])) != 0;
    if (failed) {
        json_decref(busy);
        return PL_FAIL_NOMEM(t->err);
    }
    return json_object_set_new(json, "process_busy_s", busy) == 0 ? 0 : PL_FAIL_NOMEM(t->err);
}

/* One line, in one write: a reader never sees half of it, and a kill leaves at most a line that cut_metrics takes away.
 */
static int append_metrics(training *t, const pl_metrics *m)
{
    char *path, *text = NULL;
    json_t *memory = NULL, *json = NULL;
    PL_TRY(metrics_path(t, &path));
    int fd = -1, rc;
    PL_GO(done, memory_object(t->err, &t->session->mem, &memory));
    json = json_pack("{s:I, s:f, s:f, s:f, s:I, s:f, s:f, s:I, s:O}", "step", (json_int_t)m->step, "loss", m->loss,
        "lr", m->lr, "grad_norm", m->grad_norm, "tokens", (json_int_t)m->tokens, "tokens_per_s", m->tokens_per_s,
        "step_s", m->step_s, "peak_bytes", (json_int_t)m->peak_bytes, "memory_bytes", memory);
    bool evaluated = isfinite(m->val_loss);
    if (!json || (evaluated && json_object_set_new(json, "val_loss", json_real(m->val_loss)) != 0)) {
        rc = PL_FAIL_NOMEM(t->err);
        goto done;
    }
    if (t->world) PL_GO(done, add_processes(t, json));
    if (t->session->disk) PL_GO(done, add_disk(t, json));
    text = json_dumps(json, JSON_COMPACT | JSON_REAL_PRECISION(12));
    if (!text) {
        rc = PL_FAIL_NOMEM(t->err);
        goto done;
    }
    size_t size = strlen(text);
    text[size] = '\n';
    fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    if (fd < 0 || write(fd, text, size + 1) != (ssize_t)size + 1) {
        rc = PL_FAIL(t->err, PL_EIO, "%s: cannot be written: %s", path, strerror(errno));
    }
done:
    if (fd >= 0) close(fd);
    free(text);
    json_decref(json);
    json_decref(memory);
    free(path);
    return rc;
}

/* ---- the steps ---- */

static int feed(pl_error *err, void *user, int64_t step, int micro, pl_batch *batch)
{
    return pl_loader_fill(err, ((training *)user)->data.train, step - 1, micro, batch);
}

/* Mean loss over the validation's targets, of which each process takes a part. */
static int validate(training *t, double *loss)
{
    int64_t steps;
    double sums[2] = {0};
    PL_TRY(pl_loader_steps(t->err, t->data.validation, &steps));
    for (int64_t s = 0; s < steps; s++) {
        double part;
        PL_TRY(pl_loader_fill(t->err, t->data.validation, s, 0, &t->batch));
        PL_TRY(pl_engine_evaluate(t->session->engine, &t->batch, &part));
        sums[0] += part;
        sums[1] += (double)t->batch.ntargets;
    }
    if (t->world) PL_TRY(pl_comm_sum(t->err, t->world, sums, 2));
    *loss = sums[1] > 0 ? sums[0] / sums[1] : 0;
    return 0;
}

/* Whether a validation loss is due after this step. */
static bool evaluation_due(const training *t)
{
    if (!t->data.validation) return false;
    int64_t every = t->config->train.eval_every;
    return t->state.step == t->data.steps || (every > 0 && t->state.step % every == 0);
}

static char *best_folder(training *t)
{
    char *path = NULL;
    return pl_path_join(t->err, t->config->output, "best", &path) < 0 ? NULL : path;
}

/* Notes a validation loss; keeps the weights when it is the best so far. */
static int judge(training *t, double loss)
{
    bool better = !(loss >= t->state.best_loss); /* true for the first: it is compared with NaN */
    t->state.worse = better ? 0 : t->state.worse + 1;
    if (!better) return 0;
    t->state.best_loss = loss;
    t->state.best_step = t->state.step;
    if (!t->config->checkpoint.best) return 0;
    char *path = best_folder(t);
    if (!path) return t->err->code;
    int rc = pl_save_result(t->err, t->session, path);
    free(path);
    return rc;
}

/* The checkpoint that is being written, if there is one, is done. */
static int end_checkpoint(training *t)
{
    pl_checkpoint *c = t->checkpoint;
    t->checkpoint = NULL;
    return c ? pl_checkpoint_end(t->err, c, t->config->checkpoint.keep) : 0;
}

/* After the last step there is nothing to do meanwhile. */
static int begin_checkpoint(training *t, bool last)
{
    bool background = t->config->checkpoint.background && !last;
    PL_TRY(pl_checkpoint_begin(t->err, t->session, t->config->output, &t->state, background, &t->checkpoint));
    return background ? 0 : end_checkpoint(t);
}

static int before_update(pl_error *err, void *user)
{
    (void)err;
    return end_checkpoint(user);
}

static int one_step(training *t, pl_metrics *m)
{
    const pl_config *c = t->config;
    pl_loader_step shape;
    pl_step_result result;
    int64_t step = t->state.step;
    PL_TRY(pl_loader_step_at(t->err, t->data.train, step, &shape));
    double lr = pl_lr_at(&c->scheduler, c->optimizer.lr, step, t->data.steps), begin = pl_clock(),
           waited = t->world ? t->world->traffic->waited_s : 0;
    pl_engine_set_beta1(t->session->engine, pl_lr_beta1(&c->scheduler, c->optimizer.betas.items[0], step));
    pl_feed source = {.user = t, .micro_batch = feed, .before_update = before_update};
    if (t->session->disk) t->session->disk->counts = (pl_disk_counts){0};
    PL_TRY(pl_engine_step(t->session->engine, &source, step + 1, shape.micro_batches, shape.targets, lr, &result));
    double seconds = pl_clock() - begin;
    if (t->session->disk) t->moved = t->session->disk->counts;
    if (t->world) {
        double busy = seconds - (t->world->traffic->waited_s - waited);
        PL_TRY(pl_comm_gather(t->err, t->world, &busy, sizeof busy, t->busy_s));
    }
    t->state.step = step + 1;
    t->state.targets += result.targets;
    *m = (pl_metrics){.step = step + 1,
        .steps = t->data.steps,
        .loss = result.loss,
        .lr = lr,
        .grad_norm = result.grad_norm,
        .tokens = result.targets,
        .tokens_per_s = (double)result.tokens / fmax(seconds, 1e-9),
        .step_s = seconds,
        .peak_bytes = t->session->mem.total_peak,
        .val_loss = NAN};
    return 0;
}

/* Of the last step; metrics.jsonl has everybody's of each. */
static void tell_slowest(const training *t)
{
    double sum = 0;
    int slowest = 0;
    for (int r = 0; t->world && r < t->world->size; r++) {
        sum += t->busy_s[r];
        if (t->busy_s[r] > t->busy_s[slowest]) slowest = r;
    }
    if (!t->world) return;
    pl_logf(t->log, PL_LOG_INFO, "  processes worked %.3f s on average; the slowest, number %d, %.3f s",
        sum / t->world->size, slowest, t->busy_s[slowest]);
}

/* log.profile: what the steps since the last such lines spent their time on. */
static void tell_profile(training *t, const pl_metrics *m)
{
    pl_profile *profile = pl_engine_profile(t->session->engine);
    double all = 0;
    t->profiled_s += m->step_s;
    if (!t->config->log.profile || (m->step % t->config->log.every != 0 && m->step != t->data.steps)) return;
    for (int p = 0; p < PL_PHASE_COUNT; p++) all += profile->seconds[p];
    pl_logf(t->log, PL_LOG_INFO, "step %lld: %.3f s in phases, of %.3f s", (long long)m->step, all, t->profiled_s);
    for (int p = 0; p < PL_PHASE_COUNT; p++) {
        if (profile->seconds[p] == 0) continue;
        pl_logf(t->log, PL_LOG_INFO, "  %-20s %8.3f s %5.1f %%", pl_phase_name((pl_phase)p), profile->seconds[p],
            100 * profile->seconds[p] / all);
    }
    if (t->session->disk) {
        pl_logf(t->log, PL_LOG_INFO, "  disk: read %.1f MiB, wrote %.1f MiB, waited %.3f s in the last step",
            (double)t->moved.read / 0x1p20, (double)t->moved.written / 0x1p20, t->moved.waited_s);
    }
    tell_slowest(t);
    *profile = (pl_profile){0};
    t->profiled_s = 0;
}

/* All stop when one is told to. */
static int ask_to_stop(training *t)
{
    const pl_train_observer *o = t->observer;
    double asked = o && o->stop && o->stop(o->user);
    if (t->world) PL_TRY(pl_comm_sum(t->err, t->world, &asked, 1));
    t->stopped = asked > 0;
    return 0;
}

/* Everything that comes after a step: validation, metrics, checkpoint, the question whether to go on. */
static int after_step(training *t, pl_metrics *m, bool *done)
{
    const pl_train_observer *o = t->observer;
    if (evaluation_due(t)) {
        PL_TRY(validate(t, &m->val_loss));
        PL_TRY(judge(t, m->val_loss));
    }
    if (t->leads) PL_TRY(append_metrics(t, m));
    if (t->leads && o && o->step) o->step(o->user, m);
    tell_profile(t, m);
    int64_t every = t->config->checkpoint.every, patience = t->config->train.early_stop;
    PL_TRY(ask_to_stop(t));
    bool enough = patience > 0 && t->state.worse >= patience;
    *done = t->state.step == t->data.steps || enough || t->stopped;
    if (*done || (every > 0 && t->state.step % every == 0)) PL_TRY(begin_checkpoint(t, *done));
    if (enough) {
        pl_logf(t->log, PL_LOG_INFO,
            "stopped after step %lld: %lld validations without a better loss than %.6g of step %lld",
            (long long)t->state.step, (long long)patience, t->state.best_loss, (long long)t->state.best_step);
    }
    return 0;
}

/* What a start took: the model's description, the data (tokenizing it, unless the cache has it), and the rest, which is
   the dry run, the weights and a checkpoint. */
static void tell_start(const training *t)
{
    double all = pl_clock() - t->begin;
    pl_logf(t->log, PL_LOG_INFO, "the first step begins after %.2f s (model %.2f, data %.2f, memory and weights %.2f)",
        all, t->model_s, t->data_s, all - t->model_s - t->data_s);
}

static int run_steps(training *t)
{
    bool done = t->state.step >= t->data.steps ||
                (t->config->train.early_stop > 0 && t->state.worse >= t->config->train.early_stop);
    if (!done) tell_start(t);
    while (!done) {
        pl_metrics m;
        PL_TRY(one_step(t, &m));
        PL_TRY(after_step(t, &m, &done));
    }
    return 0;
}

/* ---- beginning and end ---- */

static int open_model(training *t)
{
    PL_TRY(pl_session_open(t->err, t->log, t->config, PL_PURPOSE_TRAIN, &t->session));
    pl_model_counts counts = pl_model_count(t->session->model);
    pl_logf(t->log, PL_LOG_INFO, "trainable params: %lld || all params: %lld || trainable%%: %.4f",
        (long long)counts.trainable, (long long)counts.all, 100.0 * (double)counts.trainable / (double)counts.all);
    t->model_s = pl_clock() - t->begin;
    return 0;
}

/* Finds the checkpoint to go on from; a step keeps the micro-batches that it had when the run began, however many
   processes make them now. */
static int find_progress(training *t)
{
    pl_progress_state before = {0};
    int64_t found[2] = {-1, 0};
    int rc = 0;
    if (t->leads) {
        rc = pl_checkpoint_latest(t->err, t->config->output, &found[0]);
        if (rc == 0 && found[0] >= 0) rc = pl_checkpoint_peek(t->err, t->config->output, found[0], &before);
        found[1] = before.micro_batches;
    }
    PL_TRY(agree(t, rc));
    if (t->world) PL_TRY(pl_comm_broadcast(t->err, t->world, found, sizeof found, 0));
    t->resumes_at = found[0];
    t->portion = pl_portion_of(t->config, t->session->processes, t->session->process);
    if (found[1] > 0 && found[1] != t->portion.micro_batches) {
        pl_logf(t->log, PL_LOG_INFO, "a step has %lld micro-batches, as when the run began, for %d process%s now",
            (long long)found[1], t->session->processes, t->session->processes == 1 ? "" : "es");
        t->portion.micro_batches = found[1];
    }
    return 0;
}

static int open_data(training *t)
{
    double begin = pl_clock();
    PL_TRY(pl_run_data_open(t->err, t->log, t->config, &t->session->model->arch, &t->portion, &t->data));
    t->data_s = pl_clock() - begin;
    return pl_batch_open(t->err, &t->batch, t->data.largest.tokens, (int)t->data.largest.sequences);
}

/* One process reads the data and leaves it in the cache, where the others find it. */
static int open_data_in_turn(training *t)
{
    PL_TRY(lead(t, open_data));
    if (!t->world) return 0;
    PL_TRY(agree(t, t->leads ? 0 : open_data(t)));
    return pl_agree_on_data(t->err, t->session, &t->data);
}

static int open_session(training *t)
{
    pl_batch planned = {0};
    PL_TRY(agree(t, pl_run_data_plan(t->err, &t->data.largest, &planned)));
    pl_work work = pl_run_data_work(&t->data, &planned);
    int rc = pl_session_start(t->err, t->session, &work);
    pl_batch_close(&planned);
    return rc;
}

static int resume(training *t)
{
    t->state = (pl_progress_state){.best_loss = NAN};
    if (t->resumes_at >= 0) {
        PL_TRY(pl_checkpoint_load(t->err, t->session, t->config->output, t->resumes_at, &t->state));
        pl_logf(t->log, PL_LOG_INFO, "going on from step %lld of %lld (%s/checkpoints)", (long long)t->resumes_at,
            (long long)t->data.steps, t->config->output);
    }
    t->state.micro_batches = t->portion.micro_batches;
    return lead(t, cut_metrics);
}

/* The result: the weights as they are, or those of the best validation loss. */
static int write_result(training *t)
{
    const pl_config *c = t->config;
    if (c->checkpoint.best && t->state.best_step > 0 && t->state.best_step != t->state.step) {
        char *path = best_folder(t);
        if (!path) return t->err->code;
        int rc = agree(t, t->leads ? pl_copy_result(t->err, path, c->output) : 0);
        free(path);
        pl_logf(t->log, PL_LOG_INFO, "the result is that of step %lld, whose validation loss was the best: %.6g",
            (long long)t->state.best_step, t->state.best_loss);
        return rc;
    }
    return pl_save_result(t->err, t->session, c->output);
}

/* Alone there is nobody to agree with. */
static int open_world(training *t)
{
    pl_comm *world = t->config->world;
    t->leads = true;
    if (!world || world->size == 1) return 0;
    t->world = world;
    t->leads = world->rank == 0;
    if (!t->leads) t->log = NULL;
    PL_TRY(agree(t, pl_calloc(t->err, (size_t)world->size, sizeof *t->busy_s, &t->busy_s)));
    return pl_agree_on_run(t->err, t->config);
}

static int open_run(training *t)
{
    PL_TRY(agree(t, open_model(t)));
    if (t->world) PL_TRY(pl_agree_on_model(t->err, t->session));
    PL_TRY(lead(t, claim_output));
    if (t->world) PL_TRY(pl_output_agree(t->err, t->world, t->config));
    PL_TRY(find_progress(t));
    PL_TRY(open_data_in_turn(t));
    PL_TRY(open_session(t));
    PL_TRY(lead(t, keep_output));
    return resume(t);
}

int pl_train(pl_error *err, const pl_log *log, pl_config *config, const pl_train_observer *observer)
{
    training t = {
        .err = err, .log = log, .config = config, .observer = observer, .output = {.lock = -1}, .begin = pl_clock()};
    int rc = pl_config_check(err, config, PL_CMD_TRAIN);
    if (config->world) rc = pl_comm_agree(err, config->world, rc);
    if (rc < 0) goto done;
    PL_GO(done, open_world(&t));
    PL_GO(done, open_run(&t));
    PL_GO(done, run_steps(&t));
    if (t.stopped && t.state.step < t.data.steps) {
        rc = PL_FAIL(err, PL_ESTOPPED, "stopped after step %lld of %lld; the same command goes on from there",
            (long long)t.state.step, (long long)t.data.steps);
        rc = agree(&t, rc);
        goto done;
    }
    rc = write_result(&t);
done:
    pl_checkpoint_abandon(t.checkpoint);
    pl_session_close(t.session);
    pl_run_data_close(&t.data);
    pl_batch_close(&t.batch);
    pl_output_release(config, &t.output);
    free(t.busy_s);
    return rc;
}
