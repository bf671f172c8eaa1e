/* Memory is accounted by tag (pl_mem_tag in plait.h): what it is now, the highest it ever was. All device memory passes
   through here, on every device, so the dry device's account is the real one's. */
#ifndef PL_MEM_MEM_H
#define PL_MEM_MEM_H

#include "device/device.h"

typedef struct pl_mem {
    pl_device *device;
    int64_t now[PL_MEM_TAG_COUNT], peak[PL_MEM_TAG_COUNT]; /* bytes */
    int64_t total_now, total_peak;
    int64_t budget; /* bytes; 0 = none. An allocation beyond it is PL_ENOMEM that names the tag and both figures. */
    bool sealed;    /* after the first step nothing may allocate: PL_EBUG */
} pl_mem;

void pl_mem_init(pl_mem *mem, pl_device *device);
int pl_mem_alloc(pl_error *err, pl_mem *mem, pl_mem_tag tag, int64_t bytes, void **out);
void pl_mem_free(pl_mem *mem, pl_mem_tag tag, void *data, int64_t bytes);
/* Counts bytes that something else holds (a file's mapping), and takes them back with a negative number. */
void pl_mem_count(pl_mem *mem, pl_mem_tag tag, int64_t bytes);

/* A LIFO arena. On the dry device it has no memory and no limit, and tells by its peak how large the real one must be.
 */
typedef struct pl_stack {
    pl_mem *mem;
    pl_mem_tag tag;
    char *base;
    int64_t capacity, used, peak; /* bytes, multiples of 64 */
} pl_stack;

/* The whole capacity is allocated and counted at once; PL_STACK_UNLIMITED (dry device only) has no memory and is
   counted as it grows, so that both end with the same account. */
#define PL_STACK_UNLIMITED (-1)
int pl_stack_open(pl_error *err, pl_stack *stack, pl_mem *mem, pl_mem_tag tag, int64_t capacity);
void pl_stack_close(pl_stack *stack); /* {0} is fine */
/* Content is undefined. PL_ENOMEM when the capacity does not suffice. */
int pl_stack_push(pl_error *err, pl_stack *stack, pl_dtype dtype, int ndim, const int64_t *shape, pl_tensor *out);
int pl_stack_push_bytes(pl_error *err, pl_stack *stack, int64_t bytes, void **out);
/* A mark is what `used` was; popping to it frees all that was pushed since. */
static inline int64_t pl_stack_mark(const pl_stack *stack)
{
    return stack->used;
}
void pl_stack_pop(pl_stack *stack, int64_t mark);

#endif
