#include "io/weights.h"

#include <fnmatch.h>
#include <stdlib.h>

#include "base/json.h"

#define SHOWN_NAMES 8 /* of each kind in a message */

typedef struct entry {
    const pl_st_tensor *tensor;
    bool used;
} entry;

struct pl_weights {
    char *where; /* the folder or file, for messages */
    pl_names shards;
    pl_safetensors **files; /* [shards.count] */
    int count;
    entry *entries;              /* by name */
    const char *prefix, *actual; /* NULL: none */
    pl_names missing;
};

static int by_name(const void *a, const void *b)
{
    return strcmp(((const entry *)a)->tensor->name, ((const entry *)b)->tensor->name);
}

/* ---- opening ---- */

static int add_file(pl_error *err, pl_weights *w, const char *path)
{
    pl_safetensors **files = realloc(w->files, ((size_t)w->shards.count + 1) * sizeof *files);
    if (!files) return PL_FAIL_NOMEM(err);
    w->files = files;
    files[w->shards.count] = NULL;
    PL_TRY(pl_names_add(err, &w->shards, path));
    return pl_safetensors_open(err, path, &w->files[w->shards.count - 1]);
}

static int open_single(pl_error *err, pl_weights *w, const char *path)
{
    PL_TRY(add_file(err, w, path));
    w->count = pl_safetensors_count(w->files[0]);
    PL_TRY(pl_calloc(err, (size_t)w->count, sizeof *w->entries, &w->entries));
    for (int i = 0; i < w->count; i++) w->entries[i].tensor = pl_safetensors_at(w->files[0], i);
    return 0;
}

/* Finds the shard of one line of the index, opening it when it is the first of its kind. */
static int find_shard(pl_error *err, pl_weights *w, const char *folder, const char *index, const char *tensor,
    const char *shard, const pl_safetensors **out)
{
    if (!*shard || strpbrk(shard, "/\\") || shard[0] == '.') {
        return PL_FAIL(err, PL_EINPUT, "%s: tensor %.256s lies in \"%.256s\"; a file in the same folder was expected",
            index, tensor, shard);
    }
    char *path;
    PL_TRY(pl_path_join(err, folder, shard, &path));
    int rc = 0, at = w->shards.count - 1; /* most often it is the one of the line before */
    while (at >= 0 && strcmp(w->shards.items[at], path) != 0) at--;
    if (at < 0) {
        at = w->shards.count;
        rc = add_file(err, w, path);
        if (rc < 0) pl_error_prefix(err, "%s: tensor %.256s", index, tensor);
    }
    free(path);
    if (rc == 0) *out = w->files[at];
    return rc;
}

static int read_index(pl_error *err, pl_weights *w, const char *folder, const char *index, json_t *document)
{
    json_t *map = json_object_get(document, "weight_map"), *shard;
    if (!json_is_object(map)) {
        return PL_FAIL(err, PL_EINPUT, "%s: weight_map is %s; an object of tensor names and files was expected", index,
            pl_json_type_name(map));
    }
    PL_TRY(pl_calloc(err, json_object_size(map), sizeof *w->entries, &w->entries));
    const char *name;
    json_object_foreach(map, name, shard)
    {
        if (!json_is_string(shard)) {
            return PL_FAIL(err, PL_EINPUT, "%s: tensor %.256s lies in %s; a file's name was expected", index, name,
                pl_json_type_name(shard));
        }
        const pl_safetensors *file = NULL;
        PL_TRY(find_shard(err, w, folder, index, name, json_string_value(shard), &file));
        w->entries[w->count].tensor = pl_safetensors_find(file, name);
        if (!w->entries[w->count].tensor) {
            return PL_FAIL(err, PL_EINPUT, "%s: tensor %.256s is not in %.256s, where it should be", index, name,
                json_string_value(shard));
        }
        w->count++;
    }
    return 0;
}

static int open_index(pl_error *err, pl_weights *w, const char *folder, const char *path)
{
    json_t *document;
    PL_TRY(pl_json_read(err, path, &document));
    int rc = read_index(err, w, folder, path, document);
    json_decref(document);
    return rc;
}

/* Says what a folder without weights of ours holds instead. */
static int no_weights(pl_error *err, const char *folder)
{
    static const pl_dir_mistake mistakes[] = {
        {"adapter_model.safetensors", "is an adapter, not a model; it is used together with the model that it was "
                                      "trained for"},
        {"pytorch_model.bin", "has its weights as pytorch_model.bin only; have transformers write them as safetensors "
                              "first (load the model, then save_pretrained)"},
        {"pytorch_model.bin.index.json", "has its weights as pytorch_model-*.bin only; have transformers write them as "
                                         "safetensors first (load the model, then save_pretrained)"},
    };
    PL_TRY(pl_dir_check(err, folder, "a model's folder", mistakes, PL_COUNT(mistakes)));
    return PL_FAIL(err, PL_ENOENT, "%s: holds neither model.safetensors nor model.safetensors.index.json", folder);
}

static int open_folder(pl_error *err, pl_weights *w, const char *folder)
{
    int rc = 0;
    char *single = NULL, *index = NULL;
    PL_GO(done, pl_path_join(err, folder, "model.safetensors", &single));
    PL_GO(done, pl_path_join(err, folder, "model.safetensors.index.json", &index));
    if (pl_file_exists(single)) {
        rc = open_single(err, w, single);
    } else if (pl_file_exists(index)) {
        rc = open_index(err, w, folder, index);
    } else {
        rc = no_weights(err, folder);
    }
done:
    free(single);
    free(index);
    return rc;
}

static int open_any(
    pl_error *err, const char *path, int (*how)(pl_error *, pl_weights *, const char *), pl_weights **out)
{
    *out = NULL;
    pl_weights *w;
    PL_TRY(pl_calloc(err, 1, sizeof *w, &w));
    int rc = pl_strdup(err, path, &w->where);
    if (rc == 0) rc = how(err, w, path);
    if (rc < 0) {
        pl_weights_close(w);
        return rc;
    }
    if (w->count) qsort(w->entries, (size_t)w->count, sizeof *w->entries, by_name);
    *out = w;
    return 0;
}

int pl_weights_open(pl_error *err, const char *folder, pl_weights **out)
{
    return open_any(err, folder, open_folder, out);
}

int pl_weights_open_file(pl_error *err, const char *path, pl_weights **out)
{
    return open_any(err, path, open_single, out);
}

void pl_weights_close(pl_weights *w)
{
    if (!w) return;
    for (int i = 0; i < w->shards.count; i++) pl_safetensors_close(w->files[i]);
    free(w->files);
    pl_names_free(&w->shards);
    pl_names_free(&w->missing);
    free(w->entries);
    free(w->where);
    free(w);
}

/* ---- looking up ---- */

int pl_weights_count(const pl_weights *w)
{
    return w->count;
}

const pl_st_tensor *pl_weights_at(const pl_weights *w, int index)
{
    return w->entries[index].tensor;
}

static bool begins_any(const pl_weights *w, const char *prefix)
{
    size_t n = strlen(prefix);
    for (int i = 0; i < w->count; i++) {
        if (strncmp(w->entries[i].tensor->name, prefix, n) == 0) return true;
    }
    return false;
}

void pl_weights_prefix(pl_weights *w, const char *prefix, const char *const *alternatives)
{
    w->prefix = prefix;
    w->actual = prefix;
    while (!begins_any(w, w->actual)) {
        if (!*alternatives) {
            w->actual = prefix;
            return;
        }
        w->actual = *alternatives++;
    }
}

/* strcmp of the text that `begin` and `rest` make together with `name`. */
static int compare(const char *begin, const char *rest, const char *name)
{
    size_t n = strlen(begin);
    int order = strncmp(begin, name, n);
    return order ? order : strcmp(rest, name + n);
}

static entry *lookup(const pl_weights *w, const char *name)
{
    const char *begin = "";
    if (w->prefix && strncmp(name, w->prefix, strlen(w->prefix)) == 0) {
        begin = w->actual;
        name += strlen(w->prefix);
    }
    for (int low = 0, high = w->count; low < high;) {
        int middle = low + (high - low) / 2;
        int order = compare(begin, name, w->entries[middle].tensor->name);
        if (order == 0) return &w->entries[middle];
        if (order < 0) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    return NULL;
}

const pl_st_tensor *pl_weights_peek(const pl_weights *w, const char *name)
{
    const entry *e = lookup(w, name);
    return e ? e->tensor : NULL;
}

int pl_weights_find(pl_error *err, pl_weights *w, const char *name, const pl_st_tensor **out)
{
    entry *e = lookup(w, name);
    *out = e ? e->tensor : NULL;
    if (!e) return pl_names_add(err, &w->missing, name);
    e->used = true;
    return 0;
}

static bool matches_any(const char *name, const char *const *patterns)
{
    for (; patterns && *patterns; patterns++) {
        if (fnmatch(*patterns, name, 0) == 0) return true;
    }
    return false;
}

static int list_faults(pl_error *err, const pl_weights *w, const pl_names *surplus, const char *where)
{
    pl_buf text = {0};
    int rc = 0;
    if (w->missing.count) {
        PL_GO(done, pl_buf_printf(err, &text, "%d tensor%s missing: ", w->missing.count,
                        w->missing.count == 1 ? " is" : "s are"));
        PL_GO(done, pl_names_print(err, &w->missing, SHOWN_NAMES, &text));
    }
    if (surplus->count) {
        PL_GO(done, pl_buf_printf(err, &text, "%s%d tensor%s in it but without a place in the model: ",
                        text.size ? "; " : "", surplus->count, surplus->count == 1 ? " is" : "s are"));
        PL_GO(done, pl_names_print(err, surplus, SHOWN_NAMES, &text));
    }
    rc = PL_FAIL(err, PL_EINPUT, "%s: does not fit %s: %s", w->where, where, pl_buf_text(&text));
done:
    pl_buf_free(&text);
    return rc;
}

int pl_weights_check(pl_error *err, const pl_weights *w, const char *where, const char *const *harmless)
{
    int rc = 0;
    pl_names surplus = {0};
    for (int i = 0; i < w->count; i++) {
        const char *name = w->entries[i].tensor->name;
        if (w->entries[i].used || matches_any(name, harmless)) continue;
        PL_GO(done, pl_names_add(err, &surplus, name));
    }
    if (w->missing.count || surplus.count) rc = list_faults(err, w, &surplus, where);
done:
    pl_names_free(&surplus);
    return rc;
}
