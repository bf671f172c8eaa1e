/* Replacing a small file that says what big files beside it mean (config.json beside the weights), so that it never
   stands beside those of another: it is prepared under a temporary name, the old one goes out of the way while the big
   files change, then it takes its place. One that stays the same is not touched. */
#ifndef PL_IO_CONFIG_SWAP_H
#define PL_IO_CONFIG_SWAP_H

#include "base/file.h"

typedef struct pl_config_swap {
    pl_writer writer; /* fd -1: the text that is there is right already */
    char *path, *replaced;
    bool replaces;
} pl_config_swap;

/* Puts the text onto the disk, beside folder/name. */
int pl_config_swap_prepare(
    pl_error *err, const char *folder, const char *name, const pl_buf *text, pl_config_swap *swap);
/* Moves an old one that differs to name.replaced. */
int pl_config_swap_away(pl_error *err, pl_config_swap *swap);
/* The big files have not changed after all: the old one comes back. */
void pl_config_swap_back(pl_config_swap *swap);
/* Puts the new one in place, and removes the old. */
int pl_config_swap_commit(pl_error *err, pl_config_swap *swap);
void pl_config_swap_free(pl_config_swap *swap); /* after each of them, also if it failed; {.writer.fd = -1} is fine */

#endif
