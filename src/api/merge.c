/* plait merge: an adapter worked into its model's weights. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "api/session.h"
#include "base/file.h"
#include "io/model_folder.h"
#include "train/merging.h"

#define F16_LARGEST 65504.0f

typedef struct merge {
    pl_source source;
    const pl_merged *held; /* whose values are here; NULL: none's */
    float *values;
} merge;

/* One tensor to be written. */
typedef struct reader {
    merge *merge;
    const pl_merged *tensor;
    pl_dtype dtype;
    pl_host_tensor plain; /* of one that no adapter changes: where it lies */
} reader;

static int check_finite(pl_error *err, const reader *r, const float *values, int64_t first, int64_t n)
{
    float largest = r->dtype == PL_F16 ? F16_LARGEST : INFINITY;
    for (int64_t i = 0; i < n; i++) {
        float v = values[i];
        if (isfinite(v) && fabsf(v) <= largest) continue;
        return PL_FAIL(err, PL_ENUMERIC, "%s: element %lld of the merged tensor is %g, which %s cannot hold%s",
            r->tensor->name, (long long)(first + i), (double)v, r->dtype == PL_F16 ? "f16" : "a model",
            isfinite(v) ? "; give --precision bf16 or f32" : "; model and adapter should be checked for NaN");
    }
    return 0;
}

static int hold(pl_error *err, const reader *r)
{
    merge *m = r->merge;
    int64_t n = pl_param_numel(r->tensor->param);
    free(m->values);
    m->values = NULL;
    m->held = NULL;
    PL_TRY(pl_calloc(err, (size_t)n, sizeof *m->values, &m->values));
    PL_TRY(pl_merging_read(err, r->tensor, &m->source, m->values));
    PL_TRY(check_finite(err, r, m->values, 0, n));
    m->held = r->tensor;
    return 0;
}

static int read_some(pl_error *err, void *user, int64_t first, int64_t count, void *out)
{
    const reader *r = user;
    if (!r->tensor->linear) {
        PL_TRY(pl_host_tensor_read(err, &r->plain, first, count, out));
        return check_finite(err, r, out, first, count);
    }
    if (r->merge->held != r->tensor) PL_TRY(hold(err, r));
    memcpy(out, r->merge->values + first, (size_t)count * sizeof *r->merge->values);
    return 0;
}

/* The dtype that the model's file has the tensor in, or the one that was asked for. */
static pl_dtype dtype_of(const pl_session *s, const pl_merged *t)
{
    const pl_config *c = s->config;
    if (pl_config_is_set(c, &c->precision)) return c->precision == PL_PRECISION_BF16 ? PL_BF16 : PL_F32;
    const pl_st_tensor *file = pl_weights_peek(s->weights, pl_param_source(t->param));
    return file && file->known ? file->dtype : PL_F32;
}

/* What no adapter changes goes from file to file, so that a vocabulary's matrix is never in memory as a whole. */
static int find_plain(pl_error *err, reader *r)
{
    const pl_param *p = r->tensor->param;
    const pl_source *source = &r->merge->source;
    bool found;
    if (r->tensor->linear) return 0;
    PL_TRY(source->find(err, source->user, p, &r->plain, &found));
    if (!found) return PL_FAIL(err, PL_EINPUT, "%s is in no file", pl_param_source(p));
    return pl_host_tensor_check(err, p, &r->plain);
}

/* Small updates of large weights can get lost in that, so it is told where it was not asked for. */
static void tell_rounding(const pl_session *s, const reader *readers, const pl_merging *merging)
{
    for (int i = 0; i < merging->count; i++) {
        if (!merging->tensors[i].linear || readers[i].dtype == PL_F32 ||
            pl_config_is_set(s->config, &s->config->precision)) {
            continue;
        }
        pl_logf(s->log, PL_LOG_INFO,
            "the weights are written in %s, as %s has them, which rounds the adapter's part; --precision f32 keeps it "
            "whole",
            pl_dtype_name(readers[i].dtype), s->config->model);
        return;
    }
}

static int write_folder(pl_error *err, pl_session *s, const pl_merging *merging)
{
    const pl_config *c = s->config;
    merge m = {.source = pl_session_source(s)};
    pl_st_source *items = NULL;
    reader *readers = NULL;
    int rc;
    PL_GO(done, pl_calloc(err, (size_t)merging->count, sizeof *items, &items));
    PL_GO(done, pl_calloc(err, (size_t)merging->count, sizeof *readers, &readers));
    for (int i = 0; i < merging->count; i++) {
        const pl_merged *t = &merging->tensors[i];
        readers[i] = (reader){.merge = &m, .tensor = t, .dtype = dtype_of(s, t)};
        PL_GO(done, find_plain(err, &readers[i]));
        items[i] = (pl_st_source){.spec = {.name = t->name, .dtype = readers[i].dtype, .ndim = t->param->ndim},
            .given = PL_F32,
            .read = read_some,
            .user = &readers[i]};
        for (int d = 0; d < t->param->ndim; d++) items[i].spec.shape[d] = t->param->shape[d];
    }
    tell_rounding(s, readers, merging);
    pl_model_folder options = {.source = c->model, .unties = merging->unties};
    if (pl_config_is_set(c, &c->precision)) {
        options.dtype = c->precision == PL_PRECISION_BF16 ? "bfloat16" : "float32";
    }
    rc = pl_model_folder_write(err, c->output, &options, items, merging->count);
done:
    free(items);
    free(readers);
    free(m.values);
    return rc;
}

/* transformers takes a folder that holds an adapter's configuration for the adapter, whatever else is there. */
static int check_output(pl_error *err, const pl_config *c)
{
    char *path, where[PL_WHERE_SIZE];
    PL_TRY(pl_path_join(err, c->output, "adapter_config.json", &path));
    bool adapter = pl_file_exists(path);
    free(path);
    if (!adapter) return 0;
    return PL_FAIL(err, PL_EUSAGE,
        "%s: %s holds an adapter, and a model beside it would be taken for that; name another folder",
        pl_config_where(c, &c->output, where), c->output);
}

int pl_merge(pl_error *err, const pl_log *log, pl_config *config)
{
    pl_session *s = NULL;
    pl_merging merging = {0};
    int rc;
    PL_GO(done, pl_config_check(err, config, PL_CMD_MERGE));
    PL_GO(done, check_output(err, config));
    PL_GO(done, pl_session_open(err, log, config, PL_PURPOSE_USE, &s));
    rc = pl_merging_open(err, s->model, &merging);
    if (rc < 0) {
        pl_error_prefix(err, "%s", config->adapter);
        goto done;
    }
    rc = write_folder(err, s, &merging);
done:
    pl_merging_close(&merging);
    pl_session_close(s);
    return rc;
}
