/* Every block of memory is a mapping of its own, closed to all access while no operator runs, its end against a page
   that is never opened. Fresh memory holds NaN in every floating-point type, so that what an operator fails to
   overwrite shows. */
#include "device/ref.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define ALIGNMENT 64

typedef struct region {
    char *start;  /* of the mapping */
    size_t bytes; /* of its pages, without the guard page */
    char *data;   /* what was handed out */
} region;

typedef struct ref {
    pl_device base;
    region *regions;
    int nregions, capacity;
    int depth; /* begins not yet ended: copies open the memory too */
    size_t page;
} ref;

static int protect(ref *r, int protection)
{
    for (int i = 0; i < r->nregions; i++) {
        if (mprotect(r->regions[i].start, r->regions[i].bytes, protection) != 0) return -1;
    }
    return 0;
}

int pl_ref_begin(pl_device *device, pl_error *err)
{
    ref *r = (ref *)device;
    if (r->depth == 0 && protect(r, PROT_READ | PROT_WRITE) < 0) {
        (void)protect(r, PROT_NONE);
        return PL_FAIL_NOMEM(err);
    }
    r->depth++;
    return 0;
}

void pl_ref_end(pl_device *device)
{
    ref *r = (ref *)device;
    if (--r->depth == 0) (void)protect(r, PROT_NONE);
}

static int ref_alloc(pl_device *device, pl_error *err, int64_t bytes, void **out)
{
    ref *r = (ref *)device;
    *out = NULL;
    if (bytes > INT64_MAX / 2) return PL_FAIL_NOMEM(err);
    if (r->nregions == r->capacity) {
        int capacity = r->capacity ? 2 * r->capacity : 16;
        region *grown = realloc(r->regions, (size_t)capacity * sizeof *grown);
        if (!grown) return PL_FAIL_NOMEM(err);
        r->regions = grown;
        r->capacity = capacity;
    }
    size_t used = ((size_t)bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    size_t pages = (used + r->page - 1) / r->page * r->page;
    if (pages == 0) pages = r->page;
    char *start = mmap(NULL, pages + r->page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (start == MAP_FAILED) return PL_FAIL_NOMEM(err);
    memset(start, 0xff, pages);
    (void)mprotect(start + pages, r->page, PROT_NONE);
    if (r->depth == 0) (void)mprotect(start, pages, PROT_NONE);
    region made = {.start = start, .bytes = pages, .data = start + pages - used};
    r->regions[r->nregions++] = made;
    *out = made.data;
    return 0;
}

static void ref_release(pl_device *device, void *data, int64_t bytes)
{
    (void)bytes;
    ref *r = (ref *)device;
    for (int i = 0; i < r->nregions; i++) {
        if (r->regions[i].data != data) continue;
        munmap(r->regions[i].start, r->regions[i].bytes + r->page);
        r->regions[i] = r->regions[--r->nregions];
        return;
    }
}

/* The pages of the block that an address lies in; copies open no more than these. */
static void protect_block(ref *r, const void *data, int protection)
{
    const char *at = data;
    for (int i = 0; r->depth == 0 && i < r->nregions; i++) {
        region *g = &r->regions[i];
        if (at >= g->start && at <= g->start + g->bytes) (void)mprotect(g->start, g->bytes, protection);
    }
}

static void ref_copy_in(pl_device *device, void *device_data, const void *host, int64_t bytes)
{
    if (bytes <= 0) return;
    protect_block((ref *)device, device_data, PROT_READ | PROT_WRITE);
    memcpy(device_data, host, (size_t)bytes);
    protect_block((ref *)device, device_data, PROT_NONE);
}

static void ref_copy_out(pl_device *device, void *host, const void *device_data, int64_t bytes)
{
    if (bytes <= 0) return;
    protect_block((ref *)device, device_data, PROT_READ);
    memcpy(host, device_data, (size_t)bytes);
    protect_block((ref *)device, device_data, PROT_NONE);
}

/* A protected copy: what is wrapped is read-only to its owner too, so nobody can tell. */
static void *ref_wrap(pl_device *device, const void *host, int64_t bytes)
{
    pl_error err = {0};
    void *data = NULL;
    if (ref_alloc(device, &err, bytes, &data) < 0) return NULL;
    ref_copy_in(device, data, host, bytes);
    return data;
}

static void ref_destroy(pl_device *device)
{
    ref *r = (ref *)device;
    while (r->nregions > 0) ref_release(device, r->regions[0].data, 0);
    free(r->regions);
    free(r);
}

double pl_ref_get1(pl_tensor t, int64_t i)
{
    switch (t.dtype) {
    case PL_F32: return ((const float *)t.data)[i];
    case PL_BF16: return pl_bf16_to_f32(((const uint16_t *)t.data)[i]);
    case PL_F16: return pl_f16_to_f32(((const uint16_t *)t.data)[i]);
    case PL_I32: return ((const int32_t *)t.data)[i];
    case PL_I16: return ((const int16_t *)t.data)[i];
    default: return ((const uint8_t *)t.data)[i];
    }
}

void pl_ref_set1(pl_tensor t, int64_t i, double value)
{
    switch (t.dtype) {
    case PL_F32: ((float *)t.data)[i] = (float)value; break;
    case PL_BF16: ((uint16_t *)t.data)[i] = pl_f32_to_bf16((float)value); break;
    case PL_F16: ((uint16_t *)t.data)[i] = pl_f32_to_f16((float)value); break;
    case PL_I32: ((int32_t *)t.data)[i] = (int32_t)value; break;
    case PL_I16: ((int16_t *)t.data)[i] = (int16_t)value; break;
    default: ((uint8_t *)t.data)[i] = (uint8_t)value; break;
    }
}

double pl_ref_get(pl_tensor t, int64_t row, int64_t column)
{
    return pl_ref_get1(t, row * t.stride + column);
}

void pl_ref_set(pl_tensor t, int64_t row, int64_t column, double value)
{
    pl_ref_set1(t, row * t.stride + column, value);
}

double pl_ref_get_head(pl_heads x, int64_t t, int h, int d)
{
    return pl_ref_get1(x.t, t * x.t.stride + h * x.stride + d);
}

void pl_ref_set_head(pl_heads x, int64_t t, int h, int d, double value)
{
    pl_ref_set1(x.t, t * x.t.stride + h * x.stride + d, value);
}

static int64_t no_column_sums_scratch(pl_device *device, pl_tensor x)
{
    (void)device;
    (void)x;
    return 0;
}

static int64_t all_gemm_rows(pl_device *device, pl_dtype dtype)
{
    (void)device;
    (void)dtype;
    return 1;
}

static int64_t no_gemm_scratch(pl_device *device, pl_error *err, const pl_gemm_args *args)
{
    (void)device;
    (void)err;
    (void)args;
    return 0;
}

static int64_t no_norm_scratch(pl_device *device, const pl_norm_backward_args *args)
{
    (void)device;
    (void)args;
    return 0;
}

static int64_t no_attention_scratch(pl_device *device, const pl_attention_args *args)
{
    (void)device;
    (void)args;
    return 0;
}

static int64_t no_attention_backward_scratch(pl_device *device, const pl_attention_backward_args *args)
{
    (void)device;
    (void)args;
    return 0;
}

static const pl_device_ops ref_ops = {
    .name = "ref",
    .alloc = ref_alloc,
    .release = ref_release,
    .copy_in = ref_copy_in,
    .copy_out = ref_copy_out,
    .wrap = ref_wrap,
    .unwrap = ref_release,
    .destroy = ref_destroy,
    .fill = pl_ref_fill,
    .copy = pl_ref_copy,
    .add = pl_ref_add,
    .column_sums = pl_ref_column_sums,
    .column_sums_scratch = no_column_sums_scratch,
    .scale_columns = pl_ref_scale_columns,
    .row_dots = pl_ref_row_dots,
    .sum_squares = pl_ref_sum_squares,
    .sum = pl_ref_sum,
    .divide = pl_ref_divide,
    .root = pl_ref_root,
    .soften = pl_ref_soften,
    .count_nonfinite = pl_ref_count_nonfinite,
    .gemm = pl_ref_gemm,
    .gemm_scratch = no_gemm_scratch,
    .gemm_alike_rows = all_gemm_rows,
    .norm = pl_ref_norm,
    .norm_backward = pl_ref_norm_backward,
    .norm_backward_scratch = no_norm_scratch,
    .rope = pl_ref_rope,
    .attention = pl_ref_attention,
    .attention_scratch = no_attention_scratch,
    .attention_backward = pl_ref_attention_backward,
    .attention_backward_scratch = no_attention_backward_scratch,
    .act = pl_ref_act,
    .act_backward = pl_ref_act_backward,
    .embed = pl_ref_embed,
    .embed_backward = pl_ref_embed_backward,
    .loss = pl_ref_loss,
    .dropout = pl_ref_dropout,
    .split = pl_ref_split,
    .adamw = pl_ref_adamw,
    .sgd = pl_ref_sgd,
};

int pl_device_ref(pl_error *err, pl_device **out)
{
    *out = NULL;
    ref *r = calloc(1, sizeof *r);
    if (!r) return PL_FAIL_NOMEM(err);
    r->base = (pl_device){.ops = &ref_ops, .threads = 1};
    r->page = (size_t)sysconf(_SC_PAGESIZE);
    *out = &r->base;
    return 0;
}
