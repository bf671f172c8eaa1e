/* What goes together and what does not, and the defaults that depend on other fields. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "api/config.h"
#include "base/file.h"
#include "io/peft.h"

/* A message in two places: where the field was set, and where the one that speaks against it was. */
typedef struct place {
    char text[PL_WHERE_SIZE];
} place;

static place where(const pl_config *c, const void *member)
{
    place p;
    pl_config_where(c, member, p.text);
    return p;
}
#define WHERE(member) where(c, &c->member).text
#define GIVEN(member) pl_config_is_set(c, &c->member)

/* A field that does not apply may still be off: 0 or false change nothing. */
static bool is_off(const pl_config *c, const pl_field *field)
{
    switch (field->kind) {
    case PL_FIELD_SWITCH: return !*PL_CONST_MEMBER(bool, field, c);
    case PL_FIELD_INT: return *PL_CONST_MEMBER(int64_t, field, c) == 0;
    case PL_FIELD_REAL: return *PL_CONST_MEMBER(double, field, c) == 0;
    case PL_FIELD_BYTES: return *PL_CONST_MEMBER(int64_t, field, c) == 0;
    default: return !pl_field_has_value(field, c);
    }
}

static int check_applies(pl_error *err, const pl_config *c, const pl_field *field)
{
    const struct pl_origin *origin = &c->origin[field - pl_config_fields];
    if (origin->from == PL_FROM_DEFAULT || pl_config_applies(c, field) || is_off(c, field)) return 0;
    char by_name[PL_FIELD_NAME_SIZE];
    const char *equals = strchr(field->when, '=');
    snprintf(by_name, sizeof by_name, "%.*s", (int)(equals - field->when), field->when);
    const pl_field *by = pl_config_find(by_name);
    if (!by) return PL_FAIL(err, PL_EBUG, "the table has no field %s", by_name);
    pl_buf value = {0};
    int rc = pl_field_print_flag(err, by, c, &value);
    if (rc == 0) {
        const char *member = (const char *)c + field->offset;
        rc = PL_FAIL(err, PL_EUSAGE, "%s is set, but %s is %s; it applies with %s only", where(c, member).text,
            where(c, (const char *)c + by->offset).text, pl_buf_text(&value), field->when);
    }
    pl_buf_free(&value);
    return rc;
}

static int exclusive(pl_error *err, const pl_config *c, const void *one, const void *other)
{
    if (!pl_config_is_set(c, one) || !pl_config_is_set(c, other)) return 0;
    const pl_field *a = pl_config_field(c, one), *b = pl_config_field(c, other);
    if (is_off(c, a) || is_off(c, b)) return 0;
    return PL_FAIL(
        err, PL_EUSAGE, "%s and %s are both set; give one of them", where(c, one).text, where(c, other).text);
}

static int check_method(pl_error *err, pl_config *c)
{
    /* Going on from an adapter is LoRA; the adapter says which. */
    if (c->adapter && !GIVEN(method)) c->method = PL_METHOD_LORA;
    if (c->adapter && c->method == PL_METHOD_FULL) {
        return PL_FAIL(err, PL_EUSAGE, "%s is full, but %s is given, and training goes on from an adapter by lora",
            WHERE(method), WHERE(adapter));
    }
    for (int i = 0; i < pl_config_field_count; i++) {
        const pl_field *field = &pl_config_fields[i];
        const void *member = (const char *)c + field->offset;
        if (!pl_config_told_by_adapter(c, field) || !pl_config_is_set(c, member)) continue;
        return PL_FAIL(err, PL_EUSAGE, "%s is set, but %s is given, whose adapter_config.json says that; leave one out",
            where(c, member).text, WHERE(adapter));
    }
    return 0;
}

static int check_lora(pl_error *err, const pl_config *c)
{
    if (c->lora.layers_pattern.count && !c->lora.layers.count) {
        return PL_FAIL(err, PL_EUSAGE, "%s is set, but lora.layers is not; it says where those are counted",
            WHERE(lora.layers_pattern));
    }
    const pl_strings *targets = &c->lora.targets;
    bool listed =
        targets->count != 1 || (strcasecmp(targets->items[0], "all-linear") && !pl_is_regex(targets->items[0]));
    if (c->lora.layers.count && !listed) {
        return PL_FAIL(err, PL_EUSAGE, "%s is set, but %s is no list of names, which PEFT wants for that",
            WHERE(lora.layers), WHERE(lora.targets));
    }
    if (c->method != PL_METHOD_LORA || c->adapter) return 0;
    pl_lora_config lora = {0};
    int rc = pl_config_lora(err, c, &lora);
    pl_lora_config_free(&lora);
    return rc;
}

static int check_data(pl_error *err, const pl_config *c)
{
    PL_TRY(exclusive(err, c, &c->data.validation, &c->data.validation_split));
    if (c->data.weights.count && c->data.weights.count != c->data.files.count) {
        return PL_FAIL(err, PL_EUSAGE, "%s has %d numbers, but %s has %d file%s; give one a file", WHERE(data.weights),
            c->data.weights.count, WHERE(data.files), c->data.files.count, c->data.files.count == 1 ? "" : "s");
    }
    return 0;
}

static int check_train(pl_error *err, const pl_config *c)
{
    PL_TRY(exclusive(err, c, &c->train.steps, &c->train.epochs));
    bool validation = c->data.validation || c->data.validation_split > 0;
    const void *watching[] = {&c->train.eval_every, &c->train.early_stop, &c->checkpoint.best};
    for (int i = 0; i < PL_COUNT(watching) && !validation; i++) {
        if (is_off(c, pl_config_field(c, watching[i]))) continue;
        return PL_FAIL(err, PL_EUSAGE,
            "%s is set, but there is no validation loss; give data.validation or "
            "data.validation_split",
            where(c, watching[i]).text);
    }
    if (c->train.early_stop > 0 && c->train.eval_every == 0) {
        return PL_FAIL(err, PL_EUSAGE, "%s is set, but train.eval_every is 0; say how often the loss is taken",
            WHERE(train.early_stop));
    }
    return 0;
}

static int check_optimizer(pl_error *err, pl_config *c)
{
    if (isnan(c->optimizer.lr)) c->optimizer.lr = c->method == PL_METHOD_LORA ? 2e-4 : 5e-5;
    if (c->optimizer.nesterov && c->optimizer.momentum == 0) {
        return PL_FAIL(err, PL_EUSAGE, "%s is true, but optimizer.momentum is 0", WHERE(optimizer.nesterov));
    }
    return 0;
}

/* The grid of processes (comm/grid.h), of which data is the only axis yet. What only describes a run (init) is started
   by whoever reads it. */
static int check_grid(pl_error *err, const pl_config *c, unsigned command)
{
    const struct {
        const int64_t *size;
        const char *what;
    } later[] = {{&c->parallel.tp, "tensor parallelism"}, {&c->parallel.pp, "pipeline parallelism"},
        {&c->parallel.cp, "context parallelism"}};
    for (int i = 0; i < PL_COUNT(later); i++) {
        if (*later[i].size == 1) continue;
        return PL_FAIL(err, PL_EUNSUPPORTED,
            "%s is %lld, but there is no %s yet; leave it at 1: all processes share out the data (parallel.dp), and "
            "with parallel.zero 3 the model too",
            where(c, later[i].size).text, (long long)*later[i].size, later[i].what);
    }
    int64_t started = c->world ? c->world->size : c->ranks, dp = c->parallel.dp;
    if (dp == 0 || dp == started || (command & PL_CMD_INIT)) return 0;
    char start[80];
    snprintf(start, sizeof start, command & PL_CMD_PLAN ? "give --ranks %lld" : "start them by --ranks %lld or mpiexec",
        (long long)dp);
    return PL_FAIL(err, PL_EUSAGE, "%s is %lld, but the run has %lld process%s; %s, or leave it out",
        WHERE(parallel.dp), (long long)dp, (long long)started, started == 1 ? "" : "es", start);
}

static int check_offload(pl_error *err, const pl_config *c)
{
    bool several = c->ranks > 1 || (c->world && c->world->size > 1);
    if (c->memory.offload.params == PL_OFFLOAD_DISK && several && c->parallel.zero != 3) {
        return PL_FAIL(err, PL_EUSAGE,
            "%s is disk, but %s is %lld; several processes have their parameters on disk with parallel.zero 3 only",
            WHERE(memory.offload.params), WHERE(parallel.zero), (long long)c->parallel.zero);
    }
    bool plain_sgd = c->optimizer.name == PL_OPTIMIZER_SGD && c->optimizer.momentum == 0;
    if (c->memory.offload.optimizer == PL_OFFLOAD_DISK && plain_sgd && c->precision == PL_PRECISION_F32) {
        return PL_FAIL(err, PL_EUSAGE,
            "%s is disk, but sgd without momentum keeps no states, and f32 no masters, so that nothing would lie "
            "there; leave it out",
            WHERE(memory.offload.optimizer));
    }
    return 0;
}

static bool is_deepspeed(int name)
{
    return name >= PL_SCHEDULER_WARMUP_LR;
}

static int check_ramps(pl_error *err, pl_config *c)
{
    int name = c->scheduler.name;
    if (c->scheduler.warmup_type < 0) c->scheduler.warmup_type = is_deepspeed(name) ? PL_RAMP_LOG : PL_RAMP_LINEAR;
    if (c->scheduler.decay_type < 0) c->scheduler.decay_type = PL_RAMP_COSINE;
    bool log_warmup = c->scheduler.warmup_type == PL_RAMP_LOG;
    if (is_deepspeed(name) && !log_warmup && c->scheduler.warmup_type != PL_RAMP_LINEAR) {
        return PL_FAIL(
            err, PL_EUSAGE, "%s must be linear or log with DeepSpeed's schedules", WHERE(scheduler.warmup_type));
    }
    if (!is_deepspeed(name) && log_warmup) {
        return PL_FAIL(err, PL_EUSAGE, "%s is log, but %s is warmup_stable_decay, which has linear, cosine and 1-sqrt",
            WHERE(scheduler.warmup_type), WHERE(scheduler.name));
    }
    if (c->scheduler.decay_type == PL_RAMP_LOG) {
        return PL_FAIL(err, PL_EUSAGE, "%s is log; warmup_stable_decay has linear, cosine and 1-sqrt",
            WHERE(scheduler.decay_type));
    }
    return 0;
}

/* DeepSpeed's own maxima are 0.001; here there is one place for the learning rate. */
static void fill_scheduler(pl_config *c)
{
    int name = c->scheduler.name;
    bool ratio = !isnan(c->scheduler.warmup_ratio);
    if (c->scheduler.warmup_steps == PL_INT_UNSET && !ratio) c->scheduler.warmup_steps = is_deepspeed(name) ? 1000 : 0;
    if (isnan(c->scheduler.num_cycles)) {
        c->scheduler.num_cycles = name == PL_SCHEDULER_COSINE_WITH_RESTARTS ? 1 : 0.5;
    }
    if (c->scheduler.timescale == PL_INT_UNSET && !ratio) {
        c->scheduler.timescale = c->scheduler.warmup_steps > 0 ? c->scheduler.warmup_steps : 10000;
    }
    if (isnan(c->scheduler.warmup_max_lr)) c->scheduler.warmup_max_lr = c->optimizer.lr;
    if (isnan(c->scheduler.cycle_max_lr)) c->scheduler.cycle_max_lr = c->optimizer.lr;
    if (c->scheduler.cycle_second_step_size == PL_INT_UNSET) {
        c->scheduler.cycle_second_step_size = c->scheduler.cycle_first_step_size;
    }
    if (c->scheduler.cycle_second_stair_count == PL_INT_UNSET) {
        c->scheduler.cycle_second_stair_count = c->scheduler.cycle_first_stair_count;
    }
}

static int check_scheduler(pl_error *err, pl_config *c)
{
    int name = c->scheduler.name;
    PL_TRY(exclusive(err, c, &c->scheduler.warmup_steps, &c->scheduler.warmup_ratio));
    PL_TRY(exclusive(err, c, &c->scheduler.min_lr, &c->scheduler.min_lr_rate));
    bool needs_min = name == PL_SCHEDULER_COSINE_WITH_MIN_LR || name == PL_SCHEDULER_COSINE_WARMUP_WITH_MIN_LR;
    if (needs_min && isnan(c->scheduler.min_lr) && isnan(c->scheduler.min_lr_rate)) {
        return PL_FAIL(err, PL_EUSAGE, "%s needs scheduler.min_lr or scheduler.min_lr_rate", WHERE(scheduler.name));
    }
    if (name == PL_SCHEDULER_WARMUP_STABLE_DECAY && c->scheduler.decay_steps == PL_INT_UNSET) {
        return PL_FAIL(
            err, PL_EUSAGE, "%s is warmup_stable_decay, which needs scheduler.decay_steps", WHERE(scheduler.name));
    }
    if (name == PL_SCHEDULER_ONE_CYCLE && isnan(c->scheduler.cycle_min_lr)) {
        return PL_FAIL(err, PL_EUSAGE, "%s is OneCycle, which needs scheduler.cycle_min_lr", WHERE(scheduler.name));
    }
    double cycles = c->scheduler.num_cycles;
    if (name == PL_SCHEDULER_COSINE_WITH_RESTARTS && !isnan(cycles) && cycles != floor(cycles)) {
        return PL_FAIL(
            err, PL_EUSAGE, "%s must be a whole number with cosine_with_restarts", WHERE(scheduler.num_cycles));
    }
    if (name == PL_SCHEDULER_ONE_CYCLE && c->scheduler.cycle_momentum &&
        c->scheduler.cycle_min_mom > c->scheduler.cycle_max_mom) {
        return PL_FAIL(
            err, PL_EUSAGE, "%s is above %s", WHERE(scheduler.cycle_min_mom), WHERE(scheduler.cycle_max_mom));
    }
    fill_scheduler(c);
    return check_ramps(err, c);
}

/* An adapter names the model that it is for: a folder on this machine, or a name on the Hub, which a folder may have
   too. */
static int fill_model(pl_error *err, pl_config *c)
{
    if (!c->adapter || c->model || c->from_scratch) return 0;
    pl_lora_config lora;
    PL_TRY(pl_adapter_config(err, c->adapter, &lora));
    const char *base = lora.base_model_name_or_path;
    int rc = 0;
    if (base && pl_dir_exists(base)) {
        rc = pl_strdup(err, base, &c->model);
    } else if (base && *base) {
        rc = PL_FAIL(err, PL_EUSAGE,
            "there is no model: %s says that it is for %s, which is no folder here; give --model DIR", WHERE(adapter),
            base);
    }
    pl_lora_config_free(&lora);
    return rc;
}

static int check_model(pl_error *err, const pl_config *c, unsigned command)
{
    if (c->model && c->from_scratch) {
        /* With both, the folder gives the tokenizer. */
        return command & (PL_CMD_GENERATE | PL_CMD_MERGE)
                   ? PL_FAIL(err, PL_EUSAGE, "%s is set, but this command needs a model's weights", WHERE(from_scratch))
                   : 0;
    }
    if (c->model || (c->from_scratch && !(command & (PL_CMD_GENERATE | PL_CMD_MERGE | PL_CMD_EVAL)))) return 0;
    if (command & PL_CMD_INSPECT) return 0;
    return PL_FAIL(err, PL_EUSAGE,
        command & (PL_CMD_TRAIN | PL_CMD_PLAN)
            ? "there is no model: give --model DIR (a Hugging Face folder) or --from-scratch config.json"
            : "there is no model: give --model DIR (a Hugging Face folder)");
}

int pl_config_check(pl_error *err, pl_config *c, unsigned command)
{
    bool training = command & (PL_CMD_TRAIN | PL_CMD_PLAN | PL_CMD_INIT);
    if (!(command & (PL_CMD_INIT | PL_CMD_INSPECT))) PL_TRY(fill_model(err, c));
    if (!(command & PL_CMD_INIT)) PL_TRY(check_model(err, c, command));
    if ((command & (PL_CMD_TRAIN | PL_CMD_EVAL)) && c->data.files.count == 0) {
        return PL_FAIL(err, PL_EUSAGE, "there is no data: give --data FILE (.txt, .jsonl or .json)");
    }
    if ((command & PL_CMD_MERGE) && !c->adapter) {
        return PL_FAIL(err, PL_EUSAGE, "there is nothing to merge: give --adapter DIR (a PEFT adapter)");
    }
    if ((command & PL_CMD_MERGE) && !GIVEN(output)) {
        return PL_FAIL(err, PL_EUSAGE, "there is no place for the result: give --output DIR");
    }
    if ((command & PL_CMD_GENERATE) && c->generate.prompts && c->generate.prompt.count > 0) {
        return PL_FAIL(err, PL_EUSAGE, "%s and %s are both given; put all prompts into the file, or all into --prompt",
            WHERE(generate.prompt), WHERE(generate.prompts));
    }
    if (training) PL_TRY(check_method(err, c));
    for (int i = 0; i < pl_config_field_count; i++) {
        const pl_field *field = &pl_config_fields[i];
        /* What a run file says about training is no matter of a command that does not train. */
        if (!(field->commands & command)) continue;
        PL_TRY(check_applies(err, c, field));
    }
    PL_TRY(check_data(err, c));
    if (!training) return 0;
    PL_TRY(check_lora(err, c));
    PL_TRY(check_train(err, c));
    PL_TRY(check_optimizer(err, c));
    PL_TRY(check_grid(err, c, command));
    PL_TRY(check_offload(err, c));
    PL_TRY(check_scheduler(err, c));
    if (c->train.steps == PL_INT_UNSET && isnan(c->train.epochs)) c->train.epochs = 1;
    return 0;
}
