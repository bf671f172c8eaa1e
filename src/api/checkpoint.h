/* Checkpoints: OUTPUT/checkpoints/step-00000100 holds all that a run needs to go on exactly: the result so far in f32,
   as its users load it (a PEFT adapter or a Hugging Face folder), the optimizer's moments (optimizer.safetensors:
   moment1.NAME, moment2.NAME) and state.json, which also has the checksums of all there is, see api/checksum.h. A
   folder is written aside, synced and renamed: it exists whole or not at all.

   The processes of a run write their shares of the tensors into the same files, which have the same bytes however many
   they are and whatever is sharded; and each reads what it keeps. So any number of processes goes on from any other's.

   Masters and moments change in an optimizer step only. So a checkpoint can be written, by a thread and without a copy,
   while the forward and backward of the next step go on, if the next optimizer step waits for its end. */
#ifndef PL_API_CHECKPOINT_H
#define PL_API_CHECKPOINT_H

#include "api/session.h"

/* What a run has to remember beside tensors. */
typedef struct pl_progress_state {
    int64_t step;             /* optimizer steps done */
    int64_t targets;          /* trained tokens so far */
    int64_t micro_batches;    /* of a full step, all processes' together */
    double best_loss;         /* of validation; NaN before the first */
    int64_t best_step, worse; /* evaluations since without a better one */
} pl_progress_state;

/* A checkpoint that is being written. */
typedef struct pl_checkpoint pl_checkpoint;

/* Collective over the session's processes. Begins checkpoints/step-N. With `background` threads write its tensors from
   now on; without, its end does. Until then nothing may change masters and moments. */
int pl_checkpoint_begin(pl_error *err, pl_session *session, const char *output, const pl_progress_state *state,
    bool background, pl_checkpoint **out);
/* Collective. Waits until all is written, puts the checkpoint in its place, and then removes all but the latest `keep`
   (0: all stay). A write that fails leaves what was there. Frees it, also on failure. */
int pl_checkpoint_end(pl_error *err, pl_checkpoint *checkpoint, int64_t keep);
/* Gives it up, as when a process has failed: what was there before stays. NULL is fine. */
void pl_checkpoint_abandon(pl_checkpoint *checkpoint);

/* Removes what killed runs were writing. The folder is this process's alone. */
int pl_checkpoint_sweep(pl_error *err, const char *output);

/* The latest checkpoint's step in OUTPUT; -1: none. Folders that were being written are no checkpoints. */
int pl_checkpoint_latest(pl_error *err, const char *output, int64_t *step);

/* What checkpoint `step` remembers, without a look at its other files. Fails as pl_checkpoint_load does. */
int pl_checkpoint_peek(pl_error *err, const char *output, int64_t step, pl_progress_state *state);

/* Collective. Loads checkpoint `step` into the session's engine. Each process reads what it keeps, and every byte is
   checked by one of them. PL_EINPUT when a file is damaged or is of another model; the message names it, and the
   earlier checkpoint that can be gone on from. */
int pl_checkpoint_load(pl_error *err, pl_session *session, const char *output, int64_t step, pl_progress_state *state);

#endif
