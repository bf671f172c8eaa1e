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

/* The tensor of that key, remembered as used, if there is one. */
static int find_if_there(pl_error *err, pl_weights *adapter, const char *key, const pl_st_tensor **out)
{
    *out = pl_weights_peek(adapter, key);
    return *out ? pl_weights_find(err, adapter, key, out) : 0;
}

int pl_adapter_find_along(
    pl_error *err, pl_weights *adapter, const pl_model *model, const pl_param *param, const pl_st_tensor **out)
{
    const pl_linear *head = pl_model_find_linear(model, model->arch.head);
    size_t embed = strlen(model->arch.embed);
    bool of_head = head && (param == head->weight || param == head->bias);
    bool of_embedding = strncmp(param->name, model->arch.embed, embed) == 0 && param->name[embed] == '.';
    *out = NULL;
    if (!of_head && !of_embedding) return 0;
    char *key;
    PL_TRY(pl_adapter_param_key(err, model, param, &key));
    int rc = find_if_there(err, adapter, key, out);
    free(key);
    if (rc < 0 || !of_head || !pl_linear_borrows(head) || param != head->weight) return rc;
    /* A tied head's own copy is as good as the embedding's, with which it is one. */
    const pl_st_tensor *copy;
    PL_TRY(pl_peft_key(err, head->name, head->lora ? PL_PEFT_BASE_WEIGHT : PL_PEFT_WEIGHT, &key));
    rc = find_if_there(err, adapter, key, &copy);
    free(key);
    if (!*out) *out = copy;
    return rc;
}
