/* What a model, an adapter, a checkpoint, a weights file or a dataset holds, as a JSON document. */
#ifndef PL_API_INSPECT_H
#define PL_API_INSPECT_H

#include "api/config.h"
#include "base/json.h"
#include "base/log.h"

/* pl_inspect's document before it is text. The document's "kind" is "model", "adapter", "checkpoint", "weights", "run"
   or "dataset"; inspect.c tells each one's fields where it makes them. The caller decrefs *out. PL_ENOENT, PL_EINPUT,
   and PL_EUSAGE when there is nothing to look at. */
int pl_inspect_document(pl_error *err, const pl_log *log, pl_config *config, const char *path, json_t **out);

#endif
