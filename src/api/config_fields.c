/* The table of fields. Parsing, flags, help, `plait init`, errors and docs/configuration.md follow from it: after a
   change here, `make docs` writes the pages anew. */
#include <math.h>

#include "api/config.h"

/* The member's type must be the one that the kind stands for; _Generic refuses any other at compile time. */
#define TYPE_TEXT char *
#define TYPE_FILE char *
#define TYPE_FOLDER char *
#define TYPE_FILES pl_strings
#define TYPE_STRINGS pl_strings
#define TYPE_NAMES pl_strings
#define TYPE_SWITCH bool
#define TYPE_INT int64_t
#define TYPE_REAL double
#define TYPE_BYTES int64_t
#define TYPE_WORD int
#define TYPE_INTS pl_numbers
#define TYPE_REALS pl_numbers
#define TYPE_TEXTS pl_entries
#define TYPE_INT_MAP pl_entries
#define TYPE_REAL_MAP pl_entries
#define AT(member, kind_)                                                                                              \
    .kind = PL_FIELD_##kind_,                                                                                          \
    .offset = offsetof(pl_config, member) + 0 * sizeof(_Generic(((pl_config *)0)->member, TYPE_##kind_ : 0))

#define TOP(member, kind_) .name = #member, AT(member, kind_)
#define IN(section_, member, kind_) .section = #section_, .name = #member, AT(section_.member, kind_)
#define OFFLOAD(member, kind_)                                                                                         \
    .section = "memory.offload", .name = #member, AT(memory.offload.member, kind_), .commands = TRAIN, .volatile_ = true
#define OPTION(member, kind_) .section = "generate", .name = #member, AT(generate.member, kind_), .flag_only = true

#define ANY .range = {-HUGE_VAL, HUGE_VAL, false, false}
#define AT_LEAST(min_) .range = {min_, HUGE_VAL, false, false}
#define ABOVE(min_) .range = {min_, HUGE_VAL, true, false}
#define FROM_TO(min_, max_) .range = {min_, max_, false, false}
#define FROM_BELOW(min_, max_) .range = {min_, max_, false, true}
#define ABOVE_TO(min_, max_) .range = {min_, max_, true, false}

#define TRAIN (PL_CMD_TRAIN | PL_CMD_PLAN | PL_CMD_INIT)
#define DATA (TRAIN | PL_CMD_EVAL | PL_CMD_INSPECT)
#define LORA .when = "method=lora", .commands = TRAIN
#define WHEN(condition) .when = condition, .commands = TRAIN

const pl_section pl_config_sections[] = {
    {NULL, "Model, method and output"},
    {"data", "Data"},
    {"lora", "The adapter, with method lora"},
    {"optimizer", "Optimizer"},
    {"scheduler", "Learning rate schedule, over all steps"},
    {"train", "Training"},
    {"memory", "Memory"},
    {"memory.offload", "What lies on disk instead of in memory, which takes longer and changes no number"},
    {"parallel", "Several processes, which mpiexec, srun or --ranks starts"},
    {"checkpoint", "Checkpoints; a run that was stopped goes on from the last one by itself"},
    {"log", "Progress"},
    {"generate", "Writing"},
};
const int pl_config_section_count = PL_COUNT(pl_config_sections);

#define WITH_WARMUP                                                                                                    \
    "scheduler.name=linear|cosine|cosine_with_restarts|polynomial|constant_with_warmup|inverse_sqrt|"                  \
    "cosine_with_min_lr|cosine_warmup_with_min_lr|warmup_stable_decay"
#define WITH_CYCLES                                                                                                    \
    "scheduler.name=cosine|cosine_with_restarts|cosine_with_min_lr|cosine_warmup_with_min_lr|warmup_stable_decay"
#define WITH_MIN_LR "scheduler.name=cosine_with_min_lr|cosine_warmup_with_min_lr"
#define OFFLOADED "memory.offload.optimizer=disk or memory.offload.params=disk"
#define RAMPS "linear|cosine|1-sqrt|log"

const pl_field pl_config_fields[] = {
    {TOP(model, FOLDER), .commands = TRAIN | PL_CMD_GENERATE | PL_CMD_EVAL | PL_CMD_MERGE | PL_CMD_INSPECT,
        .peers = "HF:model_name_or_path", .help = "the model's folder, as Hugging Face lays it out [the adapter's]"},
    {TOP(from_scratch, FILE), .commands = TRAIN | PL_CMD_INSPECT, .help = "a config.json: begin with random weights"},
    {TOP(adapter, FOLDER), .commands = TRAIN | PL_CMD_GENERATE | PL_CMD_EVAL | PL_CMD_MERGE | PL_CMD_INSPECT,
        .help = "a PEFT adapter to use, or to train further"},
    {TOP(output, FOLDER), .fallback = "out", .commands = TRAIN | PL_CMD_MERGE, .peers = "HF:output_dir",
        .volatile_ = true, .help = "folder for the result, checkpoints, metrics.jsonl"},
    {TOP(method, WORD), .fallback = "full", .words = "full|lora",
        .refused = "qlora: there are no 4-bit weights yet; lora over bf16 weights is the nearest", .commands = TRAIN,
        .help = "train every weight, or a LoRA adapter"},
    {TOP(precision, WORD), .fallback = "f32", .words = "f32|bf16", .refused = "fp16: bf16 needs no loss scaling",
        .commands = TRAIN | PL_CMD_GENERATE | PL_CMD_EVAL | PL_CMD_MERGE,
        .help = "bf16 keeps f32 masters; not given, merge keeps the dtype of the model's files"},
    {TOP(threads, INT), .fallback = "0", FROM_TO(0, 4096), .volatile_ = true,
        .commands = TRAIN | PL_CMD_GENERATE | PL_CMD_EVAL | PL_CMD_MERGE | PL_CMD_INSPECT,
        .help = "threads; 0: one for each core"},

    {IN(data, files, FILES), .flag = "data", .commands = DATA, .peers = "HF:data_files HF:train_file",
        .help = ".txt, .jsonl or .json, also .gz and .zst; may be repeated"},
    {IN(data, weights, REALS), ABOVE(0), .commands = TRAIN, .help = "how often each file is drawn from [by size]"},
    {IN(data, format, WORD), .fallback = "auto", .commands = DATA,
        .words = "auto|text|completion|alpaca|qa|messages|sharegpt|tokens",
        .help = "shape of the examples; auto: by their fields"},
    {IN(data, fields, TEXTS), .commands = DATA, .help = "other names of fields: prompt=query,completion=reply"},
    {IN(data, template, FILE), .fallback = "auto", .words = "auto|plain|chat", .commands = DATA | PL_CMD_GENERATE,
        .peers = "HF:chat_template", .help = "plain text, chat template, or a Jinja file"},
    {IN(data, loss, WORD), .fallback = "auto", .words = "auto|answers|all", .commands = DATA,
        .help = "which tokens are trained; auto: answers if there are any"},
    {IN(data, sequence_length, INT), .fallback = "1024", AT_LEAST(2), .commands = DATA,
        .peers = "HF:max_length HF:max_seq_length HF:block_size", .help = "tokens of the longest sequence"},
    {IN(data, overlong, WORD), .fallback = "cut", .words = "cut|drop", .commands = DATA,
        .help = "what happens to longer ones"},
    {IN(data, shuffle, SWITCH), .fallback = "true", .commands = TRAIN, .help = "take the examples in random order"},
    {IN(data, validation, FILE), .commands = TRAIN, .peers = "HF:validation_file",
        .help = "file whose loss is watched"},
    {IN(data, validation_split, REAL), .fallback = "0", FROM_BELOW(0, 1), .commands = TRAIN,
        .peers = "HF:validation_split_percentage", .help = "or the part of the data kept back for that"},
    {IN(data, cache, FOLDER), .commands = TRAIN | PL_CMD_EVAL, .volatile_ = true,
        .help = "keeps tokens for the next start [in output]"},

    {IN(lora, r, INT), .fallback = "8", FROM_TO(1, 65536), LORA, .peers = "PEFT:r", .help = "the update's rank"},
    {IN(lora, alpha, REAL), .fallback = "8", ABOVE(0), LORA, .peers = "PEFT:lora_alpha",
        .help = "the update is scaled by alpha / r"},
    {IN(lora, dropout, REAL), .fallback = "0", FROM_BELOW(0, 1), LORA, .peers = "PEFT:lora_dropout",
        .help = "of the adapter's input"},
    {IN(lora, targets, NAMES), .words = "all-linear", LORA, .peers = "PEFT:target_modules",
        .help = "layers to adapt: names, or one regular expression [PEFT's for the model]"},
    {IN(lora, exclude, NAMES), LORA, .peers = "PEFT:exclude_modules", .help = "those of them to leave alone"},
    {IN(lora, dora, SWITCH), .fallback = "false", LORA, .peers = "PEFT:use_dora", .help = "DoRA: train magnitudes too"},
    {IN(lora, rslora, SWITCH), .fallback = "false", LORA, .peers = "PEFT:use_rslora",
        .help = "scale by alpha / sqrt(r) instead"},
    {IN(lora, init, TEXT), .fallback = "true", .words = "true|false|gaussian|pissa|pissa_niter_N|olora|orthogonal",
        LORA, .peers = "PEFT:init_lora_weights", .help = "how the adapter starts"},
    {IN(lora, bias, WORD), .fallback = "none", .words = "none|all|lora_only", LORA, .peers = "PEFT:bias",
        .help = "which biases are trained too"},
    {IN(lora, modules_to_save, NAMES), LORA, .peers = "PEFT:modules_to_save",
        .help = "modules to train whole and save with the adapter"},
    {IN(lora, rank_pattern, INT_MAP), FROM_TO(1, 65536), LORA, .peers = "PEFT:rank_pattern",
        .help = "other ranks for some modules: q_proj=16"},
    {IN(lora, alpha_pattern, REAL_MAP), ABOVE(0), LORA, .peers = "PEFT:alpha_pattern",
        .help = "other alphas for some modules"},
    {IN(lora, layers, INTS), AT_LEAST(0), LORA, .peers = "PEFT:layers_to_transform",
        .help = "only these layers, counted from 0"},
    {IN(lora, layers_pattern, NAMES), LORA, .peers = "PEFT:layers_pattern",
        .help = "name of the list of layers in the model"},
    {IN(lora, lr_ratio, REAL), .fallback = "1", AT_LEAST(1), LORA, .peers = "PEFT:loraplus_lr_ratio",
        .help = "LoRA+: the learning rate of B over that of A"},

    {IN(optimizer, name, WORD), .fallback = "adamw", .words = "adamw|sgd", .commands = TRAIN, .peers = "HF:optim",
        .help = "AdamW, or SGD with momentum"},
    {IN(optimizer, lr, REAL), AT_LEAST(0), .commands = TRAIN, .peers = "HF:learning_rate DeepSpeed:lr",
        .help = "highest learning rate [5e-5; lora: 2e-4]"},
    {IN(optimizer, betas, REALS), .fallback = "0.9,0.999", .size = 2, FROM_BELOW(0, 1), WHEN("optimizer.name=adamw"),
        .peers = "HF:adam_beta1 HF:adam_beta2 DeepSpeed:betas", .help = "decay of the two moments"},
    {IN(optimizer, eps, REAL), .fallback = "1e-8", AT_LEAST(0), WHEN("optimizer.name=adamw"),
        .peers = "HF:adam_epsilon DeepSpeed:eps", .help = "added to the second moment's root"},
    {IN(optimizer, weight_decay, REAL), .fallback = "0", AT_LEAST(0), .commands = TRAIN,
        .peers = "HF:weight_decay DeepSpeed:weight_decay", .help = "of tensors of two dimensions or more; sgd: of all"},
    {IN(optimizer, momentum, REAL), .fallback = "0", FROM_BELOW(0, 1), WHEN("optimizer.name=sgd"),
        .peers = "DeepSpeed:momentum", .help = "of SGD"},
    {IN(optimizer, nesterov, SWITCH), .fallback = "false", WHEN("optimizer.name=sgd"), .peers = "DeepSpeed:nesterov",
        .help = "Nesterov's form of the momentum"},

    {IN(scheduler, name, WORD), .fallback = "linear", .commands = TRAIN, .peers = "HF:lr_scheduler_type",
        .words = "linear|cosine|cosine_with_restarts|polynomial|constant|constant_with_warmup|inverse_sqrt|"
                 "cosine_with_min_lr|cosine_warmup_with_min_lr|warmup_stable_decay|"
                 "WarmupLR|WarmupDecayLR|WarmupCosineLR|OneCycle|LRRangeTest",
        .refused = "reduce_lr_on_plateau: the rate must follow from the step; train.early_stop watches the "
                   "validation loss",
        .help = "Hugging Face's and DeepSpeed's schedules"},
    {IN(scheduler, warmup_steps, INT), AT_LEAST(0), WHEN(WITH_WARMUP "|WarmupLR|WarmupDecayLR|WarmupCosineLR"),
        .peers = "HF:num_warmup_steps DeepSpeed:warmup_num_steps",
        .help = "steps that the rate rises [0; DeepSpeed's: 1000]"},
    {IN(scheduler, warmup_ratio, REAL), FROM_TO(0, 1), WHEN(WITH_WARMUP), .peers = "HF:warmup_ratio",
        .help = "or the part of all steps"},
    {IN(scheduler, decay_steps, INT), AT_LEAST(1), WHEN("scheduler.name=warmup_stable_decay"),
        .peers = "HF:num_decay_steps", .help = "steps that the rate falls at the end"},
    {IN(scheduler, num_cycles, REAL), ABOVE(0), WHEN(WITH_CYCLES), .peers = "HF:num_cycles",
        .help = "waves of the cosine [0.5; restarts: 1]"},
    {IN(scheduler, power, REAL), .fallback = "1", ABOVE(0), WHEN("scheduler.name=polynomial"), .peers = "HF:power",
        .help = "the polynomial's power"},
    {IN(scheduler, lr_end, REAL), .fallback = "1e-7", AT_LEAST(0), WHEN("scheduler.name=polynomial"),
        .peers = "HF:lr_end", .help = "where the polynomial ends"},
    {IN(scheduler, min_lr, REAL), AT_LEAST(0), WHEN(WITH_MIN_LR), .peers = "HF:min_lr",
        .help = "where the cosine ends"},
    {IN(scheduler, min_lr_rate, REAL), FROM_TO(0, 1), WHEN(WITH_MIN_LR), .peers = "HF:min_lr_rate",
        .help = "or the part of optimizer.lr"},
    {IN(scheduler, warmup_lr_rate, REAL), FROM_TO(0, 1), WHEN("scheduler.name=cosine_warmup_with_min_lr"),
        .peers = "HF:warmup_lr_rate", .help = "where the warmup starts, as a part of optimizer.lr"},
    {IN(scheduler, min_lr_ratio, REAL), .fallback = "0", FROM_TO(0, 1), WHEN("scheduler.name=warmup_stable_decay"),
        .peers = "HF:min_lr_ratio", .help = "where the decay ends, as a part of optimizer.lr"},
    {IN(scheduler, warmup_type, WORD), .words = RAMPS,
        WHEN("scheduler.name=warmup_stable_decay|WarmupLR|WarmupDecayLR|WarmupCosineLR"),
        .peers = "HF:warmup_type DeepSpeed:warmup_type", .help = "the warmup's shape [linear; DeepSpeed's: log]"},
    {IN(scheduler, decay_type, WORD), .words = RAMPS, WHEN("scheduler.name=warmup_stable_decay"),
        .peers = "HF:decay_type", .help = "the decay's shape [cosine]"},
    {IN(scheduler, timescale, INT), AT_LEAST(1), WHEN("scheduler.name=inverse_sqrt"), .peers = "HF:timescale",
        .help = "steps after which the root falls [the warmup's; 10000]"},
    {IN(scheduler, warmup_min_lr, REAL), .fallback = "0", AT_LEAST(0), WHEN("scheduler.name=WarmupLR|WarmupDecayLR"),
        .peers = "DeepSpeed:warmup_min_lr", .help = "where the warmup starts"},
    {IN(scheduler, warmup_max_lr, REAL), AT_LEAST(0), WHEN("scheduler.name=WarmupLR|WarmupDecayLR"),
        .peers = "DeepSpeed:warmup_max_lr", .help = "where it ends [optimizer.lr]"},
    {IN(scheduler, warmup_min_ratio, REAL), .fallback = "0", FROM_TO(0, 1), WHEN("scheduler.name=WarmupCosineLR"),
        .peers = "DeepSpeed:warmup_min_ratio", .help = "where the warmup starts, as a part of optimizer.lr"},
    {IN(scheduler, cos_min_ratio, REAL), .fallback = "0.0001", FROM_TO(0, 1), WHEN("scheduler.name=WarmupCosineLR"),
        .peers = "DeepSpeed:cos_min_ratio", .help = "where the cosine ends, as a part of optimizer.lr"},
    {IN(scheduler, cycle_min_lr, REAL), AT_LEAST(0), WHEN("scheduler.name=OneCycle"), .peers = "DeepSpeed:cycle_min_lr",
        .help = "the cycle's lowest rate"},
    {IN(scheduler, cycle_max_lr, REAL), AT_LEAST(0), WHEN("scheduler.name=OneCycle"), .peers = "DeepSpeed:cycle_max_lr",
        .help = "the cycle's highest rate [optimizer.lr]"},
    {IN(scheduler, cycle_first_step_size, INT), .fallback = "2000", AT_LEAST(1), WHEN("scheduler.name=OneCycle"),
        .peers = "DeepSpeed:cycle_first_step_size", .help = "steps that the rate rises"},
    {IN(scheduler, cycle_second_step_size, INT), AT_LEAST(1), WHEN("scheduler.name=OneCycle"),
        .peers = "DeepSpeed:cycle_second_step_size", .help = "steps that it falls [as many]"},
    {IN(scheduler, cycle_first_stair_count, INT), .fallback = "0", AT_LEAST(0), WHEN("scheduler.name=OneCycle"),
        .peers = "DeepSpeed:cycle_first_stair_count", .help = "stairs of the rise; 0: a slope"},
    {IN(scheduler, cycle_second_stair_count, INT), AT_LEAST(0), WHEN("scheduler.name=OneCycle"),
        .peers = "DeepSpeed:cycle_second_stair_count", .help = "stairs of the fall [as many]"},
    {IN(scheduler, decay_step_size, INT), .fallback = "0", AT_LEAST(0), WHEN("scheduler.name=OneCycle"),
        .peers = "DeepSpeed:decay_step_size", .help = "after the cycle, steps between decays; 0: none"},
    {IN(scheduler, decay_lr_rate, REAL), .fallback = "0", AT_LEAST(0), WHEN("scheduler.name=OneCycle"),
        .peers = "DeepSpeed:decay_lr_rate", .help = "the rate's decay after the cycle"},
    {IN(scheduler, cycle_momentum, SWITCH), .fallback = "true", WHEN("scheduler.name=OneCycle"),
        .peers = "DeepSpeed:cycle_momentum", .help = "let the first beta cycle too"},
    {IN(scheduler, cycle_min_mom, REAL), .fallback = "0.8", FROM_BELOW(0, 1), WHEN("scheduler.name=OneCycle"),
        .peers = "DeepSpeed:cycle_min_mom", .help = "its lowest"},
    {IN(scheduler, cycle_max_mom, REAL), .fallback = "0.9", FROM_BELOW(0, 1), WHEN("scheduler.name=OneCycle"),
        .peers = "DeepSpeed:cycle_max_mom", .help = "its highest"},
    {IN(scheduler, decay_mom_rate, REAL), .fallback = "0", AT_LEAST(0), WHEN("scheduler.name=OneCycle"),
        .peers = "DeepSpeed:decay_mom_rate", .help = "its growth after the cycle"},
    {IN(scheduler, lr_range_test_min_lr, REAL), .fallback = "0.001", AT_LEAST(0), WHEN("scheduler.name=LRRangeTest"),
        .peers = "DeepSpeed:lr_range_test_min_lr", .help = "where the test starts"},
    {IN(scheduler, lr_range_test_step_size, INT), .fallback = "2000", AT_LEAST(1), WHEN("scheduler.name=LRRangeTest"),
        .peers = "DeepSpeed:lr_range_test_step_size", .help = "steps of an interval"},
    {IN(scheduler, lr_range_test_step_rate, REAL), .fallback = "1", AT_LEAST(0), WHEN("scheduler.name=LRRangeTest"),
        .peers = "DeepSpeed:lr_range_test_step_rate", .help = "growth an interval"},
    {IN(scheduler, lr_range_test_staircase, SWITCH), .fallback = "false", WHEN("scheduler.name=LRRangeTest"),
        .peers = "DeepSpeed:lr_range_test_staircase", .help = "grow at its end only"},

    {IN(train, steps, INT), AT_LEAST(1), .commands = TRAIN, .peers = "HF:max_steps DeepSpeed:total_num_steps",
        .volatile_ = true, .help = "optimizer steps"},
    {IN(train, epochs, REAL), ABOVE(0), .commands = TRAIN, .peers = "HF:num_train_epochs", .volatile_ = true,
        .help = "or rounds over the data [1]"},
    {IN(train, micro_batch, INT), .fallback = "4", AT_LEAST(1), .commands = TRAIN | PL_CMD_EVAL,
        .peers = "HF:per_device_train_batch_size DeepSpeed:train_micro_batch_size_per_gpu",
        .help = "sequences computed at a time"},
    {IN(train, micro_batch_tokens, INT), .fallback = "0", AT_LEAST(0), .commands = TRAIN | PL_CMD_EVAL,
        .help = "or tokens, filled with whole sequences; 0: no such bound"},
    {IN(train, accumulation, INT), .fallback = "1", AT_LEAST(1), .commands = TRAIN,
        .peers = "HF:gradient_accumulation_steps DeepSpeed:gradient_accumulation_steps",
        .help = "micro-batches of a step"},
    {IN(train, clip, REAL), .fallback = "1", AT_LEAST(0), .commands = TRAIN,
        .peers = "HF:max_grad_norm DeepSpeed:gradient_clipping", .help = "the gradient's greatest norm; 0: off"},
    {IN(train, seed, INT), .fallback = "42", AT_LEAST(0), .commands = TRAIN, .peers = "HF:seed",
        .help = "seed of everything random"},
    {IN(train, freeze, NAMES), WHEN("method=full"),
        .help = "parameters to leave alone: names, or one regular expression"},
    {IN(train, eval_every, INT), .fallback = "0", AT_LEAST(0), .commands = TRAIN, .peers = "HF:eval_steps",
        .help = "steps between validation losses; 0: at the end"},
    {IN(train, early_stop, INT), .fallback = "0", AT_LEAST(0), .commands = TRAIN, .peers = "HF:early_stopping_patience",
        .help = "stop after so many without a better one; 0: never"},

    {IN(memory, recompute, INT), .fallback = "none", .words = "none|full", AT_LEAST(0), .commands = TRAIN,
        .volatile_ = true, .peers = "HF:gradient_checkpointing",
        .help = "compute activations again: no, every, or each Nth block"},
    {IN(memory, budget, BYTES), .fallback = "0", AT_LEAST(0), .volatile_ = true,
        .commands = TRAIN | PL_CMD_GENERATE | PL_CMD_EVAL, .help = "refuse to use more, such as 8GiB; 0: no bound"},
    {OFFLOAD(optimizer, WORD), .fallback = "none", .words = "none|disk",
        .refused = "nvme: give disk, and memory.offload.path", .peers = "DeepSpeed:offload_optimizer",
        .help = "the optimizer's moments, and what bf16 weights lack of f32 masters"},
    {OFFLOAD(params, WORD), .fallback = "none", .words = "none|disk",
        .refused = "nvme: give disk, and memory.offload.path", .peers = "DeepSpeed:offload_param",
        .help = "every parameter while it is not used; several processes need parallel.zero 3"},
    {OFFLOAD(path, FOLDER), .when = OFFLOADED, .peers = "DeepSpeed:nvme_path",
        .help = "folder on a disk with room [output]"},
    {OFFLOAD(buffer, BYTES), .when = "memory.offload.optimizer=disk", .fallback = "32MiB", AT_LEAST(1),
        .peers = "DeepSpeed:buffer_size", .help = "each of the three buffers through which a step takes the states"},

    {IN(parallel, dp, INT), .fallback = "0", AT_LEAST(0), .commands = TRAIN, .volatile_ = true,
        .peers = "Megatron:data_parallel_size torchtitan:data_parallel_replicate_degree",
        .help = "processes that share out the data, to see that so many were started; 0: all"},
    {IN(parallel, tp, INT), .fallback = "1", AT_LEAST(1), .commands = TRAIN, .volatile_ = true,
        .peers = "Megatron:tensor_model_parallel_size torchtitan:tensor_parallel_degree",
        .help = "processes that share out each matrix; only 1 yet"},
    {IN(parallel, pp, INT), .fallback = "1", AT_LEAST(1), .commands = TRAIN, .volatile_ = true,
        .peers = "Megatron:pipeline_model_parallel_size torchtitan:pipeline_parallel_degree",
        .help = "stages of a pipeline; only 1 yet"},
    {IN(parallel, cp, INT), .fallback = "1", AT_LEAST(1), .commands = TRAIN, .volatile_ = true,
        .peers = "Megatron:context_parallel_size torchtitan:context_parallel_degree",
        .help = "processes that share out each sequence; only 1 yet"},
    {IN(parallel, zero, INT), .fallback = "0", FROM_TO(0, 3), .commands = TRAIN, .volatile_ = true,
        .peers = "DeepSpeed:stage",
        .help = "shard optimizer states (1), gradients too (2), parameters too (3); 0: nothing"},
    {IN(parallel, shard_size, INT), .fallback = "0", AT_LEAST(0), .commands = TRAIN, .volatile_ = true,
        .when = "parallel.zero=1|2|3", .peers = "DeepSpeed:mics_shard_size FSDP:HYBRID_SHARD",
        .help = "shard within groups of so many, each of which has everything; 0: all"},
    {IN(parallel, prefetch, INT), .fallback = "1", FROM_TO(0, 64), .commands = TRAIN, .volatile_ = true,
        .when = "parallel.zero=3", .peers = "DeepSpeed:prefetch_bucket_size",
        .help = "blocks that are gathered ahead of their use"},
    {IN(parallel, bucket_mb, INT), .fallback = "25", FROM_TO(1, 65536), .commands = TRAIN, .volatile_ = true,
        .peers = "DDP:bucket_cap_mb", .help = "MiB of gradients that travel at a time"},
    {IN(parallel, sync_each_batch, SWITCH), .fallback = "false", .commands = TRAIN, .volatile_ = true,
        .when = "parallel.zero=2|3", .peers = "Accelerate:sync_each_batch",
        .help = "exchange gradients after each micro-batch, not only after a step's last"},

    {IN(checkpoint, every, INT), .fallback = "500", AT_LEAST(0), .commands = TRAIN, .peers = "HF:save_steps",
        .volatile_ = true, .help = "steps between checkpoints; 0: when stopped and at the end"},
    {IN(checkpoint, keep, INT), .fallback = "2", AT_LEAST(0), .commands = TRAIN, .peers = "HF:save_total_limit",
        .volatile_ = true, .help = "the latest ones to keep; 0: all"},
    {IN(checkpoint, best, SWITCH), .fallback = "false", .commands = TRAIN, .peers = "HF:load_best_model_at_end",
        .volatile_ = true, .help = "keep that with the best validation loss as the result"},
    {IN(checkpoint, background, SWITCH), .fallback = "true", .commands = TRAIN, .volatile_ = true,
        .peers = "torchtitan:async_mode Megatron:async_save", .help = "write them while the next step computes"},

    {IN(log, every, INT), .fallback = "10", AT_LEAST(1), .commands = TRAIN, .peers = "HF:logging_steps",
        .volatile_ = true, .help = "steps between lines, without a terminal"},
    {IN(log, profile, SWITCH), .fallback = "false", .commands = TRAIN, .peers = "DeepSpeed:wall_clock_breakdown",
        .volatile_ = true, .help = "tell what a step's time goes into"},

    {OPTION(prompt, STRINGS), .commands = PL_CMD_GENERATE,
        .help = "what to go on from; may be given several times [standard input]"},
    {OPTION(prompts, FILE), .commands = PL_CMD_GENERATE,
        .help = "a file of prompts: a line each (.txt), or a row each (.jsonl, .json)"},
    {OPTION(batch, INT), .fallback = "8", FROM_TO(1, 64), .commands = PL_CMD_GENERATE, .peers = "HF:batch_size",
        .help = "texts to write at once"},
    {OPTION(chat, SWITCH), .fallback = "false", .commands = PL_CMD_GENERATE,
        .help = "prompt as a user's message, by the chat template"},
    {OPTION(system, TEXT), .commands = PL_CMD_GENERATE, .when = "chat=true", .help = "a system message before it"},
    {OPTION(max_tokens, INT), .fallback = "256", AT_LEAST(1), .commands = PL_CMD_GENERATE, .peers = "HF:max_new_tokens",
        .help = "the most tokens to write"},
    {OPTION(greedy, SWITCH), .fallback = "false", .commands = PL_CMD_GENERATE,
        .help = "always take the likeliest token"},
    {OPTION(temperature, REAL), .fallback = "1", ABOVE(0), .refused = "0: --greedy takes the likeliest token always",
        .commands = PL_CMD_GENERATE, .when = "greedy=false", .peers = "HF:temperature",
        .help = "below 1 sharper, above 1 flatter"},
    {OPTION(top_k, INT), .fallback = "0", AT_LEAST(0), .commands = PL_CMD_GENERATE, .when = "greedy=false",
        .peers = "HF:top_k", .help = "draw among the K likeliest; 0: all"},
    {OPTION(top_p, REAL), .fallback = "1", ABOVE_TO(0, 1), .commands = PL_CMD_GENERATE, .when = "greedy=false",
        .peers = "HF:top_p", .help = "draw among the likeliest with this much together"},
    {OPTION(min_p, REAL), .fallback = "0", FROM_TO(0, 1), .commands = PL_CMD_GENERATE, .when = "greedy=false",
        .peers = "HF:min_p", .help = "draw among those at least this part as likely as the first"},
    {OPTION(repetition_penalty, REAL), .fallback = "1", ABOVE(0), .commands = PL_CMD_GENERATE,
        .peers = "HF:repetition_penalty", .help = "above 1: what was said becomes less likely"},
    {OPTION(seed, INT), .fallback = "42", AT_LEAST(0), .commands = PL_CMD_GENERATE, .help = "seed of the draws"},
    {TOP(ranks, INT), .flag_only = true, .fallback = "1", FROM_TO(1, 1 << 20), .commands = PL_CMD_TRAIN | PL_CMD_PLAN,
        .help = "processes to start by mpiexec; those to plan for"},
    {TOP(json, SWITCH), .flag_only = true, .fallback = "false",
        .commands = PL_CMD_PLAN | PL_CMD_GENERATE | PL_CMD_EVAL | PL_CMD_INSPECT, .help = "print the result as JSON"},
};
const int pl_config_field_count = PL_COUNT(pl_config_fields);
_Static_assert(PL_COUNT(pl_config_fields) <= PL_CONFIG_MAX_FIELDS, "raise PL_CONFIG_MAX_FIELDS");
