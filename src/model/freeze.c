#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "model/lora_config.h"
#include "model/model.h"

/* Whether the rule matches the parameter's name or that of a module around it. */
static int names_param(pl_error *err, const pl_lora_config *rule, const pl_param *p, bool *out)
{
    char *name = NULL;
    int rc = pl_strdup(err, p->name, &name);
    *out = false;
    while (rc == 0 && !*out) {
        pl_lora_match match = PL_LORA_NO;
        rc = pl_lora_matches(err, rule, name, &match);
        *out = match == PL_LORA_YES;
        char *dot = strrchr(name, '.');
        if (!dot) break;
        *dot = 0;
    }
    free(name);
    return rc;
}

static int freeze_one(pl_error *err, pl_model *model, const char *text, const char *where)
{
    pl_lora_config rule;
    int matched = 0;
    pl_lora_config_init(&rule);
    int rc = pl_modules_parse(err, where, text, &rule.target_modules);
    for (int i = 0; i < model->nparams && rc == 0; i++) {
        bool named;
        rc = names_param(err, &rule, model->params[i], &named);
        if (rc < 0 || !named) continue;
        model->params[i]->trainable = false;
        matched++;
    }
    pl_lora_config_free(&rule);
    if (rc < 0 || matched > 0) return rc;
    return PL_FAIL(err, PL_EUSAGE, "%s: '%s' names no parameter or module of this model; names look like %s", where,
        text, model->params[model->nparams / 2]->name);
}

int pl_model_train_all(pl_error *err, pl_model *model, char *const *freeze, int nfreeze, const char *where)
{
    for (int i = 0; i < model->nparams; i++) model->params[i]->trainable = model->params[i]->role == PL_ROLE_BASE;
    for (int f = 0; f < nfreeze; f++) PL_TRY(freeze_one(err, model, freeze[f], where));
    if (pl_model_count(model).trainable > 0) return 0;
    return PL_FAIL(err, PL_EUSAGE, "%s leaves nothing to train", where);
}
