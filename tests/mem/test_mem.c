/* The memory account, stacks, the budget, and that the dry device's account is the real one's. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "mem/mem.h"

static pl_error err;

typedef struct devices {
    pl_device *cpu, *ref, *dry;
} devices;

static int open_devices(void **state)
{
    static devices d;
    *state = &d;
    if (pl_device_cpu(&err, 1, &d.cpu) < 0 || pl_device_ref(&err, &d.ref) < 0) return -1;
    return pl_device_dry(&err, d.cpu, &d.dry);
}

static int close_devices(void **state)
{
    devices *d = *state;
    pl_device_close(d->dry);
    pl_device_close(d->ref);
    pl_device_close(d->cpu);
    pl_device_close(NULL);
    return 0;
}

static void refused(int rc, int code, const char *says)
{
    if (rc != code || err.code != code || !strstr(err.message, says)) {
        fail_msg("%s: %s (expected %s: ...%s...)", pl_error_name(rc), err.message, pl_error_name(code), says);
    }
    pl_error_clear(&err);
}

static void test_account(void **state)
{
    devices *d = *state;
    pl_mem mem;
    pl_mem_init(&mem, d->cpu);
    void *a, *b;
    assert_int_equal(pl_mem_alloc(&err, &mem, PL_MEM_WEIGHTS, 1000, &a), 0);
    assert_int_equal(pl_mem_alloc(&err, &mem, PL_MEM_WORK, 500, &b), 0);
    assert_true((uintptr_t)a % 64 == 0 && (uintptr_t)b % 64 == 0);
    memset(a, 1, 1000);
    memset(b, 2, 500);
    assert_int_equal(mem.now[PL_MEM_WEIGHTS], 1000);
    assert_int_equal(mem.total_now, 1500);
    pl_mem_free(&mem, PL_MEM_WEIGHTS, a, 1000);
    assert_int_equal(mem.now[PL_MEM_WEIGHTS], 0);
    assert_int_equal(mem.peak[PL_MEM_WEIGHTS], 1000);
    assert_int_equal(mem.total_now, 500);
    assert_int_equal(mem.total_peak, 1500);
    pl_mem_count(&mem, PL_MEM_WEIGHTS, 700); /* a mapping */
    assert_int_equal(mem.total_now, 1200);
    assert_int_equal(mem.total_peak, 1500);
    pl_mem_count(&mem, PL_MEM_WEIGHTS, -700);
    pl_mem_free(&mem, PL_MEM_WORK, b, 500);
    assert_int_equal(mem.total_now, 0);
    refused(pl_mem_alloc(&err, &mem, PL_MEM_WORK, -1, &a), PL_EBUG, "work");
    assert_null(a);
    for (int tag = 0; tag < PL_MEM_TAG_COUNT; tag++) assert_true(strlen(pl_mem_tag_name((pl_mem_tag)tag)) > 0);
}

static void test_limits(void **state)
{
    devices *d = *state;
    pl_mem mem;
    pl_mem_init(&mem, d->cpu);
    void *a, *b;
    mem.budget = 3 << 20;
    assert_int_equal(pl_mem_alloc(&err, &mem, PL_MEM_GRADIENTS, 2 << 20, &a), 0);
    refused(pl_mem_alloc(&err, &mem, PL_MEM_OPTIMIZER, (1 << 20) + 1, &b), PL_ENOMEM, "optimizer");
    assert_null(b);
    assert_int_equal(mem.total_now, 2 << 20);
    assert_int_equal(pl_mem_alloc(&err, &mem, PL_MEM_OPTIMIZER, 1 << 20, &b), 0);
    pl_mem_free(&mem, PL_MEM_OPTIMIZER, b, 1 << 20);
    mem.sealed = true;
    refused(pl_mem_alloc(&err, &mem, PL_MEM_WORK, 1, &b), PL_EBUG, "after the first step");
    mem.sealed = false;
    mem.budget = 0;
    refused(pl_mem_alloc(&err, &mem, PL_MEM_WORK, INT64_MAX / 4, &b), PL_ENOMEM, "work");
    assert_null(b);
    pl_mem_free(&mem, PL_MEM_GRADIENTS, a, 2 << 20);
    assert_int_equal(mem.total_now, 0);
}

static void test_stack(void **state)
{
    devices *d = *state;
    pl_mem mem;
    pl_mem_init(&mem, d->cpu);
    pl_stack stack;
    assert_int_equal(pl_stack_open(&err, &stack, &mem, PL_MEM_ACTIVATIONS, 4096), 0);
    assert_int_equal(mem.now[PL_MEM_ACTIVATIONS], 4096);
    pl_tensor a, b, c;
    assert_int_equal(pl_stack_push(&err, &stack, PL_F32, 2, (int64_t[]){3, 5}, &a), 0);
    assert_true(a.ndim == 2 && a.shape[0] == 3 && a.shape[1] == 5 && a.stride == 5 && a.dtype == PL_F32);
    assert_int_equal(stack.used, 64); /* 60 bytes */
    int64_t mark = pl_stack_mark(&stack);
    assert_int_equal(pl_stack_push(&err, &stack, PL_BF16, 1, (int64_t[]){33}, &b), 0);
    assert_int_equal(stack.used, 64 + 128); /* 66 bytes */
    assert_ptr_equal(b.data, (char *)a.data + 64);
    assert_true((uintptr_t)b.data % 64 == 0);
    refused(pl_stack_push(&err, &stack, PL_F32, 1, (int64_t[]){1000}, &c), PL_ENOMEM, "activations");
    assert_null(c.data);
    pl_stack_pop(&stack, mark);
    assert_int_equal(pl_stack_push(&err, &stack, PL_F32, 1, (int64_t[]){1000}, &c), 0);
    assert_ptr_equal(c.data, b.data);
    assert_int_equal(stack.peak, 64 + 4032);
    pl_stack_close(&stack);
    pl_stack_close(&stack);
    assert_int_equal(mem.total_now, 0);
    mem.budget = 100;
    refused(pl_stack_open(&err, &stack, &mem, PL_MEM_ACTIVATIONS, 4096), PL_ENOMEM, "activations");
    pl_stack_close(&stack);
}

enum { WEIGHTS = 12345 };

/* A little program of pushes and pops, as a forward and a backward make them. The weights stay, for the caller to free.
 */
static void play(pl_mem *mem, pl_stack *stack, void **weights)
{
    pl_tensor t;
    void *p;
    assert_int_equal(pl_mem_alloc(&err, mem, PL_MEM_WEIGHTS, WEIGHTS, weights), 0);
    int64_t marks[10];
    for (int i = 0; i < 10; i++) {
        marks[i] = pl_stack_mark(stack);
        assert_int_equal(pl_stack_push(&err, stack, PL_F32, 2, (int64_t[]){i + 1, 77}, &t), 0);
        int64_t inner = pl_stack_mark(stack);
        assert_int_equal(pl_stack_push_bytes(&err, stack, 1000 - 100 * i, &p), 0);
        pl_stack_pop(stack, inner);
    }
    for (int i = 9; i >= 0; i--) pl_stack_pop(stack, marks[i]);
    assert_int_equal(stack->used, 0);
}

static void test_dry(void **state)
{
    devices *d = *state;
    pl_mem dry, real;
    pl_stack stack;
    void *p, *weights;
    pl_mem_init(&dry, d->dry);
    assert_int_equal(pl_stack_open(&err, &stack, &dry, PL_MEM_ACTIVATIONS, PL_STACK_UNLIMITED), 0);
    play(&dry, &stack, &weights);
    int64_t needed = stack.peak;
    assert_true(needed > 0);
    /* As much as no machine has, and it costs nothing. */
    assert_int_equal(pl_mem_alloc(&err, &dry, PL_MEM_OPTIMIZER, (int64_t)1 << 50, &p), 0);
    assert_null(p);
    pl_mem_free(&dry, PL_MEM_OPTIMIZER, p, (int64_t)1 << 50);
    dry.peak[PL_MEM_OPTIMIZER] = 0;
    pl_device *both[] = {d->cpu, d->ref};
    for (int i = 0; i < 2; i++) {
        pl_stack exact;
        pl_mem_init(&real, both[i]);
        assert_int_equal(pl_stack_open(&err, &exact, &real, PL_MEM_ACTIVATIONS, needed), 0);
        play(&real, &exact, &weights);
        assert_int_equal(exact.peak, needed);
        assert_memory_equal(real.peak, dry.peak, sizeof real.peak);
        assert_memory_equal(real.now, dry.now, sizeof real.now);
        pl_mem_free(&real, PL_MEM_WEIGHTS, weights, WEIGHTS);
        pl_stack_close(&exact);
    }
    pl_stack_close(&stack);
    assert_int_equal(dry.now[PL_MEM_ACTIVATIONS], 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_account),
        cmocka_unit_test(test_limits),
        cmocka_unit_test(test_stack),
        cmocka_unit_test(test_dry),
    };
    return cmocka_run_group_tests(tests, open_devices, close_devices);
}
