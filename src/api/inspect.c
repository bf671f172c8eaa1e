#include "api/inspect.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/checkpoint.h"
#include "api/data.h"
#include "base/file.h"
#include "io/peft.h"

/* Jansson's calls that take a reference fail on NULL, so a lack of memory is seen once, at the end. */
static int finish(pl_error *err, json_t *json, bool failed, json_t **out)
{
    if (!json || failed) {
        json_decref(json);
        return PL_FAIL_NOMEM(err);
    }
    *out = json;
    return 0;
}

static json_t *shape_of(int ndim, const int64_t *shape)
{
    json_t *list = json_array();
    for (int d = 0; d < ndim; d++) json_array_append_new(list, json_integer((json_int_t)shape[d]));
    return list;
}

/* ---- a weights file ---- */

/* {kind, path, tensors: [{name, dtype, shape, bytes}], bytes} */
static int inspect_weights(pl_error *err, const char *path, json_t **out)
{
    pl_weights *w;
    int64_t bytes = 0;
    bool failed = false;
    PL_TRY(pl_weights_open_file(err, path, &w));
    json_t *tensors = json_array();
    for (int i = 0; i < pl_weights_count(w); i++) {
        const pl_st_tensor *t = pl_weights_at(w, i);
        bytes += (int64_t)t->bytes;
        failed |= json_array_append_new(
                      tensors, json_pack("{s:s, s:s, s:o, s:I}", "name", t->name, "dtype", t->dtype_name, "shape",
                                   shape_of(t->ndim, t->shape), "bytes", (json_int_t)t->bytes)) != 0;
    }
    json_t *json = json_pack(
        "{s:s, s:s, s:o, s:I}", "kind", "weights", "path", path, "tensors", tensors, "bytes", (json_int_t)bytes);
    pl_weights_close(w);
    return finish(err, json, failed, out);
}

/* ---- a model ---- */

static json_t *unit_of(const pl_unit *unit, pl_weights *files)
{
    json_t *tensors = json_array();
    int64_t elements = 0;
    for (int i = 0; i < unit->nparams; i++) {
        const pl_param *p = unit->params[i];
        const pl_st_tensor *t = files ? pl_weights_peek(files, pl_param_source(p)) : NULL;
        elements += pl_param_numel(p);
        json_array_append_new(tensors, json_pack("{s:s, s:o, s:s?}", "name", p->name, "shape",
                                           shape_of(p->ndim, p->shape), "dtype", t ? t->dtype_name : NULL));
    }
    return json_pack("{s:s, s:s, s:I, s:o}", "name", unit->name, "kind", unit->ops->kind, "parameters",
        (json_int_t)elements, "tensors", tensors);
}

/* {kind, path, model_type, parameters, hidden, layers, heads, kv_heads, head_dim, intermediate, vocab, positions, tied,
   weights_bytes: {f32, bf16}, units: [{name, kind, parameters, tensors: [{name, shape, dtype}]}], chat_template,
   tokenizer} */
static int inspect_model(pl_error *err, const pl_log *log, pl_config *config, const char *path, json_t **out)
{
    pl_session *s = NULL;
    pl_texts texts = {0};
    json_t *units = NULL;
    int rc;
    PL_GO(done, pl_session_open(err, log, config, PL_PURPOSE_USE, &s));
    PL_GO(done, pl_texts_open(err, config, &texts));
    const pl_arch *a = &s->model->arch;
    int64_t all = pl_model_count(s->model).all;
    units = json_array();
    bool failed = !units;
    for (int i = 0; i < s->model->nunits; i++) {
        failed |= json_array_append_new(units, unit_of(s->model->units[i], s->weights)) != 0;
    }
    json_t *json =
        json_pack("{s:s, s:s, s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:b, s:{s:I, s:I}, s:O, s:b, s:b}",
            "kind", "model", "path", path, "model_type", a->model_type, "parameters", (json_int_t)all, "hidden",
            (json_int_t)a->hidden, "layers", (json_int_t)a->layers, "heads", (json_int_t)a->heads, "kv_heads",
            (json_int_t)a->kv_heads, "head_dim", (json_int_t)a->head_dim, "intermediate", (json_int_t)a->intermediate,
            "vocab", (json_int_t)a->vocab, "positions", (json_int_t)a->max_positions, "tied", (int)a->tied,
            "weights_bytes", "f32", (json_int_t)all * 4, "bf16", (json_int_t)all * 2, "units", units, "tokenizer",
            texts.tokenizer != NULL, "chat_template", texts.chat != NULL);
    rc = finish(err, json, failed, out);
done:
    json_decref(units);
    pl_texts_close(&texts);
    pl_session_close(s);
    return rc;
}

/* Of a folder that was given as a path. */
static int inspect_model_at(pl_error *err, const pl_log *log, pl_config *config, const char *path, json_t **out)
{
    if (path != config->model) PL_TRY(pl_config_set(err, config, "model", path));
    return inspect_model(err, log, config, path, out);
}

/* ---- an adapter ---- */

static json_t *names_of(const pl_names *names)
{
    json_t *list = json_array();
    for (int i = 0; i < names->count; i++) json_array_append_new(list, json_string(names->items[i]));
    return list;
}

/* {kind, path, base_model, r, alpha, dropout, dora, rslora, init, targets, modules_to_save, parameters, tensors} */
static int inspect_adapter(pl_error *err, const char *path, json_t **out)
{
    pl_lora_config c;
    pl_weights *w;
    char init[32];
    int64_t elements = 0;
    PL_TRY(pl_adapter_open(err, path, &c, &w));
    for (int i = 0; i < pl_weights_count(w); i++) elements += pl_weights_at(w, i)->numel;
    json_t *json =
        json_pack("{s:s, s:s, s:s?, s:I, s:f, s:f, s:b, s:b, s:s, s:s, s:o, s:o, s:I, s:i}", "kind", "adapter", "path",
            path, "base_model", c.base_model_name_or_path, "r", (json_int_t)c.r, "alpha", c.lora_alpha, "dropout",
            c.lora_dropout, "dora", (int)c.use_dora, "rslora", (int)c.use_rslora, "init", pl_lora_init_name(&c, init),
            "bias", pl_lora_bias_name(c.bias), "targets", names_of(&c.target_modules.names), "modules_to_save",
            names_of(&c.modules_to_save), "parameters", (json_int_t)elements, "tensors", pl_weights_count(w));
    pl_weights_close(w);
    pl_lora_config_free(&c);
    return finish(err, json, false, out);
}

/* ---- a checkpoint, a run ---- */

/* {kind, path, state: {format, step, targets, micro_batches, best_step, worse, best_loss}, content: the adapter's or
   the model's document} */
static int inspect_checkpoint(
    pl_error *err, const pl_log *log, pl_config *config, const char *path, const char *state, json_t **out)
{
    json_t *told = NULL, *content = NULL;
    char *file = NULL;
    int rc;
    PL_GO(done, pl_json_read(err, state, &told));
    json_object_del(told, "files"); /* checksums are for the program alone */
    json_object_del(told, "tensors");
    json_object_del(told, "checksum");
    PL_GO(done, pl_path_join(err, path, "adapter_config.json", &file));
    PL_GO(done, pl_file_exists(file) ? inspect_adapter(err, path, &content)
                                     : inspect_model_at(err, log, config, path, &content));
    json_t *json =
        json_pack("{s:s, s:s, s:O, s:O}", "kind", "checkpoint", "path", path, "state", told, "content", content);
    rc = finish(err, json, false, out);
done:
    free(file);
    json_decref(told);
    json_decref(content);
    return rc;
}

/* {kind, path, latest_checkpoint (-1: none)} */
static int inspect_run(pl_error *err, const char *path, json_t **out)
{
    int64_t step;
    PL_TRY(pl_checkpoint_latest(err, path, &step));
    json_t *json = json_pack("{s:s, s:s, s:I}", "kind", "run", "path", path, "latest_checkpoint", (json_int_t)step);
    return finish(err, json, false, out);
}

/* ---- a dataset ---- */

static json_t *stats_of(const pl_data_stats *s)
{
    json_t *lengths = json_array();
    for (int i = 0; i < PL_DATA_LENGTHS; i++) json_array_append_new(lengths, json_integer((json_int_t)s->lengths[i]));
    return json_pack("{s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:o}", "examples", (json_int_t)s->examples,
        "rows", (json_int_t)s->rows, "tokens", (json_int_t)s->tokens, "trained", (json_int_t)s->trained, "longest",
        (json_int_t)s->longest, "cut", (json_int_t)s->cut, "split", (json_int_t)s->split, "dropped_overlong",
        (json_int_t)s->dropped_overlong, "dropped_cut", (json_int_t)s->dropped_cut, "dropped_untrained",
        (json_int_t)s->dropped_untrained, "lengths", lengths);
}

/* Ids in place of text, for data without a tokenizer. */
static int show_ids(pl_error *err, pl_row row, pl_buf *text, pl_spans *trained)
{
    for (int64_t i = 0; i < row.n; i++) {
        size_t begin = text->size;
        PL_TRY(pl_buf_printf(err, text, "%s%d", i ? " " : "", row.ids[i]));
        if (i == 0 || (row.labels && row.labels[i] < 0)) continue;
        PL_TRY(pl_grow(err, &trained->items, &trained->capacity, trained->count + 1, sizeof *trained->items));
        trained->items[trained->count++] = (pl_span){begin, text->size};
    }
    return 0;
}

static int add_run(pl_error *err, json_t *runs, const char *text, size_t size, bool trained)
{
    if (size == 0) return 0;
    json_t *run = json_pack("{s:o, s:b}", "text", json_stringn(text, size), "trained", (int)trained);
    return json_array_append_new(runs, run) == 0 ? 0 : PL_FAIL_NOMEM(err);
}

/* The first row as [{text, trained}]. */
static int example_of(pl_error *err, const pl_config *config, pl_run_data *data, json_t **out)
{
    pl_row row = pl_dataset_row(data->dataset, PL_DATA_TRAIN, 0);
    pl_texts texts = {0};
    pl_buf text = {0};
    pl_spans spans = {0};
    json_t *runs = json_array();
    size_t at = 0;
    int rc = runs ? pl_texts_open(err, config, &texts) : PL_FAIL_NOMEM(err);
    if (rc == 0) {
        rc =
            texts.tokenizer ? pl_row_show(err, texts.tokenizer, row, &text, &spans) : show_ids(err, row, &text, &spans);
    }
    for (size_t i = 0; i < spans.count && rc == 0; i++) {
        pl_span s = spans.items[i];
        rc = add_run(err, runs, pl_buf_text(&text) + at, s.begin - at, false);
        if (rc == 0) rc = add_run(err, runs, pl_buf_text(&text) + s.begin, s.end - s.begin, true);
        at = s.end;
    }
    if (rc == 0) rc = add_run(err, runs, pl_buf_text(&text) + at, text.size - at, false);
    pl_texts_close(&texts);
    pl_buf_free(&text);
    free(spans.items);
    if (rc < 0) json_decref(runs);
    *out = rc < 0 ? NULL : runs;
    return rc;
}

/* {kind, files: [{path, format, rows}], train: counts, validation: counts, example: [{text, trained}]} */
static int inspect_dataset(pl_error *err, const pl_log *log, pl_config *config, json_t **out)
{
    pl_session *s = NULL;
    pl_run_data data = {0};
    json_t *files = NULL, *example = NULL;
    int rc;
    PL_GO(done, pl_session_open(err, log, config, PL_PURPOSE_USE, &s));
    PL_GO(done, pl_run_data_open(err, log, config, &s->model->arch, NULL, &data));
    files = json_array();
    bool failed = !files;
    for (size_t f = 0; f < pl_dataset_files(data.dataset); f++) {
        int64_t first, count;
        pl_dataset_file_rows(data.dataset, PL_DATA_TRAIN, f, &first, &count);
        failed |=
            json_array_append_new(files,
                json_pack("{s:s, s:s, s:I}", "path", config->data.files.items[f], "format",
                    pl_data_format_name(pl_dataset_file_format(data.dataset, f)), "rows", (json_int_t)count)) != 0;
    }
    PL_GO(done, example_of(err, config, &data, &example));
    json_t *json = json_pack("{s:s, s:O, s:o, s:O}", "kind", "dataset", "files", files, "train",
        stats_of(pl_dataset_stats(data.dataset, PL_DATA_TRAIN)), "example", example);
    rc = finish(err, json, failed, out);
done:
    json_decref(files);
    json_decref(example);
    pl_run_data_close(&data);
    pl_session_close(s);
    return rc;
}

/* ---- which of them ---- */

static int has(pl_error *err, const char *folder, const char *name, char **path, bool *out)
{
    free(*path);
    *path = NULL;
    PL_TRY(pl_path_join(err, folder, name, path));
    *out = pl_file_exists(*path);
    return 0;
}

static int inspect_folder(pl_error *err, const pl_log *log, pl_config *config, const char *path, json_t **out)
{
    char *file = NULL;
    bool there;
    int rc;
    PL_GO(done, has(err, path, "state.json", &file, &there));
    if (there) {
        rc = inspect_checkpoint(err, log, config, path, file, out);
        goto done;
    }
    PL_GO(done, has(err, path, "adapter_config.json", &file, &there));
    if (there) {
        rc = inspect_adapter(err, path, out);
        goto done;
    }
    PL_GO(done, has(err, path, "config.json", &file, &there));
    if (there) {
        rc = inspect_model_at(err, log, config, path, out);
        goto done;
    }
    PL_GO(done, has(err, path, "run.yaml", &file, &there));
    rc = there ? inspect_run(err, path, out)
               : PL_FAIL(err, PL_EINPUT,
                     "%s: holds no config.json, adapter_config.json, state.json or run.yaml: it is no model, adapter, "
                     "checkpoint or run",
                     path);
done:
    free(file);
    return rc;
}

/* Whether a JSON file begins as a list does: that is data, and no config.json. */
static bool holds_list(const char *path)
{
    FILE *file = fopen(path, "r");
    int c = ' ';
    while (file && isspace(c)) c = fgetc(file);
    if (file) fclose(file);
    return c == '[';
}

/* Text is looked at through a model's tokenizer. */
static int check_weights_path(pl_error *err, const char *path)
{
    static const char *const data[] = {".txt", ".jsonl", ".json", ".gz", ".zst"};
    size_t n = strlen(path);
    if (!pl_file_exists(path)) return PL_FAIL(err, PL_ENOENT, "%s: there is no such file or folder", path);
    for (int i = 0; i < PL_COUNT(data); i++) {
        size_t end = strlen(data[i]);
        if (n < end || strcmp(path + n - end, data[i]) != 0) continue;
        return PL_FAIL(
            err, PL_EUSAGE, "%s: is no weights file; to look at data give --model DIR --data %s", path, path);
    }
    return 0;
}

int pl_inspect_document(pl_error *err, const pl_log *log, pl_config *config, const char *path, json_t **out)
{
    PL_TRY(pl_config_check(err, config, PL_CMD_INSPECT));
    if (path && (config->model || config->from_scratch)) {
        char where[PL_WHERE_SIZE];
        return PL_FAIL(err, PL_EUSAGE, "%s and %s are both given; one thing is looked at at a time", path,
            pl_config_where(config, config->model ? (void *)&config->model : &config->from_scratch, where));
    }
    /* A model's folder with data is the model that the data is looked at with. */
    if (path && config->data.files.count > 0) {
        PL_TRY(pl_config_set(err, config, "model", path));
        path = NULL;
    }
    if (path && pl_dir_exists(path)) return inspect_folder(err, log, config, path, out);
    if (path) {
        size_t n = strlen(path);
        if (n > 5 && strcmp(path + n - 5, ".json") == 0 && pl_file_exists(path) && !holds_list(path)) {
            PL_TRY(pl_config_set(err, config, "from_scratch", path));
            return inspect_model(err, log, config, path, out);
        }
        PL_TRY(check_weights_path(err, path));
        return inspect_weights(err, path, out);
    }
    if (config->data.files.count > 0 && (config->model || config->from_scratch)) {
        return inspect_dataset(err, log, config, out);
    }
    if (config->adapter && !config->model) return inspect_adapter(err, config->adapter, out);
    if (config->model) return inspect_folder(err, log, config, config->model, out);
    if (config->from_scratch) return inspect_model(err, log, config, config->from_scratch, out);
    return PL_FAIL(
        err, PL_EUSAGE, "there is nothing to look at: give a path, --model, --adapter, or --model with --data");
}

int pl_inspect(pl_error *err, const pl_log *log, pl_config *config, const char *path, char **out)
{
    json_t *json;
    pl_buf text = {0};
    PL_TRY(pl_inspect_document(err, log, config, path, &json));
    int rc = pl_json_text(err, json, 0, &text);
    json_decref(json);
    if (rc < 0) pl_buf_free(&text);
    *out = text.data;
    return rc;
}
