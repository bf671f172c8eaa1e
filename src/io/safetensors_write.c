#include <stdlib.h>
#include <string.h>

#include "base/patch.h"
#include "io/safetensors.h"
#include "tensor/convert.h"

#define MAX_HEADER 100000000u
#define LENGTH_SIZE 8u
#define SHOWN "%.256s"

/* Our types in the order in which the reference writes them: the format's own list of types, backwards. */
static int dtype_rank(pl_dtype dtype)
{
    static const pl_dtype order[] = {PL_F32, PL_I32, PL_BF16, PL_F16, PL_U8};
    for (int i = 0; i < PL_COUNT(order); i++) {
        if (order[i] == dtype) return i;
    }
    return -1;
}

static int by_write_order(const void *a, const void *b, void *specs)
{
    const pl_st_spec *x = &((const pl_st_spec *)specs)[*(const int *)a];
    const pl_st_spec *y = &((const pl_st_spec *)specs)[*(const int *)b];
    if (x->dtype != y->dtype) return dtype_rank(x->dtype) - dtype_rank(y->dtype);
    return strcmp(x->name, y->name);
}

static int spec_size(pl_error *err, const pl_st_spec *spec, int64_t *numel, uint64_t *bytes)
{
    int64_t n = 1, size;
    if (dtype_rank(spec->dtype) < 0 || spec->ndim < 0 || spec->ndim > PL_MAX_DIMS) {
        return PL_FAIL(err, PL_EBUG, "tensor " SHOWN ": has no dtype or shape that can be written", spec->name);
    }
    for (int d = 0; d < spec->ndim; d++) {
        if (spec->shape[d] < 0 || __builtin_mul_overflow(n, spec->shape[d], &n)) {
            return PL_FAIL(err, PL_EBUG, "tensor " SHOWN ": its shape cannot be written", spec->name);
        }
    }
    if (__builtin_mul_overflow(n, (int64_t)pl_dtype_size(spec->dtype), &size)) {
        return PL_FAIL(err, PL_EBUG, "tensor " SHOWN ": its shape cannot be written", spec->name);
    }
    *numel = n;
    *bytes = (uint64_t)size;
    return 0;
}

static int header_add(pl_error *err, json_t *header, const pl_st_spec *spec, uint64_t begin, uint64_t end)
{
    if (strcmp(spec->name, "__metadata__") == 0 || json_object_get(header, spec->name)) {
        return PL_FAIL(err, PL_EBUG, "tensor " SHOWN ": the name is taken", spec->name);
    }
    json_t *shape = json_array();
    int failed = !shape;
    for (int d = 0; d < spec->ndim; d++) failed |= json_array_append_new(shape, json_integer(spec->shape[d]));
    json_t *info = json_pack("{s:s, s:o, s:[I, I]}", "dtype", pl_st_dtype_name(spec->dtype), "shape", shape,
        "data_offsets", (json_int_t)begin, (json_int_t)end);
    if (failed || !info) {
        json_decref(info);
        return PL_FAIL_NOMEM(err);
    }
    return json_object_set_new(header, spec->name, info) == 0 ? 0 : PL_FAIL_NOMEM(err);
}

static int header_text(pl_error *err, const json_t *object, pl_buf *out)
{
    char *text = json_dumps(object, JSON_COMPACT);
    if (!text) return PL_FAIL_NOMEM(err);
    size_t n = strlen(text), padded = (n + 7) / 8 * 8;
    unsigned char length[LENGTH_SIZE];
    for (unsigned i = 0; i < LENGTH_SIZE; i++) length[i] = (unsigned char)((uint64_t)padded >> (8 * i));
    int rc = 0;
    if (padded > MAX_HEADER) {
        rc =
            PL_FAIL(err, PL_EUNSUPPORTED, "a header of %zu bytes exceeds the format's limit of %u", padded, MAX_HEADER);
    }
    if (rc == 0) rc = pl_buf_append(err, out, length, sizeof length);
    if (rc == 0) rc = pl_buf_append(err, out, text, n);
    if (rc == 0) rc = pl_buf_append(err, out, "        ", padded - n);
    free(text);
    return rc;
}

int pl_st_header(pl_error *err, const pl_st_spec *specs, int count, const json_t *metadata, pl_buf *header, int *order,
    uint64_t *offsets)
{
    int rc = 0;
    size_t before = header->size;
    json_t *object = json_object();
    json_t *shown = metadata ? json_incref((json_t *)metadata) : json_pack("{s:s}", "format", "pt");
    if (!object || !shown || json_object_set(object, "__metadata__", shown) != 0) {
        rc = PL_FAIL_NOMEM(err);
        goto done;
    }
    for (int i = 0; i < count; i++) order[i] = i;
    if (count) qsort_r(order, (size_t)count, sizeof *order, by_write_order, (void *)specs);
    uint64_t end = 0;
    for (int k = 0; k < count; k++) {
        int64_t numel;
        uint64_t bytes;
        PL_GO(done, spec_size(err, &specs[order[k]], &numel, &bytes));
        offsets[order[k]] = end;
        if (__builtin_add_overflow(end, bytes, &end) || end > INT64_MAX) {
            rc = PL_FAIL(err, PL_EBUG, "tensors of more bytes than can be counted");
            goto done;
        }
        PL_GO(done, header_add(err, object, &specs[order[k]], offsets[order[k]], end));
    }
    PL_GO(done, header_text(err, object, header));
    for (int i = 0; i < count; i++) offsets[i] += header->size - before;
    offsets[count] = end + header->size - before;
done:
    json_decref(shown);
    json_decref(object);
    return rc;
}

#define PIECE 16384 /* elements converted at a time: 64 KB, which stays in the cache */

struct pl_st_writer {
    pl_writer out;
    pl_st_spec *specs;
    int count;
    int *order;
    int at; /* in order */
    int64_t left;
    char piece[PIECE * 4];
};

/* Moves on to the next tensor that has elements. */
static int advance(pl_error *err, pl_st_writer *w)
{
    while (w->left == 0 && w->at + 1 < w->count) {
        uint64_t bytes;
        PL_TRY(spec_size(err, &w->specs[w->order[++w->at]], &w->left, &bytes));
    }
    return 0;
}

int pl_st_writer_open(
    pl_error *err, const char *path, const pl_st_spec *specs, int count, const json_t *metadata, pl_st_writer **out)
{
    *out = NULL;
    int rc = 0;
    pl_buf header = {0};
    uint64_t *offsets = NULL;
    pl_st_writer *w;
    PL_TRY(pl_calloc(err, 1, sizeof *w, &w));
    w->out.fd = -1;
    w->count = count;
    w->at = -1;
    PL_GO(failed, pl_calloc(err, (size_t)count, sizeof *w->specs, &w->specs));
    if (count) memcpy(w->specs, specs, (size_t)count * sizeof *specs);
    PL_GO(failed, pl_calloc(err, (size_t)count, sizeof *w->order, &w->order));
    PL_GO(failed, pl_calloc(err, (size_t)count + 1, sizeof *offsets, &offsets));
    PL_GO(failed, pl_st_header(err, specs, count, metadata, &header, w->order, offsets));
    PL_GO(failed, pl_writer_open(err, &w->out, path));
    PL_GO(failed, pl_writer_write(err, &w->out, header.data, header.size));
    PL_GO(failed, advance(err, w));
    *out = w;
    w = NULL;
failed:
    pl_st_writer_abort(w);
    free(offsets);
    pl_buf_free(&header);
    return rc;
}

int pl_st_writer_next(const pl_st_writer *w)
{
    return w->left ? w->order[w->at] : -1;
}

int pl_st_writer_append(pl_error *err, pl_st_writer *w, const void *data, pl_dtype dtype, int64_t count)
{
    if (count < 0 || count > w->left) {
        return PL_FAIL(err, PL_EBUG, "%s: %lld more elements were given than its tensor %s has", w->out.path,
            (long long)(count - w->left), w->left ? w->specs[w->order[w->at]].name : "(none is left)");
    }
    if (count == 0) return 0;
    pl_dtype to = w->specs[w->order[w->at]].dtype;
    if (to == dtype) {
        PL_TRY(pl_writer_write(err, &w->out, data, (size_t)count * (size_t)pl_dtype_size(to)));
    } else {
        const char *from = data;
        for (int64_t done = 0; done < count; done += PIECE) {
            int64_t n = count - done < PIECE ? count - done : PIECE;
            PL_TRY(pl_convert(err, w->piece, to, from + done * pl_dtype_size(dtype), dtype, n));
            PL_TRY(pl_writer_write(err, &w->out, w->piece, (size_t)n * (size_t)pl_dtype_size(to)));
        }
    }
    w->left -= count;
    return advance(err, w);
}

int pl_st_writer_sync(pl_error *err, pl_st_writer *w)
{
    if (w->left) {
        return PL_FAIL(err, PL_EBUG, "%s: %lld elements of tensor %s were never given", w->out.path, (long long)w->left,
            w->specs[w->order[w->at]].name);
    }
    return pl_writer_sync(err, &w->out);
}

int pl_st_writer_commit(pl_error *err, pl_st_writer *w)
{
    int rc = pl_st_writer_sync(err, w);
    if (rc == 0) rc = pl_writer_commit(err, &w->out);
    pl_st_writer_abort(w);
    return rc;
}

void pl_st_writer_abort(pl_st_writer *w)
{
    if (!w) return;
    pl_writer_abort(&w->out);
    free(w->specs);
    free(w->order);
    free(w);
}

static int stream(pl_error *err, pl_st_writer *w, const pl_st_source *source, int64_t numel, void *piece)
{
    int64_t size = pl_dtype_size(source->given);
    for (int64_t at = 0; at < numel; at += PIECE) {
        int64_t n = numel - at < PIECE ? numel - at : PIECE;
        const void *from = piece;
        if (source->data) {
            from = (const char *)source->data + at * size;
        } else {
            PL_TRY(source->read(err, source->user, at, n, piece));
        }
        PL_TRY(pl_st_writer_append(err, w, from, source->given, n));
        if (source->data) pl_map_forget(source->map, from, (size_t)(n * size));
    }
    return 0;
}

int pl_st_write(
    pl_error *err, const char *path, const pl_st_source *sources, int count, const json_t *metadata, pl_st_writer **out)
{
    *out = NULL;
    int rc = 0;
    pl_st_writer *w = NULL;
    void *piece = NULL;
    pl_st_spec *specs;
    PL_TRY(pl_calloc(err, (size_t)count, sizeof *specs, &specs));
    for (int i = 0; i < count; i++) specs[i] = sources[i].spec;
    PL_GO(done, pl_calloc(err, PIECE, 4, &piece));
    PL_GO(done, pl_st_writer_open(err, path, specs, count, metadata, &w));
    if (count > 0 && sources[0].team) {
        PL_GO(done, pl_writer_sync(err, &w->out)); /* the others write behind it, each by its own descriptor */
        PL_GO(done, sources[0].team->write(err, sources[0].team->user, w->out.temporary, path, sources, count));
        w->at = w->count;
        w->left = 0;
    }
    for (int i; (i = pl_st_writer_next(w)) >= 0;) PL_GO(done, stream(err, w, &sources[i], w->left, piece));
    PL_GO(done, pl_st_writer_sync(err, w));
    *out = w;
    w = NULL;
done:
    pl_st_writer_abort(w);
    free(piece);
    free(specs);
    return rc;
}

/* The share of one tensor, whose data begins at `offset`. pieces: 2 * PIECE elements of four bytes. */
static int write_tensor_share(pl_error *err, pl_patch *patch, const pl_st_source *source, uint64_t offset, char *pieces)
{
    int64_t size = pl_dtype_size(source->spec.dtype);
    for (int64_t at = source->first; at < source->first + source->held; at += PIECE) {
        int64_t left = source->first + source->held - at, n = left < PIECE ? left : PIECE;
        char *bytes = pieces;
        PL_TRY(source->read(err, source->user, at, n, pieces));
        if (source->given != source->spec.dtype) {
            bytes = pieces + PIECE * 4;
            PL_TRY(pl_convert(err, bytes, source->spec.dtype, pieces, source->given, n));
        }
        PL_TRY(pl_patch_write(err, patch, bytes, (size_t)(n * size), offset + (uint64_t)(at * size)));
    }
    return 0;
}

int pl_st_write_share(pl_error *err, const char *path, const pl_st_source *sources, int count)
{
    int rc = 0;
    pl_patch patch = {.fd = -1, .direct = -1};
    pl_buf header = {0};
    pl_st_spec *specs = NULL;
    int *order = NULL;
    uint64_t *offsets = NULL;
    char *pieces = NULL;
    PL_GO(done, pl_calloc(err, (size_t)count, sizeof *specs, &specs));
    PL_GO(done, pl_calloc(err, (size_t)count, sizeof *order, &order));
    PL_GO(done, pl_calloc(err, (size_t)count + 1, sizeof *offsets, &offsets));
    PL_GO(done, pl_calloc(err, 2 * PIECE, 4, &pieces));
    for (int i = 0; i < count; i++) specs[i] = sources[i].spec;
    PL_GO(done, pl_st_header(err, specs, count, NULL, &header, order, offsets));
    PL_GO(done, pl_patch_open(err, path, &patch));
    for (int k = 0; k < count; k++) {
        PL_GO(done, write_tensor_share(err, &patch, &sources[order[k]], offsets[order[k]], pieces));
    }
    rc = pl_patch_sync(err, &patch);
done:
    pl_patch_close(&patch);
    free(pieces);
    free(offsets);
    free(order);
    free(specs);
    pl_buf_free(&header);
    return rc;
}
