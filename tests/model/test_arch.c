/* config.json -> pl_arch. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
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
        if (getenv("SHOW")) printf("%s\n", text[0]);
        assert_string_equal(text[0], text[1]);
        free(text[0]);
        free(text[1]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(both_spellings)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
