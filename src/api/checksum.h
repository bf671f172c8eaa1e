/* Checksums of a checkpoint. A tensor's is one number that many hands can make of it, each of its part and in any
   order: the sum, in 64 bits, over its grains of 16 elements, of each one's XXH3 with its place as the seed. So it says
   nothing of who wrote or reads which part, needs no second reading of what was written, and a grain that is damaged,
   or stands in another's place, changes it. */
#ifndef PL_API_CHECKSUM_H
#define PL_API_CHECKSUM_H

#include "comm/comm.h"

#define PL_GRAIN 16

/* Adds elements [first, first + count) of a tensor of f32 to *sum. `first` is a multiple of PL_GRAIN; so is count,
   unless they are the tensor's last. */
void pl_checksum_add(uint64_t *sum, const void *values, int64_t first, int64_t count);
/* Collective over comm (NULL: one process). sums[n] become their sums over all processes. */
int pl_checksum_share(pl_error *err, pl_comm *comm, uint64_t *sums, int n);

/* A whole file's, as text; of a safetensors file, its header's and its size. */
int pl_checksum_file(pl_error *err, const char *folder, const char *name, char text[33]);
/* Of bytes. */
void pl_checksum_text(const void *bytes, size_t size, char text[33]);

#endif
