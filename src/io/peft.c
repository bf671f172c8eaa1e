#include "io/peft.h"

#include <stdlib.h>

#include "io/config_swap.h"

#define BEGIN "base_model.model."
#define CONFIG "adapter_config.json"
#define TENSORS "adapter_model.safetensors"

/* Longer ends before those that they end with. */
static const struct {
    pl_peft_kind kind;
    const char *end;
} kinds[] = {
    {PL_PEFT_LORA_A, ".lora_A.weight"},
    {PL_PEFT_LORA_B, ".lora_B.weight"},
    {PL_PEFT_LORA_B_BIAS, ".lora_B.bias"},
    {PL_PEFT_MAGNITUDE, ".lora_magnitude_vector"},
    {PL_PEFT_EMBEDDING_A, ".lora_embedding_A"},
    {PL_PEFT_EMBEDDING_B, ".lora_embedding_B"},
    {PL_PEFT_TOKENS, ".token_adapter.trainable_tokens_delta"},
    {PL_PEFT_BASE_WEIGHT, ".base_layer.weight"},
    {PL_PEFT_BASE_BIAS, ".base_layer.bias"},
    {PL_PEFT_WEIGHT, ".weight"},
    {PL_PEFT_BIAS, ".bias"},
};

int pl_peft_key(pl_error *err, const char *module, pl_peft_kind kind, char **out)
{
    for (int i = 0; i < PL_COUNT(kinds); i++) {
        if (kinds[i].kind == kind) return pl_format(err, out, BEGIN "%s%s", module, kinds[i].end);
    }
    return PL_FAIL(err, PL_EBUG, "adapters have no tensor of kind %d", (int)kind);
}

bool pl_peft_key_parse(const char *key, size_t *begin, size_t *size, pl_peft_kind *kind)
{
    size_t before = strlen(BEGIN), n = strlen(key);
    if (strncmp(key, BEGIN, before) != 0) return false;
    for (int i = 0; i < PL_COUNT(kinds); i++) {
        size_t end = strlen(kinds[i].end);
        if (n <= before + end || strcmp(key + n - end, kinds[i].end) != 0) continue;
        *begin = before;
        *size = n - before - end;
        *kind = kinds[i].kind;
        /* Other methods, and other adapters' names, put a part of their own between the two. */
        char *module = strstr(key + before, ".lora_");
        return !module || module >= key + before + *size;
    }
    return false;
}

static int check_keys(pl_error *err, const char *path, const pl_weights *w)
{
    for (int i = 0; i < pl_weights_count(w); i++) {
        size_t begin, size;
        pl_peft_kind kind;
        const char *name = pl_weights_at(w, i)->name;
        if (pl_peft_key_parse(name, &begin, &size, &kind)) continue;
        return PL_FAIL(err, PL_EINPUT,
            "%s: tensor %.256s: is none of a LoRA adapter; " BEGIN "MODULE.lora_A.weight and the like were expected",
            path, name);
    }
    return 0;
}

/* Says what a folder without adapter_config.json, or without the tensors, holds instead. */
static int no_adapter(pl_error *err, const char *folder, const char *lacking)
{
    static const pl_dir_mistake mistakes[] = {
        {"adapter_model.bin", "has its tensors as adapter_model.bin only; have PEFT write them as safetensors first "
                              "(load the adapter, then save_pretrained)"},
        {"config.json", "is a model's folder; a LoRA adapter's was expected"},
    };
    PL_TRY(pl_dir_check(err, folder, "the folder that holds a LoRA adapter", mistakes, PL_COUNT(mistakes)));
    return PL_FAIL(err, PL_ENOENT, "%s: holds no %s", folder, lacking);
}

int pl_adapter_config(pl_error *err, const char *folder, pl_lora_config *c)
{
    char *path;
    *c = (pl_lora_config){0};
    PL_TRY(pl_path_join(err, folder, CONFIG, &path));
    int rc = pl_file_exists(path) ? pl_lora_config_read(err, path, c) : no_adapter(err, folder, CONFIG);
    free(path);
    return rc;
}

static int open_tensors(pl_error *err, const char *folder, pl_weights **out)
{
    char *path;
    *out = NULL;
    PL_TRY(pl_path_join(err, folder, TENSORS, &path));
    int rc = pl_file_exists(path) ? pl_weights_open_file(err, path, out) : no_adapter(err, folder, TENSORS);
    if (rc == 0) rc = check_keys(err, path, *out);
    if (rc < 0) {
        pl_weights_close(*out);
        *out = NULL;
    }
    free(path);
    return rc;
}

int pl_adapter_open(pl_error *err, const char *folder, pl_lora_config *c, pl_weights **out)
{
    *out = NULL;
    PL_TRY(pl_adapter_config(err, folder, c));
    int rc = open_tensors(err, folder, out);
    if (rc < 0) pl_lora_config_free(c);
    return rc;
}

int pl_adapter_find(pl_error *err, pl_weights *w, const char *module, pl_peft_kind kind, const pl_st_tensor **out)
{
    char *key;
    PL_TRY(pl_peft_key(err, module, kind, &key));
    int rc = pl_weights_find(err, w, key, out);
    free(key);
    return rc;
}

int pl_adapter_write(pl_error *err, const char *folder, const pl_lora_config *c, const pl_st_source *sources, int count)
{
    int rc = 0;
    bool committed = false;
    char *path = NULL;
    pl_buf text = {0};
    pl_st_writer *w = NULL;
    pl_config_swap config = {.writer.fd = -1};
    PL_GO(done, pl_lora_config_text(err, c, &text));
    PL_GO(done, pl_dir_make(err, folder));
    PL_GO(done, pl_path_join(err, folder, TENSORS, &path));
    PL_GO(done, pl_st_write(err, path, sources, count, NULL, &w));
    PL_GO(done, pl_config_swap_prepare(err, folder, CONFIG, &text, &config));
    rc = pl_config_swap_away(err, &config);
    if (rc == 0) {
        rc = pl_st_writer_commit(err, w);
        w = NULL;
        committed = rc == 0;
    }
    if (!committed) {
        pl_config_swap_back(&config);
        goto done;
    }
    PL_GO(done, pl_config_swap_commit(err, &config));
    rc = pl_dir_sync(err, folder);
done:
    pl_config_swap_free(&config);
    pl_st_writer_abort(w);
    pl_buf_free(&text);
    free(path);
    return rc;
}
