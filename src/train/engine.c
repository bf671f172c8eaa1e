#include "train/engine.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "op/op.h"
#include "train/inputs.h"
#include "train/trace.h"

static const pl_tensor none = {0};

/* A micro-batch between its forward and its backward. */
typedef struct flight {
    pl_pass pass;
    void **records;  /* one a unit */
    pl_tensor *outs; /* each unit's output; none for the head's */
    int64_t *marks;  /* of the saved stack, before each unit pushed anything */
} flight;

struct pl_engine {
    pl_run run;
    pl_model *model;
    pl_engine_config config;
    pl_store *store;
    pl_stack saved, work;
    pl_inputs inputs;
    pl_kv_cache cache;
    flight flight; /* of the one micro-batch that a single process has on its way */
    pl_batch batch;
    pl_action *actions; /* of a step */
    size_t actions_capacity;
    pl_trace trace;
    pl_profile profile;
    bool empty; /* the micro-batch on its way has no tokens: units are acquired and released, for the others */
    int lowest; /* unit below which no gradient goes */
};

/* ---- opening ---- */

static int open_flight(pl_engine *e)
{
    flight *f = &e->flight;
    pl_error *err = e->run.err;
    size_t n = (size_t)e->model->nunits;
    PL_TRY(pl_calloc(err, n, sizeof *f->records, &f->records));
    PL_TRY(pl_calloc(err, n, sizeof *f->outs, &f->outs));
    PL_TRY(pl_calloc(err, n, sizeof *f->marks, &f->marks));
    for (size_t u = 0; u < n; u++) PL_TRY(pl_calloc(err, 1, e->model->units[u]->ops->record_size, &f->records[u]));
    return 0;
}

static int open_cache(pl_engine *e)
{
    const pl_arch *a = &e->model->arch;
    int64_t rows = e->config.cache_rows, width = a->kv_heads * a->head_dim;
    if (rows == 0) return 0;
    e->cache.rows = rows;
    PL_TRY(pl_calloc(e->run.err, (size_t)a->layers, sizeof *e->cache.k, &e->cache.k));
    PL_TRY(pl_calloc(e->run.err, (size_t)a->layers, sizeof *e->cache.v, &e->cache.v));
    for (int64_t l = 0; l < 2 * a->layers; l++) {
        pl_tensor t = pl_tensor_2d(NULL, e->model->dtype, rows, width);
        PL_TRY(pl_mem_alloc(e->run.err, e->run.mem, PL_MEM_KV_CACHE, pl_tensor_bytes(t), &t.data));
        *(l < a->layers ? &e->cache.k[l] : &e->cache.v[l - a->layers]) = t;
    }
    return 0;
}

static void close_cache(pl_engine *e)
{
    for (int64_t l = 0; l < e->model->arch.layers && e->cache.rows; l++) {
        pl_tensor *both[] = {e->cache.k ? &e->cache.k[l] : NULL, e->cache.v ? &e->cache.v[l] : NULL};
        for (int i = 0; i < 2; i++) {
            if (both[i] && both[i]->ndim) {
                pl_mem_free(e->run.mem, PL_MEM_KV_CACHE, both[i]->data, pl_tensor_bytes(*both[i]));
            }
        }
    }
    free(e->cache.k);
    free(e->cache.v);
}

/* All that this process needs to compute. */
static int open_own(pl_engine *e)
{
    const pl_capacity *c = &e->config.capacity;
    pl_error *err = e->run.err;
    pl_mem *mem = e->run.mem;
    PL_TRY(pl_stack_open(err, &e->saved, mem, PL_MEM_ACTIVATIONS, c->saved_bytes));
    PL_TRY(pl_stack_open(err, &e->work, mem, PL_MEM_WORK, c->work_bytes));
    PL_TRY(pl_inputs_open(&e->run, &e->inputs, &e->model->arch, c));
    PL_TRY(pl_batch_open(err, &e->batch, c->tokens, c->sequences));
    PL_TRY(open_cache(e));
    return open_flight(e);
}

int pl_engine_open(pl_error *err, const pl_log *log, pl_device *device, pl_mem *mem, pl_model *model,
    const pl_engine_config *config, const pl_source *source, pl_engine **out)
{
    pl_engine *e;
    PL_TRY(pl_calloc(err, 1, sizeof *e, &e));
    e->run = (pl_run){.err = err, .log = log, .device = device, .mem = mem, .work = &e->work};
    e->model = model;
    e->config = *config;
    pl_store_options options = {.training = config->training,
        .moments = config->training ? pl_optimizer_moments(&config->optimizer) : 0,
        .seed = config->seed,
        .accumulates = config->accumulates,
        .sharding = config->sharding,
        .offload = config->offload};
    int rc = open_own(e);
    if (config->sharding.comm) rc = pl_comm_agree(err, config->sharding.comm, rc);
    PL_GO(failed, rc);
    PL_GO(failed, pl_store_open(&e->run, model, &options, source, &e->store));
    e->lowest = pl_model_lowest_trained(model);
    *out = e;
    return 0;
failed:
    pl_engine_close(e);
    return rc;
}

void pl_engine_close(pl_engine *e)
{
    if (!e) return;
    for (int u = 0; e->flight.records && u < e->model->nunits; u++) free(e->flight.records[u]);
    free(e->flight.records);
    free(e->flight.outs);
    free(e->flight.marks);
    free(e->actions);
    e->run.mem->sealed = false;
    pl_store_close(e->store);
    close_cache(e);
    pl_batch_close(&e->batch);
    pl_inputs_close(&e->run, &e->inputs);
    pl_stack_close(&e->work);
    pl_stack_close(&e->saved);
    free(e);
}

void pl_engine_set_beta1(pl_engine *e, double beta1)
{
    e->config.optimizer.beta1 = beta1;
}

pl_profile *pl_engine_profile(pl_engine *e)
{
    return &e->profile;
}

pl_capacity pl_engine_reached(const pl_engine *e)
{
    pl_capacity c = e->config.capacity;
    c.saved_bytes = e->saved.peak;
    c.work_bytes = e->work.peak;
    return c;
}

pl_store *pl_engine_store(pl_engine *e)
{
    return e->store;
}

pl_run *pl_engine_run(pl_engine *e)
{
    return &e->run;
}

/* ---- a micro-batch ---- */

/* Whether unit u computes what it saved again in its backward. Embedding and head keep next to nothing. */
static bool recomputes(const pl_engine *e, int u)
{
    if (e->config.recompute == 0 || u == 0 || u == e->model->nunits - 1) return false;
    return (u - 1) % e->config.recompute == 0;
}

static int start_pass(pl_engine *e, const pl_batch *batch, bool training, float grad_scale, int64_t step)
{
    pl_pass *pass = &e->flight.pass;
    *pass = (pl_pass){.batch = batch,
        .saved = &e->saved,
        .training = training,
        .seed = e->config.seed,
        .step = step,
        .first_row = batch->nsequences ? batch->numbers[0] : 0,
        .grad_scale = grad_scale};
    pl_stack_pop(&e->saved, 0);
    pl_stack_pop(&e->work, 0);
    e->empty = batch->tokens == 0;
    PL_TRY(pl_store_begin(e->store));
    return e->empty ? 0 : pl_inputs_set(&e->run, &e->inputs, &e->model->arch, batch, pass);
}

/* Of a unit that was acquired. */
static int run_forward(pl_engine *e, int u, pl_tensor y, pl_tensor x)
{
    pl_unit *unit = e->model->units[u];
    flight *f = &e->flight;
    if (e->empty) return 0;
    memset(f->records[u], 0, unit->ops->record_size);
    return unit->ops->forward(&e->run, unit, &f->pass, f->records[u], y, x);
}

static int forward_unit(pl_engine *e, int u, pl_tensor y, pl_tensor x)
{
    pl_way way = e->flight.pass.training ? PL_WAY_FORWARD : PL_WAY_INFERENCE;
    PL_TRY(pl_store_acquire(e->store, e->model->units[u], way));
    PL_TRY(run_forward(e, u, y, x));
    return pl_store_release(e->store, e->model->units[u], way);
}

/* Unit u's own among three phases that lie in the order of the list. */
static pl_phase phase_of(const pl_engine *e, int u, pl_phase embedding, pl_phase block, pl_phase head)
{
    return u == 0 ? embedding : (u == e->model->nunits - 1 ? head : block);
}

static int push_hidden(pl_engine *e, pl_stack *stack, pl_tensor *out)
{
    int64_t shape[] = {e->flight.pass.batch->tokens, e->model->arch.hidden};
    return pl_stack_push(e->run.err, stack, e->model->dtype, 2, shape, out);
}

/* Every unit's output stays on the saved stack, below what the unit saves. */
static int forward_training(pl_engine *e)
{
    flight *f = &e->flight;
    pl_tensor x = none;
    int last = e->model->nunits - 1;
    for (int u = 0; u <= last; u++) {
        f->marks[u] = pl_stack_mark(&e->saved);
        f->outs[u] = none;
        if (u < last) PL_TRY(push_hidden(e, &e->saved, &f->outs[u]));
        int64_t mark = pl_stack_mark(&e->saved);
        PL_TRY(forward_unit(e, u, f->outs[u], x));
        if (recomputes(e, u)) pl_stack_pop(&e->saved, mark);
        pl_profile_end(
            &e->profile, phase_of(e, u, PL_PHASE_FORWARD_EMBEDDING, PL_PHASE_FORWARD_BLOCK, PL_PHASE_FORWARD_HEAD));
        PL_TRY(u < last ? pl_trace_output(&e->trace, &e->run, e->model->units[u], f->outs[u])
                        : pl_trace_loss(&e->trace, &e->run, e->model->units[u], f->pass.loss_sum));
        x = f->outs[u];
    }
    return 0;
}

/* Two hidden states take turns, and nothing is kept. */
static int forward_inference(pl_engine *e)
{
    pl_tensor two[2], x = none;
    int last = e->model->nunits - 1;
    PL_TRY(push_hidden(e, &e->saved, &two[0]));
    PL_TRY(push_hidden(e, &e->saved, &two[1]));
    int64_t mark = pl_stack_mark(&e->saved);
    for (int u = 0; u <= last; u++) {
        PL_TRY(forward_unit(e, u, u < last ? two[u % 2] : none, x));
        pl_stack_pop(&e->saved, mark);
        x = two[u % 2];
    }
    return 0;
}

/* Gradients that nothing was written to are zero. */
static int open_gradients(pl_engine *e, const pl_unit *unit)
{
    for (int i = 0; i < unit->nparams; i++) PL_TRY(pl_param_open_grad(&e->run, unit->params[i]));
    return 0;
}

/* Of a unit that was acquired. */
static int run_backward(pl_engine *e, int u, pl_tensor d)
{
    pl_unit *unit = e->model->units[u];
    flight *f = &e->flight;
    pl_tensor x = u > 0 ? f->outs[u - 1] : none;
    if (e->empty) return open_gradients(e, unit);
    if (recomputes(e, u)) {
        f->pass.recomputing = true;
        PL_TRY(run_forward(e, u, f->outs[u], x));
        f->pass.recomputing = false;
        pl_profile_end(&e->profile, PL_PHASE_RECOMPUTE);
    }
    PL_TRY(unit->ops->backward(&e->run, unit, &f->pass, f->records[u], d, u > e->lowest, x));
    PL_TRY(open_gradients(e, unit));
    return pl_trace_gradients(&e->trace, &e->run, unit, u > e->lowest ? d : none);
}

static int backward_unit(pl_engine *e, int u, pl_tensor d, bool last)
{
    pl_unit *unit = e->model->units[u];
    PL_TRY(pl_store_acquire(e->store, unit, PL_WAY_BACKWARD));
    PL_TRY(run_backward(e, u, d));
    PL_TRY(pl_store_release(e->store, unit, PL_WAY_BACKWARD));
    PL_TRY(pl_store_grad_done(e->store, unit, last));
    pl_stack_pop(&e->saved, e->flight.marks[u]);
    pl_profile_end(
        &e->profile, phase_of(e, u, PL_PHASE_BACKWARD_EMBEDDING, PL_PHASE_BACKWARD_BLOCK, PL_PHASE_BACKWARD_HEAD));
    return 0;
}

/* `last`: of the step, so that its gradients are complete. */
static int backward(pl_engine *e, bool last)
{
    int64_t mark = pl_stack_mark(&e->work);
    pl_tensor d;
    PL_TRY(pl_store_begin(e->store));
    PL_TRY(push_hidden(e, &e->work, &d));
    for (int u = e->model->nunits - 1; u >= e->lowest; u--) PL_TRY(backward_unit(e, u, d, last));
    pl_stack_pop(&e->work, mark);
    return 0;
}

/* ---- a step ---- */

typedef struct step_args {
    const pl_feed *feed;
    int64_t step, targets;
    int micro_batches;
    double lr;
} step_args;

/* `before`: tokens of the step so far; a feed that knows more of other processes' numbers the sequences itself. */
static int fetch(pl_engine *e, const step_args *s, int micro, int64_t before)
{
    pl_batch_clear(&e->batch);
    e->batch.next_number = before;
    return s->feed->micro_batch(e->run.err, s->feed->user, s->step, micro, &e->batch);
}

/* What the processes counted, together. */
static int sum_results(pl_engine *e, pl_step_result *result)
{
    if (!e->config.sharding.comm) return 0;
    double values[] = {result->loss, (double)result->tokens, (double)result->targets};
    PL_TRY(pl_comm_sum(e->run.err, e->config.sharding.comm, values, PL_COUNT(values)));
    result->loss = values[0];
    result->tokens = (int64_t)values[1];
    result->targets = (int64_t)values[2];
    return 0;
}

/* The forwards and backwards of a step, gradients summed in the store. */
static int accumulate(pl_engine *e, const step_args *s, const pl_action *actions, int count, pl_step_result *result)
{
    *result = (pl_step_result){0};
    float grad_scale = s->targets > 0 ? (float)(1.0 / (double)s->targets) : 0;
    pl_profile_start(&e->profile);
    PL_TRY(pl_store_zero_gradients(e->store));
    pl_profile_end(&e->profile, PL_PHASE_ZERO);
    for (int i = 0; i < count; i++) {
        switch (actions[i].kind) {
        case PL_ACTION_FORWARD:
            PL_TRY(fetch(e, s, actions[i].micro, result->tokens));
            PL_TRY(start_pass(e, &e->batch, true, grad_scale, s->step));
            pl_profile_end(&e->profile, PL_PHASE_DATA);
            PL_TRY(forward_training(e));
            result->loss += e->flight.pass.loss_sum;
            result->tokens += e->batch.tokens;
            result->targets += e->batch.ntargets;
            break;
        case PL_ACTION_BACKWARD: PL_TRY(backward(e, actions[i].micro == s->micro_batches - 1)); break;
        case PL_ACTION_STEP: break;
        }
    }
    PL_TRY(sum_results(e, result));
    if (result->targets != s->targets) {
        return PL_FAIL(e->run.err, PL_EBUG, "step %lld has %lld targets, not %lld", (long long)s->step,
            (long long)result->targets, (long long)s->targets);
    }
    if (result->targets > 0) result->loss /= (double)result->targets;
    PL_TRY(pl_store_gradient_norm(e->store, &result->grad_norm));
    pl_profile_end(&e->profile, PL_PHASE_NORM);
    return 0;
}

static int trace_weights(pl_engine *e)
{
    for (int u = 0; u < e->model->nunits; u++) {
        PL_TRY(pl_store_acquire(e->store, e->model->units[u], PL_WAY_ALONE));
        PL_TRY(pl_trace_weights(&e->trace, &e->run, e->model->units[u]));
        PL_TRY(pl_store_release(e->store, e->model->units[u], PL_WAY_ALONE));
    }
    return 0;
}

/* A number is not finite: does the step again, looking at every tensor, and says where it began. */
static int find_nonfinite(pl_engine *e, const step_args *s, const pl_action *actions, int count)
{
    pl_step_result again;
    e->trace = (pl_trace){.active = true, .step = s->step};
    int rc = trace_weights(e);
    if (rc == 0) rc = accumulate(e, s, actions, count, &again);
    e->trace.active = false;
    if (rc < 0) return rc;
    return PL_FAIL(e->run.err, PL_ENUMERIC, "step %lld: the loss is %g and the gradient norm %g; no weight was changed",
        (long long)s->step, again.loss, again.grad_norm);
}

int pl_engine_step(pl_engine *e, const pl_feed *feed, int64_t step, int micro_batches, int64_t targets, double lr,
    pl_step_result *result)
{
    step_args s = {feed, step, targets, micro_batches, lr};
    int count = pl_schedule_accumulate(micro_batches, NULL, 0);
    PL_TRY(pl_grow(e->run.err, &e->actions, &e->actions_capacity, (size_t)count, sizeof *e->actions));
    pl_schedule_accumulate(micro_batches, e->actions, count);
    PL_TRY(accumulate(e, &s, e->actions, count, result));
    if (feed->before_update) PL_TRY(feed->before_update(e->run.err, feed->user));
    pl_profile_end(&e->profile, PL_PHASE_CHECKPOINT);
    if (!(isfinite(result->loss) && isfinite(result->grad_norm))) return find_nonfinite(e, &s, e->actions, count);
    double scale = 1;
    if (e->config.clip > 0 && result->grad_norm > 0) scale = fmin(1, e->config.clip / (result->grad_norm + 1e-6));
    PL_TRY(pl_store_step(e->store, &e->config.optimizer, lr, scale, step));
    pl_profile_end(&e->profile, PL_PHASE_OPTIMIZER);
    e->run.mem->sealed = true; /* from here on every step finds its memory ready, or something is wrong */
    return 0;
}

int pl_engine_evaluate(pl_engine *e, const pl_batch *batch, double *loss_sum)
{
    PL_TRY(start_pass(e, batch, false, 0, 0));
    PL_TRY(forward_inference(e));
    *loss_sum = e->flight.pass.loss_sum;
    return 0;
}

int pl_engine_logits(pl_engine *e, const pl_batch *batch, const int32_t *rows, int64_t n, float *logits)
{
    PL_TRY(start_pass(e, batch, false, 0, 0));
    pl_pass *pass = &e->flight.pass;
    if (e->cache.rows) pass->cache = &e->cache;
    PL_TRY(pl_inputs_rows(&e->run, &e->inputs, rows, n, pass));
    int64_t shape[] = {n, e->model->arch.vocab};
    PL_TRY(pl_stack_push(e->run.err, &e->work, PL_F32, 2, shape, &pass->logits));
    PL_TRY(forward_inference(e));
    e->run.device->ops->copy_out(e->run.device, logits, pass->logits.data, pl_tensor_bytes(pass->logits));
    return 0;
}

int pl_engine_gradients(pl_engine *e, const pl_batch *batch, double *loss)
{
    PL_TRY(pl_store_zero_gradients(e->store));
    PL_TRY(start_pass(e, batch, true, batch->ntargets ? 1.0f / (float)batch->ntargets : 0, 1));
    PL_TRY(forward_training(e));
    *loss = e->flight.pass.loss_sum / (double)(batch->ntargets ? batch->ntargets : 1);
    return backward(e, true);
}
