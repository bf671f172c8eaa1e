#include "api/data.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"

/* ---- tokenizer and template ---- */

int pl_texts_folder(pl_error *err, const pl_config *c, char **out)
{
    const char *path = c->model ? c->model : c->from_scratch;
    if (!path || pl_dir_exists(path)) return pl_strdup(err, path ? path : ".", out);
    const char *slash = strrchr(path, '/');
    return pl_strndup(err, slash ? path : ".", slash ? (size_t)(slash - path) : 1, out);
}

/* data.template is one of these words, or a file, which is taken as `chat` takes the model's. */
static pl_data_template template_rule(const pl_config *c)
{
    const char *which = c->data.template ? c->data.template : "auto";
    if (strcmp(which, "auto") == 0) return PL_DATA_TEMPLATE_AUTO;
    return strcmp(which, "plain") == 0 ? PL_DATA_TEMPLATE_PLAIN : PL_DATA_TEMPLATE_CHAT;
}

static int open_template(pl_error *err, const pl_config *c, const char *folder, pl_chat **out)
{
    const char *which = c->data.template ? c->data.template : "auto";
    if (template_rule(c) == PL_DATA_TEMPLATE_PLAIN) return 0;
    if (strcmp(which, "auto") == 0 || strcmp(which, "chat") == 0) return pl_chat_open(err, folder, out);
    char where[PL_WHERE_SIZE];
    int rc = pl_chat_from_file(err, folder, which, out);
    return rc == PL_ENOENT ? pl_error_prefix(err, "%s", pl_config_where(c, &c->data.template, where)) : rc;
}

int pl_texts_open(pl_error *err, const pl_config *config, pl_texts *texts)
{
    char *folder = NULL;
    bool there;
    int rc;
    *texts = (pl_texts){0};
    PL_GO(done, pl_texts_folder(err, config, &folder));
    PL_GO(done, pl_tokenizer_exists(err, folder, &there));
    if (!there) goto done; /* rows that come tokenized need none */
    PL_GO(done, pl_tokenizer_open(err, folder, &texts->tokenizer));
    PL_GO(done, open_template(err, config, folder, &texts->chat));
done:
    free(folder);
    if (rc < 0) pl_texts_close(texts);
    return rc;
}

void pl_texts_close(pl_texts *texts)
{
    pl_tokenizer_close(texts->tokenizer);
    pl_chat_free(texts->chat);
    *texts = (pl_texts){0};
}

/* ---- dataset ---- */

/* The tokenizer is read only where the cache does not have the rows; `folder` has it, or is NULL. */
static int open_rows(pl_error *err, const pl_log *log, const pl_config *c, const pl_arch *arch, bool training,
    const char *folder, const pl_chat *chat, pl_run_data *d)
{
    char *cache = NULL;
    pl_data_file *files = NULL;
    size_t n = (size_t)c->data.files.count;
    int rc;
    PL_GO(done, pl_calloc(err, n + 1, sizeof *files, &files));
    for (size_t i = 0; i < n; i++) files[i] = (pl_data_file){.path = c->data.files.items[i]};
    if (c->data.validation) files[n++] = (pl_data_file){.path = c->data.validation, .validation = true};
    if (c->data.cache) {
        PL_GO(done, pl_strdup(err, c->data.cache, &cache));
    } else if (training && c->output && pl_dir_exists(c->output)) { /* a run's own folder; else nothing is kept */
        PL_GO(done, pl_path_join(err, c->output, "cache", &cache));
    }
    int64_t eos = arch->neos ? arch->eos_tokens[0] : -1, length = c->data.sequence_length;
    if (!pl_config_is_set(c, &c->data.sequence_length) && length > arch->max_positions) length = arch->max_positions;
    pl_data_config config = {.files = files,
        .file_count = n,
        .validation_split = c->data.validation_split,
        .seed = (uint64_t)c->train.seed,
        .format = (pl_data_format)c->data.format,
        .fields = (const char *const *)c->data.fields.keys,
        .names = (const char *const *)c->data.fields.texts,
        .field_count = (size_t)c->data.fields.count,
        .template = template_rule(c),
        .loss = (pl_data_loss)c->data.loss,
        .overlong = (pl_data_overlong)c->data.overlong,
        .sequence_length = length,
        .cache_dir = cache};
    pl_data_model model = {.tokenizer_folder = folder,
        .chat = chat,
        .vocab = (int32_t)arch->vocab,
        .eos = (int32_t)eos,
        .positions = arch->max_positions};
    rc = pl_dataset_open(err, log, &config, &model, pl_session_threads(c), &d->dataset);
done:
    free(files);
    free(cache);
    return rc;
}

static int open_dataset(
    pl_error *err, const pl_log *log, const pl_config *c, const pl_arch *arch, bool training, pl_run_data *d)
{
    char *folder = NULL;
    pl_chat *chat = NULL;
    bool there;
    int rc;
    PL_GO(done, pl_texts_folder(err, c, &folder));
    PL_GO(done, pl_tokenizer_exists(err, folder, &there));
    if (there) PL_GO(done, open_template(err, c, folder, &chat));
    rc = open_rows(err, log, c, arch, training, there ? folder : NULL, chat, d);
done:
    pl_chat_free(chat);
    free(folder);
    return rc;
}

/* ---- order ---- */

pl_portion pl_portion_of(const pl_config *config, int processes, int process)
{
    return (pl_portion){
        .processes = processes, .process = process, .micro_batches = config->train.accumulation * processes};
}

/* For validation every process makes one micro-batch of a step. */
static int open_loader(pl_error *err, const pl_config *c, pl_dataset *dataset, const pl_portion *portion, bool training,
    pl_data_part part, pl_loader **out)
{
    pl_loader_config config = {.part = part,
        .micro_batch = c->train.micro_batch,
        .micro_batch_tokens = c->train.micro_batch_tokens,
        .accumulation = training ? portion->micro_batches : portion->processes,
        .processes = portion->processes,
        .process = portion->process,
        .epochs = training ? (c->train.steps != PL_INT_UNSET ? 0 : c->train.epochs) : 1,
        .shuffle = training && c->data.shuffle,
        .seed = (uint64_t)c->train.seed,
        .weights = c->data.weights.items,
        .weight_count = training ? (size_t)c->data.weights.count : 0};
    return pl_loader_open(err, dataset, &config, out);
}

static void larger(pl_loader_largest *most, const pl_loader_largest *other)
{
    if (other->tokens > most->tokens) most->tokens = other->tokens;
    if (other->sequences > most->sequences) most->sequences = other->sequences;
    if (other->length > most->length) most->length = other->length;
}

static int open_validation(pl_error *err, const pl_config *c, const pl_portion *portion, pl_run_data *d)
{
    int64_t steps;
    pl_loader_largest largest;
    if (pl_dataset_rows(d->dataset, PL_DATA_VALIDATION) == 0) return 0;
    PL_TRY(open_loader(err, c, d->dataset, portion, false, PL_DATA_VALIDATION, &d->validation));
    PL_TRY(pl_loader_steps(err, d->validation, &steps));
    PL_TRY(pl_loader_find_largest(err, d->validation, 0, steps, &largest));
    larger(&d->largest, &largest);
    return 0;
}

int pl_run_data_open(pl_error *err, const pl_log *log, const pl_config *config, const pl_arch *arch,
    const pl_portion *portion, pl_run_data *d)
{
    static const pl_portion all = {.processes = 1, .micro_batches = 1};
    bool training = portion != NULL;
    if (!portion) portion = &all;
    int rc;
    *d = (pl_run_data){0};
    PL_GO(failed, open_dataset(err, log, config, arch, training, d));
    PL_GO(failed, open_loader(err, config, d->dataset, portion, training, PL_DATA_TRAIN, &d->train));
    d->micro_batches = (int)((portion->micro_batches + portion->processes - 1) / portion->processes);
    if (training && config->train.steps != PL_INT_UNSET) {
        d->steps = config->train.steps;
    } else {
        PL_GO(failed, pl_loader_steps(err, d->train, &d->steps));
    }
    PL_GO(failed, pl_loader_find_largest(err, d->train, 0, d->steps, &d->largest));
    PL_GO(failed, open_validation(err, config, portion, d));
    return 0;
failed:
    pl_run_data_close(d);
    return rc;
}

void pl_run_data_close(pl_run_data *d)
{
    pl_loader_close(d->train);
    pl_loader_close(d->validation);
    pl_dataset_close(d->dataset);
    *d = (pl_run_data){0};
}

int pl_run_data_plan(pl_error *err, const pl_loader_largest *largest, pl_batch *batch)
{
    int64_t left = largest->tokens;
    int32_t *zeros = NULL;
    PL_TRY(pl_batch_open(err, batch, largest->tokens, (int)largest->sequences));
    int rc = pl_calloc(err, (size_t)largest->length, sizeof *zeros, &zeros);
    /* The longest first; the others share what is left. */
    for (int64_t s = largest->sequences; rc == 0 && s > 0 && left > 0; s--) {
        int64_t n = s == largest->sequences ? largest->length : (left + s - 1) / s;
        if (n > left) n = left;
        if (n > largest->length) n = largest->length;
        rc = pl_batch_append(err, batch, zeros, NULL, n);
        left -= n;
    }
    free(zeros);
    if (rc < 0) pl_batch_close(batch);
    return rc;
}

pl_work pl_run_data_work(const pl_run_data *data, const pl_batch *planned)
{
    return (pl_work){.capacity = {.tokens = data->largest.tokens,
                         .max_length = data->largest.length,
                         .sequences = (int)data->largest.sequences},
        .batches = planned,
        .nbatches = 1,
        .micro_batches = data->micro_batches,
        .training = true,
        .evaluates = data->validation != NULL};
}
