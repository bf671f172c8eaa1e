#include "data/reader_source.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

#include <xxhash.h>
#include <zlib.h>
#include <zstd.h>

#include "base/buf.h"
#include "base/file.h"

#define INPUT_SIZE ((size_t)256 << 10)

enum packing { PACKED_NOT, PACKED_GZIP, PACKED_ZSTD };

struct pl_source {
    char *path;
    int fd;
    enum packing packing;
    pl_file_identity identity;
    XXH3_state_t *hash;
    unsigned char *input; /* bytes as on disk: input[at .. have) are not used yet */
    size_t at, have;
    bool ended; /* the file has no more bytes */
    bool whole; /* the packed stream is at the end of a member: the file may end here */
    z_stream zlib;
    bool zlib_open;
    ZSTD_DCtx *zstd;
};

static bool name_ends(const char *path, const char *ending)
{
    size_t n = strlen(path), e = strlen(ending);
    return n > e && strcasecmp(path + n - e, ending) == 0;
}

static void identity_of(const struct stat *st, pl_file_identity *out)
{
    *out = (pl_file_identity){
        .size = (int64_t)st->st_size,
        .mtime_ns = (int64_t)st->st_mtim.tv_sec * 1000000000 + st->st_mtim.tv_nsec,
        .ctime_ns = (int64_t)st->st_ctim.tv_sec * 1000000000 + st->st_ctim.tv_nsec,
        .device = (uint64_t)st->st_dev,
        .inode = (uint64_t)st->st_ino,
    };
}

static int open_file(pl_error *err, const char *path, int *fd, pl_file_identity *identity)
{
    *fd = open(path, O_RDONLY | O_CLOEXEC);
    if (*fd < 0) {
        if (errno == ENOENT || errno == ENOTDIR) return PL_FAIL(err, PL_ENOENT, "%s: there is no such file", path);
        return PL_FAIL(err, PL_EIO, "%s: cannot be opened: %s", path, strerror(errno));
    }
    struct stat st;
    int rc = 0;
    if (fstat(*fd, &st) != 0) {
        rc = PL_FAIL(err, PL_EIO, "%s: %s", path, strerror(errno));
    } else if (S_ISDIR(st.st_mode)) {
        rc = PL_FAIL(err, PL_EINPUT, "%s: is a folder; a data file was expected", path);
    } else if (!S_ISREG(st.st_mode)) {
        rc = PL_FAIL(err, PL_EINPUT, "%s: is not a regular file; data is read more than once, so it must be one", path);
    }
    if (rc < 0) {
        close(*fd);
        return rc;
    }
    identity_of(&st, identity);
    return 0;
}

/* Fills the empty input buffer. */
static int refill(pl_error *err, pl_source *s)
{
    s->at = s->have = 0;
    while (s->have < INPUT_SIZE) {
        ssize_t n = read(s->fd, s->input + s->have, INPUT_SIZE - s->have);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return PL_FAIL(err, PL_EIO, "%s: cannot be read: %s", s->path, strerror(errno));
        if (n == 0) {
            s->ended = true;
            break;
        }
        s->have += (size_t)n;
    }
    XXH3_128bits_update(s->hash, s->input, s->have);
    return 0;
}

static int detect(pl_error *err, pl_source *s)
{
    static const unsigned char gzip[] = {0x1f, 0x8b}, zstd[] = {0x28, 0xb5, 0x2f, 0xfd};
    PL_TRY(refill(err, s));
    PL_TRY(pl_file_check_fetched(err, s->path, s->input, s->have));
    s->whole = true;
    if (s->have >= sizeof gzip && memcmp(s->input, gzip, sizeof gzip) == 0) {
        s->packing = PACKED_GZIP;
        if (inflateInit2(&s->zlib, 15 + 16) != Z_OK) return PL_FAIL_NOMEM(err);
        s->zlib_open = true;
        s->whole = false;
    } else if (s->have >= sizeof zstd && memcmp(s->input, zstd, sizeof zstd) == 0) {
        s->packing = PACKED_ZSTD;
        s->zstd = ZSTD_createDCtx();
        if (!s->zstd) return PL_FAIL_NOMEM(err);
        s->whole = false;
    } else if (name_ends(s->path, ".gz")) {
        return PL_FAIL(err, PL_EINPUT, "%s: is not gzip data, though its name says so", s->path);
    } else if (name_ends(s->path, ".zst")) {
        return PL_FAIL(err, PL_EINPUT, "%s: is not zstd data, though its name says so", s->path);
    }
    return 0;
}

int pl_source_open(pl_error *err, const char *path, pl_source **out)
{
    pl_source *s;
    PL_TRY(pl_calloc(err, 1, sizeof *s, &s));
    s->fd = -1;
    int rc = 0;
    PL_GO(failed, pl_strdup(err, path, &s->path));
    PL_GO(failed, pl_calloc(err, INPUT_SIZE, 1, &s->input));
    s->hash = XXH3_createState();
    if (!s->hash) {
        rc = PL_FAIL_NOMEM(err);
        goto failed;
    }
    XXH3_128bits_reset(s->hash);
    int fd;
    PL_GO(failed, open_file(err, path, &fd, &s->identity));
    s->fd = fd;
    PL_GO(failed, detect(err, s));
    *out = s;
    return 0;
failed:
    pl_source_close(s);
    return rc;
}

void pl_source_close(pl_source *s)
{
    if (!s) return;
    ZSTD_freeDCtx(s->zstd);
    if (s->zlib_open) inflateEnd(&s->zlib);
    if (s->fd >= 0) close(s->fd);
    XXH3_freeState(s->hash);
    free(s->input);
    free(s->path);
    free(s);
}

static int unpack_gzip(pl_error *err, pl_source *s, int64_t line, char *bytes, size_t capacity, size_t *got)
{
    if (s->whole) { /* another member, or the zeros that tapes and some archives put at the end */
        if (s->input[s->at] == 0) {
            s->at++;
            return 0;
        }
        inflateReset(&s->zlib);
        s->whole = false;
    }
    s->zlib.next_in = s->input + s->at;
    s->zlib.avail_in = (uInt)(s->have - s->at);
    s->zlib.next_out = (unsigned char *)bytes;
    s->zlib.avail_out = (uInt)capacity;
    int rc = inflate(&s->zlib, Z_NO_FLUSH);
    s->at = s->have - s->zlib.avail_in;
    *got = capacity - s->zlib.avail_out;
    if (rc == Z_MEM_ERROR) return PL_FAIL_NOMEM(err);
    if (rc == Z_STREAM_END) s->whole = true;
    if (rc == Z_OK || rc == Z_STREAM_END || rc == Z_BUF_ERROR) return 0;
    return PL_FAIL(err, PL_EINPUT, "%s:%lld: the gzip data is damaged: %s", s->path, (long long)line,
        s->zlib.msg ? s->zlib.msg : "it cannot be unpacked");
}

static int unpack_zstd(pl_error *err, pl_source *s, int64_t line, char *bytes, size_t capacity, size_t *got)
{
    ZSTD_inBuffer in = {s->input, s->have, s->at};
    ZSTD_outBuffer to = {bytes, capacity, 0};
    size_t rc = ZSTD_decompressStream(s->zstd, &to, &in);
    s->at = in.pos;
    *got = to.pos;
    if (ZSTD_isError(rc)) {
        return PL_FAIL(
            err, PL_EINPUT, "%s:%lld: the zstd data is damaged: %s", s->path, (long long)line, ZSTD_getErrorName(rc));
    }
    s->whole = rc == 0;
    return 0;
}

/* The decoder may hold bytes back after it took all its input, so it is asked once more without any. */
static int unpack_rest(pl_error *err, pl_source *s, int64_t line, char *bytes, size_t capacity, size_t *got)
{
    *got = 0;
    if (s->whole) return 0;
    PL_TRY(s->packing == PACKED_GZIP ? unpack_gzip(err, s, line, bytes, capacity, got)
                                     : unpack_zstd(err, s, line, bytes, capacity, got));
    if (*got > 0 || s->whole) return 0;
    return PL_FAIL(err, PL_EINPUT, "%s:%lld: the file ends in the middle of its %s data; it is cut off", s->path,
        (long long)line, s->packing == PACKED_GZIP ? "gzip" : "zstd");
}

int pl_source_read(pl_error *err, pl_source *s, int64_t line, char *bytes, size_t capacity, size_t *got)
{
    *got = 0;
    if (capacity > (size_t)1 << 30) capacity = (size_t)1 << 30; /* zlib counts in 32 bits */
    while (*got == 0) {
        if (s->at == s->have && !s->ended) PL_TRY(refill(err, s));
        if (s->at == s->have && s->ended) {
            return s->packing == PACKED_NOT ? 0 : unpack_rest(err, s, line, bytes, capacity, got);
        }
        if (s->packing == PACKED_GZIP) {
            PL_TRY(unpack_gzip(err, s, line, bytes, capacity, got));
        } else if (s->packing == PACKED_ZSTD) {
            PL_TRY(unpack_zstd(err, s, line, bytes, capacity, got));
        } else {
            *got = s->have - s->at < capacity ? s->have - s->at : capacity;
            memcpy(bytes, s->input + s->at, *got);
            s->at += *got;
        }
    }
    return 0;
}

static void digest(XXH3_state_t *state, pl_file_identity *out)
{
    XXH128_hash_t h = XXH3_128bits_digest(state);
    out->hash[0] = h.low64;
    out->hash[1] = h.high64;
}

void pl_source_identity(const pl_source *s, pl_file_identity *out)
{
    *out = s->identity;
    digest(s->hash, out);
}

int pl_file_identify(pl_error *err, const char *path, bool with_hash, pl_file_identity *out)
{
    if (!with_hash) {
        int fd;
        PL_TRY(open_file(err, path, &fd, out));
        close(fd);
        return 0;
    }
    pl_source *s;
    PL_TRY(pl_source_open(err, path, &s));
    int rc = 0;
    while (rc == 0 && !s->ended) rc = refill(err, s);
    if (rc == 0) pl_source_identity(s, out);
    pl_source_close(s);
    return rc;
}
