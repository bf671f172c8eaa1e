/* Matrix products by oneDNN: its primitives, made once for each form of a product and kept. */
#ifndef PL_DEVICE_ONEDNN_H
#define PL_DEVICE_ONEDNN_H

#include "device/device.h"

typedef struct pl_onednn pl_onednn;

int pl_onednn_open(pl_error *err, int threads, pl_onednn **out);
void pl_onednn_close(pl_onednn *onednn); /* NULL is fine */

#endif
