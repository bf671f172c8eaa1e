/* Safetensors files: read through a mapping, trusting nothing in them, and written whole or not at all.

   A file is: the header's length (8 bytes, little endian), the header (JSON, at most 100 MB), the data. The header maps
   each tensor's name to its dtype, shape and [begin, end) in the data, and "__metadata__" to an object of strings. The
   tensors cover the data without holes or overlaps, in any order of names.
   https://github.com/huggingface/safetensors; refused is what its Rust implementation refuses, and repeated names. */
#ifndef PL_IO_SAFETENSORS_H
#define PL_IO_SAFETENSORS_H

#include <jansson.h>

#include "base/file.h"
#include "tensor/tensor.h"

typedef struct pl_st_tensor {
    const char *file; /* the path, for messages */
    const char *name;
    const char *dtype_name; /* as the format spells it: "BF16", "F8_E4M3" */
    bool known;             /* `dtype` says which; the format has more types than we do */
    pl_dtype dtype;
    int ndim; /* 0 is a scalar; there is no upper bound */
    const int64_t *shape;
    int64_t numel;
    const void *data;  /* at any alignment */
    const pl_map *map; /* that it lies in, for pl_map_forget; NULL: the caller owns the bytes */
    uint64_t bytes;
    uint64_t offset; /* of the data from the start of the file */
} pl_st_tensor;

typedef struct pl_safetensors pl_safetensors;

/* Maps and checks a file. PL_ENOENT, PL_EIO, PL_EINPUT; messages name file, tensor and what is wrong. */
int pl_safetensors_open(pl_error *err, const char *path, pl_safetensors **out);
/* The same over bytes that the caller keeps alive; `where` stands for the path. */
int pl_safetensors_parse(pl_error *err, const char *where, const void *bytes, size_t size, pl_safetensors **out);
void pl_safetensors_close(pl_safetensors *file); /* NULL is fine; tensors and strings from it are gone */

int pl_safetensors_count(const pl_safetensors *file);
/* In the order of their data in the file. */
const pl_st_tensor *pl_safetensors_at(const pl_safetensors *file, int index);
const pl_st_tensor *pl_safetensors_find(const pl_safetensors *file, const char *name); /* NULL: none of that name */
const char *pl_safetensors_metadata(const pl_safetensors *file, const char *key);      /* NULL: not there */

/* Elements [first, first + count) as `dtype` into out (which need not be aligned): a copy, or a conversion between f32,
   bf16 and f16. Several threads may read at once. PL_EUNSUPPORTED for a type that we lack or cannot convert. */
int pl_st_read(pl_error *err, const pl_st_tensor *tensor, int64_t first, int64_t count, pl_dtype dtype, void *out);
/* "F32 [2, 3]" into text, for messages; long shapes are cut. */
const char *pl_st_describe(const pl_st_tensor *tensor, char text[96]);

const char *pl_st_dtype_name(pl_dtype dtype); /* how the format spells one of our types */

/* ---- writing: safetensors_write.c ---- */

typedef struct pl_st_source pl_st_source;

/* A tensor to be written. */
typedef struct pl_st_spec {
    const char *name;
    pl_dtype dtype;
    int ndim;
    int64_t shape[PL_MAX_DIMS];
} pl_st_spec;

/* Appends to `header` all that comes before the data of a file with these tensors, padded with spaces to a multiple of
   8 bytes. order[k] is the index of the tensor whose data comes k-th (as the reference writes: widest types first, then
   by name) and offsets[i] where tensor i's data begins in the file (offsets[count]: the file's size). `metadata` is an
   object of strings; NULL writes {"format": "pt"}, without which transformers refuses a file. */
int pl_st_header(pl_error *err, const pl_st_spec *specs, int count, const json_t *metadata, pl_buf *header, int *order,
    uint64_t *offsets);

/* A file written in order, in pieces. */
typedef struct pl_st_writer pl_st_writer;

/* The specs are copied; their names must stay until commit or abort. PL_EIO for the file, PL_EBUG for specs that cannot
   be written. */
int pl_st_writer_open(
    pl_error *err, const char *path, const pl_st_spec *specs, int count, const json_t *metadata, pl_st_writer **out);
/* The index of the tensor whose data comes next; -1 when all is written. Tensors without elements are passed over. */
int pl_st_writer_next(const pl_st_writer *w);
/* The next `count` elements of that tensor, given as `dtype` and converted to the tensor's. */
int pl_st_writer_append(pl_error *err, pl_st_writer *w, const void *data, pl_dtype dtype, int64_t count);
/* All bytes onto the disk, under the temporary name still; commit does it by itself. After it only a rename can fail.
 */
int pl_st_writer_sync(pl_error *err, pl_st_writer *w);
/* Puts the file in place. Frees the writer, also on failure, and then the old file is as it was. */
int pl_st_writer_commit(pl_error *err, pl_st_writer *w);
void pl_st_writer_abort(pl_st_writer *w); /* NULL is fine */

/* Processes that write files together: each has the same list of tensors, and of each tensor a share. One of them calls
   pl_st_write, which asks the team to fill the file. */
typedef struct pl_st_team {
    void *user;
    /* Makes every process, this one among them, call pl_st_write_share for the file that has begun at `path`, each with
       its own sources in the place of these; or sees to it that they do later, when the file is committed: `becomes` is
       where it is then. */
    int (*write)(
        pl_error *err, void *user, const char *path, const char *becomes, const pl_st_source *sources, int count);
} pl_st_team;

/* A tensor to be written, and where its elements come from. */
struct pl_st_source {
    pl_st_spec spec;
    pl_dtype given;    /* type of what is given; converted to spec.dtype */
    const void *data;  /* all elements; or NULL, and then `read` puts [first, first + count) into out when asked */
    const pl_map *map; /* that data lies in: what was written is forgotten there; NULL: other memory */
    int (*read)(pl_error *err, void *user, int64_t first, int64_t count, void *out);
    void *user;
    const pl_st_team *team; /* of all tensors of a file or of none; then `read` gives elements of the share alone: */
    int64_t first, held;    /* [first, first + held) */
};

/* Writes a file of them, as far as pl_st_writer_sync; the caller commits or aborts what it gets. */
int pl_st_write(pl_error *err, const char *path, const pl_st_source *sources, int count, const json_t *metadata,
    pl_st_writer **out);
/* Writes this process's shares into a file that was begun with the same tensors (and no metadata of its own), and syncs
   it. */
int pl_st_write_share(pl_error *err, const char *path, const pl_st_source *sources, int count);

#endif
