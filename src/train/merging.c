#include "train/merging.h"

#include <cblas.h>
#include <math.h>
#include <stdlib.h>

#include "base/buf.h"
#include "model/lora_init.h"

/* The linear with an adapter that the parameter is weight or bias of; a borrowed weight is its lender's. */
static const pl_linear *adapted_by(const pl_model *model, const pl_param *p)
{
    for (int i = 0; i < model->nlinears; i++) {
        const pl_linear *lin = model->linears[i];
        if (!lin->lora) continue;
        if (lin->weight == p && !pl_linear_borrows(lin)) return lin;
        if (lin->bias == p && lin->lora->b_bias) return lin;
    }
    return NULL;
}

/* Room was made. */
static int add(pl_error *err, pl_merging *m, const char *name, const char *end, const pl_param *p, const pl_linear *lin)
{
    char *copy;
    PL_TRY(pl_format(err, &copy, "%s%s", name, end));
    m->tensors[m->count++] = (pl_merged){.name = copy, .param = p, .linear = lin};
    return 0;
}

/* A tied head with an adapter becomes a tensor of its own. */
static int add_heads(pl_error *err, const pl_model *model, pl_merging *m)
{
    for (int i = 0; i < model->nlinears; i++) {
        const pl_linear *lin = model->linears[i];
        if (!lin->lora || !pl_linear_borrows(lin)) continue;
        PL_TRY(add(err, m, lin->name, ".weight", lin->weight, lin));
        m->unties = true;
    }
    return 0;
}

static int check_biases(pl_error *err, const pl_model *model)
{
    for (int i = 0; i < model->nlinears; i++) {
        const pl_linear *lin = model->linears[i];
        if (!lin->lora || !lin->lora->b_bias || lin->bias) continue;
        return PL_FAIL(err, PL_EUNSUPPORTED,
            "the adapter has lora_bias, but %s has no bias that it could be merged into; use it unmerged", lin->name);
    }
    return 0;
}

int pl_merging_open(pl_error *err, const pl_model *model, pl_merging *out)
{
    *out = (pl_merging){0};
    PL_TRY(check_biases(err, model));
    PL_TRY(pl_calloc(err, (size_t)(model->nparams + model->nlinears), sizeof *out->tensors, &out->tensors));
    int rc = 0;
    for (int i = 0; i < model->nparams && rc == 0; i++) {
        const pl_param *p = model->params[i];
        if (p->role != PL_ROLE_BASE) continue;
        rc = add(err, out, p->name, "", p, adapted_by(model, p));
        /* Only an untied head is read from under another name. */
        out->unties |= model->arch.tied && p->source_name;
    }
    if (rc == 0) rc = add_heads(err, model, out);
    if (rc < 0) pl_merging_close(out);
    return rc;
}

void pl_merging_close(pl_merging *m)
{
    for (int i = 0; i < m->count; i++) free(m->tensors[i].name);
    free(m->tensors);
    *m = (pl_merging){0};
}

static int read_values(pl_error *err, const pl_source *source, const pl_param *p, float *values)
{
    pl_host_tensor t;
    bool found;
    PL_TRY(source->find(err, source->user, p, &t, &found));
    if (!found) return PL_FAIL(err, PL_EINPUT, "%s is in no file", pl_param_source(p));
    PL_TRY(pl_host_tensor_check(err, p, &t));
    return pl_host_tensor_read(err, &t, 0, pl_param_numel(p), values);
}

static int get_values(pl_error *err, const pl_source *source, const pl_param *p, float **values)
{
    PL_TRY(pl_calloc(err, (size_t)pl_param_numel(p), sizeof **values, values));
    return read_values(err, source, p, *values);
}

/* What PiSSA and OLoRA leave of the file's weight. */
static int leave_rest(pl_error *err, const pl_linear *lin, float *w)
{
    const pl_lora *lora = lin->lora;
    if (!pl_linear_changes_base(lin)) return 0;
    float *a = NULL, *b = NULL;
    pl_lora_start start = pl_linear_start(lin, 0);
    int rc;
    PL_GO(done, pl_calloc(err, (size_t)(lora->rank * lin->in), sizeof *a, &a));
    PL_GO(done, pl_calloc(err, (size_t)(lora->rank * lin->out), sizeof *b, &b));
    rc = pl_lora_start_make(err, &start, w, a, b);
done:
    free(a);
    free(b);
    return rc;
}

static void add_product(const pl_linear *lin, float *w, const float *a, const float *b)
{
    int in = (int)lin->in, out = (int)lin->out, r = (int)lin->lora->rank;
    float s = lin->lora->scaling;
    if (lin->transposed) {
        cblas_sgemm(CblasRowMajor, CblasTrans, CblasTrans, in, out, r, s, a, in, b, r, 1, w, out);
    } else {
        cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, out, in, r, s, b, r, a, in, 1, w, in);
    }
}

/* Scales what belongs to each output to the length that its magnitude says. */
static int scale_to_magnitudes(pl_error *err, const pl_linear *lin, const pl_source *source, float *w)
{
    int64_t in = lin->in, out = lin->out, along = lin->transposed ? out : 1, next = lin->transposed ? 1 : in;
    float *magnitude = NULL;
    int rc = get_values(err, source, lin->lora->magnitude, &magnitude);
    for (int64_t o = 0; o < out && rc == 0; o++) {
        double square = 0;
        for (int64_t i = 0; i < in; i++) {
            double e = (double)w[o * next + i * along];
            square += e * e;
        }
        double factor = (double)magnitude[o] / sqrt(square);
        for (int64_t i = 0; i < in; i++) {
            float *e = &w[o * next + i * along];
            *e = (float)(factor * (double)*e);
        }
    }
    free(magnitude);
    return rc;
}

static int merge_weight(pl_error *err, const pl_linear *lin, const pl_source *source, float *w)
{
    float *a = NULL, *b = NULL;
    int rc;
    PL_GO(done, get_values(err, source, lin->lora->a, &a));
    PL_GO(done, get_values(err, source, lin->lora->b, &b));
    PL_GO(done, leave_rest(err, lin, w));
    add_product(lin, w, a, b);
    if (lin->lora->magnitude) rc = scale_to_magnitudes(err, lin, source, w);
done:
    free(a);
    free(b);
    return rc;
}

static int merge_bias(pl_error *err, const pl_linear *lin, const pl_source *source, float *bias)
{
    float *more = NULL;
    int rc = get_values(err, source, lin->lora->b_bias, &more);
    for (int64_t i = 0; i < lin->out && rc == 0; i++) bias[i] += lin->lora->scaling * more[i];
    free(more);
    return rc;
}

int pl_merging_read(pl_error *err, const pl_merged *t, const pl_source *source, float *values)
{
    PL_TRY(read_values(err, source, t->param, values));
    if (!t->linear) return 0;
    return t->param == t->linear->weight ? merge_weight(err, t->linear, source, values)
                                         : merge_bias(err, t->linear, source, values);
}
