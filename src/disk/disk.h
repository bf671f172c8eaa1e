/* Scratch space on disk for what does not fit in memory: one file, of which parts are read and written while the
   program computes.

   Nobody else sees the file: it loses its name as soon as it is made, so that nothing is left of it however the program
   ends. Its room is taken at once, so that a full disk is known at the start. Transfers go past the system's page cache
   (O_DIRECT) where the file system allows that, for cached pages would fill the memory that was to be freed; therefore
   places, sizes and memory are multiples of PL_DISK_BLOCK.

   There are three kinds: `uring` (the kernel's io_uring), `thread` (a thread that calls pread and pwrite, where that is
   refused or was not built in), and `dry` (no file; only bytes are counted, for planning). A kind only knows how to
   begin a transfer and to tell which one ended next, with as many bytes as it moved. That all bytes are moved, or
   somebody is told why not, is seen to once, in disk.c.

   One thread calls at a time, but for pl_disk_fetch. */
#ifndef PL_DISK_DISK_H
#define PL_DISK_DISK_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/error.h"

#define PL_DISK_BLOCK ((int64_t)4096)

static inline int64_t pl_disk_round(int64_t bytes)
{
    return (bytes + PL_DISK_BLOCK - 1) / PL_DISK_BLOCK * PL_DISK_BLOCK;
}

/* Transfers on their way that are waited for together. Begin with {0}; it can be used again after pl_disk_wait. */
typedef struct pl_disk_batch {
    int pending;
    int failed; /* errno of the first that failed, and which it was */
    bool failed_write;
    int64_t failed_at;
} pl_disk_batch;

/* One transfer. What is left of it: `data`, `offset` and `bytes` move on as parts of it are done. */
typedef struct pl_disk_request pl_disk_request;
struct pl_disk_request {
    pl_disk_batch *batch; /* NULL: free */
    bool write;
    char *data;
    int64_t offset, bytes;
    int stalled;           /* so many times in a row nothing was moved */
    pl_disk_request *next; /* in a list of the kind's */
    int64_t moved;         /* for the kind's use */
};

typedef struct pl_disk pl_disk;

typedef struct pl_disk_ops {
    const char *name;
    int (*begin)(pl_disk *, pl_error *, pl_disk_request *);
    /* Waits until one that was begun has ended: *moved is how many bytes it moved, 0 at the file's end, or -errno. */
    int (*end)(pl_disk *, pl_error *, pl_disk_request **request, int64_t *moved);
    void (*destroy)(pl_disk *); /* after all has ended */
} pl_disk_ops;

/* pread and pwrite, or what a test puts in their place. */
typedef struct pl_disk_calls {
    ssize_t (*read)(int fd, void *data, size_t bytes, off_t offset);
    ssize_t (*write)(int fd, const void *data, size_t bytes, off_t offset);
} pl_disk_calls;

/* Bytes by pl_disk_read and pl_disk_write, and seconds in pl_disk_wait. */
typedef struct pl_disk_counts {
    int64_t read, written;
    double waited_s;
} pl_disk_counts;

#define PL_DISK_DEPTH 64 /* transfers that may be on their way at once */

struct pl_disk {
    const pl_disk_ops *ops;
    void *kind; /* what the kind keeps */
    pl_disk_calls calls;
    int fd;       /* -1: dry */
    char *folder; /* for messages */
    const pl_log *log;
    bool direct;   /* past the page cache */
    int64_t bytes; /* of the file */
    pl_disk_request requests[PL_DISK_DEPTH];
    int running;
    bool broken; /* the kind lost track of its transfers */
    pl_disk_counts counts;
};

/* A new file in a folder that is there, named `where` in messages ("run.yaml:12: memory.offload.path"). PL_ENOENT,
   PL_EIO. What is unusual goes to the log: another kind than io_uring, a folder that lies in memory. */
int pl_disk_open(pl_error *err, const pl_log *log, const char *where, const char *folder, pl_disk **out);
int pl_disk_dry(pl_error *err, pl_disk **out);
void pl_disk_close(pl_disk *disk); /* waits for what is on its way; NULL is fine */

/* Takes room for that many bytes, which are 0. Once, before anything is read or written. PL_EIO names the folder, what
   is needed and what is free. */
int pl_disk_reserve(pl_error *err, pl_disk *disk, int64_t bytes);

/* Begin to read or write `bytes` (0 is fine; else a multiple of PL_DISK_BLOCK, as are offset and data). The memory is
   the transfer's until pl_disk_wait. Transfers that are on their way at once must not overlap in the file. */
int pl_disk_read(pl_error *err, pl_disk *disk, pl_disk_batch *batch, int64_t offset, void *data, int64_t bytes);
int pl_disk_write(pl_error *err, pl_disk *disk, pl_disk_batch *batch, int64_t offset, const void *data, int64_t bytes);
/* Waits for all of the batch. PL_EIO when one of them failed. */
int pl_disk_wait(pl_error *err, pl_disk *disk, pl_disk_batch *batch);
/* Waits for all that is on its way, whatever comes of it: before memory is freed. NULL is fine. */
void pl_disk_drain(pl_disk *disk);

/* At once, of any place and size. Any thread may fetch, while nothing is written there. */
int pl_disk_fetch(pl_error *err, const pl_disk *disk, int64_t offset, void *data, int64_t bytes);
int pl_disk_put(pl_error *err, pl_disk *disk, int64_t offset, const void *data, int64_t bytes);

/* The kinds, for pl_disk_open and tests: they take the disk over, whose file is open, or say why they cannot (PL_EIO).
 */
int pl_disk_by_uring(pl_error *err, pl_disk *disk);
int pl_disk_by_thread(pl_error *err, pl_disk *disk);

#endif
