/* config.json from memory: whatever the bytes, they are refused or give an architecture whose numbers can be used. */
#include <math.h>
#include <stdlib.h>

#include "model/arch.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

static void check(const pl_arch *a)
{
    if (a->layers < 1 || a->heads % a->kv_heads || a->heads * a->head_dim > 1 << 24) abort();
    if (!a->q || !a->o || !a->down || !a->embed || !a->head || !a->layer_prefix || a->pad_token >= a->vocab) abort();
    for (int i = 0; i < a->nropes; i++) {
        const pl_rope_spec *r = &a->ropes[i];
        double *inverse = malloc(sizeof *inverse * (size_t)r->rotary / 2), factor;
        if (!inverse) return;
        pl_rope_frequencies(r, a->max_positions, inverse, &factor);
        for (int k = 0; k < r->rotary / 2; k++) {
            if (!isfinite(inverse[k])) abort();
        }
        if (!isfinite(factor) || r->rotary > a->head_dim || r->rotary % 2) abort();
        free(inverse);
    }
    for (int64_t i = 0; i < a->layers; i++) {
        if (a->layer[i].rope >= a->nropes || a->layer[i].window < 0 || !isfinite(a->layer[i].score_scale)) abort();
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    pl_error err = {0};
    pl_log log = {0};
    pl_arch arch;
    json_t *config;
    if (pl_json_parse(&err, "fuzz", (const char *)bytes, size, &config) < 0) return 0;
    if (pl_arch_parse(&err, &log, "fuzz", config, config, &arch) == 0) check(&arch);
    pl_arch_free(&arch);
    json_decref(config);
    return 0;
}
