#include "io/config_swap.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Renames, and syncs the folder that both lie in. */
static int move(pl_error *err, const char *from, const char *to)
{
    if (rename(from, to) != 0) return PL_FAIL(err, PL_EIO, "%s: cannot be renamed: %s", from, strerror(errno));
    char *folder;
    const char *slash = strrchr(to, '/');
    PL_TRY(pl_strndup(err, slash ? to : ".", slash ? (size_t)(slash - to) + 1 : 1, &folder));
    int rc = pl_dir_sync(err, folder);
    free(folder);
    return rc;
}

int pl_config_swap_prepare(
    pl_error *err, const char *folder, const char *name, const pl_buf *text, pl_config_swap *swap)
{
    *swap = (pl_config_swap){.writer.fd = -1};
    pl_buf old = {0};
    int rc = 0;
    PL_GO(done, pl_path_join(err, folder, name, &swap->path));
    PL_GO(done, pl_format(err, &swap->replaced, "%s.replaced", swap->path));
    bool there = pl_file_exists(swap->path);
    if (there) PL_GO(done, pl_file_read(err, swap->path, &old));
    if (there && old.size == text->size && memcmp(old.data, text->data, old.size) == 0) goto done;
    swap->replaces = there;
    PL_GO(done, pl_writer_open(err, &swap->writer, swap->path));
    PL_GO(done, pl_writer_write(err, &swap->writer, text->data, text->size));
    rc = pl_writer_sync(err, &swap->writer);
done:
    pl_buf_free(&old);
    return rc;
}

int pl_config_swap_away(pl_error *err, pl_config_swap *swap)
{
    return swap->replaces ? move(err, swap->path, swap->replaced) : 0;
}

void pl_config_swap_back(pl_config_swap *swap)
{
    pl_error ignored = {0}; /* what went wrong before is what the user must know */
    if (swap->replaces) move(&ignored, swap->replaced, swap->path);
}

int pl_config_swap_commit(pl_error *err, pl_config_swap *swap)
{
    if (swap->writer.fd >= 0) PL_TRY(pl_writer_commit(err, &swap->writer));
    if (unlink(swap->replaced) != 0 && errno != ENOENT) {
        return PL_FAIL(err, PL_EIO, "%s: cannot be removed: %s", swap->replaced, strerror(errno));
    }
    return 0;
}

void pl_config_swap_free(pl_config_swap *swap)
{
    pl_writer_abort(&swap->writer);
    free(swap->path);
    free(swap->replaced);
}
