#include "api/checksum.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#define XXH_INLINE_ALL /* so that hashing a grain is no call, and its length is known */
#include <xxhash.h>

#include "base/file.h"

#define GRAIN_BYTES (PL_GRAIN * sizeof(float))

void pl_checksum_add(uint64_t *sum, const void *values, int64_t first, int64_t count)
{
    const char *bytes = values;
    uint64_t place = (uint64_t)first / PL_GRAIN, total = 0;
    int64_t left = count;
    for (; left >= PL_GRAIN; left -= PL_GRAIN, bytes += GRAIN_BYTES) {
        total += XXH3_64bits_withSeed(bytes, GRAIN_BYTES, place++);
    }
    if (left > 0) total += XXH3_64bits_withSeed(bytes, (size_t)left * sizeof(float), place);
    *sum += total;
}

int pl_checksum_share(pl_error *err, pl_comm *comm, uint64_t *sums, int n)
{
    uint64_t *all = NULL;
    if (!comm || comm->size == 1) return 0;
    int rc = pl_calloc(err, (size_t)comm->size * (size_t)n, sizeof *all, &all);
    PL_GO(done, pl_comm_agree(err, comm, rc));
    PL_GO(done, pl_comm_gather(err, comm, sums, n * (int64_t)sizeof *sums, all));
    for (int i = 0; i < n; i++) {
        sums[i] = 0;
        for (int r = 0; r < comm->size; r++) sums[i] += all[(int64_t)r * n + i];
    }
done:
    free(all);
    return rc;
}

/* ---- files ---- */

static void print(XXH128_hash_t h, char text[33])
{
    snprintf(text, 33, "%016llx%016llx", (unsigned long long)h.high64, (unsigned long long)h.low64);
}

void pl_checksum_text(const void *bytes, size_t size, char text[33])
{
    print(XXH3_128bits(bytes, size), text);
}

static int add_piece(pl_error *err, void *user, const void *bytes, size_t size)
{
    (void)err;
    XXH3_128bits_update(user, bytes, size);
    return 0;
}

static int whole_file(pl_error *err, const char *path, char text[33])
{
    XXH3_state_t *state = XXH3_createState();
    if (!state) return PL_FAIL_NOMEM(err);
    XXH3_128bits_reset(state);
    int rc = pl_file_stream(err, path, add_piece, state);
    if (rc == 0) print(XXH3_128bits_digest(state), text);
    XXH3_freeState(state);
    return rc;
}

/* The header says how long it is; a damaged one may say anything. */
static int header_and_size(pl_error *err, const char *path, char text[33])
{
    pl_map map;
    uint64_t length = 0;
    PL_TRY(pl_map_open(err, path, &map));
    size_t size = map.size < sizeof length ? map.size : sizeof length;
    for (size_t i = 0; i < size; i++) length |= (uint64_t)map.data[i] << (8 * i);
    size = length < map.size - size ? size + length : map.size;
    print(XXH3_128bits_withSeed(map.data, size, map.size), text);
    pl_map_close(&map);
    return 0;
}

int pl_checksum_file(pl_error *err, const char *folder, const char *name, char text[33])
{
    static const char tensors[] = ".safetensors";
    size_t n = strlen(name), end = sizeof tensors - 1;
    char *path;
    PL_TRY(pl_path_join(err, folder, name, &path));
    int rc = n > end && strcmp(name + n - end, tensors) == 0 ? header_and_size(err, path, text)
                                                             : whole_file(err, path, text);
    free(path);
    return rc;
}
