/* Results: an adapter's folder or a model's folder, in the forms that their users load. */
#ifndef PL_API_SAVE_H
#define PL_API_SAVE_H

#include "api/session.h"

/* Writes what a session trained into `folder`: adapter_model.safetensors with adapter_config.json (f32), or a Hugging
   Face folder (in `dtype`: PL_F32, or PL_BF16) with the files of the model that it came from. Whole or not at all.
   Collective over the session's processes: each writes its share of the tensors. */
int pl_save_result(pl_error *err, pl_session *session, const char *folder, pl_dtype dtype);
/* Collective. Writes the optimizer's moments into a file: moment1.NAME, moment2.NAME. */
int pl_save_moments(pl_error *err, pl_session *session, const char *path);

/* Puts the result that lies in `from` (checkpoint.best) into `to`, in place of what is there. */
int pl_copy_result(pl_error *err, const char *from, const char *to);

#endif
