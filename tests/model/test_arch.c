/* config.json -> pl_arch, against what transformers makes of it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "base/buf.h"
#include "base/file.h"
#include "model/arch.h"

#define MODELS PLAIT_TEST_DIR "/golden/models/"

/* Collects what the library tells, a line a message. */
static void collect(void *user, enum pl_log_level level, const char *message)
{
    pl_error err = {0};
    pl_buf_printf(&err, user, "%s%s\n", level == PL_LOG_WARNING ? "warning: " : "", message);
}

static const char *text_or_none(const char *text)
{
    return text ? text : "-";
}

/* Every field of an architecture as text, so that two can be compared and a difference read. */
static char *describe(const pl_arch *a)
{
    pl_error err = {0};
    pl_buf b = {0};
    pl_buf_printf(&err, &b, "%s vocab %ld hidden %ld layers %ld heads %ld/%ld x %ld intermediate %ld positions %ld\n",
        a->model_type, (long)a->vocab, (long)a->hidden, (long)a->layers, (long)a->heads, (long)a->kv_heads,
        (long)a->head_dim, (long)a->intermediate, (long)a->max_positions);
    pl_buf_printf(&err, &b, "norm %d eps %g offset %g weight %d bias %d: %s %s %s, %s %s %s, parallel %d scale %g\n",
        a->norm, (double)a->norm_eps, (double)a->norm_offset, a->norm_weight, a->norm_bias,
        text_or_none(a->norm_attn_pre), text_or_none(a->norm_attn_post), text_or_none(a->norm_attn_residual),
        text_or_none(a->norm_mlp_pre), text_or_none(a->norm_mlp_post), text_or_none(a->norm_mlp_residual), a->parallel,
        (double)a->residual_scale);
    pl_buf_printf(&err, &b, "qkv %d %s %s %s %s bias %d%d%d%d qk_norm %d %s %s softcap %g\n", a->qkv, a->q,
        text_or_none(a->k), text_or_none(a->v), a->o, a->q_bias, a->k_bias, a->v_bias, a->o_bias, a->qk_norm,
        text_or_none(a->q_norm), text_or_none(a->k_norm), (double)a->attention_softcap);
    for (int i = 0; i < a->nropes; i++) {
        const pl_rope_spec *r = &a->ropes[i];
        pl_buf_printf(&err, &b, "rope %d %d theta %g factor %g original %ld max %ld %g %g %g %g %g %g %g %d", r->kind,
            r->rotary, r->theta, r->factor, (long)r->original_positions, (long)r->max_positions, r->low_freq_factor,
            r->high_freq_factor, r->beta_fast, r->beta_slow, r->mscale, r->mscale_all_dim, r->attention_factor,
            r->truncate);
        for (int k = 0; r->short_factor && k < r->rotary / 2; k++) {
            pl_buf_printf(&err, &b, " %g/%g", r->short_factor[k], r->long_factor[k]);
        }
        pl_buf_putc(&err, &b, '\n');
    }
    for (int64_t i = 0; i < a->layers; i++) {
        pl_buf_printf(&err, &b, "layer %ld rope %d window %ld scale %g\n", (long)i, a->layer[i].rope,
            (long)a->layer[i].window, (double)a->layer[i].score_scale);
    }
    pl_buf_printf(&err, &b, "mlp %d %s %s %s bias %d act %d conv1d %d\n", a->mlp, text_or_none(a->gate),
        text_or_none(a->up), a->down, a->mlp_bias, a->act, a->conv1d);
    pl_buf_printf(&err, &b, "%s %s x %ld scale %g, %s %ld %ld, %s %s, %s %s tied %d bias %d scale %g cap %g base %s\n",
        a->layer_prefix, a->embed, (long)a->embed_dim, (double)a->embed_scale, text_or_none(a->positions),
        (long)a->position_offset, (long)a->position_rows, text_or_none(a->project_in), text_or_none(a->project_out),
        text_or_none(a->norm_final), a->head, a->tied, a->head_bias, (double)a->logit_scale, (double)a->logit_softcap,
        a->base_prefix);
    pl_buf_printf(&err, &b, "init %g %g pad %ld bos %ld eos", (double)a->init_std, (double)a->init_residual_std,
        (long)a->pad_token, (long)a->bos_token);
    for (int i = 0; i < a->neos; i++) pl_buf_printf(&err, &b, " %ld", (long)a->eos_tokens[i]);
    pl_buf_printf(&err, &b, " dtype %s\n", pl_dtype_name(a->file_dtype));
    assert_int_equal(err.code, 0);
    return b.data;
}

/* The spellings of transformers 4 and 5 say the same. */
static void both_spellings(void **state)
{
    (void)state;
    static const char *const cases[] = {"gemma", "gemma2", "gemma3", "gpt2", "gpt_neox", "gpt_neox-sequential",
        "granite", "llama", "llama-packed", "llama-rope-linear", "llama-rope-llama3", "llama-rope-yarn", "llama-tied",
        "mistral", "olmo2", "opt", "phi", "phi3", "phi3-longrope", "qwen2", "qwen3", "smollm3"};
    for (int i = 0; i < PL_COUNT(cases); i++) {
        char path[512];
        char *text[2];
        for (int v = 0; v < 2; v++) {
            pl_error err = {0};
            pl_arch arch;
            json_t *config;
            pl_buf log = {0};
            pl_log sink = {collect, &log};
            snprintf(path, sizeof path, "%s%s/%s", MODELS, cases[i], v ? "config.v4.json" : "config.json");
            if (pl_json_read(&err, path, &config) < 0 || pl_arch_parse(&err, &sink, path, config, NULL, &arch) < 0) {
                fail_msg("%s", err.message);
            }
            if (log.size) fail_msg("%s", log.data);
            text[v] = describe(&arch);
            pl_arch_free(&arch);
            json_decref(config);
            pl_buf_free(&log);
        }
        assert_string_equal(text[0], text[1]);
        free(text[0]);
        free(text[1]);
    }
}

/* The tensors of a model, from its architecture alone: golden/arch.json has transformers'. */
typedef struct tensor_list {
    json_t *shapes;
    int64_t parameters;
    bool listed; /* whether the layer at hand is in the list */
} tensor_list;

static void add_tensor(tensor_list *list, const char *name, const char *tail, int64_t rows, int64_t columns)
{
    char full[512];
    snprintf(full, sizeof full, "%s%s", name, tail);
    list->parameters += rows * (columns ? columns : 1);
    if (!list->listed) return;
    json_t *shape =
        columns ? json_pack("[I,I]", (json_int_t)rows, (json_int_t)columns) : json_pack("[I]", (json_int_t)rows);
    assert_int_equal(json_object_set_new(list->shapes, full, shape), 0);
}

static void add_linear(
    tensor_list *list, const pl_arch *a, const char *prefix, const char *name, int64_t out, int64_t in, bool bias)
{
    char full[256];
    snprintf(full, sizeof full, "%s%s", prefix, name);
    add_tensor(list, full, ".weight", a->conv1d ? in : out, a->conv1d ? out : in);
    if (bias) add_tensor(list, full, ".bias", out, 0);
}

static void add_norm(tensor_list *list, const pl_arch *a, const char *prefix, const char *name, int64_t size)
{
    if (!name) return;
    char full[256];
    snprintf(full, sizeof full, "%s%s", prefix, name);
    if (a->norm_weight) add_tensor(list, full, ".weight", size, 0);
    if (a->norm_bias) add_tensor(list, full, ".bias", size, 0);
}

static void add_layer(tensor_list *list, const pl_arch *a, int64_t index)
{
    char p[256];
    snprintf(p, sizeof p, "%s%lld.", a->layer_prefix, (long long)index);
    list->listed = index == 0 || index == a->layers - 1;
    const char *const norms[] = {a->norm_attn_pre, a->norm_attn_post, a->norm_attn_residual, a->norm_mlp_pre,
        a->norm_mlp_post, a->norm_mlp_residual};
    for (int i = 0; i < PL_COUNT(norms); i++) add_norm(list, a, p, norms[i], a->hidden);
    int64_t q = a->heads * a->head_dim, kv = a->kv_heads * a->head_dim;
    if (a->qkv == PL_QKV_SPLIT) {
        add_linear(list, a, p, a->q, q, a->hidden, a->q_bias);
        add_linear(list, a, p, a->k, kv, a->hidden, a->k_bias);
        add_linear(list, a, p, a->v, kv, a->hidden, a->v_bias);
    } else {
        assert_true(a->q_bias == a->k_bias && a->q_bias == a->v_bias);
        add_linear(list, a, p, a->q, q + 2 * kv, a->hidden, a->q_bias);
    }
    add_linear(list, a, p, a->o, a->hidden, q, a->o_bias);
    if (a->qk_norm) {
        add_norm(list, a, p, a->q_norm, a->qk_norm == PL_QK_NORM_HEAD ? a->head_dim : q);
        add_norm(list, a, p, a->k_norm, a->qk_norm == PL_QK_NORM_HEAD ? a->head_dim : kv);
    }
    if (a->mlp != PL_MLP_PLAIN) {
        int64_t rows = a->mlp == PL_MLP_GATED ? a->intermediate : 2 * a->intermediate;
        add_linear(list, a, p, a->gate, rows, a->hidden, a->mlp_bias);
    }
    if (a->mlp != PL_MLP_GATED_FUSED) add_linear(list, a, p, a->up, a->intermediate, a->hidden, a->mlp_bias);
    add_linear(list, a, p, a->down, a->hidden, a->intermediate, a->mlp_bias);
}

static tensor_list list_tensors(const pl_arch *a)
{
    tensor_list list = {.shapes = json_object(), .listed = true};
    add_tensor(&list, a->embed, ".weight", a->vocab, a->embed_dim);
    if (a->positions) add_tensor(&list, a->positions, ".weight", a->position_rows, a->hidden);
    if (a->project_in) add_tensor(&list, a->project_in, ".weight", a->hidden, a->embed_dim);
    if (a->project_out) add_tensor(&list, a->project_out, ".weight", a->embed_dim, a->hidden);
    add_norm(&list, a, "", a->norm_final, a->hidden);
    if (!a->tied) add_tensor(&list, a->head, ".weight", a->vocab, a->embed_dim);
    if (a->head_bias) add_tensor(&list, a->head, ".bias", a->vocab, 0);
    for (int64_t i = 0; i < a->layers; i++) add_layer(&list, a, i);
    return list;
}

static double act_value(pl_act act, double x)
{
    switch (act) {
    case PL_ACT_SILU: return x / (1 + exp(-x));
    case PL_ACT_GELU: return 0.5 * x * (1 + erf(x / sqrt(2)));
    case PL_ACT_GELU_TANH: return 0.5 * x * (1 + tanh(sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
    case PL_ACT_GELU_QUICK: return x / (1 + exp(-1.702 * x));
    case PL_ACT_RELU: return x > 0 ? x : 0;
    default: return NAN;
    }
}

static double real_of(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);
    if (!json_is_number(value)) fail_msg("%s is missing", key);
    return json_number_value(value);
}

static void check_real(const char *name, const char *what, double got, double want, double tolerance)
{
    if (!(fabs(got - want) <= tolerance * fmax(fabs(want), 1e-30))) {
        fail_msg("%s: %s is %.9g, not %.9g", name, what, got, want);
    }
}

/* transformers has no limit for rotary embeddings; here it is what they were stretched to. Not so where they differ by
   layer, whose max_position_embeddings is that already. */
static double scaled_positions(const pl_arch *a, double positions)
{
    const pl_rope_spec *r = &a->ropes[0];
    if (a->nropes != 1) return positions;
    if (r->kind == PL_ROPE_LINEAR || r->kind == PL_ROPE_DYNAMIC) return positions * r->factor;
    return r->kind == PL_ROPE_YARN ? fmax(positions, (double)r->original_positions * r->factor) : positions;
}

static void check_ropes(const char *name, const pl_arch *a, const json_t *ropes)
{
    assert_int_equal(a->nropes, json_array_size(ropes));
    for (int r = 0; r < a->nropes; r++) {
        const json_t *want = json_array_get(ropes, (size_t)r);
        if (json_is_null(want)) continue; /* no layer uses it */
        double got[256], factor;
        assert_true(a->ropes[r].rotary <= 2 * PL_COUNT(got));
        assert_int_equal(a->ropes[r].rotary / 2, json_array_size(want));
        pl_rope_frequencies(&a->ropes[r], 1, got, &factor);
        for (int i = 0; i < a->ropes[r].rotary / 2; i++) {
            check_real(name, "a frequency", got[i], json_number_value(json_array_get(want, (size_t)i)), 3e-6);
        }
    }
}

static void check_layers(const char *name, const pl_arch *a, const json_t *layers)
{
    assert_int_equal(a->layers, json_array_size(layers));
    for (int64_t i = 0; i < a->layers; i++) {
        const json_t *want = json_array_get(layers, (size_t)i);
        if (a->layer[i].window != json_integer_value(json_array_get(want, 0))) {
            fail_msg("%s: layer %lld has window %lld", name, (long long)i, (long long)a->layer[i].window);
        }
        check_real(
            name, "score_scale", (double)a->layer[i].score_scale, json_number_value(json_array_get(want, 1)), 1e-7);
        if (a->layer[i].rope != json_integer_value(json_array_get(want, 2))) {
            fail_msg("%s: layer %lld has rope %d", name, (long long)i, a->layer[i].rope);
        }
    }
}

static void check_arch(const char *name, const pl_arch *a, const json_t *want)
{
    tensor_list list = list_tensors(a);
    if (!json_equal(list.shapes, json_object_get(want, "tensors"))) {
        char *ours = json_dumps(list.shapes, JSON_SORT_KEYS | JSON_INDENT(1));
        char *theirs = json_dumps(json_object_get(want, "tensors"), JSON_SORT_KEYS | JSON_INDENT(1));
        fail_msg("%s: tensors are\n%s\nnot\n%s", name, ours, theirs);
    }
    json_decref(list.shapes);
    check_real(name, "parameters", (double)list.parameters, real_of(want, "parameters"), 0);
    check_layers(name, a, json_object_get(want, "layers"));
    check_ropes(name, a, json_object_get(want, "ropes"));
    const json_t *act = json_object_get(want, "act");
    check_real(name, "act(-1.5)", act_value(a->act, -1.5), json_number_value(json_array_get(act, 0)), 3e-6);
    check_real(name, "act(0.7)", act_value(a->act, 0.7), json_number_value(json_array_get(act, 1)), 3e-6);
    check_real(name, "eps", (double)a->norm_eps, real_of(want, "eps"), 1e-7);
    check_real(name, "embed_scale", (double)a->embed_scale, real_of(want, "embed_scale"), 1e-7);
    check_real(name, "residual_scale", (double)a->residual_scale, real_of(want, "residual_scale"), 1e-7);
    check_real(name, "logit_scale", (double)a->logit_scale, real_of(want, "logit_scale"), 1e-7);
    check_real(name, "attention_softcap", (double)a->attention_softcap, real_of(want, "attention_softcap"), 1e-7);
    check_real(name, "logit_softcap", (double)a->logit_softcap, real_of(want, "logit_softcap"), 1e-7);
    check_real(name, "init_std", (double)a->init_std, real_of(want, "init_std"), 1e-7);
    check_real(name, "positions", (double)a->max_positions, scaled_positions(a, real_of(want, "positions")), 0);
    check_real(name, "padding", (double)a->pad_token, real_of(want, "padding"), 0);
    check_real(name, "bos", (double)a->bos_token, real_of(want, "bos"), 0);
    assert_int_equal(a->tied, json_is_true(json_object_get(want, "tied")));
    const json_t *eos = json_object_get(want, "eos");
    assert_int_equal(a->neos, json_array_size(eos));
    for (int i = 0; i < a->neos; i++) {
        assert_int_equal(a->eos_tokens[i], json_integer_value(json_array_get(eos, (size_t)i)));
    }
}

static void as_transformers(void **state)
{
    (void)state;
    pl_error err = {0};
    json_t *cases, *entry;
    size_t index;
    if (pl_json_read(&err, PLAIT_TEST_DIR "/golden/arch.json", &cases) < 0) fail_msg("%s", err.message);
    assert_true(json_array_size(cases) > 100);
    json_array_foreach(cases, index, entry)
    {
        const char *name = json_string_value(json_object_get(entry, "name"));
        pl_log log = {0};
        pl_arch arch;
        if (pl_arch_parse(&err, &log, name, json_object_get(entry, "config"), NULL, &arch) < 0)
            fail_msg("%s", err.message);
        check_arch(name, &arch, entry);
        pl_arch_free(&arch);
    }
    json_decref(cases);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(both_spellings), cmocka_unit_test(as_transformers)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
