/* The rules of PEFT for what a LoRA configuration applies to, by hand; tests/io/test_peft.c holds them against what
   PEFT itself did. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "model/lora_config.h"
#include "support/expect.h"

static pl_lora_config with_targets(const char *text)
{
    pl_error err = {0};
    pl_lora_config c;
    pl_lora_config_init(&c);
    OK(pl_modules_parse(&err, "t", text, &c.target_modules));
    return c;
}

static pl_lora_match match(const pl_lora_config *c, const char *module)
{
    pl_error err = {0};
    pl_lora_match out;
    OK(pl_lora_matches(&err, c, module, &out));
    return out;
}

#define YES(module) assert_int_equal(match(&c, module), PL_LORA_YES)
#define NO(module) assert_int_equal(match(&c, module), PL_LORA_NO)
#define EXCLUDED(module) assert_int_equal(match(&c, module), PL_LORA_EXCLUDED)

static void test_list(void **state)
{
    (void)state;
    pl_lora_config c = with_targets("q_proj, mlp.up_proj,lm_head");
    assert_int_equal(c.target_modules.rule, PL_MODULES_LIST);
    assert_int_equal(c.target_modules.names.count, 3);
    YES("model.layers.0.self_attn.q_proj");
    YES("q_proj");
    NO("model.layers.0.self_attn.xq_proj"); /* an end counts only after a dot */
    NO("model.layers.0.self_attn.q_proj.inner");
    YES("model.layers.11.mlp.up_proj");
    NO("model.layers.11.other_mlp.up_proj");
    NO("up_proj");
    YES("lm_head");
    NO("");
    pl_lora_config_free(&c);
}

static void test_regex(void **state)
{
    (void)state;
    pl_error err = {0};
    pl_lora_config c = with_targets(".*\\.[02]\\.self_attn\\.(q|v)_proj");
    assert_int_equal(c.target_modules.rule, PL_MODULES_REGEX);
    YES("model.layers.2.self_attn.v_proj");
    NO("model.layers.1.self_attn.v_proj");
    NO("model.layers.2.self_attn.v_proj.x"); /* the whole name must match */
    NO("self_attn.q_proj");
    pl_lora_config_free(&c);

    c = with_targets("(a|ab)"); /* fullmatch goes on to the second choice when the first does not reach the end */
    YES("ab");
    YES("a");
    NO("abc");
    pl_lora_config_free(&c);

    c = with_targets("(?P<x>q)_proj|(?P<y>v)_proj");
    YES("q_proj");
    NO("m.q_proj");
    pl_lora_config_free(&c);

    c = with_targets("(q_proj");
    pl_lora_match out;
    FAILS(pl_lora_matches(&err, &c, "q_proj", &out), PL_EINPUT, "target_modules: \"(q_proj\" is not a regular");
    FAILS(pl_lora_config_check(&err, "x.json", &c), PL_EINPUT, "x.json: target_modules");
    pl_lora_config_free(&c);

    c = with_targets("(a*)*b"); /* would take forever by plain backtracking */
    int rc = pl_lora_matches(&err, &c, "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaac", &out);
    assert_true(rc == PL_EINPUT || (rc == 0 && out == PL_LORA_NO));
    pl_lora_config_free(&c);
}

static void test_unresolved(void **state)
{
    (void)state;
    pl_error err = {0};
    pl_lora_match out;
    pl_lora_config c = with_targets("All-Linear");
    assert_int_equal(c.target_modules.rule, PL_MODULES_ALL_LINEAR);
    FAILS(pl_lora_matches(&err, &c, "q_proj", &out), PL_EBUG, "all-linear");
    pl_lora_config_free(&c);
    pl_lora_config_init(&c);
    FAILS(pl_lora_matches(&err, &c, "q_proj", &out), PL_EBUG, "target_modules");
    FAILS(pl_modules_parse(&err, "--lora.targets", "q_proj,,v_proj", &c.target_modules), PL_EINPUT, "--lora.targets");
    FAILS(pl_modules_parse(&err, "--lora.targets", "", &c.target_modules), PL_EINPUT, "empty name");
    assert_string_equal(pl_lora_default_targets("gpt2"), "c_attn");
    assert_null(pl_lora_default_targets("olmo2"));
}

static void test_exclusion(void **state)
{
    (void)state;
    pl_error err = {0};
    pl_lora_config c = with_targets("q_proj,down_proj,lm_head");
    OK(pl_modules_parse(&err, "e", "down_proj,model.layers.1.self_attn.q_proj", &c.exclude_modules));
    YES("model.layers.0.self_attn.q_proj");
    EXCLUDED("model.layers.1.self_attn.q_proj");
    EXCLUDED("model.layers.0.mlp.down_proj");
    EXCLUDED("down_proj");
    NO("model.layers.0.mlp.up_proj");
    OK(pl_modules_parse(&err, "e", ".*\\.0\\..*", &c.exclude_modules));
    EXCLUDED("model.layers.0.self_attn.q_proj");
    EXCLUDED("model.layers.0.mlp.up_proj"); /* also what no target names */
    YES("model.layers.1.self_attn.q_proj");
    YES("lm_head");
    OK(pl_names_add(&err, &c.modules_to_save, "lm_head"));
    OK(pl_names_add(&err, &c.modules_to_save, "self_attn"));
    EXCLUDED("lm_head");
    EXCLUDED("model.layers.1.self_attn.q_proj"); /* inside of a module that is saved whole */
    pl_lora_config_free(&c);
}

static void test_saved_modules(void **state)
{
    (void)state;
    pl_error err = {0};
    pl_lora_config c = with_targets("q_proj");
    assert_false(pl_lora_saves(&c, "lm_head"));
    OK(pl_names_add(&err, &c.modules_to_save, "head"));
    OK(pl_names_add(&err, &c.modules_to_save, "layers.1.mlp"));
    assert_true(pl_lora_saves(&c, "lm_head")); /* PEFT asks for the end only */
    assert_true(pl_lora_saves(&c, "model.layers.1.mlp.up_proj"));
    assert_false(pl_lora_saves(&c, "model.layers.11.mlp.up_proj"));
    assert_false(pl_lora_saves(&c, "model.layers.2.mlp.up_proj"));
    assert_false(pl_lora_saves(&c, "header"));
    pl_lora_config_free(&c);
}

static void set_layers(pl_lora_config *c, int n, const int64_t *layers)
{
    free(c->layers_to_transform);
    c->layers_to_transform = calloc((size_t)n, sizeof *layers);
    memcpy(c->layers_to_transform, layers, (size_t)n * sizeof *layers);
    c->nlayers = n;
}

static void test_layers(void **state)
{
    (void)state;
    pl_error err = {0};
    pl_lora_config c = with_targets("q_proj,model.layers.5.mlp.up_proj,experts.0.up_proj");
    set_layers(&c, 2, (const int64_t[]){1, 3});
    YES("model.layers.1.self_attn.q_proj");
    YES("model.layers.3.self_attn.q_proj");
    NO("model.layers.2.self_attn.q_proj");
    NO("model.layers.13.self_attn.q_proj");
    NO("layers.1.self_attn.q_proj"); /* without a pattern PEFT wants something before the list's name */
    NO("q_proj.x");
    YES("model.layers.5.mlp.up_proj");           /* named in full: whatever its layer */
    YES("model.layers.3.moe.experts.0.up_proj"); /* the first number counts */
    NO("model.layers.0.moe.experts.0.up_proj");
    OK(pl_names_add(&err, &c.layers_pattern, "blocks"));
    NO("model.layers.1.self_attn.q_proj");
    YES("blocks.1.self_attn.q_proj");
    YES("transformer.blocks.3.q_proj");
    NO("transformer.my_blocks.3.q_proj");
    OK(pl_names_add(&err, &c.layers_pattern, "lay[a-z]*"));
    YES("model.layers.1.self_attn.q_proj");
    pl_lora_config_free(&c);
}

static void test_rank_and_scaling(void **state)
{
    (void)state;
    pl_error err = {0};
    pl_lora_config c = with_targets("q_proj,v_proj");
    c.r = 4;
    c.lora_alpha = 8;
    OK(pl_lora_patterns_add(&err, &c.rank_pattern, "layers.1.self_attn.v_proj", 16));
    OK(pl_lora_patterns_add(&err, &c.rank_pattern, "v_proj", 2));
    OK(pl_lora_patterns_add(&err, &c.alpha_pattern, "^model\\.layers\\.0\\..*q_proj", 16));
    OK(pl_lora_patterns_add(&err, &c.alpha_pattern, "self_attn.q_pr", 99)); /* no whole end: matches nothing */
    const struct {
        const char *module;
        int64_t rank;
        double scaling, rslora;
    } cases[] = {
        {"model.layers.0.self_attn.q_proj", 4, 4.0, 8.0},
        {"model.layers.1.self_attn.q_proj", 4, 2.0, 4.0},
        {"model.layers.1.self_attn.v_proj", 16, 0.5, 2.0}, /* the first key that matches */
        {"model.layers.0.self_attn.v_proj", 2, 4.0, 8 / 1.4142135623730951},
        {"model.layers.11.self_attn.xv_proj", 4, 2.0, 4.0},
    };
    for (int i = 0; i < PL_COUNT(cases); i++) {
        int64_t r;
        double scaling;
        c.use_rslora = false;
        OK(pl_lora_rank(&err, &c, cases[i].module, &r));
        assert_int_equal(r, cases[i].rank);
        OK(pl_lora_scaling(&err, &c, cases[i].module, &scaling));
        assert_true(scaling == cases[i].scaling);
        c.use_rslora = true;
        OK(pl_lora_scaling(&err, &c, cases[i].module, &scaling));
        assert_true(fabs(scaling - cases[i].rslora) < 1e-15);
    }
    pl_lora_config_free(&c);
}

static void test_names_of_values(void **state)
{
    (void)state;
    pl_error err = {0};
    pl_lora_config c = with_targets("q_proj");
    static const char *const good[] = {
        "true", "false", "gaussian", "pissa", "pissa_niter_0", "pissa_niter_16", "olora", "orthogonal", "loftq", "eva"};
    char text[32];
    for (int i = 0; i < PL_COUNT(good); i++) {
        OK(pl_lora_init_parse(&err, "x", good[i], &c));
        assert_string_equal(pl_lora_init_name(&c, text), good[i]);
    }
    FAILS(pl_lora_init_parse(&err, "x", "mica", &c), PL_EUNSUPPORTED, "mica");
    FAILS(pl_lora_init_parse(&err, "x", "pissa_niter_", &c), PL_EINPUT, "pissa_niter_");
    FAILS(pl_lora_init_parse(&err, "x", "pissa_niter_4x", &c), PL_EINPUT, "pissa_niter_4x");
    FAILS(pl_lora_init_parse(&err, "x", "True", &c), PL_EINPUT, "gaussian, pissa");
    OK(pl_lora_bias_parse(&err, "x", "lora_only", &c.bias));
    assert_string_equal(pl_lora_bias_name(c.bias), "lora_only");
    FAILS(pl_lora_bias_parse(&err, "x", "lora", &c.bias), PL_EINPUT, "none, all or lora_only");
    pl_lora_config_free(&c);
}

static void test_check(void **state)
{
    (void)state;
    pl_error err = {0};
    pl_lora_config c = with_targets("q_proj");
    OK(pl_lora_config_check(&err, "x", &c));
#define WRONG(field, value, restore, text)                                                                             \
    do {                                                                                                               \
        c.field = (value);                                                                                             \
        FAILS(pl_lora_config_check(&err, "x", &c), PL_EINPUT, text);                                                   \
        c.field = (restore);                                                                                           \
    } while (0)
    WRONG(r, 0, 8, "x: r is 0");
    WRONG(lora_dropout, -0.1, 0, "lora_dropout");
    WRONG(lora_dropout, 1, 0, "lora_dropout");
    WRONG(lora_dropout, NAN, 0, "lora_dropout");
    WRONG(lora_alpha, INFINITY, 8, "lora_alpha");
    c.lora_bias = true;
    WRONG(use_dora, true, false, "lora_bias and use_dora");
    WRONG(init_lora_weights, PL_LORA_INIT_PISSA, PL_LORA_INIT_DEFAULT, "init_lora_weights");
    OK(pl_lora_config_check(&err, "x", &c));
    OK(pl_names_add(&err, &c.layers_pattern, "h"));
    FAILS(pl_lora_config_check(&err, "x", &c), PL_EINPUT, "layers_to_transform");
    set_layers(&c, 1, (const int64_t[]){0});
    OK(pl_lora_config_check(&err, "x", &c));
    WRONG(target_modules.rule, PL_MODULES_REGEX, PL_MODULES_LIST, "to be a list");
    WRONG(layers_to_transform[0], -1, 0, "-1");
    OK(pl_lora_patterns_add(&err, &c.rank_pattern, "q_proj", 2.5));
    FAILS(pl_lora_config_check(&err, "x", &c), PL_EINPUT, "rank_pattern of \"q_proj\" is 2.5");
    c.rank_pattern.items[0].value = 2;
    OK(pl_lora_patterns_add(&err, &c.rank_pattern, "q[", 2));
    FAILS(pl_lora_config_check(&err, "x", &c), PL_EINPUT, "x: rank_pattern: \"q[\"");
    pl_lora_config_free(&c);
}

static void test_copy(void **state)
{
    (void)state;
    pl_error err = {0};
    pl_lora_config c = with_targets("q_proj,v_proj"), copy;
    set_layers(&c, 2, (const int64_t[]){4, 7});
    OK(pl_lora_patterns_add(&err, &c.alpha_pattern, "v_proj", 3.5));
    OK(pl_names_add(&err, &c.modules_to_save, "lm_head"));
    c.base_model_name_or_path = strdup("base");
    c.tokens = calloc(1, sizeof *c.tokens);
    c.ntokens = 1;
    c.tokens[0].count = 2;
    c.tokens[0].ids = calloc(2, sizeof *c.tokens[0].ids);
    c.tokens[0].ids[1] = 9;
    c.use_dora = true;
    OK(pl_lora_config_copy(&err, &c, &copy));
    pl_lora_config_free(&c);
    assert_int_equal(match(&copy, "model.layers.7.v_proj"), PL_LORA_YES);
    assert_int_equal(match(&copy, "model.layers.5.v_proj"), PL_LORA_NO);
    double scaling;
    OK(pl_lora_scaling(&err, &copy, "v_proj", &scaling));
    assert_true(scaling == 3.5 / 8);
    assert_true(copy.use_dora && pl_lora_saves(&copy, "lm_head"));
    assert_string_equal(copy.base_model_name_or_path, "base");
    assert_null(copy.task_type);
    assert_true(copy.ntokens == 1 && !copy.tokens[0].module && copy.tokens[0].ids[1] == 9);
    pl_lora_config_free(&copy);
    pl_lora_config_free(&copy);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_list),
        cmocka_unit_test(test_regex),
        cmocka_unit_test(test_unresolved),
        cmocka_unit_test(test_exclusion),
        cmocka_unit_test(test_saved_modules),
        cmocka_unit_test(test_layers),
        cmocka_unit_test(test_rank_and_scaling),
        cmocka_unit_test(test_names_of_values),
        cmocka_unit_test(test_check),
        cmocka_unit_test(test_copy),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
