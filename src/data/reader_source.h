/* The bytes of a file as they come, unpacked if they are gzip or zstd. Only reader.c includes this. */
#ifndef PL_DATA_READER_SOURCE_H
#define PL_DATA_READER_SOURCE_H

#include <stdint.h>

#include "base/error.h"
#include "data/reader.h"

typedef struct pl_source pl_source;

/* How the file is packed is told by its first bytes; a name in .gz or .zst whose content is neither is PL_EINPUT. */
int pl_source_open(pl_error *err, const char *path, pl_source **out);
void pl_source_close(pl_source *source); /* NULL is fine */
/* Up to `capacity` bytes; *got is 0 at the end of the file only. `line` is where the reader is, for messages. */
int pl_source_read(pl_error *err, pl_source *source, int64_t line, char *bytes, size_t capacity, size_t *got);
/* What the file was when it was opened, with the hash of the bytes read so far: of all of them after the end. */
void pl_source_identity(const pl_source *source, pl_file_identity *out);

#endif
