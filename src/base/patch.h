/* Writing parts of a file that is there already, in any order of places. Whole blocks go past the page cache (O_DIRECT)
   where the file system allows that: much is written that nobody reads soon, and copying it into the cache would take
   time from the threads that compute, and memory from what is read. */
#ifndef PL_BASE_PATCH_H
#define PL_BASE_PATCH_H

#include <stdint.h>

#include "base/error.h"

typedef struct pl_patch {
    const char *path; /* borrowed, for messages */
    int fd, direct;   /* -1: not open; the file system does not do it */
    char *buffer;
    uint64_t base;     /* where buffer[0] is in the file: at a block's begin */
    size_t begin, end; /* what of it is to be written */
} pl_patch;

/* PL_EIO says which file and why. */
int pl_patch_open(pl_error *err, const char *path, pl_patch *patch);
int pl_patch_write(pl_error *err, pl_patch *patch, const void *bytes, size_t size, uint64_t offset);
/* All onto the disk. */
int pl_patch_sync(pl_error *err, pl_patch *patch);
void pl_patch_close(pl_patch *patch); /* what is not synced may be lost; {.fd = -1, .direct = -1} is fine */

#endif
