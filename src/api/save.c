#include "api/save.h"

#include <stdlib.h>
#include <string.h>

#include "api/adapter.h"
#include "api/data.h"
#include "api/together.h"
#include "base/file.h"
#include "io/model_folder.h"

/* Where the elements of one written tensor come from. */
typedef struct reader {
    const pl_store *store;
    const pl_param *param;
    pl_state state;
} reader;

static int read_some(pl_error *err, void *user, int64_t first, int64_t count, void *out)
{
    const reader *r = user;
    return pl_store_read(err, r->store, r->param, r->state, first, count, out);
}

typedef struct sources {
    pl_st_source *items;
    reader *readers;
    char **names;
    int count;
} sources;

static void sources_free(sources *s)
{
    for (int i = 0; s->names && i < s->count; i++) free(s->names[i]);
    free(s->items);
    free(s->readers);
    free(s->names);
}

/* Room was made. */
static void add(pl_session *session, sources *s, const pl_param *p, pl_state state, char *name, pl_dtype dtype)
{
    int i = s->count++;
    const pl_store *store = pl_engine_store(session->engine);
    pl_extent share = pl_store_share(store, p, state);
    s->names[i] = name;
    s->readers[i] = (reader){store, p, state};
    s->items[i] = (pl_st_source){.spec = {.name = name, .dtype = dtype, .ndim = p->ndim},
        .given = share.dtype,
        .read = read_some,
        .user = &s->readers[i],
        .first = share.first,
        .held = share.count};
    for (int d = 0; d < p->ndim; d++) s->items[i].spec.shape[d] = p->shape[d];
}

static int add_result(pl_error *err, pl_session *session, sources *s, const pl_param *p, pl_dtype dtype)
{
    char *name;
    if (p->in_adapter && session->has_adapter) {
        PL_TRY(pl_adapter_param_key(err, session->model, p, &name));
    } else {
        PL_TRY(pl_strdup(err, p->name, &name));
    }
    add(session, s, p, PL_STATE_MASTER, name, dtype);
    return 0;
}

static int add_moment(pl_error *err, pl_session *session, sources *s, const pl_param *p, int moment)
{
    char *name;
    pl_state state = (pl_state)(PL_STATE_MOMENT1 + moment - 1);
    if (!pl_store_has(pl_engine_store(session->engine), p, state)) return 0;
    PL_TRY(pl_format(err, &name, "moment%d.%s", moment, p->name));
    add(session, s, p, state, name, PL_F32);
    return 0;
}

static int make_room(pl_error *err, sources *s, size_t n)
{
    PL_TRY(pl_calloc(err, n, sizeof *s->items, &s->items));
    PL_TRY(pl_calloc(err, n, sizeof *s->readers, &s->readers));
    return pl_calloc(err, n, sizeof *s->names, &s->names);
}

static int collect(pl_error *err, pl_session *session, sources *s, pl_dtype dtype)
{
    size_t n = (size_t)session->model->nparams;
    PL_TRY(make_room(err, s, n));
    for (size_t i = 0; i < n; i++) {
        const pl_param *p = session->model->params[i];
        bool wanted = session->has_adapter ? p->in_adapter : p->role == PL_ROLE_BASE;
        if (wanted) PL_TRY(add_result(err, session, s, p, session->has_adapter ? PL_F32 : dtype));
    }
    return 0;
}

static int write_model(pl_error *err, pl_session *session, const char *folder, pl_dtype dtype, const sources *s)
{
    const pl_config *c = session->config;
    pl_model_folder options = {.dtype = dtype == PL_BF16 ? "bfloat16" : "float32"};
    bool folder_alone = c->from_scratch && !c->model && pl_dir_exists(c->from_scratch);
    if (!c->from_scratch || folder_alone) {
        options.source = folder_alone ? c->from_scratch : c->model;
        return pl_model_folder_write(err, folder, &options, s->items, s->count);
    }
    /* From scratch the configuration and what the data was tokenized with may come from different folders. */
    char *config = NULL, *texts = NULL;
    int rc;
    PL_GO(done, pl_dir_exists(c->from_scratch) ? pl_path_join(err, c->from_scratch, "config.json", &config)
                                               : pl_strdup(err, c->from_scratch, &config));
    PL_GO(done, pl_texts_folder(err, c, &texts));
    options.config = config;
    options.texts = texts;
    rc = pl_model_folder_write(err, folder, &options, s->items, s->count);
done:
    free(config);
    free(texts);
    return rc;
}

typedef struct saving {
    pl_session *session;
    const char *path; /* of the folder, or the file */
    pl_dtype dtype;
    const sources *sources;
} saving;

static int lead_result(pl_error *err, void *user)
{
    const saving *s = user;
    return s->session->has_adapter
               ? pl_adapter_write(err, s->path, &s->session->lora, s->sources->items, s->sources->count)
               : write_model(err, s->session, s->path, s->dtype, s->sources);
}

static int lead_moments(pl_error *err, void *user)
{
    const saving *s = user;
    pl_st_writer *writer;
    PL_TRY(pl_st_write(err, s->path, s->sources->items, s->sources->count, NULL, &writer));
    return pl_st_writer_commit(err, writer);
}

/* Everybody has collected the sources, or not. */
static int write_collected(
    pl_error *err, int rc, const saving *s, sources *collected, int (*lead)(pl_error *err, void *user))
{
    pl_comm *comm = s->session->comm;
    if (comm) rc = pl_comm_agree(err, comm, rc);
    if (rc == 0) rc = pl_write_together(err, comm, collected->items, collected->count, lead, (void *)s);
    sources_free(collected);
    return rc;
}

int pl_save_result(pl_error *err, pl_session *session, const char *folder, pl_dtype dtype)
{
    sources collected = {0};
    const saving s = {session, folder, dtype, &collected};
    return write_collected(err, collect(err, session, &collected, dtype), &s, &collected, lead_result);
}

int pl_save_moments(pl_error *err, pl_session *session, const char *path)
{
    sources collected = {0};
    const saving s = {session, path, PL_F32, &collected};
    int rc = make_room(err, &collected, 2 * (size_t)session->model->nparams);
    for (int i = 0; i < 2 * session->model->nparams && rc == 0; i++) {
        rc = add_moment(err, session, &collected, session->model->params[i / 2], i % 2 + 1);
    }
    return write_collected(err, rc, &s, &collected, lead_moments);
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
