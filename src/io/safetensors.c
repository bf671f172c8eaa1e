#include "io/safetensors.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/json.h"
#include "tensor/convert.h"

#define MAX_HEADER 100000000u
#define LENGTH_SIZE 8u

#define SHOWN "%.256s" /* names come from the file and may be of any length */

/* The format's types. */
static const struct {
    const char *name;
    int bits;
    int dtype; /* ours, or -1 */
} dtypes[] = {
    {"BOOL", 8, -1},
    {"F4", 4, -1},
    {"F6_E2M3", 6, -1},
    {"F6_E3M2", 6, -1},
    {"U8", 8, PL_U8},
    {"I8", 8, -1},
    {"F8_E5M2", 8, -1},
    {"F8_E4M3", 8, -1},
    {"F8_E8M0", 8, -1},
    {"F8_E4M3FNUZ", 8, -1},
    {"F8_E5M2FNUZ", 8, -1},
    {"I16", 16, -1},
    {"U16", 16, -1},
    {"F16", 16, PL_F16},
    {"BF16", 16, PL_BF16},
    {"I32", 32, PL_I32},
    {"U32", 32, -1},
    {"F32", 32, PL_F32},
    {"C64", 64, -1},
    {"F64", 64, -1},
    {"I64", 64, -1},
    {"U64", 64, -1},
};

const char *pl_st_dtype_name(pl_dtype dtype)
{
    for (int i = 0; i < PL_COUNT(dtypes); i++) {
        if (dtypes[i].dtype == (int)dtype) return dtypes[i].name;
    }
    return "?";
}

struct pl_safetensors {
    pl_map map; /* empty when the caller owns the bytes */
    char *where;
    json_t *header; /* keeps the names */
    const json_t *metadata;
    int count;
    pl_st_tensor *tensors; /* by offset */
    int64_t *dims;         /* all shapes, one after the other */
    int *by_name;          /* indices into tensors, for bsearch */
};

/* Finds the header's text. */
static int find_header(pl_error *err, const char *where, const unsigned char *bytes, size_t size, size_t *length)
{
    PL_TRY(pl_file_check_fetched(err, where, bytes, size));
    if (size < LENGTH_SIZE) {
        return PL_FAIL(
            err, PL_EINPUT, "%s: has %zu bytes; a safetensors file has 8 for its header's length alone", where, size);
    }
    uint64_t n = 0;
    for (unsigned i = 0; i < LENGTH_SIZE; i++) n |= (uint64_t)bytes[i] << (8 * i);
    if (n > MAX_HEADER) {
        return PL_FAIL(err, PL_EINPUT,
            "%s: announces a header of %llu bytes; at most %u are allowed, so this is no safetensors file", where,
            (unsigned long long)n, MAX_HEADER);
    }
    if (n > size - LENGTH_SIZE) {
        return PL_FAIL(err, PL_EINPUT, "%s: announces a header of %llu bytes, but ends after %zu; it is cut off", where,
            (unsigned long long)n, size - LENGTH_SIZE);
    }
    *length = (size_t)n;
    return 0;
}

static int check_metadata(pl_error *err, pl_safetensors *f)
{
    const json_t *metadata = json_object_get(f->header, "__metadata__");
    if (!metadata || json_is_null(metadata)) return 0;
    if (!json_is_object(metadata)) {
        return PL_FAIL(err, PL_EINPUT, "%s: __metadata__ is %s; an object of strings was expected", f->where,
            pl_json_type_name(metadata));
    }
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)metadata, key, value)
    {
        if (!json_is_string(value)) {
            return PL_FAIL(err, PL_EINPUT, "%s: __metadata__: " SHOWN " is %s; a string was expected", f->where, key,
                pl_json_type_name(value));
        }
    }
    f->metadata = metadata;
    return 0;
}

static int tensor_fault(pl_error *err, const pl_st_tensor *t, const char *what)
{
    return PL_FAIL(err, PL_EINPUT, "%s: tensor " SHOWN ": %s", t->file, t->name, what);
}

static int read_dtype(pl_error *err, const json_t *info, pl_st_tensor *t, int *bits)
{
    const json_t *value = json_object_get(info, "dtype");
    if (!json_is_string(value)) return tensor_fault(err, t, "its dtype is missing or no string");
    for (int i = 0; i < PL_COUNT(dtypes); i++) {
        if (strcmp(dtypes[i].name, json_string_value(value)) != 0) continue;
        t->dtype_name = dtypes[i].name;
        t->known = dtypes[i].dtype >= 0;
        t->dtype = t->known ? (pl_dtype)dtypes[i].dtype : PL_U8;
        *bits = dtypes[i].bits;
        return 0;
    }
    return PL_FAIL(err, PL_EINPUT, "%s: tensor " SHOWN ": the format has no dtype " SHOWN, t->file, t->name,
        json_string_value(value));
}

/* Reads the shape into dims and works out how many bytes the tensor needs. */
static int read_shape(pl_error *err, const json_t *info, pl_st_tensor *t, int bits, int64_t *dims, uint64_t *need)
{
    const json_t *value = json_object_get(info, "shape");
    if (!json_is_array(value)) return tensor_fault(err, t, "its shape is missing or no list");
    uint64_t numel = 1, total;
    t->ndim = (int)json_array_size(value);
    t->shape = dims;
    for (int d = 0; d < t->ndim; d++) {
        const json_t *dim = json_array_get(value, (size_t)d);
        if (!json_is_integer(dim) || json_integer_value(dim) < 0) {
            return tensor_fault(err, t, "its shape holds something that is no whole number >= 0");
        }
        dims[d] = json_integer_value(dim);
        if (__builtin_mul_overflow(numel, (uint64_t)dims[d], &numel)) {
            return tensor_fault(err, t, "its shape has more elements than can be counted");
        }
    }
    if (__builtin_mul_overflow(numel, (uint64_t)bits, &total)) {
        return tensor_fault(err, t, "its shape has more bytes than can be counted");
    }
    if (total % 8) return tensor_fault(err, t, "its elements do not fill whole bytes");
    t->numel = (int64_t)numel;
    *need = total / 8;
    return 0;
}

static int read_offsets(pl_error *err, const json_t *info, pl_st_tensor *t, uint64_t need)
{
    const json_t *value = json_object_get(info, "data_offsets");
    const json_t *begin = json_array_get(value, 0), *end = json_array_get(value, 1);
    if (!json_is_array(value) || json_array_size(value) != 2 || !json_is_integer(begin) || !json_is_integer(end) ||
        json_integer_value(begin) < 0 || json_integer_value(end) < 0) {
        return tensor_fault(err, t, "its data_offsets are missing or no pair of whole numbers >= 0");
    }
    uint64_t from = (uint64_t)json_integer_value(begin), to = (uint64_t)json_integer_value(end);
    if (to < from || to - from != need) {
        char text[96];
        return PL_FAIL(err, PL_EINPUT, "%s: tensor " SHOWN ": %s takes %llu bytes, but data_offsets are [%llu, %llu]",
            t->file, t->name, pl_st_describe(t, text), (unsigned long long)need, (unsigned long long)from,
            (unsigned long long)to);
    }
    t->offset = from;
    t->bytes = need;
    return 0;
}

static int read_tensors(pl_error *err, pl_safetensors *f)
{
    size_t dims = 0, n = 0;
    const char *name;
    json_t *info;
    json_object_foreach(f->header, name, info)
    {
        dims += json_array_size(json_object_get(info, "shape"));
        n++;
    }
    PL_TRY(pl_calloc(err, n, sizeof *f->tensors, &f->tensors));
    PL_TRY(pl_calloc(err, n, sizeof *f->by_name, &f->by_name));
    PL_TRY(pl_calloc(err, dims, sizeof *f->dims, &f->dims));
    int64_t *shape = f->dims;
    json_object_foreach(f->header, name, info)
    {
        if (strcmp(name, "__metadata__") == 0) continue;
        pl_st_tensor *t = &f->tensors[f->count];
        t->file = f->where;
        t->name = name;
        if (!json_is_object(info)) return tensor_fault(err, t, "its description is not an object");
        int bits = 0;
        uint64_t need = 0;
        PL_TRY(read_dtype(err, info, t, &bits));
        PL_TRY(read_shape(err, info, t, bits, shape, &need));
        PL_TRY(read_offsets(err, info, t, need));
        shape += t->ndim;
        f->count++;
    }
    return 0;
}

static int by_offset(const void *a, const void *b)
{
    const pl_st_tensor *x = a, *y = b;
    if (x->offset != y->offset) return x->offset < y->offset ? -1 : 1;
    if (x->bytes != y->bytes) return x->bytes < y->bytes ? -1 : 1; /* empty ones lie before what begins there */
    return strcmp(x->name, y->name);
}

static int by_name(const void *a, const void *b, void *tensors)
{
    const pl_st_tensor *t = tensors;
    return strcmp(t[*(const int *)a].name, t[*(const int *)b].name);
}

/* Lays the tensors over the data: each must begin where the one before it ended, and the last end with the file. */
static int place_tensors(pl_error *err, pl_safetensors *f, const unsigned char *data, size_t size, size_t start)
{
    if (f->count) qsort(f->tensors, (size_t)f->count, sizeof *f->tensors, by_offset);
    uint64_t end = 0;
    for (int i = 0; i < f->count; i++) {
        pl_st_tensor *t = &f->tensors[i];
        if (t->offset != end) {
            return PL_FAIL(err, PL_EINPUT, "%s: tensor " SHOWN ": its data begins at %llu, %s %llu", f->where, t->name,
                (unsigned long long)t->offset,
                t->offset < end ? "inside of another tensor's, which ends at" : "but nothing covers the bytes from",
                (unsigned long long)end);
        }
        end += t->bytes; /* cannot wrap: begin and end were both below 2^63 */
        if (end > size) {
            return PL_FAIL(err, PL_EINPUT,
                "%s: tensor " SHOWN ": its data ends at %llu, but the file holds %zu bytes of data; it is cut off",
                f->where, t->name, (unsigned long long)end, size);
        }
        t->data = data + t->offset;
        t->offset += start;
        f->by_name[i] = i;
    }
    if (end != size) {
        return PL_FAIL(
            err, PL_EINPUT, "%s: has %llu bytes after its last tensor", f->where, (unsigned long long)(size - end));
    }
    if (f->count) qsort_r(f->by_name, (size_t)f->count, sizeof *f->by_name, by_name, f->tensors);
    return 0;
}

static int parse(pl_error *err, pl_safetensors *f, const unsigned char *bytes, size_t size)
{
    size_t length;
    PL_TRY(find_header(err, f->where, bytes, size, &length));
    PL_TRY(pl_json_parse(err, f->where, (const char *)bytes + LENGTH_SIZE, length, &f->header));
    if (!json_is_object(f->header)) {
        return PL_FAIL(
            err, PL_EINPUT, "%s: its header is %s; an object was expected", f->where, pl_json_type_name(f->header));
    }
    size_t start = LENGTH_SIZE + length;
    PL_TRY(check_metadata(err, f));
    PL_TRY(read_tensors(err, f));
    return place_tensors(err, f, bytes + start, size - start, start);
}

int pl_safetensors_parse(pl_error *err, const char *where, const void *bytes, size_t size, pl_safetensors **out)
{
    *out = NULL;
    pl_safetensors *f;
    PL_TRY(pl_calloc(err, 1, sizeof *f, &f));
    int rc = pl_strdup(err, where, &f->where);
    if (rc == 0) rc = parse(err, f, bytes, size);
    if (rc < 0) {
        pl_safetensors_close(f);
        return rc;
    }
    *out = f;
    return 0;
}

int pl_safetensors_open(pl_error *err, const char *path, pl_safetensors **out)
{
    *out = NULL;
    pl_map map;
    PL_TRY(pl_map_open(err, path, &map));
    int rc = pl_safetensors_parse(err, path, map.data, map.size, out);
    if (rc < 0) {
        pl_map_close(&map);
        return rc;
    }
    pl_safetensors *f = *out;
    f->map = map;
    for (int i = 0; i < f->count; i++) f->tensors[i].map = &f->map;
    return 0;
}

void pl_safetensors_close(pl_safetensors *f)
{
    if (!f) return;
    json_decref(f->header);
    free(f->tensors);
    free(f->by_name);
    free(f->dims);
    free(f->where);
    pl_map_close(&f->map);
    free(f);
}

int pl_safetensors_count(const pl_safetensors *f)
{
    return f->count;
}

const pl_st_tensor *pl_safetensors_at(const pl_safetensors *f, int index)
{
    return &f->tensors[index];
}

const pl_st_tensor *pl_safetensors_find(const pl_safetensors *f, const char *name)
{
    for (int low = 0, high = f->count; low < high;) {
        int middle = low + (high - low) / 2;
        const pl_st_tensor *t = &f->tensors[f->by_name[middle]];
        int order = strcmp(name, t->name);
        if (order == 0) return t;
        if (order < 0) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    return NULL;
}

const char *pl_safetensors_metadata(const pl_safetensors *f, const char *key)
{
    return json_string_value(json_object_get(f->metadata, key));
}

int pl_st_read(pl_error *err, const pl_st_tensor *t, int64_t first, int64_t count, pl_dtype dtype, void *out)
{
    if (first < 0 || count < 0 || first > t->numel || count > t->numel - first) {
        return PL_FAIL(err, PL_EBUG, "%s: tensor " SHOWN ": %lld elements from %lld were asked for; it has %lld",
            t->file, t->name, (long long)count, (long long)first, (long long)t->numel);
    }
    if (!t->known || !pl_convertible(dtype, t->dtype)) {
        return PL_FAIL(err, PL_EUNSUPPORTED, "%s: tensor " SHOWN ": its dtype %s cannot be read as %s", t->file,
            t->name, t->dtype_name, pl_dtype_name(dtype));
    }
    const char *from = (const char *)t->data + first * pl_dtype_size(t->dtype);
    return pl_convert(err, out, dtype, from, t->dtype, count);
}

const char *pl_st_describe(const pl_st_tensor *t, char text[96])
{
    int n = snprintf(text, 96, "%s [", t->dtype_name);
    for (int d = 0; d < t->ndim && n < 64; d++) {
        n += snprintf(text + n, (size_t)(96 - n), "%s%lld", d ? ", " : "", (long long)t->shape[d]);
    }
    if (n >= 64) n = 64 + snprintf(text + 64, 32, "...");
    snprintf(text + n, (size_t)(96 - n), "]");
    return text;
}
