/* The dry run's promise: a dry engine's account of memory and arithmetic is the real one's, byte for byte. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "support/golden.h"

#define OK(g, call)                                                                                                    \
    do {                                                                                                               \
        if ((call) < 0) fail_msg("%s: %s", #call, (g)->err.message);                                                   \
    } while (0)

/* A step, an evaluation and logits. Counting begins with them: a dry device has no random weights to make. */
static void work(golden *g)
{
    golden_micros micros;
    golden_split(g, &micros, 1);
    pl_feed feed = {.user = &micros, .micro_batch = golden_feed};
    pl_step_result r;
    double sum;
    pl_engine_run(g->engine)->counters = (pl_counters){0};
    OK(g, pl_engine_step(g->engine, &feed, 1, 1, golden_targets(&micros), 1e-3, &r));
    OK(g, pl_engine_evaluate(g->engine, &g->batch, &sum));
    float *logits = malloc((size_t)(3 * g->model->arch.vocab) * sizeof *logits);
    OK(g, pl_engine_logits(g->engine, &g->batch, (int32_t[]){0, 5, 2}, 3, logits));
    free(logits);
    golden_micros_close(&micros);
}

static void check(const char *name, golden_options options)
{
    golden dry, real;
    options.dry = true;
    golden_open(&dry, golden_path(name), golden_path(name), &options);
    work(&dry);
    pl_capacity planned = pl_engine_reached(dry.engine);
    options.dry = false;
    options.saved_bytes = planned.saved_bytes;
    options.work_bytes = planned.work_bytes;
    golden_open(&real, golden_path(name), golden_path(name), &options);
    work(&real);
    char what[256];
    snprintf(what, sizeof what, "%s, %s, %s, recompute %d", name, pl_dtype_name(options.dtype),
        options.dora   ? "dora"
        : options.lora ? "lora"
                       : "full",
        options.recompute);
    for (int tag = 0; tag < PL_MEM_TAG_COUNT; tag++) {
        if (dry.mem.peak[tag] != real.mem.peak[tag]) {
            fail_msg("%s: %s: %lld bytes planned, %lld taken", what, pl_mem_tag_name((pl_mem_tag)tag),
                (long long)dry.mem.peak[tag], (long long)real.mem.peak[tag]);
        }
    }
    if (dry.mem.total_peak != real.mem.total_peak) fail_msg("%s: the total differs", what);
    pl_capacity reached = pl_engine_reached(real.engine);
    if (reached.saved_bytes != planned.saved_bytes || reached.work_bytes != planned.work_bytes)
        fail_msg("%s: the stacks are not used to their end", what);
    const pl_counters *a = &pl_engine_run(dry.engine)->counters, *b = &pl_engine_run(real.engine)->counters;
    if (a->gemm_flops != b->gemm_flops || a->attention_flops != b->attention_flops || a->other_flops != b->other_flops)
        fail_msg("%s: other FLOPs", what);
    if (a->bytes != b->bytes || a->calls != b->calls) fail_msg("%s: other bytes or calls", what);
    assert_true(a->gemm_flops > 0 && a->attention_flops > 0 && real.mem.peak[PL_MEM_WEIGHTS] > 0);
    golden_close(&dry);
    golden_close(&real);
    for (int tag = 0; tag < PL_MEM_TAG_COUNT; tag++) {
        if (dry.mem.now[tag] != 0 || real.mem.now[tag] != 0)
            fail_msg("%s: %s is not given back", what, pl_mem_tag_name((pl_mem_tag)tag));
    }
}

static void dry_is_real(void **state)
{
    for (int way = 0; way < 3 * 2 * 3; way++) {
        check(*state, (golden_options){.training = true,
                          .lora = way % 3 == 1,
                          .dora = way % 3 == 2,
                          .dtype = way / 3 % 2 ? PL_BF16 : PL_F32,
                          .recompute = way / 6});
    }
}

int main(void)
{
    return golden_each_model("dry is real", dry_is_real);
}
