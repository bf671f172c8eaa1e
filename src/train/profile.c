#include "train/profile.h"

const char *pl_phase_name(pl_phase phase)
{
    static const char *const names[] = {
#define X(phase, name) [phase] = name,
        PL_PHASE_LIST(X)
#undef X
    };
    return names[phase];
}
