#include "model/model.h"

#include <stdlib.h>
#include <string.h>

#include "base/buf.h"

int pl_model_add_unit(pl_error *err, pl_model *model, pl_unit *unit, const char *name)
{
    int rc = pl_strdup(err, name, &unit->name);
    if (rc == 0) {
        rc = pl_grow(err, &model->units, &model->units_capacity, (size_t)model->nunits + 1, sizeof *model->units);
    }
    if (rc < 0) {
        free(unit->name);
        free(unit);
        return rc;
    }
    unit->index = model->nunits;
    model->units[model->nunits++] = unit;
    return 0;
}

static void param_free(pl_param *p)
{
    if (!p) return;
    free(p->name);
    free(p->source_name);
    free(p);
}

int pl_model_add_param(
    pl_error *err, pl_model *model, pl_unit *unit, pl_param spec, const char *module, const char *leaf, pl_param **out)
{
    pl_param *p;
    PL_TRY(pl_calloc(err, 1, sizeof *p, &p));
    *p = spec;
    p->name = NULL;
    p->source_name = NULL;
    int rc;
    PL_GO(failed, pl_format(err, &p->name, "%s.%s", module, leaf));
    size_t n = (size_t)model->nparams + 1;
    PL_GO(failed, pl_grow(err, &model->params, &model->params_capacity, n, sizeof *model->params));
    PL_GO(failed, pl_grow(err, &unit->params, &unit->params_capacity, (size_t)unit->nparams + 1, sizeof *unit->params));
    p->id = (uint32_t)model->nparams;
    if (p->lr_scale == 0) p->lr_scale = 1;
    model->params[model->nparams++] = p;
    unit->params[unit->nparams++] = p;
    *out = p;
    return 0;
failed:
    param_free(p);
    return rc;
}

static int add_module(pl_error *err, pl_model *model, const char *module, int64_t in, int64_t out, pl_linear **lin)
{
    size_t n = (size_t)model->nlinears + 1;
    PL_TRY(pl_grow(err, &model->linears, &model->linears_capacity, n, sizeof *model->linears));
    pl_linear *l;
    PL_TRY(pl_calloc(err, 1, sizeof *l, &l));
    *l = (pl_linear){.in = in, .out = out, .id = (uint32_t)model->nlinears};
    model->linears[model->nlinears++] = l; /* from here on the model frees it */
    *lin = l;
    return pl_strdup(err, module, &l->name);
}

int pl_model_add_linear(pl_error *err, pl_model *model, pl_unit *unit, const char *module, int64_t in, int64_t out,
    bool bias, pl_split split, float init_std, pl_linear **lin)
{
    pl_linear *l;
    PL_TRY(add_module(err, model, module, in, out, &l));
    const char *blocks = model->arch.layer_prefix;
    l->unit = unit;
    l->transposed = model->arch.conv1d && strncmp(module, blocks, strlen(blocks)) == 0;
    pl_param weight = {.ndim = 2,
        .shape = {l->transposed ? in : out, l->transposed ? out : in},
        .split = split,
        .decay = true,
        .init = PL_INIT_NORMAL,
        .init_scale = init_std,
        .zero_row = -1};
    PL_TRY(pl_model_add_param(err, model, unit, weight, module, "weight", &l->weight));
    if (bias) {
        pl_split part = split == PL_SPLIT_ROW ? PL_SPLIT_NONE : split;
        pl_param spec = {.ndim = 1, .shape = {out}, .split = part, .zero_row = -1};
        PL_TRY(pl_model_add_param(err, model, unit, spec, module, "bias", &l->bias));
    }
    *lin = l;
    return 0;
}

int pl_model_add_borrowed(
    pl_error *err, pl_model *model, pl_unit *unit, const char *module, pl_param *weight, pl_linear **lin)
{
    PL_TRY(add_module(err, model, module, weight->shape[1], weight->shape[0], lin));
    (*lin)->unit = unit;
    (*lin)->weight = weight;
    return 0;
}

int pl_model_add_norm(
    pl_error *err, pl_model *model, pl_unit *unit, const char *module, int64_t size, pl_norm_module *norm)
{
    const pl_arch *a = &model->arch;
    *norm =
        (pl_norm_module){.present = true, .kind = a->norm, .eps = a->norm_eps, .offset = a->norm_offset, .size = size};
    pl_param spec = {.ndim = 1, .shape = {size}, .zero_row = -1};
    if (a->norm_weight) {
        spec.init = a->norm_offset == 1 ? PL_INIT_ZERO : PL_INIT_ONE;
        PL_TRY(pl_model_add_param(err, model, unit, spec, module, "weight", &norm->weight));
    }
    if (a->norm_bias) {
        spec.init = PL_INIT_ZERO;
        PL_TRY(pl_model_add_param(err, model, unit, spec, module, "bias", &norm->bias));
    }
    return 0;
}

int pl_model_open(pl_error *err, pl_arch *arch, pl_dtype dtype, pl_model **out)
{
    pl_model *model;
    int rc = pl_calloc(err, 1, sizeof *model, &model);
    if (rc < 0) {
        pl_arch_free(arch);
        return rc;
    }
    model->arch = *arch;
    model->dtype = dtype;
    *arch = (pl_arch){0};
    pl_param *table = NULL;
    PL_GO(failed, pl_embedding_declare(err, model, &table));
    for (int64_t layer = 0; layer < model->arch.layers; layer++)
        PL_GO(failed, pl_block_declare(err, model, (int)layer));
    PL_GO(failed, pl_head_declare(err, model, table));
    *out = model;
    return 0;
failed:
    pl_model_close(model);
    return rc;
}

void pl_model_close(pl_model *model)
{
    if (!model) return;
    for (int i = 0; i < model->nunits; i++) {
        free(model->units[i]->name);
        free(model->units[i]->params);
        free(model->units[i]);
    }
    for (int i = 0; i < model->nparams; i++) param_free(model->params[i]);
    for (int i = 0; i < model->nlinears; i++) pl_linear_free(model->linears[i]);
    free(model->units);
    free(model->params);
    free(model->linears);
    pl_arch_free(&model->arch);
    free(model);
}

pl_param *pl_model_find_param(const pl_model *model, const char *name)
{
    for (int i = 0; i < model->nparams; i++) {
        if (strcmp(model->params[i]->name, name) == 0) return model->params[i];
    }
    return NULL;
}

pl_linear *pl_model_find_linear(const pl_model *model, const char *module)
{
    for (int i = 0; i < model->nlinears; i++) {
        if (strcmp(model->linears[i]->name, module) == 0) return model->linears[i];
    }
    return NULL;
}

pl_model_counts pl_model_count(const pl_model *model)
{
    pl_model_counts counts = {0};
    for (int i = 0; i < model->nparams; i++) {
        const pl_param *p = model->params[i];
        if (p->role == PL_ROLE_DERIVED) continue;
        /* PEFT keeps the original beside the copy that trains; an untied head's original is the embedding's. */
        if (!p->source_name) counts.all += pl_param_numel(p);
        if (p->saved_module) counts.all += pl_param_numel(p);
        if (p->trainable) counts.trainable += pl_param_numel(p);
    }
    return counts;
}

int pl_model_lowest_trained(const pl_model *model)
{
    for (int u = 0; u < model->nunits; u++) {
        for (int i = 0; i < model->units[u]->nparams; i++) {
            if (model->units[u]->params[i]->trainable) return u;
        }
    }
    return model->nunits;
}
