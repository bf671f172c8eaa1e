#include "api/checkpoint_internal.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/adapter.h"
#include "api/checksum.h"
#include "api/save.h"
#include "base/file.h"

#define LOADED ((int64_t)1 << 20) /* elements of a file that are in memory twice when it is loaded */
#define DAMAGED "is damaged: its content is not what was written"

/* ---- state.json ---- */

static int check_state(pl_error *err, const char *path, const json_t *json)
{
    int64_t format = 0;
    const char *told = NULL;
    char text[33];
    PL_TRY(pl_json_int(err, path, json, "format", &format));
    if (format != PL_CHECKPOINT_FORMAT) {
        return PL_FAIL(err, PL_EUNSUPPORTED, "%s: is of format %lld; this plait reads %d", path, (long long)format,
            PL_CHECKPOINT_FORMAT);
    }
    PL_TRY(pl_json_string(err, path, json, "checksum", &told));
    PL_TRY(pl_checkpoint_sum_state(err, json, text));
    return told && strcmp(told, text) == 0 ? 0 : PL_FAIL(err, PL_EINPUT, "%s: " DAMAGED, path);
}

/* *out: the whole document, to be released. */
static int read_state(pl_error *err, const char *folder, pl_progress_state *state, json_t **out)
{
    char *path;
    json_t *json = NULL;
    *state = (pl_progress_state){.best_loss = NAN};
    PL_TRY(pl_path_join(err, folder, PL_STATE_FILE, &path));
    int rc;
    PL_GO(done, pl_json_read(err, path, &json));
    PL_GO(done, check_state(err, path, json));
    PL_GO(done, pl_json_int(err, path, json, "step", &state->step));
    PL_GO(done, pl_json_int(err, path, json, "targets", &state->targets));
    PL_GO(done, pl_json_int(err, path, json, "micro_batches", &state->micro_batches));
    PL_GO(done, pl_json_int(err, path, json, "best_step", &state->best_step));
    PL_GO(done, pl_json_int(err, path, json, "worse", &state->worse));
    rc = pl_json_real(err, path, json, "best_loss", &state->best_loss);
done:
    free(path);
    if (rc < 0) json_decref(json);
    *out = rc < 0 ? NULL : json;
    return rc;
}

/* Puts in front of the error what can be done about it. */
static int cannot_use(pl_error *err, const char *output, int64_t step)
{
    int64_t earlier;
    pl_error ignored = {0};
    char offer[128] = "there is no earlier checkpoint: remove it to begin anew";
    if (pl_checkpoint_before(&ignored, output, step, &earlier) == 0 && earlier >= 0) {
        snprintf(offer, sizeof offer, "remove it to go on from step %lld", (long long)earlier);
    }
    return pl_error_prefix(
        err, "the checkpoint %s/checkpoints/step-%08lld cannot be used (%s)", output, (long long)step, offer);
}

int pl_checkpoint_peek(pl_error *err, const char *output, int64_t step, pl_progress_state *state)
{
    char *folder;
    json_t *json;
    PL_TRY(pl_checkpoint_folder(err, output, step, "", &folder));
    int rc = read_state(err, folder, state, &json);
    free(folder);
    if (rc < 0) return cannot_use(err, output, step);
    json_decref(json);
    return 0;
}

/* ---- tensors ---- */

/* A tensor of the files, and what of the run is loaded from it. */
typedef struct entry {
    const pl_st_tensor *tensor;
    const pl_param *param; /* NULL: nothing; it is only checked */
    pl_state state;
} entry;

typedef struct loading {
    pl_session *session;
    const char *folder;
    json_t *state;
    pl_weights *weights;
    pl_safetensors *moments;
    entry *entries;
    uint64_t *sums;
    int count;
} loading;

static void loading_close(loading *l)
{
    free(l->entries);
    free(l->sums);
    pl_safetensors_close(l->moments);
    pl_weights_close(l->weights);
    json_decref(l->state);
}

/* Files as a whole, but of those with tensors the headers; they are shared out among the processes. */
static int check_files(pl_error *err, const loading *l)
{
    const char *name;
    const json_t *files = json_object_get(l->state, "files");
    json_t *value;
    int number = 0, processes = l->session->comm ? l->session->comm->size : 1;
    json_object_foreach((json_t *)files, name, value)
    {
        char text[33];
        if (number++ % processes != l->session->process) continue;
        PL_TRY(pl_checksum_file(err, l->folder, name, text));
        if (json_is_string(value) && strcmp(text, json_string_value(value)) == 0) continue;
        return PL_FAIL(err, PL_EINPUT, "%s/%s: " DAMAGED, l->folder, name);
    }
    return 0;
}

static int open_files(pl_error *err, loading *l)
{
    char *tensors = NULL, *moments = NULL;
    int rc;
    PL_GO(done, pl_path_join(err, l->folder, "adapter_model.safetensors", &tensors));
    PL_GO(done, pl_path_join(err, l->folder, PL_MOMENTS_FILE, &moments));
    PL_GO(done, l->session->has_adapter ? pl_weights_open_file(err, tensors, &l->weights)
                                        : pl_weights_open(err, l->folder, &l->weights));
    PL_GO(done, pl_safetensors_open(err, moments, &l->moments));
    int first = pl_weights_count(l->weights), count = first + pl_safetensors_count(l->moments);
    PL_GO(done, pl_calloc(err, (size_t)count, sizeof *l->entries, &l->entries));
    PL_GO(done, pl_calloc(err, (size_t)count, sizeof *l->sums, &l->sums));
    l->count = count;
    for (int i = 0; i < count; i++) {
        l->entries[i].tensor = i < first ? pl_weights_at(l->weights, i) : pl_safetensors_at(l->moments, i - first);
    }
done:
    free(tensors);
    free(moments);
    return rc;
}

/* The tensor of a state; the shapes must be the same. */
static int assign(pl_error *err, loading *l, const pl_st_tensor *t, const pl_param *p, pl_state state)
{
    bool same = t->ndim == p->ndim && t->known && t->dtype == PL_F32;
    for (int d = 0; d < p->ndim && same; d++) same = t->shape[d] == p->shape[d];
    if (!same) {
        char text[96];
        return PL_FAIL(err, PL_EINPUT, "%s: tensor %s is %s, which does not fit this run's model", t->file, t->name,
            pl_st_describe(t, text));
    }
    for (int i = 0; i < l->count; i++) {
        if (l->entries[i].tensor != t) continue;
        l->entries[i].param = p;
        l->entries[i].state = state;
    }
    return 0;
}

static int find_master(pl_error *err, loading *l, const pl_param *p, const pl_st_tensor **out)
{
    if (l->session->has_adapter) {
        PL_TRY(pl_adapter_find_param(err, l->weights, l->session->model, p, out));
    } else {
        *out = pl_weights_peek(l->weights, p->name);
    }
    return *out ? 0 : PL_FAIL(err, PL_EINPUT, "the checkpoint has no %s: it is of another model", p->name);
}

static int find_moment(pl_error *err, const loading *l, const pl_param *p, int moment, const pl_st_tensor **out)
{
    char *name;
    PL_TRY(pl_format(err, &name, "moment%d.%s", moment, p->name));
    *out = pl_safetensors_find(l->moments, name);
    free(name);
    return *out ? 0 : PL_FAIL(err, PL_EINPUT, "the checkpoint has no optimizer state for %s", p->name);
}

static int assign_all(pl_error *err, loading *l)
{
    const pl_store *store = pl_engine_store(l->session->engine);
    const pl_st_tensor *t;
    for (int i = 0; i < l->session->model->nparams; i++) {
        const pl_param *p = l->session->model->params[i];
        if (!pl_store_has(store, p, PL_STATE_MASTER)) continue;
        PL_TRY(find_master(err, l, p, &t));
        PL_TRY(assign(err, l, t, p, PL_STATE_MASTER));
        for (int m = 1; m <= 2; m++) {
            pl_state state = (pl_state)(PL_STATE_MOMENT1 + m - 1);
            if (!pl_store_has(store, p, state)) continue;
            PL_TRY(find_moment(err, l, p, m, &t));
            PL_TRY(assign(err, l, t, p, state));
        }
    }
    return 0;
}

/* The part of a tensor that nobody loads which this process checks. */
static pl_extent part_of(const loading *l, const pl_st_tensor *t)
{
    const pl_comm *comm = l->session->comm;
    int64_t grains = (t->numel + PL_GRAIN - 1) / PL_GRAIN;
    int64_t first = comm ? pl_comm_cut(grains, 1, comm->size, comm->rank) * PL_GRAIN : 0,
            end = comm ? pl_comm_cut(grains, 1, comm->size, comm->rank + 1) * PL_GRAIN : t->numel;
    return (pl_extent){.first = first, .count = (end < t->numel ? end : t->numel) - first};
}

static int64_t end_of(pl_extent e)
{
    return e.first + e.count;
}

/* Copies what this process keeps, and adds up what of it is its share in the check. */
static int load_entry(pl_error *err, const loading *l, const entry *e, uint64_t *sum)
{
    pl_store *store = pl_engine_store(l->session->engine);
    const pl_st_tensor *t = e->tensor;
    if (!t->known || t->dtype != PL_F32) return PL_FAIL(err, PL_EINPUT, "%s: tensor %s is not F32", t->file, t->name);
    pl_extent checked = e->param ? pl_store_share(store, e->param, e->state) : part_of(l, t);
    pl_extent kept = e->param ? pl_store_kept(store, e->param, e->state) : checked;
    for (int64_t at = kept.first; at < end_of(kept); at += LOADED) {
        int64_t end = end_of(kept) - at < LOADED ? end_of(kept) : at + LOADED;
        const char *data = t->data;
        if (e->param) PL_TRY(pl_store_write(err, store, e->param, e->state, at, end - at, data + 4 * at));
        int64_t from = at > checked.first ? at : checked.first, to = end < end_of(checked) ? end : end_of(checked);
        if (from < to) pl_checksum_add(sum, data + 4 * from, from, to - from);
        pl_map_forget(t->map, data + 4 * at, 4 * (size_t)(end - at));
    }
    return 0;
}

static int load_tensors(pl_error *err, loading *l)
{
    PL_TRY(open_files(err, l));
    PL_TRY(assign_all(err, l));
    for (int i = 0; i < l->count; i++) PL_TRY(load_entry(err, l, &l->entries[i], &l->sums[i]));
    return 0;
}

static int check_sums(pl_error *err, const loading *l)
{
    const json_t *told = json_object_get(l->state, "tensors");
    for (int i = 0; i < l->count; i++) {
        char text[17];
        const pl_st_tensor *t = l->entries[i].tensor;
        const char *expected = json_string_value(json_object_get(told, t->name));
        snprintf(text, sizeof text, "%016llx", (unsigned long long)l->sums[i]);
        if (expected && strcmp(text, expected) == 0) continue;
        return PL_FAIL(err, PL_EINPUT, "%s: " DAMAGED " (tensor %s)", t->file, t->name);
    }
    return 0;
}

static int load(pl_error *err, loading *l, pl_progress_state *state)
{
    pl_session *s = l->session;
    int rc = read_state(err, l->folder, state, &l->state);
    if (rc == 0) rc = check_files(err, l);
    PL_TRY(pl_session_agree(err, s, rc));
    PL_TRY(pl_session_agree(err, s, load_tensors(err, l)));
    PL_TRY(pl_checksum_share(err, s->comm, l->sums, l->count));
    PL_TRY(pl_session_agree(err, s, check_sums(err, l)));
    return pl_store_refresh(pl_engine_store(s->engine));
}

int pl_checkpoint_load(pl_error *err, pl_session *session, const char *output, int64_t step, pl_progress_state *state)
{
    char *folder = NULL;
    PL_TRY(pl_session_agree(err, session, pl_checkpoint_folder(err, output, step, "", &folder)));
    loading l = {.session = session, .folder = folder};
    int rc = load(err, &l, state);
    loading_close(&l);
    free(folder);
    return rc < 0 ? cannot_use(err, output, step) : 0;
}
