/* Results: an adapter's folder or a model's folder, in the forms that their users load. */
#ifndef PL_API_SAVE_H
#define PL_API_SAVE_H

#include <stdatomic.h>

#include "api/session.h"

/* Collective over the session's processes: each writes its share of the tensors. Writes what a session trained into
   `folder`: adapter_model.safetensors with adapter_config.json (f32), or a Hugging Face folder in the model's dtype
   with the files of the model that it came from. Whole or not at all. */
int pl_save_result(pl_error *err, pl_session *session, const char *folder);

/* Puts the result that lies in `from` (checkpoint.best) into `to`, in place of what is there. */
int pl_copy_result(pl_error *err, const char *from, const char *to);

#define PL_MOMENTS_FILE "optimizer.safetensors"

/* What is written of a session, tensor by tensor: this process's share of each. For a checkpoint all is f32, and the
   optimizer's moments (moment1.NAME, moment2.NAME) come after the result. */
typedef struct pl_saving {
    pl_session *session;
    const char *folder; /* borrowed */
    bool checkpoint;
    pl_st_source *items;
    struct pl_saved *saved;
    char **names;
    uint64_t *sums;     /* of a checkpoint: this process's part in the tensors' checksums, once they are written */
    int count, results; /* of them the first */
    atomic_bool stops;  /* set by another thread: what is written of a checkpoint ends with PL_ESTOPPED */
} pl_saving;

/* Stays where it is until the close. */
int pl_saving_open(pl_error *err, pl_session *session, const char *folder, bool checkpoint, pl_saving *out);
/* What the first process does, see api/together: `user` is the pl_saving. */
int pl_saving_lead(pl_error *err, void *user);
void pl_saving_close(pl_saving *saving);

#endif
