/* The file of rows:

     16 bytes   magic
     rows       i32 ids, and i32 labels where they differ, one row after another
     entries    of the train part, then of the validation part (pl_cache_entry, from a multiple of 16)
     sources    a pl_cache_source for each file
     footer     below; its last field is the hash of everything before it

   in the machine's own byte order: it is a cache. Written front to back, so nothing but one buffer is held in memory.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include <xxhash.h>

#include "base/file.h"
#include "data/dataset_internal.h"

#define MAGIC "plait rows 1\n\0\0"
#define SPOOL_BUFFER ((size_t)1 << 20)

typedef struct footer {
    uint64_t key[2];
    uint64_t entries_at, sources_at, source_count;
    int64_t built_ns;
    pl_data_stats stats[PL_DATA_PARTS];
    uint64_t hash[2]; /* XXH3-128 of the file up to here */
} footer;

/* Entries wait here until the rows are through: in memory, and beyond a MiB in a file without a name. */
typedef struct spool {
    pl_buf buf;
    int fd;
    uint64_t size; /* bytes in the file */
} spool;

struct pl_cache_writer {
    char *path, *part_path;
    pl_writer writer;
    bool open;
    XXH3_state_t *hash;
    spool entries[PL_DATA_PARTS];
    int64_t built_ns;
};

static int put(pl_error *err, pl_cache_writer *w, const void *bytes, size_t size)
{
    XXH3_128bits_update(w->hash, bytes, size);
    return pl_writer_write(err, &w->writer, bytes, size);
}

static int pad(pl_error *err, pl_cache_writer *w)
{
    static const char zeros[16] = {0};
    return put(err, w, zeros, (size_t)(-w->writer.written & 15));
}

int pl_cache_create(pl_error *err, const char *path, pl_cache_writer **out)
{
    pl_cache_writer *w;
    PL_TRY(pl_calloc(err, 1, sizeof *w, &w));
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    w->built_ns = (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
    for (int i = 0; i < PL_DATA_PARTS; i++) w->entries[i].fd = -1;
    int rc = 0;
    w->hash = XXH3_createState();
    if (!w->hash) {
        rc = PL_FAIL_NOMEM(err);
        goto failed;
    }
    XXH3_128bits_reset(w->hash);
    PL_GO(failed, pl_strdup(err, path, &w->path));
    /* Two processes may build the same file at once; each writes its own, and the last one stays. */
    PL_GO(failed, pl_format(err, &w->part_path, "%s.%ld", path, (long)getpid()));
    PL_GO(failed, pl_writer_open(err, &w->writer, w->part_path));
    w->open = true;
    PL_GO(failed, put(err, w, MAGIC, 16));
    *out = w;
    return 0;
failed:
    pl_cache_abort(w);
    return rc;
}

void pl_cache_abort(pl_cache_writer *w)
{
    if (!w) return;
    if (w->open) pl_writer_abort(&w->writer);
    for (int i = 0; i < PL_DATA_PARTS; i++) {
        pl_buf_free(&w->entries[i].buf);
        if (w->entries[i].fd >= 0) close(w->entries[i].fd);
    }
    XXH3_freeState(w->hash);
    free(w->path);
    free(w->part_path);
    free(w);
}

static int spool_flush(pl_error *err, pl_cache_writer *w, spool *s)
{
    if (s->fd < 0) {
        char *name;
        PL_TRY(pl_format(err, &name, "%s.XXXXXX", w->part_path));
        s->fd = mkostemp(name, O_CLOEXEC);
        if (s->fd >= 0) unlink(name);
        free(name);
        if (s->fd < 0) return PL_FAIL(err, PL_EIO, "%s: cannot be written: %s", w->path, strerror(errno));
    }
    for (size_t at = 0; at < s->buf.size;) {
        ssize_t n = write(s->fd, s->buf.data + at, s->buf.size - at);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return PL_FAIL(err, PL_EIO, "%s: cannot be written: %s", w->path, strerror(errno));
        at += (size_t)n;
    }
    s->size += s->buf.size;
    pl_buf_clear(&s->buf);
    return 0;
}

int pl_cache_add(pl_error *err, pl_cache_writer *w, const pl_rows *rows)
{
    uint64_t start = w->writer.written;
    for (size_t i = 0; i < rows->count; i++) {
        const pl_rows_row *row = &rows->rows[i];
        spool *s = &w->entries[row->part];
        pl_cache_entry entry = {start + (uint64_t)row->at * sizeof(int32_t),
            (uint32_t)row->n | (row->labelled ? PL_CACHE_LABELLED : 0), (uint32_t)row->trained};
        PL_TRY(pl_buf_append(err, &s->buf, &entry, sizeof entry));
        if (s->buf.size >= SPOOL_BUFFER) PL_TRY(spool_flush(err, w, s));
    }
    return put(err, w, rows->data, rows->used * sizeof *rows->data);
}

static int put_spool(pl_error *err, pl_cache_writer *w, spool *s)
{
    if (s->size > 0) {
        PL_TRY(spool_flush(err, w, s));
        PL_TRY(pl_buf_reserve(err, &s->buf, SPOOL_BUFFER));
        for (uint64_t at = 0; at < s->size;) {
            ssize_t n = pread(s->fd, s->buf.data, SPOOL_BUFFER, (off_t)at);
            if (n < 0 && errno == EINTR) continue;
            if (n <= 0) return PL_FAIL(err, PL_EIO, "%s: cannot be written: %s", w->path, strerror(errno));
            PL_TRY(put(err, w, s->buf.data, (size_t)n));
            at += (uint64_t)n;
        }
        return 0;
    }
    return put(err, w, pl_buf_text(&s->buf), s->buf.size);
}

int pl_cache_commit(pl_error *err, pl_cache_writer *w, const uint64_t key[2], const pl_cache_source *sources,
    size_t source_count, const pl_data_stats stats[PL_DATA_PARTS])
{
    footer f;
    memset(&f, 0, sizeof f);
    memcpy(f.key, key, sizeof f.key);
    f.built_ns = w->built_ns;
    memcpy(f.stats, stats, sizeof f.stats);
    PL_TRY(pad(err, w));
    f.entries_at = w->writer.written;
    for (int i = 0; i < PL_DATA_PARTS; i++) PL_TRY(put_spool(err, w, &w->entries[i]));
    f.sources_at = w->writer.written;
    f.source_count = source_count;
    PL_TRY(put(err, w, sources, source_count * sizeof *sources));
    PL_TRY(put(err, w, &f, offsetof(footer, hash)));
    XXH128_hash_t h = XXH3_128bits_digest(w->hash);
    f.hash[0] = h.low64;
    f.hash[1] = h.high64;
    PL_TRY(put(err, w, f.hash, sizeof f.hash));
    w->open = false;
    PL_TRY(pl_writer_commit(err, &w->writer));
    if (rename(w->part_path, w->path) != 0) {
        int rc = PL_FAIL(err, PL_EIO, "%s: cannot be renamed into place: %s", w->path, strerror(errno));
        unlink(w->part_path);
        return rc;
    }
    return 0;
}

/* Hashes the file by reading, not through the mapping, whose pages would all stay resident. */
static int hash_file(pl_error *err, const char *path, uint64_t size, uint64_t out[2], bool *read_all)
{
    char *buffer = NULL;
    XXH3_state_t *state = NULL;
    uint64_t at = 0;
    int rc = 0, fd = open(path, O_RDONLY | O_CLOEXEC);
    *read_all = false;
    if (fd < 0) return 0;
    PL_GO(done, pl_calloc(err, SPOOL_BUFFER, 1, &buffer));
    state = XXH3_createState();
    if (!state) {
        rc = PL_FAIL_NOMEM(err);
        goto done;
    }
    XXH3_128bits_reset(state);
    while (at < size) {
        size_t want = size - at < SPOOL_BUFFER ? (size_t)(size - at) : SPOOL_BUFFER;
        ssize_t n = pread(fd, buffer, want, (off_t)at);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) goto done;
        XXH3_128bits_update(state, buffer, (size_t)n);
        at += (uint64_t)n;
    }
    XXH128_hash_t h = XXH3_128bits_digest(state);
    out[0] = h.low64;
    out[1] = h.high64;
    *read_all = true;
done:
    XXH3_freeState(state);
    free(buffer);
    close(fd);
    return rc;
}

/* Every offset and length of the file lies inside it. */
static bool consistent(const pl_cache *c, const footer *f)
{
    uint64_t end = c->size - sizeof *f, rows = 0;
    if (f->entries_at < 16 || f->entries_at % 16 || f->entries_at > f->sources_at || f->sources_at > end) return false;
    if (end - f->sources_at != f->source_count * sizeof(pl_cache_source)) return false;
    for (int p = 0; p < PL_DATA_PARTS; p++) {
        if (f->stats[p].rows < 0 || f->stats[p].rows > (int64_t)(c->size / sizeof(pl_cache_entry))) return false;
        rows += (uint64_t)f->stats[p].rows;
    }
    if ((f->sources_at - f->entries_at) != rows * sizeof(pl_cache_entry)) return false;
    const pl_cache_entry *e = (const pl_cache_entry *)(c->data + f->entries_at);
    for (uint64_t i = 0; i < rows; i++) {
        uint64_t n = e[i].n & ~PL_CACHE_LABELLED, bytes = n * (e[i].n & PL_CACHE_LABELLED ? 8 : 4);
        if (e[i].at % 4 || e[i].at > f->entries_at || bytes > f->entries_at - e[i].at || e[i].trained >= n)
            return false;
    }
    return true;
}

static int check(
    pl_error *err, const char *path, const uint64_t key[2], size_t source_count, pl_cache *c, const char **reason)
{
    footer f;
    uint64_t hash[2];
    bool read_all;
    *reason = "is no file of rows, or of another version";
    if (c->size < 16 + sizeof f || memcmp(c->data, MAGIC, 16) != 0) return 0;
    memcpy(&f, c->data + c->size - sizeof f, sizeof f);
    PL_TRY(hash_file(err, path, c->size - sizeof f.hash, hash, &read_all));
    *reason = "is damaged";
    if (!read_all || memcmp(hash, f.hash, sizeof hash) != 0) return 0;
    *reason = "is of other settings";
    if (memcmp(f.key, key, sizeof f.key) != 0 || f.source_count != source_count) return 0;
    *reason = "is damaged";
    if (!consistent(c, &f)) return 0;
    memcpy(c->stats, f.stats, sizeof c->stats);
    c->entries[PL_DATA_TRAIN] = (const pl_cache_entry *)(c->data + f.entries_at);
    c->entries[PL_DATA_VALIDATION] = c->entries[PL_DATA_TRAIN] + f.stats[PL_DATA_TRAIN].rows;
    c->sources = (const pl_cache_source *)(c->data + f.sources_at);
    c->built_ns = f.built_ns;
    *reason = NULL;
    return 0;
}

int pl_cache_open(
    pl_error *err, const char *path, const uint64_t key[2], size_t source_count, pl_cache *out, const char **reason)
{
    *out = (pl_cache){0};
    pl_map map;
    PL_TRY(pl_map_open(err, path, &map));
    out->data = map.data;
    out->size = map.size;
    int rc = check(err, path, key, source_count, out, reason);
    pl_map_forget(&map, map.data, map.size);
    if (rc < 0 || *reason) pl_cache_close(out);
    return rc;
}

void pl_cache_close(pl_cache *cache)
{
    pl_map map = {cache->data, cache->size};
    pl_map_close(&map);
    *cache = (pl_cache){0};
}
