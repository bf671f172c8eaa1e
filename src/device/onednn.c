#include "device/onednn.h"

#include <stdlib.h>

struct pl_onednn {
    int threads;
};

int pl_onednn_open(pl_error *err, int threads, pl_onednn **out)
{
    *out = calloc(1, sizeof **out);
    if (!*out) return PL_FAIL_NOMEM(err);
    (*out)->threads = threads;
    return 0;
}

void pl_onednn_close(pl_onednn *onednn)
{
    free(onednn);
}
