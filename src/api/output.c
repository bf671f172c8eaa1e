#include "api/output.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <time.h>
#include <unistd.h>

#include "base/file.h"

#define LOCK ".lock"

/* One run at a time: two would write each other's checkpoints. */
static int lock_folder(pl_error *err, const pl_config *c, pl_output *o)
{
    char *path;
    PL_TRY(pl_dir_make(err, c->output));
    PL_TRY(pl_path_join(err, c->output, LOCK, &path));
    int rc = 0;
    o->lock = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (o->lock < 0) {
        rc = PL_FAIL(err, PL_EIO, "%s: cannot be written: %s", c->output, strerror(errno));
    } else if (flock(o->lock, LOCK_EX | LOCK_NB) != 0) {
        rc = PL_FAIL(err, PL_EUSAGE,
            "%s: another plait is training into this folder; wait for it, or choose another "
            "--output",
            c->output);
    }
    free(path);
    return rc;
}

/* Whether OUTPUT has a file of that name. */
static int has(pl_error *err, const pl_config *c, const char *name, bool *out)
{
    char *path;
    PL_TRY(pl_path_join(err, c->output, name, &path));
    *out = pl_file_exists(path);
    free(path);
    return 0;
}

/* Compares with the run that the folder holds. Steps and epochs may differ: a run may be made longer. */
static int compare_with_former(pl_error *err, const pl_config *c, const char *path)
{
    pl_config before;
    PL_TRY(pl_config_open(err, &before));
    int rc = pl_config_read(err, &before, path);
    if (rc == 0) rc = pl_config_check(err, &before, PL_CMD_TRAIN);
    if (rc == 0) rc = pl_config_compare(err, c, &before, c->output);
    pl_config_close(&before);
    return rc;
}

/* Takes the folder, and refuses one that holds anything else than an earlier start of this run. */
static int claim(pl_error *err, const pl_config *c, pl_output *o)
{
    static const char *const others[] = {"model.safetensors", "model.safetensors.index.json", "pytorch_model.bin",
        "adapter_model.safetensors", "adapter_model.bin", "config.json", "adapter_config.json"};
    char *path;
    PL_TRY(lock_folder(err, c, o));
    PL_TRY(pl_path_join(err, c->output, "run.yaml", &path));
    int rc = 0;
    o->claimed = pl_file_exists(path);
    if (o->claimed) {
        rc = compare_with_former(err, c, path);
        free(path);
        return rc;
    }
    free(path);
    for (int i = 0; i < PL_COUNT(others) && rc == 0; i++) {
        bool there;
        rc = has(err, c, others[i], &there);
        if (rc == 0 && there) {
            rc = PL_FAIL(
                err, PL_EUSAGE, "%s: holds %s of something else; choose another --output", c->output, others[i]);
        }
    }
    return rc;
}

/* Files of tokens that a killed start was writing. The folder is this process's alone by now. */
static int sweep_cache(pl_error *err, const pl_config *c)
{
    char *folder;
    if (c->data.cache) return 0; /* may be shared with others */
    PL_TRY(pl_path_join(err, c->output, "cache", &folder));
    DIR *dir = opendir(folder);
    int rc = 0;
    for (struct dirent *entry; dir && rc == 0 && (entry = readdir(dir));) {
        size_t size = strlen(entry->d_name);
        char *path;
        if (size < 4 || strcmp(entry->d_name + size - 4, ".tmp") != 0) continue;
        rc = pl_path_join(err, folder, entry->d_name, &path);
        if (rc < 0) break;
        unlink(path);
        free(path);
    }
    if (dir) closedir(dir);
    free(folder);
    return rc;
}

int pl_output_claim(pl_error *err, const pl_config *c, pl_output *o)
{
    PL_TRY(claim(err, c, o));
    return sweep_cache(err, c);
}

int pl_output_keep(pl_error *err, const pl_config *c, pl_output *o)
{
    char *path;
    PL_TRY(pl_path_join(err, c->output, "run.yaml", &path));
    int rc = pl_config_write(err, c, path);
    o->claimed = o->claimed || rc == 0;
    free(path);
    return rc;
}

void pl_output_release(const pl_config *c, pl_output *o)
{
    static const char *const made[] = {LOCK, "cache"};
    pl_error ignored = {0};
    char *path;
    for (int i = 0; i < PL_COUNT(made) && o->lock >= 0 && !o->claimed; i++) {
        if (pl_path_join(&ignored, c->output, made[i], &path) < 0) continue;
        remove(path); /* the cache only when it is empty */
        free(path);
    }
    if (o->lock >= 0 && !o->claimed) rmdir(c->output);
    if (o->lock >= 0) close(o->lock);
}

/* ---- several processes ---- */

#define TOKEN 128

/* Leaves in the folder what nobody else has. */
static int leave_token(pl_error *err, const char *path, char token[TOKEN])
{
    char host[64] = "";
    struct timespec now;
    gethostname(host, sizeof host - 1);
    clock_gettime(CLOCK_REALTIME, &now);
    int n = snprintf(token, TOKEN, "%s %ld %lld.%09ld\n", host, (long)getpid(), (long long)now.tv_sec, now.tv_nsec);
    int fd = open(path, O_WRONLY | O_TRUNC | O_CLOEXEC), rc = 0;
    if (fd < 0 || write(fd, token, (size_t)n) != n) {
        rc = PL_FAIL(err, PL_EIO, "%s: cannot be written: %s", path, strerror(errno));
    }
    if (fd >= 0) close(fd);
    return rc;
}

/* Whether the token is there. */
static int find_token(pl_error *err, const pl_config *c, const char *path, const char *token)
{
    pl_buf text = {0};
    pl_error ignored = {0};
    bool same = pl_file_read(&ignored, path, &text) == 0 && strcmp(pl_buf_text(&text), token) == 0;
    pl_buf_free(&text);
    if (same) return 0;
    return PL_FAIL(err, PL_EUSAGE,
        "%s: is not the folder of that name which process 0 works in; the output must be on a file system that all "
        "processes share, by a path that leads there from each",
        c->output);
}

int pl_output_agree(pl_error *err, pl_comm *comm, const pl_config *c)
{
    char token[TOKEN] = "", *path = NULL;
    int rc = pl_path_join(err, c->output, LOCK, &path);
    if (rc == 0 && comm->rank == 0) rc = leave_token(err, path, token);
    PL_GO(done, pl_comm_agree(err, comm, rc));
    PL_GO(done, pl_comm_broadcast(err, comm, token, sizeof token, 0));
    rc = pl_comm_agree(err, comm, find_token(err, c, path, token));
done:
    free(path);
    return rc;
}
