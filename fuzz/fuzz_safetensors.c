/* Safetensors from memory: whatever the bytes, they are refused or every tensor can be looked up and read whole. */
#include <stdlib.h>

#include "io/safetensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    pl_error err = {0};
    pl_safetensors *file;
    if (pl_safetensors_parse(&err, "fuzz", bytes, size, &file) < 0) return 0;
    for (int i = 0; i < pl_safetensors_count(file); i++) {
        const pl_st_tensor *t = pl_safetensors_at(file, i);
        char text[96];
        pl_st_describe(t, text);
        if (pl_safetensors_find(file, t->name) != t || t->offset + t->bytes > size) abort();
        if (!t->known) continue;
        bool real = t->dtype == PL_F32 || t->dtype == PL_BF16 || t->dtype == PL_F16;
        void *out = malloc((size_t)t->numel * 4 + 1);
        if (out && pl_st_read(&err, t, 0, t->numel, real ? PL_F32 : t->dtype, out) < 0) abort();
        free(out);
    }
    pl_safetensors_close(file);
    return 0;
}
