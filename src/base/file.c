#include "base/file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define WRITER_BUFFER ((size_t)1 << 20)
#define STREAM_PIECE ((size_t)256 << 10)

static int open_failed(pl_error *err, const char *path)
{
    if (errno == ENOENT || errno == ENOTDIR) return PL_FAIL(err, PL_ENOENT, "%s: there is no such file", path);
    return PL_FAIL(err, PL_EIO, "%s: cannot be opened: %s", path, strerror(errno));
}

/* Opens a regular file for reading and tells its size. */
static int open_regular(pl_error *err, const char *path, int *fd, size_t *size)
{
    *fd = open(path, O_RDONLY | O_CLOEXEC);
    if (*fd < 0) return open_failed(err, path);
    struct stat st;
    int rc = 0;
    if (fstat(*fd, &st) != 0) {
        rc = PL_FAIL(err, PL_EIO, "%s: %s", path, strerror(errno));
    } else if (S_ISDIR(st.st_mode)) {
        rc = PL_FAIL(err, PL_EINPUT, "%s: is a folder; a file was expected", path);
    } else if (!S_ISREG(st.st_mode)) {
        rc = PL_FAIL(err, PL_EINPUT, "%s: is not a regular file", path);
    }
    if (rc < 0) {
        close(*fd);
        return rc;
    }
    *size = (size_t)st.st_size;
    return 0;
}

int pl_map_open(pl_error *err, const char *path, pl_map *map)
{
    *map = (pl_map){0};
    int fd;
    size_t size;
    PL_TRY(open_regular(err, path, &fd, &size));
    void *data = NULL;
    if (size > 0) {
        data = mmap(NULL, size, PROT_READ, MAP_PRIVATE, fd, 0);
        if (data == MAP_FAILED) {
            int rc =
                PL_FAIL(err, errno == ENOMEM ? PL_ENOMEM : PL_EIO, "%s: cannot be mapped: %s", path, strerror(errno));
            close(fd);
            return rc;
        }
    }
    close(fd);
    map->data = data;
    map->size = size;
    return 0;
}

void pl_map_close(pl_map *map)
{
    if (map->data) munmap((void *)map->data, map->size);
    *map = (pl_map){0};
}

/* A touched page brings in its neighbours that are in the system's cache: 64 KiB most often, a whole huge page on some
   file systems. So they go in such blocks too. */
#define AROUND ((uintptr_t)2 << 20)

void pl_map_forget(const pl_map *map, const void *from, size_t size)
{
    if (!map || !map->data || size == 0) return;
    uintptr_t first = (uintptr_t)map->data, end = first + map->size;
    uintptr_t begin = (uintptr_t)from / AROUND * AROUND, stop = ((uintptr_t)from + size + AROUND - 1) / AROUND * AROUND;
    if (begin < first) begin = first;
    if (stop > end) stop = end;
    (void)madvise((void *)begin, stop - begin, MADV_DONTNEED);
}

int pl_file_check_fetched(pl_error *err, const char *path, const void *bytes, size_t size)
{
    static const char begin[] = "version https://git-lfs";
    size_t n = sizeof begin - 1;
    if (size < n || size > 1024 || memcmp(bytes, begin, n) != 0) return 0;
    return PL_FAIL(err, PL_EINPUT,
        "%s: is a Git LFS pointer, not the file that it stands for; fetch that with `git lfs pull`", path);
}

int pl_file_read(pl_error *err, const char *path, pl_buf *buf)
{
    int fd;
    size_t size;
    PL_TRY(open_regular(err, path, &fd, &size));
    int rc = pl_buf_reserve(err, buf, size + 1);
    while (rc >= 0) {
        rc = pl_buf_reserve(err, buf, 4096);
        if (rc < 0) break;
        ssize_t n = read(fd, buf->data + buf->size, buf->capacity - buf->size - 1);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) rc = PL_FAIL(err, PL_EIO, "%s: cannot be read: %s", path, strerror(errno));
        if (n <= 0) break;
        buf->size += (size_t)n;
        buf->data[buf->size] = 0;
    }
    close(fd);
    return rc;
}

int pl_file_stream(pl_error *err, const char *path,
    int (*piece)(pl_error *err, void *user, const void *bytes, size_t size), void *user)
{
    int fd;
    size_t size;
    char *buffer = NULL;
    PL_TRY(open_regular(err, path, &fd, &size));
    int rc = pl_calloc(err, STREAM_PIECE, 1, &buffer);
    while (rc == 0) {
        ssize_t n = read(fd, buffer, STREAM_PIECE);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) rc = PL_FAIL(err, PL_EIO, "%s: cannot be read: %s", path, strerror(errno));
        if (n <= 0) break;
        rc = piece(err, user, buffer, (size_t)n);
    }
    free(buffer);
    close(fd);
    return rc;
}

bool pl_file_exists(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISREG(st.st_mode);
}

bool pl_dir_exists(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

int pl_dir_check(pl_error *err, const char *path, const char *expected, const pl_dir_mistake *mistakes, int count)
{
    if (pl_file_exists(path)) return PL_FAIL(err, PL_EINPUT, "%s: is a file; %s was expected", path, expected);
    if (!pl_dir_exists(path)) return PL_FAIL(err, PL_ENOENT, "%s: there is no such folder", path);
    for (int i = 0; i < count; i++) {
        char *name;
        PL_TRY(pl_path_join(err, path, mistakes[i].name, &name));
        bool there = pl_file_exists(name);
        free(name);
        if (there) return PL_FAIL(err, PL_EINPUT, "%s: %s", path, mistakes[i].message);
    }
    return 0;
}

int pl_dir_make(pl_error *err, const char *path)
{
    char *copy;
    PL_TRY(pl_strdup(err, path, &copy));
    int rc = 0;
    for (char *p = copy + 1; rc == 0; p++) {
        if (*p != '/' && *p != 0) continue;
        char end = *p;
        *p = 0;
        if (mkdir(copy, 0777) != 0 && errno != EEXIST) {
            rc = PL_FAIL(err, PL_EIO, "%s: the folder cannot be made: %s", copy, strerror(errno));
        } else if (!pl_dir_exists(copy)) {
            rc = PL_FAIL(err, PL_EIO, "%s: is a file; a folder was expected", copy);
        }
        *p = end;
        if (end == 0) break;
    }
    free(copy);
    return rc;
}

int pl_dir_remove(pl_error *err, const char *path)
{
    struct stat st;
    if (lstat(path, &st) != 0) {
        if (errno == ENOENT) return 0;
        return PL_FAIL(err, PL_EIO, "%s: %s", path, strerror(errno));
    }
    int rc = 0;
    if (S_ISDIR(st.st_mode)) {
        DIR *dir = opendir(path);
        if (!dir) return PL_FAIL(err, PL_EIO, "%s: cannot be read: %s", path, strerror(errno));
        for (struct dirent *entry; rc == 0 && (entry = readdir(dir));) {
            if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0) continue;
            char *child;
            rc = pl_path_join(err, path, entry->d_name, &child);
            if (rc == 0) {
                rc = pl_dir_remove(err, child);
                free(child);
            }
        }
        closedir(dir);
    }
    if (rc == 0 && remove(path) != 0) rc = PL_FAIL(err, PL_EIO, "%s: cannot be removed: %s", path, strerror(errno));
    return rc;
}

int pl_dir_sync(pl_error *err, const char *path)
{
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return open_failed(err, path);
    int rc = 0;
    /* Some file systems cannot sync a folder and say EINVAL; there is nothing more to do there. */
    if (fsync(fd) != 0 && errno != EINVAL) {
        rc = PL_FAIL(err, PL_EIO, "%s: cannot be synced: %s", path, strerror(errno));
    }
    close(fd);
    return rc;
}

int pl_path_join(pl_error *err, const char *dir, const char *name, char **out)
{
    size_t n = strlen(dir);
    if (n == 0) return pl_strdup(err, name, out);
    return pl_format(err, out, dir[n - 1] == '/' ? "%s%s" : "%s/%s", dir, name);
}

static int write_all(pl_error *err, pl_writer *w, const char *bytes, size_t size)
{
    while (size > 0) {
        ssize_t n = write(w->fd, bytes, size);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return PL_FAIL(err, PL_EIO, "%s: cannot be written: %s", w->path, strerror(errno));
        bytes += n;
        size -= (size_t)n;
    }
    return 0;
}

int pl_writer_open(pl_error *err, pl_writer *w, const char *path)
{
    *w = (pl_writer){.fd = -1};
    int rc = 0;
    PL_GO(failed, pl_strdup(err, path, &w->path));
    PL_GO(failed, pl_format(err, &w->temporary, "%s.tmp", path));
    PL_GO(failed, pl_calloc(err, WRITER_BUFFER, 1, &w->buffer));
    w->fd = open(w->temporary, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (w->fd < 0) {
        rc = PL_FAIL(err, PL_EIO, "%s: cannot be written: %s", path, strerror(errno));
        goto failed;
    }
    return 0;
failed:
    pl_writer_abort(w);
    return rc;
}

int pl_writer_write(pl_error *err, pl_writer *w, const void *bytes, size_t size)
{
    w->written += size;
    if (w->used + size > WRITER_BUFFER) {
        PL_TRY(write_all(err, w, w->buffer, w->used));
        w->used = 0;
    }
    if (size >= WRITER_BUFFER) return write_all(err, w, bytes, size);
    if (size) memcpy(w->buffer + w->used, bytes, size);
    w->used += size;
    return 0;
}

static void writer_free(pl_writer *w)
{
    free(w->path);
    free(w->temporary);
    free(w->buffer);
    *w = (pl_writer){.fd = -1};
}

int pl_writer_sync(pl_error *err, pl_writer *w)
{
    PL_TRY(write_all(err, w, w->buffer, w->used));
    w->used = 0;
    if (fsync(w->fd) != 0) return PL_FAIL(err, PL_EIO, "%s: cannot be written: %s", w->path, strerror(errno));
    return 0;
}

int pl_writer_commit(pl_error *err, pl_writer *w)
{
    int rc = pl_writer_sync(err, w);
    int fd = w->fd;
    w->fd = -1;
    if (close(fd) != 0 && rc == 0) {
        rc = PL_FAIL(err, PL_EIO, "%s: cannot be written: %s", w->path, strerror(errno));
    }
    if (rc == 0 && rename(w->temporary, w->path) != 0) {
        rc = PL_FAIL(err, PL_EIO, "%s: cannot be renamed into place: %s", w->path, strerror(errno));
    }
    if (rc < 0) unlink(w->temporary);
    writer_free(w);
    return rc;
}

void pl_writer_abort(pl_writer *w)
{
    if (w->fd >= 0) {
        close(w->fd);
        unlink(w->temporary);
    }
    writer_free(w);
}

int pl_file_write(pl_error *err, const char *path, const void *bytes, size_t size)
{
    pl_writer w;
    PL_TRY(pl_writer_open(err, &w, path));
    int rc = pl_writer_write(err, &w, bytes, size);
    if (rc < 0) {
        pl_writer_abort(&w);
        return rc;
    }
    return pl_writer_commit(err, &w);
}

static int write_piece(pl_error *err, void *user, const void *bytes, size_t size)
{
    return pl_writer_write(err, user, bytes, size);
}

int pl_file_copy(pl_error *err, const char *from, const char *to)
{
    pl_writer w;
    PL_TRY(pl_writer_open(err, &w, to));
    int rc = pl_file_stream(err, from, write_piece, &w);
    if (rc < 0) {
        pl_writer_abort(&w);
        return rc;
    }
    return pl_writer_commit(err, &w);
}
