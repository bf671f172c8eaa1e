#include "api/checkpoint_internal.h"

#include <dirent.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/checksum.h"
#include "api/save.h"
#include "api/together.h"
#include "base/file.h"
#include "base/thread.h"

#define PREFIX "step-"
#define ASIDE ".tmp" /* being written */
#define GONE ".old"  /* being removed */

int pl_checkpoint_folder(pl_error *err, const char *output, int64_t step, const char *end, char **out)
{
    return pl_format(err, out, "%s/checkpoints/" PREFIX "%08lld%s", output, (long long)step, end);
}

/* ---- finding ---- */

/* The step of a checkpoint's folder, -1 if the name is none. `end`: what comes after the number. */
static int64_t step_of(const char *name, const char *expected)
{
    if (strncmp(name, PREFIX, strlen(PREFIX)) != 0) return -1;
    char *end;
    long long step = strtoll(name + strlen(PREFIX), &end, 10);
    return strcmp(end, expected) == 0 && end != name + strlen(PREFIX) ? step : -1;
}

/* Of the folders whose names end so. */
static int find_below(pl_error *err, const char *output, int64_t below, const char *end, int64_t *step)
{
    char *path;
    *step = -1;
    PL_TRY(pl_path_join(err, output, "checkpoints", &path));
    DIR *dir = opendir(path);
    int rc = 0;
    if (!dir && errno != ENOENT) rc = PL_FAIL(err, PL_EIO, "%s: cannot be read: %s", path, strerror(errno));
    for (struct dirent *entry; dir && (entry = readdir(dir));) {
        int64_t s = step_of(entry->d_name, end);
        if (s < below && s > *step) *step = s;
    }
    if (dir) closedir(dir);
    free(path);
    return rc;
}

int pl_checkpoint_before(pl_error *err, const char *output, int64_t below, int64_t *step)
{
    return find_below(err, output, below, "", step);
}

int pl_checkpoint_latest(pl_error *err, const char *output, int64_t *step)
{
    return find_below(err, output, INT64_MAX, "", step);
}

static int remove_folder(pl_error *err, const char *output, int64_t step, const char *end)
{
    char *folder;
    PL_TRY(pl_checkpoint_folder(err, output, step, end, &folder));
    int rc = pl_dir_remove(err, folder);
    free(folder);
    return rc;
}

/* A checkpoint goes as it came: at once. */
static int discard(pl_error *err, const char *output, int64_t step)
{
    char *folder = NULL, *gone = NULL;
    int rc;
    PL_GO(done, pl_checkpoint_folder(err, output, step, "", &folder));
    PL_GO(done, pl_checkpoint_folder(err, output, step, GONE, &gone));
    PL_GO(done, pl_dir_remove(err, gone));
    if (rename(folder, gone) == 0) {
        rc = pl_dir_remove(err, gone);
    } else if (errno != ENOENT) {
        rc = PL_FAIL(err, PL_EIO, "%s: cannot be removed: %s", folder, strerror(errno));
    }
done:
    free(folder);
    free(gone);
    return rc;
}

static int sweep(pl_error *err, const char *output, const char *end)
{
    for (int64_t step = INT64_MAX;;) {
        PL_TRY(find_below(err, output, step, end, &step));
        if (step < 0) return 0;
        PL_TRY(remove_folder(err, output, step, end));
    }
}

int pl_checkpoint_sweep(pl_error *err, const char *output)
{
    PL_TRY(sweep(err, output, ASIDE));
    return sweep(err, output, GONE);
}

/* Removes checkpoints from the oldest on, until `keep` are left. */
static int prune(pl_error *err, const char *output, int64_t keep)
{
    int64_t step = INT64_MAX;
    for (int64_t seen = 0; keep > 0; seen++) {
        PL_TRY(pl_checkpoint_before(err, output, step, &step));
        if (step < 0) return 0;
        if (seen >= keep) PL_TRY(discard(err, output, step));
    }
    return 0;
}

/* ---- state.json ---- */

int pl_checkpoint_sum_state(pl_error *err, const json_t *state, char text[33])
{
    json_t *rest;
    pl_buf bytes = {0};
    PL_TRY(pl_json_copy(err, state, &rest));
    json_object_del(rest, "checksum");
    int rc = pl_json_text(err, rest, JSON_SORT_KEYS, &bytes);
    if (rc == 0) pl_checksum_text(bytes.data, bytes.size, text);
    pl_buf_free(&bytes);
    json_decref(rest);
    return rc;
}

static int set_text(pl_error *err, json_t *object, const char *key, const char *text)
{
    return json_object_set_new(object, key, json_string(text)) == 0 ? 0 : PL_FAIL_NOMEM(err);
}

/* {"name": "checksum"} of every file in the folder. */
static int sum_files(pl_error *err, const char *folder, json_t *files)
{
    DIR *dir = opendir(folder);
    if (!dir) return PL_FAIL(err, PL_EIO, "%s: cannot be read: %s", folder, strerror(errno));
    int rc = 0;
    for (struct dirent *entry; rc == 0 && (entry = readdir(dir));) {
        char text[33];
        if (entry->d_name[0] == '.') continue;
        rc = pl_checksum_file(err, folder, entry->d_name, text);
        if (rc == 0) rc = set_text(err, files, entry->d_name, text);
    }
    closedir(dir);
    return rc;
}

static int sum_tensors(pl_error *err, const pl_saving *s, json_t *tensors)
{
    for (int i = 0; i < s->count; i++) {
        char text[17];
        snprintf(text, sizeof text, "%016llx", (unsigned long long)s->sums[i]);
        PL_TRY(set_text(err, tensors, s->names[i], text));
    }
    return 0;
}

static int write_state(pl_error *err, const pl_saving *saving, const pl_progress_state *state)
{
    char *path = NULL, text[33];
    json_t *files = json_object(), *tensors = json_object();
    json_t *json = json_pack("{s:i, s:I, s:I, s:I, s:I, s:I, s:O, s:O}", "format", PL_CHECKPOINT_FORMAT, "step",
        (json_int_t)state->step, "targets", (json_int_t)state->targets, "micro_batches",
        (json_int_t)state->micro_batches, "best_step", (json_int_t)state->best_step, "worse", (json_int_t)state->worse,
        "files", files, "tensors", tensors);
    bool judged = isfinite(state->best_loss);
    int rc = 0;
    if (!json || (judged && json_object_set_new(json, "best_loss", json_real(state->best_loss)) != 0)) {
        rc = PL_FAIL_NOMEM(err);
        goto done;
    }
    PL_GO(done, sum_files(err, saving->folder, files));
    PL_GO(done, sum_tensors(err, saving, tensors));
    PL_GO(done, pl_checkpoint_sum_state(err, json, text));
    PL_GO(done, set_text(err, json, "checksum", text));
    PL_GO(done, pl_path_join(err, saving->folder, PL_STATE_FILE, &path));
    rc = pl_json_write(err, path, json);
done:
    free(path);
    json_decref(json);
    json_decref(tensors);
    json_decref(files);
    return rc;
}

/* ---- writing ---- */

struct pl_checkpoint {
    pl_session *session;
    char *output, *folder, *aside, *parent;
    pl_progress_state state;
    pl_saving saving;
    pl_begun begun;
    bool opened; /* the saving */
    pthread_t thread;
    bool running;
    pl_error own; /* the thread's */
};

static int find_place(pl_error *err, const char *output, pl_checkpoint *c)
{
    PL_TRY(pl_strdup(err, output, &c->output));
    PL_TRY(pl_checkpoint_folder(err, output, c->state.step, "", &c->folder));
    PL_TRY(pl_checkpoint_folder(err, output, c->state.step, ASIDE, &c->aside));
    return pl_path_join(err, output, "checkpoints", &c->parent);
}

static int begin_aside(pl_error *err, const pl_checkpoint *c)
{
    PL_TRY(pl_dir_remove(err, c->aside));
    return pl_dir_make(err, c->aside);
}

static void *fill(void *user)
{
    pl_checkpoint *c = user;
    pl_fill_begun(&c->own, &c->begun);
    return NULL;
}

static void join(pl_checkpoint *c)
{
    if (c->running) pthread_join(c->thread, NULL);
    c->running = false;
}

static void checkpoint_free(pl_checkpoint *c)
{
    pl_begun_close(&c->begun);
    if (c->opened) pl_saving_close(&c->saving);
    free(c->output);
    free(c->folder);
    free(c->aside);
    free(c->parent);
    free(c);
}

void pl_checkpoint_abandon(pl_checkpoint *c)
{
    pl_error ignored = {0};
    if (!c) return;
    if (c->running) atomic_store(&c->saving.stops, true);
    join(c);
    if (c->aside && pl_session_leads(c->session)) pl_dir_remove(&ignored, c->aside);
    checkpoint_free(c);
}

/* All but the tensors' data. */
static int begin(pl_error *err, pl_checkpoint *c, const char *output)
{
    pl_session *s = c->session;
    int rc = find_place(err, output, c);
    if (rc == 0 && pl_session_leads(s)) rc = begin_aside(err, c);
    if (rc == 0) {
        rc = pl_saving_open(err, s, c->aside, true, &c->saving);
        c->opened = rc == 0;
    }
    PL_TRY(pl_session_agree(err, s, rc));
    return pl_begin_together(err, s->comm, c->saving.items, c->saving.count, pl_saving_lead, &c->saving, &c->begun);
}

int pl_checkpoint_begin(pl_error *err, pl_session *session, const char *output, const pl_progress_state *state,
    bool background, pl_checkpoint **out)
{
    pl_checkpoint *c = NULL;
    int rc = pl_calloc(err, 1, sizeof *c, &c);
    PL_GO(failed, pl_session_agree(err, session, rc));
    c->session = session;
    c->state = *state;
    PL_GO(failed, begin(err, c, output));
    if (background) {
        rc = pl_thread_start(err, "the checkpoint", fill, c, &c->thread);
        c->running = rc == 0;
        PL_GO(failed, pl_session_agree(err, session, rc));
    }
    *out = c;
    return 0;
failed:
    *out = NULL;
    if (c && c->session)
        pl_checkpoint_abandon(c);
    else
        free(c);
    return rc;
}

/* The tensors are there: the rest, and into place. */
static int finish(pl_error *err, const pl_checkpoint *c, int64_t keep)
{
    PL_TRY(write_state(err, &c->saving, &c->state));
    PL_TRY(pl_dir_sync(err, c->aside));
    PL_TRY(
        discard(err, c->output, c->state.step)); /* of the same step, as when a run begins again from an earlier one */
    if (rename(c->aside, c->folder) != 0) {
        return PL_FAIL(err, PL_EIO, "%s: cannot be renamed into place: %s", c->aside, strerror(errno));
    }
    PL_TRY(pl_dir_sync(err, c->parent));
    return prune(err, c->output, keep);
}

int pl_checkpoint_end(pl_error *err, pl_checkpoint *c, int64_t keep)
{
    pl_session *s = c->session;
    int rc;
    if (c->running) {
        join(c);
    } else {
        fill(c);
    }
    if (c->own.code < 0 && err->code == 0) *err = c->own;
    PL_GO(failed, pl_session_agree(err, s, c->own.code));
    PL_GO(failed, pl_checksum_share(err, s->comm, c->saving.sums, c->saving.count));
    PL_GO(failed, pl_session_agree(err, s, pl_session_leads(s) ? finish(err, c, keep) : 0));
    checkpoint_free(c);
    return 0;
failed:
    pl_checkpoint_abandon(c);
    return rc;
}
