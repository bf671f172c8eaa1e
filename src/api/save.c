#include "api/save.h"

#include <stdlib.h>
#include <string.h>

#include "api/adapter.h"
#include "api/checksum.h"
#include "api/data.h"
#include "api/together.h"
#include "base/file.h"
#include "io/model_folder.h"
#include "tensor/convert.h"

#define CONVERTED 2048 /* elements at a time */

/* Where the elements of one written tensor come from. */
struct pl_saved {
    const pl_saving *saving;
    const pl_param *param;
    pl_state state;
    pl_dtype dtype; /* that the store has it in */
};

static int read_stored(pl_error *err, const struct pl_saved *r, int64_t first, int64_t count, void *out)
{
    const pl_store *store = pl_engine_store(r->saving->session->engine);
    return pl_store_read(err, store, r->param, r->state, first, count, out);
}

static int read_some(pl_error *err, void *user, int64_t first, int64_t count, void *out)
{
    return read_stored(err, user, first, count, out);
}

/* As f32, noting what is read in the checksum. */
static int read_and_sum(pl_error *err, void *user, int64_t first, int64_t count, void *out)
{
    const struct pl_saved *r = user;
    pl_saving *saving = (pl_saving *)r->saving;
    uint32_t stored[CONVERTED]; /* of any type */
    if (atomic_load(&saving->stops)) return PL_FAIL(err, PL_ESTOPPED, "%s: was not written to its end", saving->folder);
    if (r->dtype == PL_F32) {
        PL_TRY(read_stored(err, r, first, count, out));
    } else {
        for (int64_t at = 0; at < count; at += CONVERTED) {
            int64_t n = count - at < CONVERTED ? count - at : CONVERTED;
            PL_TRY(read_stored(err, r, first + at, n, stored));
            PL_TRY(pl_convert(err, (float *)out + at, PL_F32, stored, r->dtype, n));
        }
    }
    pl_checksum_add(&saving->sums[r - saving->saved], out, first, count);
    return 0;
}

/* ---- what is to be written ---- */

void pl_saving_close(pl_saving *s)
{
    for (int i = 0; s->names && i < s->count; i++) free(s->names[i]);
    free(s->names);
    free(s->items);
    free(s->saved);
    free(s->sums);
}

/* Room was made. */
static void add(pl_saving *s, const pl_param *p, pl_state state, char *name, pl_dtype dtype)
{
    int i = s->count++;
    pl_extent share = pl_store_share(pl_engine_store(s->session->engine), p, state);
    s->names[i] = name;
    s->saved[i] = (struct pl_saved){s, p, state, share.dtype};
    s->items[i] = (pl_st_source){.spec = {.name = name, .dtype = dtype, .ndim = p->ndim},
        .given = s->checkpoint ? PL_F32 : share.dtype,
        .read = s->checkpoint ? read_and_sum : read_some,
        .user = &s->saved[i],
        .first = share.first,
        .held = share.count};
    for (int d = 0; d < p->ndim; d++) s->items[i].spec.shape[d] = p->shape[d];
}

static int add_result(pl_error *err, pl_saving *s, const pl_param *p)
{
    char *name;
    const pl_session *session = s->session;
    if (p->in_adapter && session->has_adapter) {
        PL_TRY(pl_adapter_param_key(err, session->model, p, &name));
    } else {
        PL_TRY(pl_strdup(err, p->name, &name));
    }
    add(s, p, PL_STATE_MASTER, name, session->has_adapter || s->checkpoint ? PL_F32 : session->model->dtype);
    return 0;
}

static int add_moment(pl_error *err, pl_saving *s, const pl_param *p, int moment)
{
    char *name;
    pl_state state = (pl_state)(PL_STATE_MOMENT1 + moment - 1);
    if (!pl_store_has(pl_engine_store(s->session->engine), p, state)) return 0;
    PL_TRY(pl_format(err, &name, "moment%d.%s", moment, p->name));
    add(s, p, state, name, PL_F32);
    return 0;
}

static int collect(pl_error *err, pl_saving *s)
{
    const pl_model *model = s->session->model;
    for (int i = 0; i < model->nparams; i++) {
        const pl_param *p = model->params[i];
        bool wanted = s->session->has_adapter ? p->in_adapter : p->role == PL_ROLE_BASE;
        if (wanted) PL_TRY(add_result(err, s, p));
    }
    s->results = s->count;
    for (int i = 0; i < 2 * model->nparams && s->checkpoint; i++) {
        PL_TRY(add_moment(err, s, model->params[i / 2], i % 2 + 1));
    }
    return 0;
}

int pl_saving_open(pl_error *err, pl_session *session, const char *folder, bool checkpoint, pl_saving *s)
{
    *s = (pl_saving){.session = session, .folder = folder, .checkpoint = checkpoint};
    size_t n = (checkpoint ? 3 : 1) * (size_t)session->model->nparams;
    int rc;
    PL_GO(failed, pl_calloc(err, n, sizeof *s->items, &s->items));
    PL_GO(failed, pl_calloc(err, n, sizeof *s->saved, &s->saved));
    PL_GO(failed, pl_calloc(err, n, sizeof *s->names, &s->names));
    PL_GO(failed, pl_calloc(err, n, sizeof *s->sums, &s->sums));
    PL_GO(failed, collect(err, s));
    return 0;
failed:
    pl_saving_close(s);
    return rc;
}

/* ---- writing it ---- */

static int write_model(pl_error *err, const pl_saving *s)
{
    const pl_config *c = s->session->config;
    bool wide = s->checkpoint || s->session->model->dtype == PL_F32;
    pl_model_folder options = {.dtype = wide ? "float32" : "bfloat16"};
    bool folder_alone = c->from_scratch && !c->model && pl_dir_exists(c->from_scratch);
    if (!c->from_scratch || folder_alone) {
        options.source = folder_alone ? c->from_scratch : c->model;
        return pl_model_folder_write(err, s->folder, &options, s->items, s->results);
    }
    /* From scratch the configuration and what the data was tokenized with may come from different folders. */
    char *config = NULL, *texts = NULL;
    int rc;
    PL_GO(done, pl_dir_exists(c->from_scratch) ? pl_path_join(err, c->from_scratch, "config.json", &config)
                                               : pl_strdup(err, c->from_scratch, &config));
    PL_GO(done, pl_texts_folder(err, c, &texts));
    options.config = config;
    options.texts = texts;
    rc = pl_model_folder_write(err, s->folder, &options, s->items, s->results);
done:
    free(config);
    free(texts);
    return rc;
}

static int write_moments(pl_error *err, const pl_saving *s)
{
    char *path;
    pl_st_writer *writer;
    PL_TRY(pl_path_join(err, s->folder, PL_MOMENTS_FILE, &path));
    int rc = pl_st_write(err, path, s->items + s->results, s->count - s->results, NULL, &writer);
    if (rc == 0) rc = pl_st_writer_commit(err, writer);
    free(path);
    return rc;
}

int pl_saving_lead(pl_error *err, void *user)
{
    const pl_saving *s = user;
    PL_TRY(s->session->has_adapter ? pl_adapter_write(err, s->folder, &s->session->lora, s->items, s->results)
                                   : write_model(err, s));
    return s->checkpoint ? write_moments(err, s) : 0;
}

int pl_save_result(pl_error *err, pl_session *session, const char *folder)
{
    pl_saving s;
    int opened = pl_saving_open(err, session, folder, false, &s), rc = pl_session_agree(err, session, opened);
    if (rc == 0) rc = pl_write_together(err, session->comm, s.items, s.count, pl_saving_lead, &s);
    if (opened == 0) pl_saving_close(&s);
    return rc;
}

/* Both kinds of result are read and written again, so that `to` is left whole at every moment. */
int pl_copy_result(pl_error *err, const char *from, const char *to)
{
    pl_weights *w = NULL;
    pl_lora_config lora = {0};
    char *config = NULL;
    pl_st_source *items = NULL;
    int rc;
    PL_GO(done, pl_path_join(err, from, "adapter_config.json", &config));
    bool adapter = pl_file_exists(config);
    PL_GO(done, adapter ? pl_adapter_open(err, from, &lora, &w) : pl_weights_open(err, from, &w));
    int n = pl_weights_count(w);
    PL_GO(done, pl_calloc(err, (size_t)n, sizeof *items, &items));
    for (int i = 0; i < n; i++) {
        const pl_st_tensor *t = pl_weights_at(w, i);
        items[i] = (pl_st_source){.spec = {.name = t->name, .dtype = t->dtype, .ndim = t->ndim},
            .given = t->dtype,
            .data = t->data,
            .map = t->map};
        for (int d = 0; d < t->ndim; d++) items[i].spec.shape[d] = t->shape[d];
    }
    pl_model_folder options = {.source = from};
    rc = adapter ? pl_adapter_write(err, to, &lora, items, n) : pl_model_folder_write(err, to, &options, items, n);
done:
    free(items);
    free(config);
    pl_weights_close(w);
    pl_lora_config_free(&lora);
    return rc;
}
