#include "io/model_folder.h"

#include <dirent.h>
#include <errno.h>
#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/json.h"
#include "base/names.h"
#include "io/config_swap.h"

#define SINGLE "model.safetensors"
#define INDEX "model.safetensors.index.json"
#define CONFIG "config.json"

/* ---- small steps on files ---- */

static int file_in(pl_error *err, const char *folder, const char *name, bool *out)
{
    char *path;
    PL_TRY(pl_path_join(err, folder, name, &path));
    *out = pl_file_exists(path);
    free(path);
    return 0;
}

/* Removes folder/name if it is there. */
static int remove_in(pl_error *err, const char *folder, const char *name)
{
    char *path;
    PL_TRY(pl_path_join(err, folder, name, &path));
    int rc = 0;
    if (unlink(path) != 0 && errno != ENOENT) {
        rc = PL_FAIL(err, PL_EIO, "%s: cannot be removed: %s", path, strerror(errno));
    }
    free(path);
    return rc;
}

static int copy_in(pl_error *err, const char *from, const char *to, const char *name)
{
    int rc = 0;
    char *source = NULL, *target = NULL;
    PL_GO(done, pl_path_join(err, from, name, &source));
    PL_GO(done, pl_path_join(err, to, name, &target));
    rc = pl_file_copy(err, source, target);
done:
    free(source);
    free(target);
    return rc;
}

static bool same_folder(const char *a, const char *b)
{
    struct stat x, y;
    return stat(a, &x) == 0 && stat(b, &y) == 0 && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

static bool matches_any(const char *name, const char *const *patterns, int count)
{
    for (int i = 0; i < count; i++) {
        if (fnmatch(patterns[i], name, 0) == 0) return true;
    }
    return false;
}

/* The names in a folder that match; a folder that is not there holds none. */
static int list_matching(pl_error *err, const char *folder, const char *const *patterns, int count, pl_names *out)
{
    DIR *dir = opendir(folder);
    if (!dir) {
        if (errno == ENOENT) return 0;
        return PL_FAIL(err, PL_EIO, "%s: cannot be read: %s", folder, strerror(errno));
    }
    int rc = 0;
    for (struct dirent *entry; rc == 0 && (entry = readdir(dir));) {
        bool regular;
        if (!matches_any(entry->d_name, patterns, count)) continue;
        rc = file_in(err, folder, entry->d_name, &regular);
        if (rc == 0 && regular) rc = pl_names_add(err, out, entry->d_name);
    }
    closedir(dir);
    return rc;
}

static int copy_matching(pl_error *err, const char *from, const char *to, const char *const *patterns, int count)
{
    pl_names names = {0};
    int rc = list_matching(err, from, patterns, count, &names);
    if (rc == 0 && names.count) rc = pl_dir_make(err, to);
    for (int i = 0; i < names.count && rc == 0; i++) rc = copy_in(err, from, to, names.items[i]);
    pl_names_free(&names);
    return rc;
}

/* Copies what makes a model usable beside its weights and config.json: what reads and writes its texts, and with `all`
   the rest too. */
static int copy_companions(pl_error *err, const char *from, const char *to, bool all)
{
    static const char *const texts[] = {"tokenizer.json", "tokenizer_config.json", "special_tokens_map.json",
        "added_tokens.json", "vocab.*", "merges.txt", "*.tiktoken", "tokenizer.model", "spiece.model",
        "sentencepiece.*.model", "chat_template.*"};
    static const char *const others[] = {"generation_config.json", "*.model", "preprocessor_config.json",
        "processor_config.json", "*.py", "LICENSE*", "NOTICE*", "USE_POLICY*"};
    static const char *const templates[] = {"*.jinja"};
    if (same_folder(from, to)) return 0;
    PL_TRY(copy_matching(err, from, to, texts, PL_COUNT(texts)));
    if (all) PL_TRY(copy_matching(err, from, to, others, PL_COUNT(others)));
    char *inner = NULL, *target = NULL;
    int rc = pl_path_join(err, from, "additional_chat_templates", &inner);
    if (rc == 0) rc = pl_path_join(err, to, "additional_chat_templates", &target);
    if (rc == 0) rc = copy_matching(err, inner, target, templates, PL_COUNT(templates));
    free(inner);
    free(target);
    return rc;
}

/* ---- config.json ---- */

/* Puts the dtype where the config has it, under its old name, its new one, or both; the old one, which all versions
   read, where it has neither. */
static int set_dtype(pl_error *err, json_t *config, const char *dtype, bool *changed)
{
    static const char *const keys[] = {"torch_dtype", "dtype"};
    bool either = json_object_get(config, keys[0]) || json_object_get(config, keys[1]);
    for (int i = 0; i < 2; i++) {
        const json_t *old = json_object_get(config, keys[i]);
        if (either ? !old : i == 1) continue;
        if (json_is_string(old) && strcmp(json_string_value(old), dtype) == 0) continue;
        if (json_object_set_new(config, keys[i], json_string(dtype)) != 0) return PL_FAIL_NOMEM(err);
        *changed = true;
    }
    return 0;
}

static int set_untied(pl_error *err, json_t *config, bool *changed)
{
    static const char key[] = "tie_word_embeddings";
    if (json_is_false(json_object_get(config, key))) return 0;
    *changed = true;
    return json_object_set_new(config, key, json_false()) == 0 ? 0 : PL_FAIL_NOMEM(err);
}

/* The text that config.json shall have: that of the given one, byte for byte where nothing is changed in it. */
static int config_text(pl_error *err, const pl_model_folder *options, pl_buf *out)
{
    int rc = 0;
    char *path = NULL;
    json_t *config = NULL;
    bool changed = false;
    if (!options->config && !options->source) return PL_FAIL(err, PL_EBUG, "a model folder needs a config.json");
    PL_GO(done,
        options->config ? pl_strdup(err, options->config, &path) : pl_path_join(err, options->source, CONFIG, &path));
    PL_GO(done, pl_json_read(err, path, &config));
    if (!json_is_object(config)) {
        rc = PL_FAIL(err, PL_EINPUT, "%s: is %s; an object was expected", path, pl_json_type_name(config));
        goto done;
    }
    if (options->dtype) PL_GO(done, set_dtype(err, config, options->dtype, &changed));
    if (options->unties) PL_GO(done, set_untied(err, config, &changed));
    if (changed) {
        PL_GO(done, pl_json_text(err, config, 0, out));
        rc = pl_buf_putc(err, out, '\n');
    } else {
        rc = pl_file_read(err, path, out);
    }
done:
    json_decref(config);
    free(path);
    return rc;
}

/* ---- shards ---- */

typedef struct shards {
    int count;
    int *first; /* [count + 1] into the sources */
    uint64_t *bytes;
    uint64_t total, parameters;
    pl_st_writer *single; /* the only file, written but not yet in place */
    int written;          /* shards in place that no index names yet */
    bool switched;        /* a reader finds the new weights */
} shards;

static void shards_free(shards *s)
{
    pl_st_writer_abort(s->single);
    free(s->first);
    free(s->bytes);
}

/* Cuts the sources into runs of at most `limit` bytes, a larger tensor alone. */
static int shards_plan(pl_error *err, const pl_st_source *sources, int count, uint64_t limit, shards *s)
{
    PL_TRY(pl_calloc(err, (size_t)count + 2, sizeof *s->first, &s->first));
    PL_TRY(pl_calloc(err, (size_t)count + 1, sizeof *s->bytes, &s->bytes));
    int at = 0;
    for (int i = 0; i < count; i++) {
        uint64_t numel = 1;
        for (int d = 0; d < sources[i].spec.ndim; d++) numel *= (uint64_t)sources[i].spec.shape[d];
        uint64_t bytes = numel * (uint64_t)pl_dtype_size(sources[i].spec.dtype);
        if (s->bytes[at] && s->bytes[at] + bytes > limit) s->first[++at] = i;
        s->bytes[at] += bytes;
        s->total += bytes;
        s->parameters += numel;
    }
    s->first[at + 1] = count;
    s->count = at + 1;
    return 0;
}

static int shard_name(pl_error *err, const char *begin, int at, int count, char **out)
{
    if (count == 1) return pl_strdup(err, SINGLE, out);
    return pl_format(err, out, "%smodel-%05d-of-%05d.safetensors", begin, at + 1, count);
}

static int shard_path(pl_error *err, const char *folder, const char *begin, int at, int count, char **out)
{
    char *name;
    PL_TRY(shard_name(err, begin, at, count, &name));
    int rc = pl_path_join(err, folder, name, out);
    free(name);
    return rc;
}

/* Shards of an older model may have the very names that the new ones shall have, and then the new ones need others
   until the old index is gone: finds a beginning under which there is none yet. */
static int free_beginning(pl_error *err, const char *folder, int count, char begin[24])
{
    for (int try = 0;; try++) {
        bool taken = false;
        begin[0] = 0;
        if (try) snprintf(begin, 24, "new%d-", try);
        for (int i = 0; i < count && !taken; i++) {
            char *name;
            PL_TRY(shard_name(err, begin, i, count, &name));
            int rc = file_in(err, folder, name, &taken);
            free(name);
            PL_TRY(rc);
        }
        if (!taken) return 0;
    }
}

static int index_add(pl_error *err, const shards *s, const pl_st_source *sources, const char *begin, json_t *map)
{
    for (int k = 0; k < s->count; k++) {
        char *name;
        PL_TRY(shard_name(err, begin, k, s->count, &name));
        int failed = 0;
        for (int i = s->first[k]; i < s->first[k + 1]; i++) {
            failed |= json_object_set_new(map, sources[i].spec.name, json_string(name));
        }
        free(name);
        if (failed) return PL_FAIL_NOMEM(err);
    }
    if (json_object_size(map) != (size_t)s->first[s->count]) {
        return PL_FAIL(err, PL_EBUG, "two of the tensors to be written have the same name");
    }
    return 0;
}

static int write_index(
    pl_error *err, const char *folder, const shards *s, const pl_st_source *sources, const char *begin)
{
    int rc = 0;
    char *path = NULL;
    pl_buf text = {0};
    json_t *map = json_object();
    json_t *index = json_pack("{s:{s:I, s:I}, s:O}", "metadata", "total_parameters", (json_int_t)s->parameters,
        "total_size", (json_int_t)s->total, "weight_map", map);
    if (!index) {
        rc = PL_FAIL_NOMEM(err);
        goto done;
    }
    PL_GO(done, index_add(err, s, sources, begin, map));
    PL_GO(done, pl_json_text(err, index, JSON_SORT_KEYS, &text));
    PL_GO(done, pl_buf_putc(err, &text, '\n'));
    PL_GO(done, pl_path_join(err, folder, INDEX, &path));
    rc = pl_file_write(err, path, text.data, text.size);
done:
    json_decref(map);
    json_decref(index);
    pl_buf_free(&text);
    free(path);
    return rc;
}

/* Gives shards that had to take other names their proper ones. The index names complete files at each moment. Where the
   file system has no hard links they keep their names, which are as good for every reader. */
static int rename_shards(
    pl_error *err, const char *folder, const shards *s, const pl_st_source *sources, const char *begin)
{
    bool linked = true;
    int rc = 0;
    for (int i = 0; i < s->count && rc == 0 && linked; i++) {
        char *from = NULL, *to = NULL;
        rc = shard_path(err, folder, begin, i, s->count, &from);
        if (rc == 0) rc = shard_path(err, folder, "", i, s->count, &to);
        if (rc == 0) {
            unlink(to); /* an older model's, which nothing names any more */
            linked = link(from, to) == 0;
        }
        free(from);
        free(to);
    }
    if (rc == 0 && linked) rc = pl_dir_sync(err, folder);
    if (rc == 0 && linked) rc = write_index(err, folder, s, sources, "");
    return rc;
}

/* ---- the whole ---- */

/* Writes all data to the disk, where no reader sees it yet: a lone file under its temporary name, shards under names
   that no index has. */
static int write_data(pl_error *err, const char *folder, const char *begin, const pl_st_source *sources, shards *s)
{
    for (int i = 0; i < s->count; i++) {
        char *path;
        pl_st_writer *w;
        PL_TRY(shard_path(err, folder, begin, i, s->count, &path));
        int rc = pl_st_write(err, path, sources + s->first[i], s->first[i + 1] - s->first[i], NULL, &w);
        free(path);
        PL_TRY(rc);
        if (s->count == 1) {
            s->single = w;
        } else {
            PL_TRY(pl_st_writer_commit(err, w));
            s->written++;
        }
    }
    return pl_dir_sync(err, folder);
}

static void remove_written(const char *folder, const char *begin, const shards *s)
{
    pl_error ignored = {0}; /* what made the write fail has been recorded, and is what the user must know */
    for (int i = 0; i < s->written; i++) {
        char *name;
        if (shard_name(&ignored, begin, i, s->count, &name) < 0) return;
        remove_in(&ignored, folder, name);
        free(name);
    }
}

/* From here the new weights are what a reader finds. A lone model.safetensors comes before any index, so it is the
   switch: its rename, or, when shards take its place, its removal. */
static int switch_weights(pl_error *err, const char *folder, const char *begin, const pl_st_source *sources, shards *s)
{
    if (s->count == 1) {
        pl_st_writer *w = s->single;
        s->single = NULL;
        PL_TRY(pl_st_writer_commit(err, w));
        s->switched = true;
        PL_TRY(pl_dir_sync(err, folder));
        return remove_in(err, folder, INDEX);
    }
    bool single;
    PL_TRY(file_in(err, folder, SINGLE, &single));
    PL_TRY(write_index(err, folder, s, sources, begin));
    s->written = 0;
    s->switched = !single;
    PL_TRY(pl_dir_sync(err, folder));
    PL_TRY(remove_in(err, folder, SINGLE));
    s->switched = true;
    PL_TRY(pl_dir_sync(err, folder));
    return *begin ? rename_shards(err, folder, s, sources, begin) : 0;
}

/* Removes shards that the index (if there is one) does not name: what a run that was killed or failed has left, and
   with `all` those of an older model too. */
static int remove_stale(pl_error *err, const char *folder, bool all)
{
#define SHARD "model-[0-9][0-9][0-9][0-9][0-9]-of-[0-9][0-9][0-9][0-9][0-9].safetensors"
    static const char *const patterns[] = {SHARD ".tmp", "new[0-9]*-" SHARD, "new[0-9]*-" SHARD ".tmp", SHARD};
    int rc = 0;
    pl_names found = {0};
    pl_buf index = {0};
    char *path = NULL;
    PL_GO(done, list_matching(err, folder, patterns, all ? 4 : 3, &found));
    PL_GO(done, pl_path_join(err, folder, INDEX, &path));
    if (pl_file_exists(path)) PL_GO(done, pl_file_read(err, path, &index));
    for (int i = 0; i < found.count; i++) {
        char quoted[280];
        snprintf(quoted, sizeof quoted, "\"%s\"", found.items[i]);
        if (!strstr(pl_buf_text(&index), quoted)) PL_GO(done, remove_in(err, folder, found.items[i]));
    }
done:
    free(path);
    pl_buf_free(&index);
    pl_names_free(&found);
    return rc;
}

/* Brings the new weights and config.json into force. */
static int put_in_force(pl_error *err, const char *folder, const char *begin, const pl_st_source *sources, shards *s,
    pl_config_swap *config)
{
    int rc = pl_config_swap_away(err, config);
    if (rc == 0) rc = switch_weights(err, folder, begin, sources, s);
    if (!s->switched) { /* the old weights are in force still, and their config.json belongs to them */
        pl_config_swap_back(config);
        return rc;
    }
    int committed = pl_config_swap_commit(err, config); /* whatever failed after the switch */
    PL_TRY(rc);
    PL_TRY(committed);
    return pl_dir_sync(err, folder);
}

int pl_model_folder_write(
    pl_error *err, const char *folder, const pl_model_folder *options, const pl_st_source *sources, int count)
{
    int rc = 0;
    shards s = {0};
    pl_buf text = {0};
    pl_config_swap config = {.writer.fd = -1};
    char begin[24] = "";
    PL_GO(done, config_text(err, options, &text));
    PL_GO(done, pl_dir_make(err, folder));
    PL_GO(done, remove_stale(err, folder, false));
    PL_GO(done, shards_plan(err, sources, count, options->shard_bytes ? options->shard_bytes : PL_SHARD_BYTES, &s));
    if (s.count > 1) PL_GO(done, free_beginning(err, folder, s.count, begin));
    PL_GO(done, write_data(err, folder, begin, sources, &s));
    if (options->source) PL_GO(done, copy_companions(err, options->source, folder, true));
    if (options->texts && !options->source) PL_GO(done, copy_companions(err, options->texts, folder, false));
    PL_GO(done, pl_config_swap_prepare(err, folder, CONFIG, &text, &config));
    PL_GO(done, put_in_force(err, folder, begin, sources, &s, &config));
    rc = remove_stale(err, folder, true);
done:
    pl_config_swap_free(&config);
    remove_written(folder, begin, &s);
    shards_free(&s);
    pl_buf_free(&text);
    return rc;
}
