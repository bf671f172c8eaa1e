#include "api/checkpoint.h"

#include <dirent.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "api/adapter.h"
#include "api/save.h"
#include "base/file.h"
#include "io/safetensors.h"

#define FORMAT 1
#define PREFIX "step-"
#define LOADED ((int64_t)1 << 20) /* elements of a file that are in memory twice when it is loaded */

static int folder_name(pl_error *err, const char *output, int64_t step, const char *end, char **out)
{
    return pl_format(err, out, "%s/checkpoints/" PREFIX "%08lld%s", output, (long long)step, end);
}

/* ---- finding ---- */

/* The step of a checkpoint's folder, -1 if the name is none. */
static int64_t step_of(const char *name)
{
    if (strncmp(name, PREFIX, strlen(PREFIX)) != 0) return -1;
    char *end;
    long long step = strtoll(name + strlen(PREFIX), &end, 10);
    return *end == 0 && end != name + strlen(PREFIX) ? step : -1;
}

/* The largest step below `below`; -1: none. */
static int find_below(pl_error *err, const char *output, int64_t below, int64_t *step)
{
    char *path;
    *step = -1;
    PL_TRY(pl_path_join(err, output, "checkpoints", &path));
    DIR *dir = opendir(path);
    int rc = 0;
    if (!dir && errno != ENOENT) rc = PL_FAIL(err, PL_EIO, "%s: cannot be read: %s", path, strerror(errno));
    for (struct dirent *entry; dir && (entry = readdir(dir));) {
        int64_t s = step_of(entry->d_name);
        if (s < below && s > *step) *step = s;
    }
    if (dir) closedir(dir);
    free(path);
    return rc;
}

int pl_checkpoint_latest(pl_error *err, const char *output, int64_t *step)
{
    return find_below(err, output, INT64_MAX, step);
}

/* ---- writing ---- */

static int hash_piece(pl_error *err, void *user, const void *bytes, size_t size)
{
    (void)err;
    XXH3_128bits_update(user, bytes, size);
    return 0;
}

static int hash_file(pl_error *err, const char *folder, const char *name, char text[33])
{
    char *path;
    PL_TRY(pl_path_join(err, folder, name, &path));
    XXH3_state_t *state = XXH3_createState();
    int rc = 0;
    if (!state) {
        rc = PL_FAIL_NOMEM(err);
        goto done;
    }
    XXH3_128bits_reset(state);
    PL_GO(done, pl_file_stream(err, path, hash_piece, state));
    XXH128_hash_t h = XXH3_128bits_digest(state);
    snprintf(text, 33, "%016llx%016llx", (unsigned long long)h.high64, (unsigned long long)h.low64);
done:
    XXH3_freeState(state);
    free(path);
    return rc;
}

/* {"name": "checksum"} of every file in the folder. */
static int hash_all(pl_error *err, const char *folder, json_t *files)
{
    DIR *dir = opendir(folder);
    if (!dir) return PL_FAIL(err, PL_EIO, "%s: cannot be read: %s", folder, strerror(errno));
    int rc = 0;
    for (struct dirent *entry; rc == 0 && (entry = readdir(dir));) {
        char text[33];
        if (entry->d_name[0] == '.') continue;
        rc = hash_file(err, folder, entry->d_name, text);
        if (rc == 0 && json_object_set_new(files, entry->d_name, json_string(text)) != 0) rc = PL_FAIL_NOMEM(err);
    }
    closedir(dir);
    return rc;
}

static int write_state(pl_error *err, const char *folder, const pl_progress_state *state)
{
    char *path = NULL;
    json_t *files = json_object(), *json = NULL;
    int rc = files ? hash_all(err, folder, files) : PL_FAIL_NOMEM(err);
    if (rc < 0) goto done;
    json = json_pack("{s:i, s:I, s:I, s:I, s:I, s:I, s:O}", "format", FORMAT, "step", (json_int_t)state->step,
        "targets", (json_int_t)state->targets, "micro_batches", (json_int_t)state->micro_batches, "best_step",
        (json_int_t)state->best_step, "worse", (json_int_t)state->worse, "files", files);
    if (!json) {
        rc = PL_FAIL_NOMEM(err);
        goto done;
    }
    if (isfinite(state->best_loss) && json_object_set_new(json, "best_loss", json_real(state->best_loss)) != 0) {
        rc = PL_FAIL_NOMEM(err);
        goto done;
    }
    PL_GO(done, pl_path_join(err, folder, "state.json", &path));
    rc = pl_json_write(err, path, json);
done:
    free(path);
    json_decref(json);
    json_decref(files);
    return rc;
}

/* Removes checkpoints from the oldest on, until `keep` are left. */
static int prune(pl_error *err, const char *output, int64_t keep)
{
    int64_t step = INT64_MAX;
    for (int64_t seen = 0; keep > 0; seen++) {
        PL_TRY(find_below(err, output, step, &step));
        if (step < 0) return 0;
        if (seen < keep) continue;
        char *folder;
        PL_TRY(folder_name(err, output, step, "", &folder));
        int rc = pl_dir_remove(err, folder);
        free(folder);
        if (rc < 0) return rc;
    }
    return 0;
}

/* The names of a checkpoint's folders. */
typedef struct place {
    char *folder, *aside, *parent;
} place;

static int find_place(pl_error *err, const char *output, int64_t step, place *p)
{
    PL_TRY(folder_name(err, output, step, "", &p->folder));
    PL_TRY(folder_name(err, output, step, ".tmp", &p->aside));
    return pl_path_join(err, output, "checkpoints", &p->parent);
}

static int begin_aside(pl_error *err, const place *p)
{
    PL_TRY(pl_dir_remove(err, p->aside));
    return pl_dir_make(err, p->aside);
}

/* The tensors are there: the rest, and into place. */
static int finish(pl_error *err, const place *p, const char *output, const pl_progress_state *state, int64_t keep)
{
    PL_TRY(write_state(err, p->aside, state));
    PL_TRY(pl_dir_sync(err, p->aside));
    PL_TRY(pl_dir_remove(err, p->folder)); /* of the same step, as when a run begins again from an earlier one */
    if (rename(p->aside, p->folder) != 0) {
        return PL_FAIL(err, PL_EIO, "%s: cannot be renamed into place: %s", p->aside, strerror(errno));
    }
    PL_TRY(pl_dir_sync(err, p->parent));
    return prune(err, output, keep);
}

static int write_tensors(pl_error *err, pl_session *session, const place *p)
{
    char *moments;
    PL_TRY(pl_save_result(err, session, p->aside, PL_F32));
    int rc = pl_path_join(err, p->aside, "optimizer.safetensors", &moments);
    PL_TRY(pl_session_agree(err, session, rc));
    rc = pl_save_moments(err, session, moments);
    free(moments);
    return rc;
}

int pl_checkpoint_write(
    pl_error *err, pl_session *session, const char *output, const pl_progress_state *state, int64_t keep)
{
    place p = {0};
    int rc = find_place(err, output, state->step, &p);
    if (rc == 0 && pl_session_leads(session)) rc = begin_aside(err, &p);
    PL_GO(done, pl_session_agree(err, session, rc));
    PL_GO(done, write_tensors(err, session, &p));
    if (pl_session_leads(session)) rc = finish(err, &p, output, state, keep);
    rc = pl_session_agree(err, session, rc);
done:
    if (rc < 0 && p.aside && pl_session_leads(session)) {
        pl_error ignored = {0};
        pl_dir_remove(&ignored, p.aside);
    }
    free(p.folder);
    free(p.aside);
    free(p.parent);
    return rc;
}

/* ---- loading ---- */

/* The files are shared out among the processes, of which this one is number `process`. */
static int check_files(pl_error *err, const char *folder, const json_t *files, int process, int processes)
{
    const char *name;
    json_t *value;
    int number = 0;
    if (!json_is_object(files)) return PL_FAIL(err, PL_EINPUT, "%s/state.json: has no list of files", folder);
    json_object_foreach((json_t *)files, name, value)
    {
        char text[33];
        if (number++ % processes != process) continue;
        PL_TRY(hash_file(err, folder, name, text));
        if (json_is_string(value) && strcmp(text, json_string_value(value)) == 0) continue;
        return PL_FAIL(err, PL_EINPUT, "%s/%s: is damaged: its content is not what was written", folder, name);
    }
    return 0;
}

/* `files`: the list of files is wanted too, to be released. */
static int read_state(pl_error *err, const char *folder, pl_progress_state *state, json_t **files)
{
    char *path;
    json_t *json;
    int64_t format = 0;
    PL_TRY(pl_path_join(err, folder, "state.json", &path));
    int rc = pl_json_read(err, path, &json);
    if (rc < 0) {
        free(path);
        return rc;
    }
    *state = (pl_progress_state){.best_loss = NAN};
    PL_GO(done, pl_json_int(err, path, json, "format", &format));
    if (format != FORMAT) {
        rc = PL_FAIL(
            err, PL_EUNSUPPORTED, "%s: is of format %lld; this plait reads %d", path, (long long)format, FORMAT);
        goto done;
    }
    PL_GO(done, pl_json_int(err, path, json, "step", &state->step));
    PL_GO(done, pl_json_int(err, path, json, "targets", &state->targets));
    PL_GO(done, pl_json_int(err, path, json, "micro_batches", &state->micro_batches));
    PL_GO(done, pl_json_int(err, path, json, "best_step", &state->best_step));
    PL_GO(done, pl_json_int(err, path, json, "worse", &state->worse));
    PL_GO(done, pl_json_real(err, path, json, "best_loss", &state->best_loss));
    if (files) *files = json_incref(json_object_get(json, "files"));
done:
    json_decref(json);
    free(path);
    return rc;
}

int pl_checkpoint_peek(pl_error *err, const char *output, int64_t step, pl_progress_state *state)
{
    char *folder;
    PL_TRY(folder_name(err, output, step, "", &folder));
    int rc = read_state(err, folder, state, NULL);
    free(folder);
    return rc;
}

/* Copies what this process keeps of a tensor from a file into a state of the store; the shapes must be the same. */
static int load_tensor(pl_error *err, pl_session *s, const pl_st_tensor *t, const pl_param *p, pl_state state)
{
    pl_store *store = pl_engine_store(s->engine);
    pl_extent to = pl_store_kept(store, p, state);
    bool same = t->ndim == p->ndim;
    for (int d = 0; d < p->ndim && same; d++) same = t->shape[d] == p->shape[d];
    if (!same || t->dtype != PL_F32 || !t->known) {
        char text[96];
        return PL_FAIL(err, PL_EINPUT, "%s: tensor %s is %s, which does not fit this run's model", t->file, t->name,
            pl_st_describe(t, text));
    }
    for (int64_t at = to.first; at < to.first + to.count; at += LOADED) {
        int64_t left = to.first + to.count - at, n = left < LOADED ? left : LOADED;
        const char *from = (const char *)t->data + 4 * at;
        PL_TRY(pl_store_write(err, store, p, state, at, n, from));
        pl_map_forget(t->map, from, 4 * (size_t)n);
    }
    return 0;
}

static int load_masters(pl_error *err, pl_session *s, pl_weights *w)
{
    for (int i = 0; i < s->model->nparams; i++) {
        const pl_param *p = s->model->params[i];
        const pl_st_tensor *t = NULL;
        if (!pl_store_has(pl_engine_store(s->engine), p, PL_STATE_MASTER)) continue;
        if (s->has_adapter) {
            PL_TRY(pl_adapter_find_param(err, w, s->model, p, &t));
        } else {
            t = pl_weights_peek(w, p->name);
        }
        if (!t) return PL_FAIL(err, PL_EINPUT, "the checkpoint has no %s: it is of another model", p->name);
        PL_TRY(load_tensor(err, s, t, p, PL_STATE_MASTER));
    }
    return 0;
}

static int load_moments(pl_error *err, pl_session *s, const pl_safetensors *file)
{
    for (int i = 0; i < 2 * s->model->nparams; i++) {
        const pl_param *p = s->model->params[i / 2];
        pl_state state = i % 2 ? PL_STATE_MOMENT2 : PL_STATE_MOMENT1;
        if (!pl_store_has(pl_engine_store(s->engine), p, state)) continue;
        char *name;
        PL_TRY(pl_format(err, &name, "moment%d.%s", i % 2 + 1, p->name));
        const pl_st_tensor *t = pl_safetensors_find(file, name);
        free(name);
        if (!t) return PL_FAIL(err, PL_EINPUT, "the checkpoint has no optimizer state for %s", p->name);
        PL_TRY(load_tensor(err, s, t, p, state));
    }
    return 0;
}

static int load(pl_error *err, pl_session *s, const char *folder, pl_progress_state *state)
{
    char *tensors = NULL, *moments = NULL;
    json_t *files = NULL;
    pl_weights *w = NULL;
    pl_safetensors *file = NULL;
    int rc;
    PL_GO(done, read_state(err, folder, state, &files));
    PL_GO(done, check_files(err, folder, files, s->process, s->comm ? s->processes : 1));
    if (s->has_adapter) {
        PL_GO(done, pl_path_join(err, folder, "adapter_model.safetensors", &tensors));
        PL_GO(done, pl_weights_open_file(err, tensors, &w));
    } else {
        PL_GO(done, pl_weights_open(err, folder, &w));
    }
    PL_GO(done, load_masters(err, s, w));
    PL_GO(done, pl_path_join(err, folder, "optimizer.safetensors", &moments));
    PL_GO(done, pl_safetensors_open(err, moments, &file));
    rc = load_moments(err, s, file);
done:
    pl_safetensors_close(file);
    pl_weights_close(w);
    json_decref(files);
    free(tensors);
    free(moments);
    return rc;
}

int pl_checkpoint_load(pl_error *err, pl_session *session, const char *output, int64_t step, pl_progress_state *state)
{
    char *folder = NULL;
    PL_TRY(pl_session_agree(err, session, folder_name(err, output, step, "", &folder)));
    int rc = pl_session_agree(err, session, load(err, session, folder, state));
    if (rc == 0) rc = pl_store_refresh(pl_engine_store(session->engine));
    if (rc < 0) {
        int64_t earlier;
        pl_error ignored = {0};
        find_below(&ignored, output, step, &earlier);
        char offer[128] = "there is no earlier checkpoint: remove it to begin anew";
        if (earlier >= 0) {
            snprintf(offer, sizeof offer, "remove it to go on from step %lld", (long long)earlier);
        }
        pl_error_prefix(err, "the checkpoint %s cannot be used (%s)", folder, offer);
    }
    free(folder);
    return rc;
}
