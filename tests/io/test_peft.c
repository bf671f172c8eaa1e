/* PEFT adapters: every golden one (configs and what PEFT made of them), real configs, and what must be refused. */
#include "io_test.h"

#include <math.h>

#include "base/json.h"
#include "io/peft.h"

static const char *const cases[] = {"gpt2/all-linear", "gpt2/bias-all", "gpt2/bias-lora_only", "gpt2/dora",
    "gpt2/dora-rslora", "gpt2/init-gaussian", "gpt2/init-orthogonal", "gpt2/init-pissa", "gpt2/layers", "gpt2/lora",
    "gpt2/modules_to_save", "gpt2/patterns", "gpt2/rslora", "gpt2/token-indices", "llama/all-head-and-embed",
    "llama/all-linear", "llama/dora", "llama/dora-rslora", "llama/embedding", "llama/embedding-dora", "llama/exclude",
    "llama/init-gaussian", "llama/init-olora", "llama/init-orthogonal", "llama/init-pissa", "llama/layers",
    "llama/lora", "llama/modules_to_save", "llama/patterns", "llama/patterns-rslora-dora", "llama/regex",
    "llama/rslora", "llama/token-indices", "qwen2/all-linear", "qwen2/bias-all", "qwen2/bias-lora_only", "qwen2/dora",
    "qwen2/dora-rslora", "qwen2/init-gaussian", "qwen2/init-olora", "qwen2/init-orthogonal", "qwen2/init-pissa",
    "qwen2/layers", "qwen2/lora", "qwen2/lora_bias", "qwen2/modules_to_save", "qwen2/patterns", "qwen2/rslora"};

static const char *case_path(int i, const char *file)
{
    return path_of(path_of(GOLDEN "/adapters", cases[i]), file);
}

/* ---- the rules, against what PEFT did ---- */

/* The modules of the golden base models, two layers each. */
static void base_modules(const char *base, pl_names *out)
{
    static const char *const llama[] = {"input_layernorm", "self_attn", "self_attn.q_proj", "self_attn.k_proj",
        "self_attn.v_proj", "self_attn.o_proj", "post_attention_layernorm", "mlp", "mlp.gate_proj", "mlp.up_proj",
        "mlp.down_proj"};
    static const char *const gpt2[] = {
        "ln_1", "attn", "attn.c_attn", "attn.c_proj", "ln_2", "mlp", "mlp.c_fc", "mlp.c_proj"};
    static const char *const llama_rest[] = {"model.embed_tokens", "model.norm", "lm_head"};
    static const char *const gpt2_rest[] = {"transformer.wte", "transformer.wpe", "transformer.ln_f", "lm_head"};
    bool is_gpt2 = strncmp(base, "gpt2/", 5) == 0;
    pl_error err = {0};
    for (int layer = 0; layer < 2; layer++) {
        for (int i = 0; i < (is_gpt2 ? PL_COUNT(gpt2) : PL_COUNT(llama)); i++) {
            char name[128];
            snprintf(name, sizeof name, "%s.%d.%s", is_gpt2 ? "transformer.h" : "model.layers", layer,
                is_gpt2 ? gpt2[i] : llama[i]);
            OK(pl_names_add(&err, out, name));
        }
    }
    for (int i = 0; i < PL_COUNT(llama_rest) && !is_gpt2; i++) OK(pl_names_add(&err, out, llama_rest[i]));
    for (int i = 0; i < PL_COUNT(gpt2_rest) && is_gpt2; i++) OK(pl_names_add(&err, out, gpt2_rest[i]));
}

/* The modules that get an adapter, and their scaling, are those of PEFT. */
static void test_scaling_of_every_case(void **state)
{
    (void)state;
    for (int i = 0; i < PL_COUNT(cases); i++) {
        pl_error err = {0};
        pl_lora_config c;
        json_t *document;
        pl_names modules = {0};
        OK(pl_lora_config_read(&err, case_path(i, "adapter_config.json"), &c));
        OK(pl_json_read(&err, case_path(i, "case.json"), &document));
        const json_t *scalings = json_object_get(document, "scaling_per_module");
        base_modules(cases[i], &modules);
        size_t adapted = 0;
        for (int m = 0; m < modules.count; m++) {
            const char *name = modules.items[m];
            const json_t *expected = json_object_get(scalings, name);
            pl_lora_match match;
            OK(pl_lora_matches(&err, &c, name, &match));
            if ((match == PL_LORA_YES) != !!expected) fail_msg("%s: %s: match is %d", cases[i], name, (int)match);
            if (!expected) continue;
            double scaling;
            OK(pl_lora_scaling(&err, &c, name, &scaling));
            assert_true(fabs(scaling - json_real_value(expected)) < 1e-15 * scaling);
            adapted++;
        }
        assert_true(adapted > 0);
        assert_int_equal(adapted, json_object_size(scalings)); /* none of them is unknown here */
        pl_names_free(&modules);
        json_decref(document);
        pl_lora_config_free(&c);
    }
}

/* ---- the config, there and back ---- */

/* What PEFT keeps in two forms becomes a list. */
static void normalize(json_t *document)
{
    static const char *const keys[] = {"layers_pattern", "layers_to_transform"};
    for (int i = 0; i < 2; i++) {
        json_t *value = json_object_get(document, keys[i]);
        if (json_is_null(value) || json_is_array(value)) continue;
        json_object_set_new(document, keys[i], json_pack("[O]", value));
    }
}

static void test_config_text(void **state)
{
    (void)state;
    int same_bytes = 0;
    for (int i = 0; i < PL_COUNT(cases); i++) {
        pl_error err = {0};
        pl_lora_config c, copy;
        pl_buf original = {0}, text = {0};
        json_t *before, *after;
        OK(pl_file_read(&err, case_path(i, "adapter_config.json"), &original));
        OK(pl_lora_config_read(&err, case_path(i, "adapter_config.json"), &c));
        OK(pl_lora_config_copy(&err, &c, &copy));
        OK(pl_lora_config_text(&err, &copy, &text));
        OK(pl_json_parse(&err, "original", original.data, original.size, &before));
        OK(pl_json_parse(&err, "text", text.data, text.size, &after));
        normalize(before);
        if (!json_equal(before, after)) fail_msg("%s became %s", original.data, text.data);
        same_bytes += strcmp(original.data, text.data) == 0;
        json_decref(before);
        json_decref(after);
        pl_buf_free(&original);
        pl_buf_free(&text);
        pl_lora_config_free(&c);
        pl_lora_config_free(&copy);
    }
    assert_int_equal(same_bytes, PL_COUNT(cases) - 3); /* all but the three "layers" cases */
}

static int parse(pl_error *err, const char *text, pl_lora_config *c)
{
    char json[1024];
    snprintf(json, sizeof json, "{\"peft_type\": \"LORA\", \"target_modules\": [\"q\"]%s%s}", *text ? ", " : "", text);
    for (char *at = json; *at; at++) {
        if (*at == '\'') *at = '"';
    }
    json_t *document = json_loads(json, 0, NULL);
    assert_non_null(document);
    int rc = pl_lora_config_parse(err, "a.json", document, c);
    json_decref(document);
    return rc;
}

static void test_accepted_fields(void **state)
{
    (void)state;
    pl_error err = {0};
    pl_lora_config c;
    OK(parse(&err, "", &c)); /* all that PEFT 0.2 needed; the rest takes PEFT's defaults */
    assert_true(c.r == 8 && c.lora_alpha == 8 && c.lora_dropout == 0 && c.init_lora_weights == PL_LORA_INIT_DEFAULT);
    pl_lora_config_free(&c);
    static const char *const harmless[] = {"'megatron_core': 'x'", "'qalora_group_size': 32", "'peft_version': '9.9'",
        "'auto_mapping': {'base_model_class': 'X'}", "'runtime_config': {'x': 1}", "'eva_config': {'rho': 2.0}",
        "'newer_field': null", "'newer_field': false", "'newer_field': {}", "'newer_field': []", "'newer_field': ''",
        "'use_qalora': false", "'layer_replication': null", "'lora_bias': null", "'revision': 'main'",
        "'lora_alpha': 16.5", "'r': 4.0", "'bias': 'all'", "'init_lora_weights': 'eva'", "'layers_to_transform': []"};
    for (int i = 0; i < PL_COUNT(harmless); i++) {
        OK(parse(&err, harmless[i], &c));
        pl_lora_config_free(&c);
    }
    OK(parse(&err, "'init_lora_weights': 'loftq', 'loftq_config': {'loftq_bits': 2, 'loftq_iter': 5}", &c));
    assert_true(c.init_lora_weights == PL_LORA_INIT_LOFTQ && c.loftq_bits == 2 && c.loftq_iter == 5);
    pl_buf text = {0};
    OK(pl_lora_config_text(&err, &c, &text));
    assert_non_null(strstr(text.data, "\"loftq_bits\": 2"));
    pl_buf_free(&text);
    pl_lora_config_free(&c);
    OK(parse(&err, "'trainable_token_indices': {'wte': [1, 2], 'lm_head': [3]}, 'lora_dropout': 0.05", &c));
    assert_true(c.ntokens == 2 && c.tokens[1].count == 1 && c.tokens[1].ids[0] == 3);
    OK(pl_lora_config_text(&err, &c, &text));
    assert_non_null(strstr(text.data, "\"lora_dropout\": 0.05,"));
    assert_non_null(strstr(text.data, "\"lm_head\": [\n      3\n    ]"));
    pl_buf_free(&text);
    pl_lora_config_free(&c);
}

static void test_refused_fields(void **state)
{
    (void)state;
    static const struct {
        const char *field;
        int code;
        const char *message;
    } refused[] = {
        {"'use_qalora': true", PL_EUNSUPPORTED, "a.json: use_qalora is true; this field is not supported"},
        {"'target_parameters': ['x.y']", PL_EUNSUPPORTED, "target_parameters is [\"x.y\"]"},
        {"'layer_replication': [[0, 2]]", PL_EUNSUPPORTED, "layer_replication is [[0,2]]"},
        {"'megatron_config': {'x': 1}", PL_EUNSUPPORTED, "megatron_config"},
        {"'alora_invocation_tokens': [1]", PL_EUNSUPPORTED, "alora_invocation_tokens"},
        {"'use_bdlora': {'nblocks': 1}", PL_EUNSUPPORTED, "use_bdlora"},
        {"'kasa_config': {'beta': 1}", PL_EUNSUPPORTED, "kasa_config"},
        {"'velora_config': {'scale': 1}", PL_EUNSUPPORTED, "velora_config"},
        {"'monteclora_config': {'num_samples': 1}", PL_EUNSUPPORTED, "monteclora_config"},
        {"'arrow_config': {'top_k': 1}", PL_EUNSUPPORTED, "arrow_config"},
        {"'ensure_weight_tying': true", PL_EUNSUPPORTED, "ensure_weight_tying"},
        {"'init_lora_weights': 'corda'", PL_EUNSUPPORTED, "corda"},
        {"'init_lora_weights': 'mica'", PL_EUNSUPPORTED, "mica"},
        {"'newer_field': 0.5", PL_EINPUT, "newer_field is 0.5; this field is unknown"},
        {"'newer_field': 'on'", PL_EINPUT, "newer_field is \"on\""},
        {"'r': 0", PL_EINPUT, "a.json: r is 0"},
        {"'r': '8'", PL_EINPUT, "r is a string"},
        {"'r': 8.5", PL_EINPUT, "r is a number"},
        {"'lora_alpha': 'x'", PL_EINPUT, "lora_alpha"},
        {"'lora_dropout': 2", PL_EINPUT, "lora_dropout"},
        {"'use_dora': 1", PL_EINPUT, "use_dora is a whole number"},
        {"'bias': 'some'", PL_EINPUT, "bias is \"some\""},
        {"'bias': true", PL_EINPUT, "bias is true"},
        {"'init_lora_weights': 'guassian'", PL_EINPUT, "guassian"},
        {"'init_lora_weights': 1", PL_EINPUT, "init_lora_weights is a whole number"},
        {"'exclude_modules': 3", PL_EINPUT, "exclude_modules is a whole number"},
        {"'exclude_modules': '('", PL_EINPUT, "a.json: exclude_modules: \"(\" is not a regular expression"},
        {"'modules_to_save': 'lm_head'", PL_EINPUT, "modules_to_save is a string; a list of names"},
        {"'modules_to_save': [1]", PL_EINPUT, "modules_to_save"},
        {"'rank_pattern': [1]", PL_EINPUT, "rank_pattern is a list"},
        {"'rank_pattern': {'a': 'x'}", PL_EINPUT, "rank_pattern of \"a\" is a string"},
        {"'rank_pattern': {'a': 0}", PL_EINPUT, "rank_pattern of \"a\" is 0"},
        {"'layers_to_transform': 'all'", PL_EINPUT, "layers_to_transform"},
        {"'layers_to_transform': [-1]", PL_EINPUT, "layers_to_transform"},
        {"'layers_pattern': 'h'", PL_EINPUT, "layers_to_transform beside it"},
        {"'trainable_token_indices': [-3]", PL_EINPUT, "trainable_token_indices"},
        {"'trainable_token_indices': 'x'", PL_EINPUT, "trainable_token_indices"},
        {"'use_dora': true, 'lora_bias': true", PL_EINPUT, "lora_bias and use_dora"},
    };
    for (int i = 0; i < PL_COUNT(refused); i++) {
        pl_error err = {0};
        pl_lora_config c;
        FAILS(parse(&err, refused[i].field, &c), refused[i].code, refused[i].message);
        pl_lora_config_free(&c); /* nothing is left in it */
    }
    pl_error err = {0};
    pl_lora_config c;
    json_t *document = json_pack("{s:s}", "peft_type", "ADALORA");
    FAILS(pl_lora_config_parse(&err, "a.json", document, &c), PL_EUNSUPPORTED, "ADALORA");
    json_object_del(document, "peft_type");
    FAILS(pl_lora_config_parse(&err, "a.json", document, &c), PL_EINPUT, "peft_type is missing");
    json_decref(document);
    document = json_array();
    FAILS(pl_lora_config_parse(&err, "a.json", document, &c), PL_EINPUT, "is a list");
    json_decref(document);
}

static void test_real_adapters(void **state)
{
    (void)state;
    if (!pl_dir_exists(SHARED)) skip();
    static const struct {
        const char *name;
        int tensors;
    } real[] = {{"gemma3-270m-qv-r8-fanyihan", 72}, {"gpt2-chess", 24}, {"opt125m-dpo-r16-bf16", 48},
        {"qwen2.5-0.5b-qv-r8", 96}};
    for (int i = 0; i < PL_COUNT(real); i++) {
        pl_error err = {0};
        pl_lora_config c;
        pl_weights *w;
        OK(pl_adapter_open(&err, path_of(SHARED "/data/adapters", real[i].name), &c, &w));
        assert_int_equal(pl_weights_count(w), real[i].tensors);
        for (int t = 0; t < pl_weights_count(w); t++) {
            const char *key = pl_weights_at(w, t)->name;
            size_t begin, size;
            pl_peft_kind kind;
            assert_true(pl_peft_key_parse(key, &begin, &size, &kind));
            assert_true(kind == PL_PEFT_LORA_A || kind == PL_PEFT_LORA_B);
            char module[256];
            snprintf(module, sizeof module, "%.*s", (int)size, key + begin);
            pl_lora_match match;
            int64_t rank;
            OK(pl_lora_matches(&err, &c, module, &match));
            assert_int_equal(match, PL_LORA_YES);
            OK(pl_lora_rank(&err, &c, module, &rank));
            assert_int_equal(pl_weights_at(w, t)->shape[kind == PL_PEFT_LORA_A ? 0 : 1], rank);
        }
        pl_weights_close(w);
        pl_lora_config_free(&c);
    }
}

/* ---- tensors ---- */

static void test_keys(void **state)
{
    (void)state;
    pl_error err = {0};
    for (int kind = 0; kind <= PL_PEFT_BIAS; kind++) {
        char *key;
        size_t begin, size;
        pl_peft_kind got;
        OK(pl_peft_key(&err, "model.layers.0.q_proj", (pl_peft_kind)kind, &key));
        assert_true(pl_peft_key_parse(key, &begin, &size, &got));
        assert_int_equal(got, kind);
        assert_int_equal(size, strlen("model.layers.0.q_proj"));
        assert_memory_equal(key + begin, "model.layers.0.q_proj", size);
        free(key);
    }
    static const char *const wrong[] = {"model.q_proj.lora_A.weight", "base_model.model.q_proj.lora_E",
        "base_model.model.q_proj.lora_A.default.weight", "base_model.model.q_proj.lora_A", "base_model.model.weight",
        "base_model.model..weight", ""};
    for (int i = 0; i < PL_COUNT(wrong); i++) {
        size_t begin, size;
        pl_peft_kind kind;
        if (pl_peft_key_parse(wrong[i], &begin, &size, &kind)) fail_msg("%s was taken", wrong[i]);
    }
}

/* A golden adapter, read and written again, is the same file for file, byte for byte. */
static void test_rewrite(void **state)
{
    (void)state;
    int rewritten = 0;
    for (int i = 0; i < PL_COUNT(cases); i++) {
        pl_error err = {0};
        pl_lora_config c;
        pl_weights *w;
        char dir[64];
        if (!pl_file_exists(case_path(i, "adapter_model.safetensors"))) continue;
        scratch_make(dir);
        OK(pl_adapter_open(&err, case_path(i, ""), &c, &w));
        int n = pl_weights_count(w);
        pl_st_source *sources = calloc((size_t)n, sizeof *sources);
        for (int k = 0; k < n; k++) {
            const pl_st_tensor *t = pl_weights_at(w, k);
            sources[k] = (pl_st_source){.spec = {t->name, t->dtype, t->ndim, {0}}, .given = t->dtype, .data = t->data};
            memcpy(sources[k].spec.shape, t->shape, (size_t)t->ndim * sizeof *t->shape);
        }
        OK(pl_adapter_write(&err, path_of(dir, "out"), &c, sources, n));
        assert_same_bytes(case_path(i, "adapter_model.safetensors"), path_of(dir, "out/adapter_model.safetensors"));
        /* One layer, and one pattern, may stand without a list; they are written as lists. */
        if (!strstr(cases[i], "/layers")) {
            assert_same_bytes(case_path(i, "adapter_config.json"), path_of(dir, "out/adapter_config.json"));
        }

        /* Again, with another rank in the config: both files are replaced, nothing else is left. */
        c.r = 77;
        OK(pl_adapter_write(&err, path_of(dir, "out"), &c, sources, n - 1));
        pl_lora_config changed;
        pl_weights *fewer;
        OK(pl_adapter_open(&err, path_of(dir, "out"), &changed, &fewer));
        assert_true(changed.r == 77 && pl_weights_count(fewer) == n - 1);
        assert_false(pl_file_exists(path_of(dir, "out/adapter_config.json.replaced")));
        assert_false(pl_file_exists(path_of(dir, "out/adapter_config.json.tmp")));
        pl_weights_close(fewer);
        pl_lora_config_free(&changed);
        pl_weights_close(w);
        pl_lora_config_free(&c);
        free(sources);
        scratch_remove(dir);
        rewritten++;
    }
    assert_int_equal(rewritten, PL_COUNT(cases));
}

static void test_find(void **state)
{
    (void)state;
    pl_error err = {0};
    pl_lora_config c;
    pl_weights *w;
    const pl_st_tensor *t;
    OK(pl_adapter_open(&err, GOLDEN "/adapters/llama/dora", &c, &w));
    OK(pl_adapter_find(&err, w, "model.layers.1.mlp.up_proj", PL_PEFT_MAGNITUDE, &t));
    assert_true(t && t->ndim == 1 && t->shape[0] == 112);
    OK(pl_adapter_find(&err, w, "model.layers.1.mlp.up_proj", PL_PEFT_LORA_A, &t));
    assert_true(t && t->shape[0] == 4 && t->shape[1] == 48);
    OK(pl_adapter_find(&err, w, "lm_head", PL_PEFT_LORA_A, &t));
    assert_null(t);
    FAILS(pl_weights_check(&err, w, "its adapter_config.json", NULL), PL_EINPUT,
        "1 tensor is missing: base_model.model.lm_head.lora_A.weight; 40 tensors are in it");
    pl_weights_close(w);
    pl_lora_config_free(&c);
}

static void test_wrong_folders(void **state)
{
    (void)state;
    pl_error err = {0};
    pl_lora_config c;
    pl_weights *w;
    char dir[64];
    scratch_make(dir);
    FAILS(pl_adapter_open(&err, path_of(dir, "gone"), &c, &w), PL_ENOENT, "there is no such folder");
    FAILS(pl_adapter_open(&err, dir, &c, &w), PL_ENOENT, "holds no adapter_config.json");
    write_text(path_of(dir, "config.json"), "{}");
    FAILS(pl_adapter_open(&err, path_of(dir, "config.json"), &c, &w), PL_EINPUT, "is a file; the folder");
    FAILS(pl_adapter_open(&err, dir, &c, &w), PL_EINPUT, "is a model's folder");
    write_json(path_of(dir, "adapter_config.json"), "{'peft_type': 'LORA', 'target_modules': 'all-linear'}");
    write_text(path_of(dir, "adapter_model.bin"), "x");
    FAILS(pl_adapter_open(&err, dir, &c, &w), PL_EINPUT, "adapter_model.bin only");
    const float value = 1;
    pl_st_source source = {
        .spec = {"base_model.model.q.lora_A.default.weight", PL_F32, 1, {1}}, .given = PL_F32, .data = &value};
    pl_st_writer *writer;
    OK(pl_st_write(&err, path_of(dir, "adapter_model.safetensors"), &source, 1, NULL, &writer));
    OK(pl_st_writer_commit(&err, writer));
    FAILS(pl_adapter_open(&err, dir, &c, &w), PL_EINPUT, "q.lora_A.default.weight: is none of a LoRA adapter");
    assert_null(w);
    scratch_remove(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_scaling_of_every_case),
        cmocka_unit_test(test_config_text),
        cmocka_unit_test(test_accepted_fields),
        cmocka_unit_test(test_refused_fields),
        cmocka_unit_test(test_real_adapters),
        cmocka_unit_test(test_keys),
        cmocka_unit_test(test_rewrite),
        cmocka_unit_test(test_find),
        cmocka_unit_test(test_wrong_folders),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
