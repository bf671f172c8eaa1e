#include "api/save.h"

#include <stdlib.h>
#include <string.h>

#include "api/adapter.h"
#include "api/data.h"
#include "base/file.h"
#include "io/model_folder.h"

/* Where the elements of one written tensor come from: its master if it trains, else what operators read. */
typedef struct reader {
    pl_device *device;
    pl_tensor tensor;
} reader;

static int read_some(pl_error *err, void *user, int64_t first, int64_t count, void *out)
{
    (void)err;
    const reader *r = user;
    int64_t size = pl_dtype_size(r->tensor.dtype);
    r->device->ops->copy_out(r->device, out, (const char *)r->tensor.data + first * size, count * size);
    return 0;
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

static int add(pl_error *err, pl_session *session, sources *s, const pl_param *p, pl_dtype dtype)
{
    int i = s->count;
    if (p->in_adapter && session->has_adapter) {
        PL_TRY(pl_adapter_param_key(err, session->model, p, &s->names[i]));
    } else {
        PL_TRY(pl_strdup(err, p->name, &s->names[i]));
    }
    pl_tensor master = pl_store_state(pl_engine_store(session->engine), p, PL_STATE_MASTER);
    pl_tensor t = pl_tensor_none(master) ? p->value : master;
    s->readers[i] = (reader){session->device, t};
    s->items[i] = (pl_st_source){.spec = {.name = s->names[i], .dtype = dtype, .ndim = p->ndim},
        .given = t.dtype,
        .read = read_some,
        .user = &s->readers[i]};
    for (int d = 0; d < p->ndim; d++) s->items[i].spec.shape[d] = p->shape[d];
    s->count++;
    return 0;
}

static int collect(pl_error *err, pl_session *session, sources *s, pl_dtype dtype)
{
    size_t n = (size_t)session->model->nparams;
    PL_TRY(pl_calloc(err, n, sizeof *s->items, &s->items));
    PL_TRY(pl_calloc(err, n, sizeof *s->readers, &s->readers));
    PL_TRY(pl_calloc(err, n, sizeof *s->names, &s->names));
    for (size_t i = 0; i < n; i++) {
        const pl_param *p = session->model->params[i];
        bool wanted = session->has_adapter ? p->in_adapter : p->role == PL_ROLE_BASE;
        if (wanted) PL_TRY(add(err, session, s, p, session->has_adapter ? PL_F32 : dtype));
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

int pl_save_result(pl_error *err, pl_session *session, const char *folder, pl_dtype dtype)
{
    sources s = {0};
    int rc = collect(err, session, &s, dtype);
    if (rc == 0) {
        rc = session->has_adapter ? pl_adapter_write(err, folder, &session->lora, s.items, s.count)
                                  : write_model(err, session, folder, dtype, &s);
    }
    sources_free(&s);
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
