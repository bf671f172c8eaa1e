/* plait plan: what a run will need. */
#include "base/json.h"
#include "cli/cli.h"

static int print_json(pl_error *err, const pl_plan *p)
{
    json_t *memory = json_object();
    for (int tag = 0; memory && tag < PL_MEM_TAG_COUNT; tag++) {
        json_object_set_new(memory, pl_mem_tag_name((pl_mem_tag)tag), json_integer((json_int_t)p->bytes[tag]));
    }
    json_t *sent = json_object();
    for (int kind = 0; sent && kind < PL_TRAFFIC_COUNT; kind++) {
        json_object_set_new(sent, pl_traffic_name((pl_traffic_kind)kind), json_integer((json_int_t)p->sent[kind]));
    }
    json_t *json = json_pack(
        "{s:i, s:o, s:o, s:{s:I, s:I, s:I}, s:I, s:I, s:b, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:i, s:f, s:f, s:f, s:f}",
        "processes", p->processes, "sent_bytes", sent, "memory_bytes", memory, "disk_bytes", "offloaded",
        (json_int_t)p->disk_bytes, "read", (json_int_t)p->disk_read, "written", (json_int_t)p->disk_written,
        "peak_bytes", (json_int_t)p->total, "available_bytes", (json_int_t)p->available, "fits", (int)p->fits,
        "trainable_parameters", (json_int_t)p->trainable, "all_parameters", (json_int_t)p->all, "steps",
        (json_int_t)p->steps, "rows", (json_int_t)p->rows, "tokens", (json_int_t)p->tokens, "micro_batch_tokens",
        (json_int_t)p->micro_tokens, "micro_batch_rows", (json_int_t)p->micro_rows, "micro_batches", p->micro_batches,
        "step_flops", p->step_flops, "gemm_flops", p->gemm_flops, "attention_flops", p->attention_flops, "other_flops",
        p->other_flops);
    return cli_print_json(err, json);
}

static void print_text(const pl_plan *p)
{
    static const char *const what[PL_MEM_TAG_COUNT] = {
        [PL_MEM_WEIGHTS] = "parameters, the model's mapped files included",
        [PL_MEM_MASTERS] = "what bf16 weights lack of f32 masters",
        [PL_MEM_GRADIENTS] = "of what is trained, f32",
        [PL_MEM_OPTIMIZER] = "its moments",
        [PL_MEM_ACTIVATIONS] = "kept for the backward pass",
        [PL_MEM_WORK] = "scratch of one unit",
        [PL_MEM_BATCH] = "tokens and rotary tables",
        [PL_MEM_MESSAGES] = "other processes' gradients, until they are added",
        [PL_MEM_OFFLOAD] = "moments and masters on their way to and from disk",
    };
    printf("%-12s %12s\n", "memory", "MiB");
    for (int tag = 0; tag < PL_MEM_TAG_COUNT; tag++) {
        if (p->bytes[tag] == 0 || !what[tag]) continue;
        printf("  %-11s %11.1f  %s\n", pl_mem_tag_name((pl_mem_tag)tag), (double)p->bytes[tag] / 0x1p20, what[tag]);
    }
    printf("  %-11s %11.1f  of %.1f that this machine has free: it %s\n", "all", (double)p->total / 0x1p20,
        (double)p->available / 0x1p20, p->fits ? "fits" : "DOES NOT FIT");
    if (p->disk_bytes > 0) {
        printf("%-12s %12.1f  MiB of %s; a step reads %.1f and writes %.1f\n", "on disk",
            (double)p->disk_bytes / 0x1p20, "what is offloaded", (double)p->disk_read / 0x1p20,
            (double)p->disk_written / 0x1p20);
    }
    printf("parameters   %lld trained of %lld (%.4f%%)\n", (long long)p->trainable, (long long)p->all,
        100.0 * (double)p->trainable / (double)p->all);
    if (p->rows > 0) printf("data         %lld sequences, %lld tokens\n", (long long)p->rows, (long long)p->tokens);
    printf("a step       %d micro-batch%s of at most %lld sequences, %lld tokens\n", p->micro_batches,
        p->micro_batches == 1 ? "" : "es", (long long)p->micro_rows, (long long)p->micro_tokens);
    printf("             %.1f GFLOP: %.1f matrix products, %.1f attention, %.1f else\n", p->step_flops / 1e9,
        p->gemm_flops / 1e9, p->attention_flops / 1e9, p->other_flops / 1e9);
    for (int kind = 0; kind < PL_TRAFFIC_COUNT && p->processes > 1; kind++) {
        printf("%-12s %.3f MiB of %s\n", kind ? "" : "sends", (double)p->sent[kind] / 0x1p20,
            pl_traffic_name((pl_traffic_kind)kind));
    }
    if (p->processes > 1) printf("             (each of %d processes)\n", p->processes);
    if (p->steps > 0)
        printf("the run      %lld steps, %.4g GFLOP\n", (long long)p->steps, (double)p->steps * p->step_flops / 1e9);
}

int cli_plan(pl_error *err, cli_run *run)
{
    pl_plan p;
    pl_log log = {.sink = cli_message};
    PL_TRY(pl_plan_run(err, &log, &run->config, &p));
    if (run->config.json) return print_json(err, &p);
    print_text(&p);
    return 0;
}
