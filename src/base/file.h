/* Files: whole reads, read-only mappings, and writes that appear whole or not at all. */
#ifndef PL_BASE_FILE_H
#define PL_BASE_FILE_H

#include <stdint.h>

#include "base/buf.h"
#include "base/error.h"

/* A read-only mapping of a whole file; data is NULL for an empty file. */
typedef struct pl_map {
    const unsigned char *data;
    size_t size;
} pl_map;

int pl_map_open(pl_error *err, const char *path, pl_map *map); /* PL_ENOENT, PL_EIO; folders are refused */
void pl_map_close(pl_map *map);                                /* {0} is fine */
/* The bytes were read and are not needed soon: the pages that hold any of them leave the process's resident memory, and
   are read again if they are touched again. The map may be NULL, and then nothing is done. */
void pl_map_forget(const pl_map *map, const void *from, size_t size);

/* PL_EINPUT if these bytes, a whole file, are what Git LFS leaves in the place of a large file that was not fetched. */
int pl_file_check_fetched(pl_error *err, const char *path, const void *bytes, size_t size);

/* Appends the whole file to buf. */
int pl_file_read(pl_error *err, const char *path, pl_buf *buf);
/* Hands over the whole file in pieces of up to 256 KiB, whatever its size; an error of `piece` ends it. */
int pl_file_stream(pl_error *err, const char *path,
    int (*piece)(pl_error *err, void *user, const void *bytes, size_t size), void *user);
bool pl_file_exists(const char *path); /* a regular file (links followed) */
bool pl_dir_exists(const char *path);

typedef struct pl_dir_mistake {
    const char *name;    /* of a file that tells what a folder is instead of what was expected */
    const char *message; /* what is said of the folder then */
} pl_dir_mistake;

/* Why a folder may lack what is looked for in it: PL_EINPUT if it is a file in the place of `expected`, PL_ENOENT if it
   is not there, PL_EINPUT if it holds the file of one of the mistakes, the first of which tells; else 0. */
int pl_dir_check(pl_error *err, const char *path, const char *expected, const pl_dir_mistake *mistakes, int count);

int pl_dir_make(pl_error *err, const char *path);   /* with its parents; one that is there is fine */
int pl_dir_remove(pl_error *err, const char *path); /* with all that is in it; one that is absent is fine */
int pl_dir_sync(pl_error *err, const char *path);   /* fsync of the folder itself */
int pl_path_join(pl_error *err, const char *dir, const char *name, char **out); /* the caller frees */

/* A file that is written beside its final place (path.tmp), synced and renamed on commit. Until then the old file, if
   any, stays as it was. */
typedef struct pl_writer {
    int fd;
    char *path, *temporary;
    char *buffer;
    size_t used;
    uint64_t written; /* bytes so far, buffered ones included */
} pl_writer;

int pl_writer_open(pl_error *err, pl_writer *w, const char *path);
int pl_writer_write(pl_error *err, pl_writer *w, const void *bytes, size_t size); /* PL_EIO says which file and why */
int pl_writer_sync(pl_error *err, pl_writer *w);                                  /* flush, fsync; commit does both */
int pl_writer_commit(pl_error *err, pl_writer *w);                                /* flush, fsync, rename, close */
void pl_writer_abort(pl_writer *w); /* removes what was written; nothing to do after a commit; {0} with fd -1 is fine */
/* The whole content at once, through a pl_writer. */
int pl_file_write(pl_error *err, const char *path, const void *bytes, size_t size);
int pl_file_copy(pl_error *err, const char *from, const char *to);

#endif
