#include "device/onednn.h"

#include <dnnl.h>
#include <omp.h>
#include <stdlib.h>
#include <string.h>

/* Forms kept at once. A model needs a few dozen for each number of tokens that it meets, and with data of mixed lengths
   meets a new one at every step. A form takes 60 to 170 KB of oneDNN's code and tables, which no plan counts, and under
   a millisecond to make. */
#define CAPACITY 128
#define BUCKETS 256

/* All that a primitive depends on; compared as bytes, so it is zeroed before it is filled. */
typedef struct form {
    int64_t m, n, k, a_stride, b_stride, c_stride;
    int dtype, c_dtype;
    int transpose_a, transpose_b, accumulate, bias;
    float alpha;
    int unused;
} form;

typedef struct product {
    form form;
    struct product *next;          /* in its bucket */
    struct product *newer, *older; /* in order of use */
    dnnl_primitive_t primitive;    /* NULL: oneDNN refused it */
    dnnl_memory_t a, b, c, bias, scratch;
    int64_t scratch_bytes;
} product;

struct pl_onednn {
    int threads;
    dnnl_engine_t engine;
    dnnl_stream_t stream;
    product *buckets[BUCKETS];
    product *newest, *oldest;
    int count;
};

static int failed(pl_error *err, dnnl_status_t status, const char *what)
{
    if (status == dnnl_out_of_memory) return PL_FAIL_NOMEM(err);
    return PL_FAIL(err, PL_EBUG, "oneDNN could not %s (status %d)", what, (int)status);
}

#define DNNL_GO(label, what, expr)                                                                                     \
    do {                                                                                                               \
        dnnl_status_t status_ = (expr);                                                                                \
        if (status_ != dnnl_success) {                                                                                 \
            rc = failed(err, status_, (what));                                                                         \
            goto label;                                                                                                \
        }                                                                                                              \
    } while (0)

int pl_onednn_open(pl_error *err, int threads, pl_onednn **out)
{
    int rc = 0;
    *out = NULL;
    pl_onednn *o = calloc(1, sizeof *o);
    if (!o) return PL_FAIL_NOMEM(err);
    o->threads = threads;
    /* oneDNN keeps a thousand primitives of its own, so none that is dropped here would be gone. This holds for the
       whole process. */
    DNNL_GO(fail, "give up its cache", dnnl_set_primitive_cache_capacity(0));
    DNNL_GO(fail, "make an engine", dnnl_engine_create(&o->engine, dnnl_cpu, 0));
    DNNL_GO(fail, "make a stream", dnnl_stream_create(&o->stream, o->engine, dnnl_stream_default_flags));
    *out = o;
    return 0;
fail:
    pl_onednn_close(o);
    return rc;
}

static void free_product(product *p)
{
    dnnl_memory_t memories[] = {p->a, p->b, p->c, p->bias, p->scratch};
    for (int i = 0; i < PL_COUNT(memories); i++) {
        if (memories[i]) dnnl_memory_destroy(memories[i]);
    }
    if (p->primitive) dnnl_primitive_destroy(p->primitive);
    free(p);
}

void pl_onednn_close(pl_onednn *o)
{
    if (!o) return;
    for (product *p = o->newest; p;) {
        product *older = p->older;
        free_product(p);
        p = older;
    }
    if (o->stream) dnnl_stream_destroy(o->stream);
    if (o->engine) dnnl_engine_destroy(o->engine);
    free(o);
}

pl_isa pl_onednn_isa(void)
{
    static const struct {
        unsigned bits;
        pl_isa isa;
    } known[] = {{dnnl_cpu_isa_avx512_core_amx, PL_ISA_AMX}, {dnnl_cpu_isa_avx512_core_bf16, PL_ISA_AVX512_BF16},
        {dnnl_cpu_isa_avx512_core, PL_ISA_AVX512}, {dnnl_cpu_isa_avx2, PL_ISA_AVX2}};
    unsigned has = (unsigned)dnnl_get_effective_cpu_isa();
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        if ((has & known[i].bits) == known[i].bits) return known[i].isa;
    }
    return PL_ISA_BASE;
}

bool pl_onednn_has_bf16(void)
{
#if defined __x86_64__
    return pl_onednn_isa() >= PL_ISA_AVX512_BF16;
#else
    return true; /* Arm: oneDNN decides */
#endif
}

static form form_of(const pl_gemm_args *args)
{
    form f;
    memset(&f, 0, sizeof f);
    f.m = args->c.shape[0];
    f.n = args->c.shape[1];
    f.k = args->transpose_a ? args->a.shape[0] : args->a.shape[1];
    f.a_stride = args->a.stride;
    f.b_stride = args->b.stride;
    f.c_stride = args->c.stride;
    f.dtype = args->a.dtype;
    f.c_dtype = args->c.dtype;
    f.transpose_a = args->transpose_a;
    f.transpose_b = args->transpose_b;
    f.accumulate = args->accumulate;
    f.bias = !pl_tensor_none(args->bias);
    f.alpha = args->alpha;
    return f;
}

static uint64_t hash(const form *f)
{
    uint64_t h = 0xcbf29ce484222325u; /* FNV-1a */
    for (size_t i = 0; i < sizeof *f; i++) h = (h ^ ((const unsigned char *)f)[i]) * 0x100000001b3u;
    return h ^ h >> 32;
}

static dnnl_data_type_t data_type(int dtype)
{
    return dtype == PL_BF16 ? dnnl_bf16 : dnnl_f32;
}

static dnnl_status_t matrix(
    dnnl_memory_desc_t *d, int64_t rows, int64_t columns, int64_t stride, bool transposed, int dtype)
{
    dnnl_dims_t dims = {rows, columns}, strides = {transposed ? 1 : stride, transposed ? stride : 1};
    return dnnl_memory_desc_init_by_strides(d, 2, dims, data_type(dtype), strides);
}

/* Fills p->primitive and its memories; leaves the primitive NULL where oneDNN has none. */
static int make(pl_onednn *o, pl_error *err, product *p)
{
    const form *f = &p->form;
    int rc = 0;
    dnnl_memory_desc_t a, b, c, bias;
    dnnl_matmul_desc_t matmul;
    dnnl_primitive_attr_t attr = NULL;
    dnnl_post_ops_t post_ops = NULL;
    dnnl_primitive_desc_t pd = NULL;
    DNNL_GO(end, "describe a", matrix(&a, f->m, f->k, f->a_stride, f->transpose_a, f->dtype));
    DNNL_GO(end, "describe b", matrix(&b, f->k, f->n, f->b_stride, f->transpose_b, f->dtype));
    DNNL_GO(end, "describe c", matrix(&c, f->m, f->n, f->c_stride, false, f->c_dtype));
    DNNL_GO(end, "describe the bias", matrix(&bias, 1, f->n, f->n, false, PL_F32));
    DNNL_GO(end, "describe a product", dnnl_matmul_desc_init(&matmul, &a, &b, f->bias ? &bias : NULL, &c));
    DNNL_GO(end, "make attributes", dnnl_primitive_attr_create(&attr));
    DNNL_GO(end, "set scratchpads", dnnl_primitive_attr_set_scratchpad_mode(attr, dnnl_scratchpad_mode_user));
    if (f->alpha != 1) DNNL_GO(end, "set a scale", dnnl_primitive_attr_set_output_scales(attr, 1, 0, &f->alpha));
    if (f->accumulate) {
        DNNL_GO(end, "make post-ops", dnnl_post_ops_create(&post_ops));
        DNNL_GO(end, "append a sum", dnnl_post_ops_append_sum(post_ops, 1));
        DNNL_GO(end, "set post-ops", dnnl_primitive_attr_set_post_ops(attr, post_ops));
    }
    dnnl_status_t status = dnnl_primitive_desc_create(&pd, &matmul, attr, o->engine, NULL);
    if (status == dnnl_unimplemented) goto end;
    DNNL_GO(end, "choose a product", status);
    const dnnl_memory_desc_t *scratch = dnnl_primitive_desc_query_md(pd, dnnl_query_scratchpad_md, 0);
    p->scratch_bytes = (int64_t)dnnl_memory_desc_get_size(scratch);
    DNNL_GO(end, "make a memory", dnnl_memory_create(&p->a, &a, o->engine, DNNL_MEMORY_NONE));
    DNNL_GO(end, "make a memory", dnnl_memory_create(&p->b, &b, o->engine, DNNL_MEMORY_NONE));
    DNNL_GO(end, "make a memory", dnnl_memory_create(&p->c, &c, o->engine, DNNL_MEMORY_NONE));
    DNNL_GO(end, "make a memory", dnnl_memory_create(&p->scratch, scratch, o->engine, DNNL_MEMORY_NONE));
    if (f->bias) DNNL_GO(end, "make a memory", dnnl_memory_create(&p->bias, &bias, o->engine, DNNL_MEMORY_NONE));
    DNNL_GO(end, "make a product", dnnl_primitive_create(&p->primitive, pd));
end:
    if (pd) dnnl_primitive_desc_destroy(pd);
    if (post_ops) dnnl_post_ops_destroy(post_ops);
    if (attr) dnnl_primitive_attr_destroy(attr);
    return rc;
}

static void unlink_use(pl_onednn *o, product *p)
{
    *(p->newer ? &p->newer->older : &o->newest) = p->older;
    *(p->older ? &p->older->newer : &o->oldest) = p->newer;
}

static void link_newest(pl_onednn *o, product *p)
{
    p->newer = NULL;
    p->older = o->newest;
    *(o->newest ? &o->newest->newer : &o->oldest) = p;
    o->newest = p;
}

static void drop_oldest(pl_onednn *o)
{
    product *p = o->oldest;
    product **at = &o->buckets[hash(&p->form) % BUCKETS];
    while (*at != p) at = &(*at)->next;
    *at = p->next;
    unlink_use(o, p);
    free_product(p);
    o->count--;
}

/* The number of threads is a setting of the calling thread (OpenMP's nthreads-var), which oneDNN reads when it makes a
   primitive and when it runs one: it is ours inside these two functions, the caller's outside. */
static int find(pl_onednn *o, pl_error *err, const pl_gemm_args *args, product **out)
{
    form f = form_of(args);
    product **bucket = &o->buckets[hash(&f) % BUCKETS];
    for (product *p = *bucket; p; p = p->next) {
        if (memcmp(&p->form, &f, sizeof f) != 0) continue;
        if (p != o->newest) {
            unlink_use(o, p);
            link_newest(o, p);
        }
        *out = p;
        return 0;
    }
    product *p = calloc(1, sizeof *p);
    if (!p) return PL_FAIL_NOMEM(err);
    p->form = f;
    int before = omp_get_max_threads();
    omp_set_num_threads(o->threads);
    int rc = make(o, err, p);
    omp_set_num_threads(before);
    if (rc < 0) {
        free_product(p);
        return rc;
    }
    if (o->count == CAPACITY) drop_oldest(o);
    p->next = *bucket;
    *bucket = p;
    link_newest(o, p);
    o->count++;
    *out = p;
    return 0;
}

int64_t pl_onednn_gemm_scratch(pl_onednn *o, pl_error *err, const pl_gemm_args *args, bool *refused)
{
    product *p = NULL;
    PL_TRY(find(o, err, args, &p));
    *refused = p->primitive == NULL;
    return p->scratch_bytes;
}

int pl_onednn_gemm(pl_onednn *o, pl_error *err, const pl_gemm_args *args, void *scratch)
{
    product *p = NULL;
    int rc = 0;
    PL_TRY(find(o, err, args, &p));
    if (!p->primitive) return PL_FAIL(err, PL_EBUG, "oneDNN has no such product");
    DNNL_GO(end, "set a handle", dnnl_memory_set_data_handle(p->a, args->a.data));
    DNNL_GO(end, "set a handle", dnnl_memory_set_data_handle(p->b, args->b.data));
    DNNL_GO(end, "set a handle", dnnl_memory_set_data_handle(p->c, args->c.data));
    DNNL_GO(end, "set a handle", dnnl_memory_set_data_handle(p->scratch, scratch));
    if (p->bias) DNNL_GO(end, "set a handle", dnnl_memory_set_data_handle(p->bias, args->bias.data));
    const dnnl_exec_arg_t operands[] = {{DNNL_ARG_SRC, p->a}, {DNNL_ARG_WEIGHTS, p->b}, {DNNL_ARG_DST, p->c},
        {DNNL_ARG_SCRATCHPAD, p->scratch}, {DNNL_ARG_BIAS, p->bias}};
    int before = omp_get_max_threads();
    omp_set_num_threads(o->threads);
    dnnl_status_t status = dnnl_primitive_execute(p->primitive, o->stream, PL_COUNT(operands) - !p->bias, operands);
    if (status == dnnl_success) status = dnnl_stream_wait(o->stream);
    omp_set_num_threads(before);
    DNNL_GO(end, "run a product", status);
end:
    return rc;
}
