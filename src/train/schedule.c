#include "train/schedule.h"

int pl_schedule_accumulate(int micro_batches, pl_action *out, int capacity)
{
    int n = 0;
    for (int m = 0; m < micro_batches; m++) {
        if (n < capacity) out[n] = (pl_action){PL_ACTION_FORWARD, m};
        n++;
        if (n < capacity) out[n] = (pl_action){PL_ACTION_BACKWARD, m};
        n++;
    }
    if (n < capacity) out[n] = (pl_action){PL_ACTION_STEP, 0};
    return n + 1;
}

int pl_schedule_in_flight(const pl_action *actions, int count)
{
    int now = 0, most = 0;
    for (int i = 0; i < count; i++) {
        if (actions[i].kind == PL_ACTION_FORWARD) now++;
        if (actions[i].kind == PL_ACTION_BACKWARD) now--;
        if (now > most) most = now;
    }
    return most;
}
