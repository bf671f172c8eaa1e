#include "api/adapter.h"

#include <stdlib.h>
#include <string.h>

/* What a name's end says of a tensor, in a module with an adapter and in one without. */
static const struct {
    const char *end;
    pl_peft_kind adapted, other;
} kinds[] = {
    {".lora_A.weight", PL_PEFT_LORA_A, PL_PEFT_LORA_A},
    {".lora_B.weight", PL_PEFT_LORA_B, PL_PEFT_LORA_B},
    {".lora_B.bias", PL_PEFT_LORA_B_BIAS, PL_PEFT_LORA_B_BIAS},
    {".lora_magnitude_vector", PL_PEFT_MAGNITUDE, PL_PEFT_MAGNITUDE},
    {".weight", PL_PEFT_BASE_WEIGHT, PL_PEFT_WEIGHT},
    {".bias", PL_PEFT_BASE_BIAS, PL_PEFT_BIAS},
};

int pl_adapter_param_key(pl_error *err, const pl_model *model, const pl_param *param, char **out)
{
    size_t length = strlen(param->name);
    for (int k = 0; k < PL_COUNT(kinds); k++) {
        size_t end = strlen(kinds[k].end);
        if (length <= end || strcmp(param->name + length - end, kinds[k].end) != 0) continue;
        char *module;
        PL_TRY(pl_strndup(err, param->name, length - end, &module));
        const pl_linear *lin = pl_model_find_linear(model, module);
        int rc = pl_peft_key(err, module, lin && lin->lora ? kinds[k].adapted : kinds[k].other, out);
        free(module);
        return rc;
    }
    return PL_FAIL(err, PL_EBUG, "%s has no place in an adapter", param->name);
}

int pl_adapter_find_param(
    pl_error *err, pl_weights *adapter, const pl_model *model, const pl_param *param, const pl_st_tensor **out)
{
    char *key;
    PL_TRY(pl_adapter_param_key(err, model, param, &key));
    int rc = pl_weights_find(err, adapter, key, out);
    free(key);
    return rc;
}
