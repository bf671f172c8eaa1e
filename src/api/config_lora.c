/* The lora fields as PEFT's LoraConfig. */
#include <stdlib.h>

#include "api/config.h"
#include "base/number.h"

static int to_modules(pl_error *err, const pl_config *config, const pl_strings *list, pl_modules *out)
{
    if (list->count == 0) return 0;
    char where[PL_WHERE_SIZE];
    pl_buf text = {0};
    int rc = pl_field_print_flag(err, pl_config_field(config, list), config, &text);
    if (rc == 0) rc = pl_modules_parse(err, pl_config_where(config, list, where), pl_buf_text(&text), out);
    pl_buf_free(&text);
    return rc;
}

static int to_names(pl_error *err, const pl_strings *list, pl_names *out)
{
    for (int i = 0; i < list->count; i++) PL_TRY(pl_names_add(err, out, list->items[i]));
    return 0;
}

static int to_patterns(pl_error *err, const pl_entries *map, pl_lora_patterns *out)
{
    for (int i = 0; i < map->count; i++) {
        double value = 0;
        if (!pl_parse_real(map->texts[i], &value)) {
            return PL_FAIL(err, PL_EBUG, "the pattern's value '%s' was not checked", map->texts[i]);
        }
        PL_TRY(pl_lora_patterns_add(err, out, map->keys[i], value));
    }
    return 0;
}

static int to_layers(pl_error *err, const pl_numbers *layers, pl_lora_config *out)
{
    if (layers->count == 0) return 0;
    PL_TRY(pl_calloc(err, (size_t)layers->count, sizeof *out->layers_to_transform, &out->layers_to_transform));
    for (int i = 0; i < layers->count; i++) out->layers_to_transform[out->nlayers++] = (int64_t)layers->items[i];
    return 0;
}

int pl_config_lora(pl_error *err, const pl_config *config, pl_lora_config *out)
{
    pl_lora_config_init(out);
    out->r = config->lora.r;
    out->lora_alpha = config->lora.alpha;
    out->lora_dropout = config->lora.dropout;
    out->use_dora = config->lora.dora;
    out->use_rslora = config->lora.rslora;
    out->bias = (pl_lora_bias)config->lora.bias;
    char where[PL_WHERE_SIZE];
    PL_TRY(to_modules(err, config, &config->lora.targets, &out->target_modules));
    PL_TRY(to_modules(err, config, &config->lora.exclude, &out->exclude_modules));
    PL_TRY(to_names(err, &config->lora.modules_to_save, &out->modules_to_save));
    PL_TRY(to_names(err, &config->lora.layers_pattern, &out->layers_pattern));
    PL_TRY(to_patterns(err, &config->lora.rank_pattern, &out->rank_pattern));
    PL_TRY(to_patterns(err, &config->lora.alpha_pattern, &out->alpha_pattern));
    PL_TRY(to_layers(err, &config->lora.layers, out));
    PL_TRY(pl_lora_init_parse(err, pl_config_where(config, &config->lora.init, where), config->lora.init, out));
    if (out->init_lora_weights == PL_LORA_INIT_LOFTQ || out->init_lora_weights == PL_LORA_INIT_EVA) {
        return PL_FAIL(err, PL_EUNSUPPORTED, "%s is %s, which %s; this version has no such", where, config->lora.init,
            out->init_lora_weights == PL_LORA_INIT_EVA ? "starts from a run over data" : "needs 4-bit weights");
    }
    PL_TRY(pl_strdup(err, "CAUSAL_LM", &out->task_type));
    return pl_lora_config_check(err, "lora", out);
}
