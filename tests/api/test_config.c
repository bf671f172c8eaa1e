/* Run files, flags and checks: what is read, what is refused, and in which words. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "api/config.h"

static int parse(pl_error *err, pl_config *c, const char *text)
{
    *err = (pl_error){0};
    *c = (pl_config){0};
    assert_int_equal(pl_config_open(err, c), 0);
    return pl_config_parse(err, c, "run.yaml", text, strlen(text));
}

static void test_defaults(void **state)
{
    (void)state;
    pl_error err = {0};
    pl_config c;
    assert_int_equal(pl_config_open(&err, &c), 0);
    assert_int_equal(c.lora.r, 8);
    assert_true(c.optimizer.betas.count == 2 && c.optimizer.betas.items[1] == 0.999);
    assert_true(isnan(c.optimizer.lr));
    assert_int_equal(c.train.steps, PL_INT_UNSET);
    assert_string_equal(c.output, "out");
    assert_int_equal(c.lora.targets.count, 0);
    assert_false(pl_config_is_set(&c, &c.lora.r));
    pl_config_close(&c);
    pl_config_close(&c);
}

static void check_condition(const char *condition)
{
    char by[PL_FIELD_NAME_SIZE];
    const char *equals = strchr(condition, '='), *word;
    snprintf(by, sizeof by, "%.*s", (int)(equals - condition), condition);
    const pl_field *other = pl_config_find(by);
    assert_non_null(other);
    int size;
    for (int w = 0; other->kind == PL_FIELD_WORD && (word = pl_word(equals + 1, w, &size)); w++) {
        char text[PL_FIELD_NAME_SIZE];
        snprintf(text, sizeof text, "%.*s", size, word);
        assert_true(pl_word_index(other->words, text) >= 0);
    }
}

/* The table itself: names are unique, conditions name fields and words that exist, and words have their places. */
static void test_table(void **state)
{
    (void)state;
    for (int i = 0; i < pl_config_field_count; i++) {
        const pl_field *f = &pl_config_fields[i];
        char name[PL_FIELD_NAME_SIZE];
        assert_ptr_equal(pl_config_find(pl_field_name(f, name)), f);
        assert_non_null(f->help);
        assert_true(strlen(f->help) <= 80);
        if (f->kind == PL_FIELD_WORD) assert_non_null(f->words);
        for (int j = 0; j < i; j++) assert_int_not_equal(pl_config_fields[j].offset, f->offset);
        for (const char *at = f->when, *end; at; at = end ? end + 4 : NULL) {
            char condition[512];
            end = strstr(at, " or ");
            snprintf(condition, sizeof condition, "%.*s", end ? (int)(end - at) : (int)strlen(at), at);
            check_condition(condition);
        }
    }
    const pl_field *scheduler = pl_config_find("scheduler.name");
    assert_int_equal(pl_word_index(scheduler->words, "warmup_stable_decay"), PL_SCHEDULER_WARMUP_STABLE_DECAY);
    assert_int_equal(pl_word_index(scheduler->words, "LRRangeTest"), PL_SCHEDULER_LR_RANGE_TEST);

    assert_int_equal(pl_word_index(pl_config_find("data.format")->words, "tokens"), PL_DATA_TOKENS);
}

static void test_yaml(void **state)
{
    (void)state;
    pl_error err;
    pl_config c;
    const char *text = "model: ../m\n"
                       "method: lora\n"
                       "data: [a.jsonl, \"b, c.jsonl\"]\n"
                       "data.sequence_length: 64\n"
                       "lora:\n"
                       "  r: 16\n"
                       "  targets: &t [q_proj, v_proj]\n"
                       "  exclude: *t\n"
                       "  rank_pattern: {q_proj: 4, 'layers\\.[01]{1,2}.*': 2}\n"
                       "  layers: 0,3\n"
                       "train: {steps: 5, clip: .5}\n"
                       "optimizer:\n"
                       "  betas: [0.9, 0.95]\n"
                       "memory: {budget: 1.5GiB, recompute: full}\n"
                       "scheduler:\n"
                       "log: null\n";
    assert_int_equal(parse(&err, &c, text), 0);
    assert_string_equal(c.model, "../m");
    assert_int_equal(c.data.files.count, 2);
    assert_string_equal(c.data.files.items[1], "b, c.jsonl");
    assert_int_equal(c.data.sequence_length, 64);
    assert_int_equal(c.lora.r, 16);
    assert_int_equal(c.lora.targets.count, 2);
    assert_string_equal(c.lora.exclude.items[1], "v_proj");
    assert_int_equal(c.lora.rank_pattern.count, 2);
    assert_string_equal(c.lora.rank_pattern.texts[1], "2");
    assert_true(c.lora.layers.count == 2 && c.lora.layers.items[1] == 3);
    assert_true(c.train.clip == 0.5);
    assert_true(c.optimizer.betas.items[1] == 0.95);
    assert_int_equal(c.memory.budget, 3ll << 29);
    assert_int_equal(c.memory.recompute, 1);
    char where[PL_WHERE_SIZE];
    assert_string_equal(pl_config_where(&c, &c.lora.r, where), "run.yaml:6: lora.r");
    pl_config_close(&c);

    const char *json = "{\"model\": \"a\\/b\\u00e9\",\n\t\"lora\": {\"r\": 4, \"dora\": true},\n\t\"adapter\": null}";
    assert_int_equal(parse(&err, &c, json), 0);
    assert_string_equal(c.model, "a/b\xc3\xa9");
    assert_true(c.lora.dora);
    assert_null(c.adapter);
    pl_config_close(&c);

    assert_int_equal(parse(&err, &c, "# nothing yet\n"), 0);
    pl_config_close(&c);
}

static void test_yaml_refused(void **state)
{
    (void)state;
    static const struct {
        const char *text, *message;
    } cases[] = {
        {"lora:\n  r: 0\n", "run.yaml:2: lora.r is 0; it must be from 1 to 65536"},
        {"lora:\n  r: eight\n", "run.yaml:2: lora.r is 'eight'; a whole number was expected"},
        {"lora:\n  r: 1.5\n", "run.yaml:2: lora.r is '1.5'; a whole number was expected"},
        {"lora: {r: 99999999999999999999}\n", "run.yaml:1: lora.r is 99999999999999999999, which is too large"},
        {"lora: {r: [1]}\n", "run.yaml:1: lora.r is a list; a single value was expected"},
        {"lora: {r: {a: 1}}\n", "run.yaml:1: lora.r is a mapping; a single value was expected"},
        {"lora: {dropout: 1}\n", "run.yaml:1: lora.dropout is 1; it must be at least 0 and below 1"},
        {"lora: {dropout: nan}\n", "run.yaml:1: lora.dropout is 'nan'; a number was expected"},
        {"lora: {dora: yes}\n", "run.yaml:1: lora.dora is 'yes'; true or false was expected"},
        {"lora: {rr: 4}\n", "run.yaml:1: there is no field lora.rr; did you mean lora.r?"},
        {"lora: {lora_alpha: 4}\n", "run.yaml:1: lora.lora_alpha is PEFT's name for it; here it is lora.alpha"},
        {"\nlearning_rate: 1\n", "run.yaml:2: learning_rate is Hugging Face's name for it; here it is optimizer.lr"},
        {"trian:\n  steps: 4\n", "run.yaml:1: there is no field trian; did you mean train?"},
        {"train: {quux_plugh: 4}\n", "run.yaml:1: there is no field train.quux_plugh; train has steps, epochs, "
                                     "micro_batch, micro_batch_tokens, accumulation, clip, seed, freeze, eval_every, "
                                     "early_stop"},
        {"seed: 4\n", "run.yaml:1: seed is Hugging Face's name for it; here it is train.seed"},
        {"json: true\n", "run.yaml:1: there is no field json; docs"},
        {"method: lora\nlora:\n  r: 4\n  alpha: 8\n  r: 8\n",
            "run.yaml:5: lora.r is given twice; line 3 has it already"},
        {"lora: {r: 4}\nlora.r: 4\n", "run.yaml:2: lora.r is given twice; line 1 has it already"},
        {"lora: {r: 4}\nlora: {alpha: 4}\n", "run.yaml:2: the section lora is given twice"},
        {"lora: 8\n", "run.yaml:1: lora is a section; fields were expected in it"},
        {"model:\n", "run.yaml:1: model has no value; give one, or leave the line out for the default"},
        {"model: ''\n", "run.yaml:1: model is empty; a path was expected"},
        {"model: \"a\\0b\"\n", "run.yaml:1: a text holds a zero byte"},
        {"method: loar\n", "run.yaml:1: method is 'loar'; full or lora was expected"},
        {"memory: {recompute: half}\n",
            "run.yaml:1: memory.recompute is 'half'; none, full or a whole number was expected"},
        {"memory: {budget: 8 apples}\n",
            "run.yaml:1: memory.budget is '8 apples'; a size such as 8GiB, 512MiB or 4000000000 was expected"},
        {"optimizer: {betas: [0.9]}\n", "run.yaml:1: optimizer.betas has 1 number; 2 were expected"},
        {"optimizer: {betas: [0.9, 1]}\n", "run.yaml:1: optimizer.betas is 1; it must be at least 0 and below 1"},
        {"lora: {targets: ['.*q', k]}\n", "run.yaml:1: lora.targets holds a regular expression ('.*q') beside others; "
                                          "give names, or one expression alone"},
        {"lora: {targets: [q, [k]]}\n", "run.yaml:1: lora.targets has an item that is itself a list or a mapping"},
        {"lora: {rank_pattern: {q: 0}}\n", "run.yaml:1: lora.rank_pattern of q is 0; it must be from 1 to 65536"},
        {"lora: {rank_pattern: {q: 1, q: 2}}\n", "run.yaml:1: lora.rank_pattern gives q twice"},
        {"base: &b {r: 4}\nlora:\n  <<: *b\n", "run.yaml:1: there is no field base"},
        {"lora:\n  <<: {r: 4}\n", "run.yaml:2: merge keys (<<) are not supported; write the fields out"},
        {"model: !env HOME\n", "run.yaml:1: the tag !env is not supported"},
        {"- model\n", "run.yaml:1: a run file is a mapping of fields, such as `model: DIR`"},
        {"model: a\n---\nmodel: b\n", "run.yaml:3: a second document begins; a run file has one"},
        {"[a]: b\n", "run.yaml:1: a field's name was expected"},
        {"model: a\n\tlora: b\n", "run.yaml:2: is not valid YAML: "},
        {"model: \xff\n", "run.yaml: is not valid YAML: "},
        {"data: &d {data: *d}\n", "run.yaml:1: there is no field data.data"},
    };
    for (int i = 0; i < PL_COUNT(cases); i++) {
        pl_error err;
        pl_config c;
        assert_int_equal(parse(&err, &c, cases[i].text), PL_EUSAGE);
        if (strncmp(err.message, cases[i].message, strlen(cases[i].message)) != 0) {
            fail_msg("%s\n  gave: %s\n  not:  %s", cases[i].text, err.message, cases[i].message);
        }
        pl_config_close(&c);
    }
}

static int flags(pl_error *err, pl_config *c, unsigned command, const char *line, int *npositional)
{
    char copy[512], *argv[32];
    const char *positional[32];
    int argc = 0;
    snprintf(copy, sizeof copy, "%s", line);
    for (char *word = strtok(copy, " "); word; word = strtok(NULL, " ")) argv[argc++] = word;
    return pl_config_flags(err, c, command, argc, argv, positional, npositional);
}

static void test_flags(void **state)
{
    (void)state;
    pl_error err;
    pl_config c;
    int n;
    /* Flags win over the file, whichever comes first. */
    assert_int_equal(parse(&err, &c, ""), 0);
    const char *line = "run.yaml --data a --data b --lora.r=4 --optimizer.lr 1e-4 --lora.dora --lora.rslora false "
                       "--from-scratch c.json --optimizer.betas 0.8,0.9 --optimizer.betas 0.9,0.95 --lora.r 16 "
                       "--lora.targets q_proj,v_proj --lora.targets k_proj --data.fields prompt=q,completion=a -- --x";
    assert_int_equal(flags(&err, &c, PL_CMD_TRAIN, line, &n), 0);
    assert_int_equal(n, 2);
    const char *file = "data: [z]\nlora: {r: 3, alpha: 5}\n";
    assert_int_equal(pl_config_parse(&err, &c, "run.yaml", file, strlen(file)), 0);
    assert_int_equal(c.data.files.count, 2);
    assert_int_equal(c.lora.r, 16);
    assert_true(c.lora.alpha == 5 && c.lora.dora && !c.lora.rslora && c.optimizer.lr == 1e-4);
    assert_true(c.optimizer.betas.count == 2 && c.optimizer.betas.items[1] == 0.95);
    assert_int_equal(c.lora.targets.count, 3);
    assert_string_equal(c.data.fields.keys[1], "completion");
    assert_string_equal(c.from_scratch, "c.json");
    char where[PL_WHERE_SIZE];
    assert_string_equal(pl_config_where(&c, &c.data.files, where), "--data");
    pl_config_close(&c);
}

static void test_flags_refused(void **state)
{
    (void)state;
    static const struct {
        const char *line, *message;
        unsigned command;
    } cases[] = {
        {"--lora.r 0", "--lora.r is 0; it must be from 1 to 65536", PL_CMD_TRAIN},
        {"--lora.r", "--lora.r needs a value", PL_CMD_TRAIN},
        {"--lora.r --lora.alpha 3", "--lora.r needs a value", PL_CMD_TRAIN},
        {"--optimizer.lr -1", "--optimizer.lr is -1; it must be at least 0", PL_CMD_TRAIN},
        {"--lora.dora run.yaml", "--lora.dora is 'run.yaml'; true or false was expected", PL_CMD_TRAIN},
        {"--train.step 4", "there is no flag --train.step; did you mean --train.steps?", PL_CMD_TRAIN},
        {"--learning_rate 4", "--learning_rate is Hugging Face's name for it; here it is --optimizer.lr", PL_CMD_TRAIN},
        {"--learning-rate 4", "--learning-rate is Hugging Face's name for it; here it is --optimizer.lr", PL_CMD_TRAIN},
        {"--modle a", "there is no flag --modle; did you mean --model?", PL_CMD_GENERATE},
        {"--lora.r 4", "--lora.r is not taken here; it is for plait train", PL_CMD_GENERATE},
        {"--max-tokens 4", "--max-tokens is not taken here; it is for plait generate", PL_CMD_TRAIN},
        {"-x", "there is no flag -x; flags begin with two dashes", PL_CMD_TRAIN},
        {"--data.fields prompt", "--data.fields is 'prompt'; name=value was expected", PL_CMD_TRAIN},
        {"--scheduler.name reduce_lr_on_plateau",
            "--scheduler.name is reduce_lr_on_plateau, which is not supported: the "
            "rate must follow from the step; train.early_stop watches the "
            "validation loss",
            PL_CMD_TRAIN},
        {"--precision fp16", "--precision is fp16, which is not supported: bf16 needs no loss scaling", PL_CMD_TRAIN},
        {"--precision fp", "--precision is 'fp'; f32 or bf16 was expected", PL_CMD_TRAIN},
        {"--frobnicate 4", "there is no flag --frobnicate; --help lists what there is", PL_CMD_MERGE},
    };
    for (int i = 0; i < PL_COUNT(cases); i++) {
        pl_error err;
        pl_config c;
        int n;
        assert_int_equal(parse(&err, &c, ""), 0);
        assert_true(flags(&err, &c, cases[i].command, cases[i].line, &n) < 0);
        assert_string_equal(err.message, cases[i].message);
        pl_config_close(&c);
    }
}

static void test_check(void **state)
{
    (void)state;
    static const struct {
        const char *line, *message; /* NULL: fine */
        unsigned command;
    } cases[] = {
        {"", "there is no model: give --model DIR (a Hugging Face folder) or --from-scratch config.json", PL_CMD_TRAIN},
        {"--model m", "there is no data: give --data FILE (.txt, .jsonl or .json)", PL_CMD_TRAIN},
        {"--model m", NULL, PL_CMD_PLAN},
        {"--model m --data d", NULL, PL_CMD_TRAIN},
        {"--model m --data d --lora.r 4", "--lora.r is set, but method is full; it applies with method=lora only",
            PL_CMD_TRAIN},
        {"--model m --data d --lora.r 4 --method full",
            "--lora.r is set, but --method is full; it applies with method=lora only", PL_CMD_TRAIN},
        {"--model m --data d --method lora --lora.r 4", NULL, PL_CMD_TRAIN},
        {"--model m --data d --lora.dora false --lora.dropout 0 --optimizer.momentum 0", NULL, PL_CMD_TRAIN},
        {"--model m --data d --scheduler.decay_steps 4",
            "--scheduler.decay_steps is set, but scheduler.name is linear; it applies with "
            "scheduler.name=warmup_stable_decay only",
            PL_CMD_TRAIN},
        {"--model m --data d --scheduler.name warmup_stable_decay",
            "--scheduler.name is warmup_stable_decay, which needs scheduler.decay_steps", PL_CMD_TRAIN},
        {"--model m --data d --method lora --lora.init loftq", "--lora.init is loftq, which needs 4-bit", PL_CMD_TRAIN},
        {"--model m --data d --train.steps 4 --train.epochs 1",
            "--train.steps and --train.epochs are both set; give one of them", PL_CMD_TRAIN},
        {"--model m --data d --train.eval_every 4",
            "--train.eval_every is set, but there is no validation loss; give "
            "data.validation or data.validation_split",
            PL_CMD_TRAIN},
        {"--model m --data d --data.weights 1,2",
            "--data.weights has 2 numbers, but --data has 1 file; give one a file", PL_CMD_TRAIN},
        {"--model m --data d --adapter a --method full", "--method is full, but --adapter is given", PL_CMD_TRAIN},
        {"--model m --data d --adapter a --lora.r 4", "--lora.r is set, but --adapter is given", PL_CMD_TRAIN},
        {"--model m --data d --method lora --lora.layers 1 --lora.targets all-linear",
            "--lora.layers is set, but --lora.targets is no list of names", PL_CMD_TRAIN},
        {"--model m --data d --method lora --lora.layers 1 --lora.targets q_proj", NULL, PL_CMD_TRAIN},
        {"--model m --data d --method lora --lora.init what", "--lora.init: ", PL_CMD_TRAIN},
        {"--model m --data d --method lora --lora.targets .*(", "lora: ", PL_CMD_TRAIN},
        {"--model m --data d --adapter a --lora.lr_ratio 4", NULL, PL_CMD_TRAIN},
        {"--model m --data d --optimizer.name sgd --optimizer.betas 0.9,0.95",
            "--optimizer.betas is set, but --optimizer.name is sgd; it applies with optimizer.name=adamw only",
            PL_CMD_TRAIN},
        {"--model m --data d --parallel.dp 1 --parallel.tp 1 --parallel.pp 1 --parallel.cp 1", NULL, PL_CMD_TRAIN},
        {"--model m --data d --ranks 4 --parallel.dp 4", NULL, PL_CMD_TRAIN},
        {"--model m --data d --ranks 4 --parallel.dp 3",
            "--parallel.dp is 3, but the run has 4 processes; start them by --ranks 3 or mpiexec, or leave it out",
            PL_CMD_TRAIN},
        {"--model m --parallel.dp 4", "--parallel.dp is 4, but the run has 1 process; give --ranks 4, or leave it out",
            PL_CMD_PLAN},
        {"--model m --data d --parallel.dp 4", NULL, PL_CMD_INIT},
        {"--model m --data d --ranks 4 --parallel.dp 2 --parallel.tp 2",
            "--parallel.tp is 2, but there is no tensor parallelism yet; leave it at 1", PL_CMD_TRAIN},
        {"--model m --parallel.pp 2", "--parallel.pp is 2, but there is no pipeline parallelism yet", PL_CMD_PLAN},
        {"--model m --parallel.cp 2", "--parallel.cp is 2, but there is no context parallelism yet", PL_CMD_PLAN},
        {"--model m --optimizer.name sgd --memory.offload.optimizer disk",
            "--memory.offload.optimizer is disk, but sgd without momentum keeps no states", PL_CMD_PLAN},
        {"--model m --optimizer.name sgd --optimizer.momentum 0.5 --memory.offload.optimizer disk", NULL, PL_CMD_PLAN},
        {"--model m --optimizer.name sgd --precision bf16 --memory.offload.optimizer disk", NULL, PL_CMD_PLAN},
        {"--model m --greedy --top-k 4", "--top-k is set, but --greedy is true; it applies with greedy=false only",
            PL_CMD_GENERATE},
        {"--model m --system s", "--system is set, but chat is false; it applies with chat=true only", PL_CMD_GENERATE},
        {"--model m", "there is nothing to merge: give --adapter DIR (a PEFT adapter)", PL_CMD_MERGE},
        {"--model m --adapter a", "there is no place for the result: give --output DIR", PL_CMD_MERGE},
        {"--model m --adapter a --output o", NULL, PL_CMD_MERGE},
    };
    for (int i = 0; i < PL_COUNT(cases); i++) {
        pl_error err;
        pl_config c;
        int n;
        assert_int_equal(parse(&err, &c, ""), 0);
        assert_int_equal(flags(&err, &c, cases[i].command, cases[i].line, &n), 0);
        int rc = pl_config_check(&err, &c, cases[i].command);
        if (!cases[i].message) {
            if (rc != 0) fail_msg("%s\n  gave: %s", cases[i].line, err.message);
        } else if (rc >= 0 || strncmp(err.message, cases[i].message, strlen(cases[i].message)) != 0) {
            fail_msg("%s\n  gave: %s\n  not:  %s", cases[i].line, err.message, cases[i].message);
        }
        pl_config_close(&c);
    }
}

static void test_filled_in(void **state)
{
    (void)state;
    pl_error err;
    pl_config c;
    assert_int_equal(
        parse(&err, &c, "model: m\ndata: d\nmethod: lora\nscheduler: {name: inverse_sqrt, warmup_steps: 7}"), 0);
    assert_int_equal(pl_config_check(&err, &c, PL_CMD_TRAIN), 0);
    assert_true(c.optimizer.lr == 2e-4 && c.train.epochs == 1 && c.scheduler.timescale == 7);
    pl_config_close(&c);
    assert_int_equal(parse(&err, &c, "model: m\ndata: d\nscheduler: {name: OneCycle, cycle_min_lr: 0.1}"), 0);
    assert_int_equal(pl_config_check(&err, &c, PL_CMD_TRAIN), 0);
    assert_true(c.scheduler.cycle_max_lr == 5e-5 && c.scheduler.cycle_second_step_size == 2000);
    pl_config_close(&c);
}

/* What is written reads back as the same run, and passes the check. */
static void test_round_trip(void **state)
{
    (void)state;
    static const char *const texts[] = {
        "model: m\ndata: d",
        ("model: 'with \"quotes\" and \\ and \xc3\xa9'\ndata: [d, 'e, f', '123', 'true', '- x', \"tab\\there\\n\"]\n"
         "method: lora\nlora: {r: 3, targets: [q_proj, 'mlp.up'], exclude: '.*\\.(q|v)_proj{1,2}', rank_pattern: "
         "{'a.*,b': 4}, alpha_pattern: {c: 0.1}, layers: [0, 2], layers_pattern: [h], dropout: 0.1, dora: true}\n"
         "optimizer: {lr: 0.3, betas: [0.1, 0.2], eps: 1e-300}\nmemory: {recompute: 3, budget: 1234567}\n"),
        ("model: m\ndata: d\nscheduler: {name: cosine_with_min_lr, min_lr_rate: 0.1, warmup_ratio: 0.03}\n"
         "train: {steps: 7}\noptimizer: {name: sgd, momentum: 0.9}\ndata.fields: {prompt: 'null', completion: '1'}\n"),
        "model: m\nadapter: a\ndata: d\ntrain: {epochs: 2.5}\n",
        "from_scratch: c.json\ndata: d\nscheduler: {name: OneCycle, cycle_min_lr: 0.1}\n",
        "from_scratch: c.json\ndata: d\nscheduler: {name: WarmupLR}\n",
    };
    for (int i = 0; i < PL_COUNT(texts); i++) {
        pl_error err;
        pl_config c, back;
        pl_buf text = {0}, again = {0};
        assert_int_equal(parse(&err, &c, texts[i]), 0);
        if (pl_config_check(&err, &c, PL_CMD_TRAIN) < 0) fail_msg("%s", err.message);
        assert_int_equal(pl_config_print(&err, &c, PL_YAML_RESOLVED, &text), 0);
        if (parse(&err, &back, pl_buf_text(&text)) < 0) fail_msg("%s\n%s", err.message, pl_buf_text(&text));
        if (pl_config_check(&err, &back, PL_CMD_TRAIN) < 0) fail_msg("%s\n%s", err.message, pl_buf_text(&text));
        if (pl_config_compare(&err, &c, &back, "out") < 0) fail_msg("%s", err.message);
        assert_int_equal(pl_config_print(&err, &back, PL_YAML_RESOLVED, &again), 0);
        assert_string_equal(pl_buf_text(&again), pl_buf_text(&text));
        pl_buf_free(&text);
        pl_buf_free(&again);
        pl_config_close(&c);
        pl_config_close(&back);
    }
}

static void test_compare(void **state)
{
    (void)state;
    static const struct {
        const char *other, *message;
    } cases[] = {
        {"model: m\ndata: d\nthreads: 3\nlog: {every: 1}\ntrain: {steps: 9}\ncheckpoint: {every: 3}", NULL},
        {"model: m\ndata: d\ntrain: {steps: 4, seed: 1}",
            "out holds another run: train.seed is 42 here and 1 there; choose another --output, or remove that one"},
        {"model: m\ndata: [d, e]", "out holds another run: data.files is d here and d,e there"},
        {"model: m\ndata: d\nmethod: lora", "out holds another run: method is full here and lora there"},
        {"model: m\ndata: d\ndata.validation: v", "out holds another run: data.validation is not set here and v there"},
    };
    for (int i = 0; i < PL_COUNT(cases); i++) {
        pl_error err;
        pl_config c, other;
        assert_int_equal(parse(&err, &c, "model: m\ndata: d\ntrain: {steps: 4}"), 0);
        assert_int_equal(pl_config_check(&err, &c, PL_CMD_TRAIN), 0);
        assert_int_equal(parse(&err, &other, cases[i].other), 0);
        assert_int_equal(pl_config_check(&err, &other, PL_CMD_TRAIN), 0);
        int rc = pl_config_compare(&err, &c, &other, "out");
        if (!cases[i].message)
            assert_int_equal(rc, 0);
        else if (rc != PL_EUSAGE || strncmp(err.message, cases[i].message, strlen(cases[i].message)) != 0) {
            fail_msg("gave: %s\n  not:  %s", err.message, cases[i].message);
        }
        pl_config_close(&c);
        pl_config_close(&other);
    }
}

static void test_edit_distance(void **state)
{
    (void)state;
    assert_int_equal(pl_edit_distance("", "abc"), 3);
    assert_int_equal(pl_edit_distance("lora.r", "lora.r"), 0);
    assert_int_equal(pl_edit_distance("trian", "train"), 1);
    assert_int_equal(pl_edit_distance("kitten", "sitting"), 3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_defaults),
        cmocka_unit_test(test_table),
        cmocka_unit_test(test_yaml),
        cmocka_unit_test(test_yaml_refused),
        cmocka_unit_test(test_flags),
        cmocka_unit_test(test_flags_refused),
        cmocka_unit_test(test_check),
        cmocka_unit_test(test_filled_in),
        cmocka_unit_test(test_round_trip),
        cmocka_unit_test(test_compare),
        cmocka_unit_test(test_edit_distance),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
