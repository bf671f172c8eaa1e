/* Reads the examples of a file one after another without holding the file in memory.

   .txt          text, one document; CR LF becomes LF, as Python's open() does
   .jsonl .ndjson  a JSON value a line, empty lines skipped; an array if the first character is [
   .json         an array of values; or an object with such an array in it ({"data": [...]}); or values one after
   another

   Each also packed (.gz, .zst, of one or many members). A byte order mark is skipped. Errors name file and line. */
#ifndef PL_DATA_READER_H
#define PL_DATA_READER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/error.h"

typedef struct pl_reader pl_reader;

/* One example, as it stands in the file. */
typedef struct pl_record {
    const char *bytes; /* valid until the next call; NULL after the last example */
    size_t size;
    int64_t line; /* where it starts, from 1 */
} pl_record;

/* Tells whether a file is what it was: first by what a stat() says, and if that differs, by its content. */
typedef struct pl_file_identity {
    int64_t size, mtime_ns, ctime_ns;
    uint64_t device, inode;
    uint64_t hash[2]; /* XXH3-128 of the bytes as they are on disk, packed or not */
} pl_file_identity;

/* PL_ENOENT, PL_EIO; PL_EINPUT for a name with none of the endings above, and for UTF-16. */
int pl_reader_open(pl_error *err, const char *path, pl_reader **out);
void pl_reader_close(pl_reader *reader); /* NULL is fine */
bool pl_reader_is_text(const pl_reader *reader);

/* The next example of a file that is not text. What is between two examples is checked here, and what is in one is not:
   the caller parses it. */
int pl_reader_next(pl_error *err, pl_reader *reader, pl_record *record);
/* Appends more of a text file: at least `want` bytes if there are so many, whole characters, valid UTF-8. *more is
   false when the file ended. */
int pl_reader_text(pl_error *err, pl_reader *reader, size_t want, pl_buf *out, bool *more);

/* After the last example or byte: what was read. */
void pl_reader_identity(const pl_reader *reader, pl_file_identity *out);
/* The identity of a file as it is now; the hash only if with_hash (else 0), by reading all of it. */
int pl_file_identify(pl_error *err, const char *path, bool with_hash, pl_file_identity *out);

#endif
