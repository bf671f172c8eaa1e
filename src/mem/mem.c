#include "mem/mem.h"

#define ALIGNMENT 64

const char *pl_mem_tag_name(pl_mem_tag tag)
{
    static const char *const names[] = {
#define X(tag, name) [tag] = name,
        PL_MEM_TAG_LIST(X)
#undef X
    };
    return names[tag];
}

void pl_mem_init(pl_mem *mem, pl_device *device)
{
    *mem = (pl_mem){.device = device};
}

void pl_mem_count(pl_mem *mem, pl_mem_tag tag, int64_t bytes)
{
    mem->now[tag] += bytes;
    mem->total_now += bytes;
    if (mem->now[tag] > mem->peak[tag]) mem->peak[tag] = mem->now[tag];
    if (mem->total_now > mem->total_peak) mem->total_peak = mem->total_now;
}

int pl_mem_alloc(pl_error *err, pl_mem *mem, pl_mem_tag tag, int64_t bytes, void **out)
{
    *out = NULL;
    if (bytes < 0) return PL_FAIL(err, PL_EBUG, "a size of %lld bytes for %s", (long long)bytes, pl_mem_tag_name(tag));
    if (mem->sealed) {
        return PL_FAIL(err, PL_EBUG, "%lld bytes for %s were asked for after the first step", (long long)bytes,
            pl_mem_tag_name(tag));
    }
    if (mem->budget > 0 && mem->total_now + bytes > mem->budget) {
        return PL_FAIL(err, PL_ENOMEM,
            "%.1f MiB for %s do not fit: %.1f MiB of the budget of %.1f MiB are in use (memory.budget)",
            (double)bytes / 0x1p20, pl_mem_tag_name(tag), (double)mem->total_now / 0x1p20,
            (double)mem->budget / 0x1p20);
    }
    if (mem->device->ops->alloc(mem->device, err, bytes, out) < 0) {
        pl_error_clear(err);
        return PL_FAIL(err, PL_ENOMEM, "out of memory: %.1f MiB for %s, with %.1f MiB in use", (double)bytes / 0x1p20,
            pl_mem_tag_name(tag), (double)mem->total_now / 0x1p20);
    }
    pl_mem_count(mem, tag, bytes);
    return 0;
}

void pl_mem_free(pl_mem *mem, pl_mem_tag tag, void *data, int64_t bytes)
{
    mem->device->ops->release(mem->device, data, bytes);
    pl_mem_count(mem, tag, -bytes);
}

int pl_stack_open(pl_error *err, pl_stack *stack, pl_mem *mem, pl_mem_tag tag, int64_t capacity)
{
    *stack = (pl_stack){.mem = mem, .tag = tag};
    void *base = NULL;
    if (capacity > 0) PL_TRY(pl_mem_alloc(err, mem, tag, capacity, &base));
    stack->base = base;
    stack->capacity = capacity;
    return 0;
}

void pl_stack_close(pl_stack *stack)
{
    if (stack->mem && stack->capacity > 0) pl_mem_free(stack->mem, stack->tag, stack->base, stack->capacity);
    if (stack->mem && stack->capacity == PL_STACK_UNLIMITED) pl_mem_count(stack->mem, stack->tag, -stack->peak);
    *stack = (pl_stack){0};
}

int pl_stack_push_bytes(pl_error *err, pl_stack *stack, int64_t bytes, void **out)
{
    int64_t size = (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    *out = NULL;
    if (stack->capacity >= 0 && stack->used + size > stack->capacity) {
        return PL_FAIL(err, PL_ENOMEM, "%lld more bytes for %s exceed the planned %lld", (long long)size,
            pl_mem_tag_name(stack->tag), (long long)stack->capacity);
    }
    if (stack->base) *out = stack->base + stack->used;
    stack->used += size;
    if (stack->used > stack->peak) {
        if (stack->capacity == PL_STACK_UNLIMITED) pl_mem_count(stack->mem, stack->tag, stack->used - stack->peak);
        stack->peak = stack->used;
    }
    return 0;
}

int pl_stack_push(pl_error *err, pl_stack *stack, pl_dtype dtype, int ndim, const int64_t *shape, pl_tensor *out)
{
    *out = pl_tensor_nd(NULL, dtype, ndim, shape);
    return pl_stack_push_bytes(err, stack, pl_tensor_bytes(*out), &out->data);
}

void pl_stack_pop(pl_stack *stack, int64_t mark)
{
    stack->used = mark;
}
