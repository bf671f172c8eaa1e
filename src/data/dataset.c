#include "data/dataset.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <xxhash.h>

#include "base/file.h"
#include "data/chat.h"
#include "data/dataset_internal.h"
#include "data/tokenizer.h"
#include "model/batch.h"

#define FORMAT_VERSION 2
/* After so many bytes of pages touched, the mapping's pages are given back: they stay in the system's cache, but do not
   count as the process's memory. A touched row brings its neighbourhood in, a whole huge page on some file systems;
   rows' lengths lie closer together. */
#define RESIDENT_LIMIT ((int64_t)8 << 20)
#define TOUCHED_BY_ROW ((int64_t)2 << 20)
#define TOUCHED_BY_LENGTH ((int64_t)1 << 10)
/* A file changed so shortly before it was read may be changed again without its times telling. */
#define CLOCK_SLACK_NS ((int64_t)2000000000)

struct pl_dataset {
    pl_cache cache;
    size_t file_count;
    bool found; /* in the cache */
    _Atomic int64_t touched;
};

/* ---- the key ---- */

static int add_string(pl_error *err, pl_buf *key, const char *text)
{
    return pl_buf_printf(err, key, "%zu:%s;", text ? strlen(text) : 0, text ? text : "");
}

static int tokenizer_hash(pl_error *err, const pl_data_model *m, uint64_t *out)
{
    if (m->tokenizer_folder) return pl_tokenizer_hash_folder(err, m->tokenizer_folder, out);
    *out = m->tokenizer ? pl_tokenizer_hash(m->tokenizer) : 0;
    return 0;
}

/* All that the rows depend on but the files' content. */
static int compute_key(pl_error *err, const pl_data_config *c, const pl_data_model *m, uint64_t key[2])
{
    pl_buf b = {0};
    uint64_t chat = 0, tokenizer;
    int rc;
    PL_GO(done, tokenizer_hash(err, m, &tokenizer));
    if (m->chat) PL_GO(done, pl_chat_hash(err, m->chat, &chat));
    PL_GO(done, pl_buf_printf(err, &b, "%d;%d;%d;%d;%d;%lld;%a;%llu;%d;%d;", FORMAT_VERSION, c->format, c->template,
                    c->loss, c->overlong, (long long)c->sequence_length, c->validation_split,
                    (unsigned long long)(c->validation_split > 0 ? c->seed : 0), m->vocab, m->eos));
    PL_GO(done, pl_buf_printf(err, &b, "%016llx;%016llx;", (unsigned long long)tokenizer, (unsigned long long)chat));
    for (size_t i = 0; i < c->field_count; i++) {
        PL_GO(done, add_string(err, &b, c->fields[i]));
        PL_GO(done, add_string(err, &b, c->names[i]));
    }
    PL_GO(done, pl_buf_putc(err, &b, '/'));
    for (size_t i = 0; i < c->file_count; i++) {
        PL_GO(done, add_string(err, &b, c->files[i].path));
        PL_GO(done, pl_buf_putc(err, &b, c->files[i].validation ? 'v' : 't'));
    }
    XXH128_hash_t h = XXH3_128bits(b.data, b.size);
    key[0] = h.low64;
    key[1] = h.high64;
done:
    pl_buf_free(&b);
    return rc;
}

/* ---- is what the cache holds still so? ---- */

static int same_file(pl_error *err, const char *path, const pl_file_identity *was, int64_t built_ns, bool *same)
{
    pl_file_identity is;
    *same = false;
    PL_TRY(pl_file_identify(err, path, false, &is));
    if (is.size != was->size) return 0;
    *same = is.mtime_ns == was->mtime_ns && is.ctime_ns == was->ctime_ns && is.inode == was->inode &&
            is.device == was->device && is.ctime_ns < built_ns - CLOCK_SLACK_NS;
    if (*same) return 0;
    PL_TRY(pl_file_identify(err, path, true, &is));
    *same = is.hash[0] == was->hash[0] && is.hash[1] == was->hash[1];
    return 0;
}

/* Opens what is in the cache if it can be used; d->cache.data stays NULL if not. */
static int try_cache(pl_error *err, const pl_log *log, const pl_data_config *config, const char *path,
    const uint64_t key[2], pl_dataset *d)
{
    const char *reason;
    if (!pl_file_exists(path)) return 0;
    PL_TRY(pl_cache_open(err, path, key, config->file_count, &d->cache, &reason));
    if (reason) {
        pl_logf(log, PL_LOG_WARNING, "%s %s; the data is tokenized again", path, reason);
        return 0;
    }
    for (size_t i = 0; i < config->file_count; i++) {
        bool same;
        const char *file = config->files[i].path;
        int rc = same_file(err, file, &d->cache.sources[i].identity, d->cache.built_ns, &same);
        if (rc == 0 && same) continue;
        pl_cache_close(&d->cache);
        if (rc == 0) pl_logf(log, PL_LOG_INFO, "%s has changed; the data is tokenized again", file);
        return rc;
    }
    return 0;
}

/* ---- building ---- */

static int build_with(pl_error *err, const pl_data_config *config, const pl_data_rules *rules, int threads,
    const char *path, const uint64_t key[2], pl_dataset *d)
{
    pl_cache_writer *writer = NULL;
    pl_cache_source *sources = NULL;
    pl_data_stats stats[PL_DATA_PARTS];
    const char *reason;
    int rc = 0;
    memset(stats, 0, sizeof stats);
    PL_GO(done, pl_calloc(err, config->file_count, sizeof *sources, &sources));
    PL_GO(done, pl_cache_create(err, path, &writer));
    PL_GO(done, pl_dataset_build(err, config, rules, threads, writer, sources, stats));
    PL_GO(done, pl_cache_commit(err, writer, key, sources, config->file_count, stats));
    PL_GO(done, pl_cache_open(err, path, key, config->file_count, &d->cache, &reason));
    if (reason) rc = PL_FAIL(err, PL_EIO, "%s: was written and %s when read back", path, reason);
done:
    pl_cache_abort(writer);
    free(sources);
    return rc;
}

/* With a tokenizer that is here for no longer than it is needed: a large vocabulary takes many MiB. */
static int build(pl_error *err, const pl_data_config *config, const pl_data_rules *rules, int threads, const char *path,
    const uint64_t key[2], pl_dataset *d)
{
    const char *folder = rules->model->tokenizer_folder;
    pl_data_model model = *rules->model;
    pl_data_rules with = *rules;
    pl_tokenizer *tokenizer = NULL;
    uint64_t is[2];
    int rc;
    if (!folder) return build_with(err, config, rules, threads, path, key, d);
    PL_TRY(pl_tokenizer_open(err, folder, &tokenizer));
    model.tokenizer = tokenizer;
    model.tokenizer_folder = NULL;
    with.model = &model;
    PL_GO(done, compute_key(err, config, &model, is));
    if (is[0] != key[0] || is[1] != key[1]) {
        rc = PL_FAIL(err, PL_EIO, "%s: the tokenizer's files changed while they were read; start again", folder);
        goto done;
    }
    rc = build_with(err, config, &with, threads, path, key, d);
done:
    pl_tokenizer_close(tokenizer);
    return rc;
}

/* Without a folder for it, the file loses its name as soon as it is mapped. */
static int build_temporary(pl_error *err, const pl_data_config *config, const pl_data_rules *rules, int threads,
    const uint64_t key[2], pl_dataset *d)
{
    char folder[] = "/tmp/plait-rows-XXXXXX", path[sizeof folder + 8];
    if (!mkdtemp(folder)) return PL_FAIL(err, PL_EIO, "a temporary folder cannot be made in /tmp; set data.cache");
    snprintf(path, sizeof path, "%s/rows", folder);
    int rc = build(err, config, rules, threads, path, key, d);
    unlink(path);
    rmdir(folder);
    return rc;
}

static int open_rows(pl_error *err, const pl_log *log, const pl_data_config *config, const pl_data_rules *rules,
    int threads, pl_dataset *d)
{
    uint64_t key[2];
    char name[64], *path;
    PL_TRY(compute_key(err, config, rules->model, key));
    if (!config->cache_dir) return build_temporary(err, config, rules, threads, key, d);
    snprintf(name, sizeof name, "%016llx%016llx.rows", (unsigned long long)key[1], (unsigned long long)key[0]);
    PL_TRY(pl_path_join(err, config->cache_dir, name, &path));
    int rc = try_cache(err, log, config, path, key, d);
    d->found = d->cache.data != NULL;
    if (rc == 0 && !d->found) rc = pl_dir_make(err, config->cache_dir);
    if (rc == 0 && !d->found) rc = build(err, config, rules, threads, path, key, d);
    free(path);
    return rc;
}

/* ---- is there enough to work with? ---- */

static int check_part(
    pl_error *err, const pl_data_config *config, const pl_data_model *model, const pl_data_stats *s, const char *what)
{
    if (s->rows == 0 && s->examples == 0 && config->validation_split > 0) {
        return PL_FAIL(err, PL_EINPUT,
            "no row is left for %s: the validation split of %g left it none; there are too few", what,
            config->validation_split);
    }
    if (s->rows == 0) {
        return PL_FAIL(err, PL_EINPUT,
            "no row is left for %s: of %lld examples %lld have no token to train (no answer, an empty text, all labels "
            "-100), %lld have theirs beyond data.sequence_length %lld, and %lld are longer than that and to be dropped",
            what, (long long)s->examples, (long long)s->dropped_untrained, (long long)s->dropped_cut,
            (long long)config->sequence_length, (long long)s->dropped_overlong);
    }
    if (model->positions > 0 && s->longest > model->positions) {
        return PL_FAIL(err, PL_EINPUT,
            "a row for %s has %lld tokens, and the model has %lld positions; set data.sequence_length to %lld or less",
            what, (long long)s->longest, (long long)model->positions, (long long)model->positions);
    }
    return 0;
}

static int check_rows(pl_error *err, const pl_data_config *config, const pl_data_model *model, const pl_dataset *d)
{
    bool train = false, validation = config->validation_split > 0;
    for (size_t i = 0; i < config->file_count; i++) {
        train |= !config->files[i].validation;
        validation |= config->files[i].validation;
    }
    if (train) PL_TRY(check_part(err, config, model, &d->cache.stats[PL_DATA_TRAIN], "training"));
    if (validation) PL_TRY(check_part(err, config, model, &d->cache.stats[PL_DATA_VALIDATION], "validation"));
    return 0;
}

/* What is not trained, or not evaluated, as its author may think. */
static void warn_of_losses(const pl_log *log, const pl_data_rules *rules, const pl_dataset *d)
{
    pl_data_stats all = {0};
    for (int p = 0; p < PL_DATA_PARTS; p++) pl_data_stats_add(&all, &d->cache.stats[p]);
    long long examples = (long long)all.examples, limit = (long long)rules->sequence_length;
    if (all.cut > 0) {
        pl_logf(log, PL_LOG_WARNING,
            "%lld of %lld examples are longer than data.sequence_length %lld and lost their end; %lld of them lost "
            "their "
            "whole answer and were left out",
            (long long)all.cut, examples, limit, (long long)all.dropped_cut);
    }
    if (all.dropped_overlong > 0) {
        pl_logf(log, PL_LOG_WARNING,
            "%lld of %lld examples are longer than data.sequence_length %lld and were left out",
            (long long)all.dropped_overlong, examples, limit);
    }
    if (all.dropped_untrained > 0) {
        pl_logf(log, PL_LOG_WARNING, "%lld of %lld examples have nothing to train and were left out",
            (long long)all.dropped_untrained, examples);
    }
}

static void warn(const pl_log *log, const pl_data_rules *rules, const pl_dataset *d)
{
    int64_t unwritten = 0;
    warn_of_losses(log, rules, d);
    bool chats = rules->template != PL_DATA_TEMPLATE_CHAT;
    for (size_t f = 0; f < d->file_count; f++) chats |= pl_data_is_chat(rules, pl_dataset_file_format(d, f));
    if (!chats) {
        pl_logf(log, PL_LOG_WARNING,
            "a chat template is asked for, but the data has neither conversations nor questions with answers that it "
            "could write");
    }
    for (int p = 0; p < PL_DATA_PARTS; p++) unwritten += d->cache.stats[p].calls_unwritten;
    if (unwritten == 0) return;
    pl_logf(log, PL_LOG_WARNING,
        "%lld conversations have tools or calls that the model's chat template does not write; they are trained "
        "without",
        (long long)unwritten);
}

static int check_config(pl_error *err, const pl_data_config *c)
{
    if (c->file_count == 0) return PL_FAIL(err, PL_EUSAGE, "no data file is named");
    if (c->sequence_length < 2 || c->sequence_length > INT32_MAX) {
        return PL_FAIL(
            err, PL_EUSAGE, "data.sequence_length is %lld; it must be 2 or more", (long long)c->sequence_length);
    }
    if (!(c->validation_split >= 0 && c->validation_split < 1)) {
        return PL_FAIL(err, PL_EUSAGE, "the validation split is %g; it must be 0 (none) or more, and less than 1",
            c->validation_split);
    }
    for (size_t i = 0; i < c->file_count && c->validation_split > 0; i++) {
        if (!c->files[i].validation) continue;
        return PL_FAIL(err, PL_EUSAGE,
            "%s is for validation, and a validation split is asked for too; choose one of them", c->files[i].path);
    }
    return 0;
}

int pl_dataset_open(pl_error *err, const pl_log *log, const pl_data_config *config, const pl_data_model *model,
    int threads, pl_dataset **out)
{
    const pl_data_names names = {config->fields, config->names, config->field_count};
    pl_dataset *d = NULL;
    int rc = 0;
    PL_TRY(check_config(err, config));
    PL_TRY(pl_data_names_check(err, &names));
    PL_TRY(pl_calloc(err, 1, sizeof *d, &d));
    d->file_count = config->file_count;
    const pl_data_rules rules = {.template = config->template,
        .loss = config->loss,
        .overlong = config->overlong,
        .sequence_length = config->sequence_length,
        .model = model,
        .names = &names};
    PL_GO(failed, open_rows(err, log, config, &rules, threads, d));
    PL_GO(failed, check_rows(err, config, model, d));
    warn(log, &rules, d);
    *out = d;
    return 0;
failed:
    pl_dataset_close(d);
    return rc;
}

void pl_dataset_close(pl_dataset *d)
{
    if (!d) return;
    pl_cache_close(&d->cache);
    free(d);
}

/* ---- access ---- */

int64_t pl_dataset_rows(const pl_dataset *d, pl_data_part part)
{
    return d->cache.stats[part].rows;
}

static void count_touched(pl_dataset *d, int64_t bytes)
{
    const pl_map map = {d->cache.data, d->cache.size};
    if (atomic_fetch_add_explicit(&d->touched, bytes, memory_order_relaxed) + bytes < RESIDENT_LIMIT) return;
    atomic_store_explicit(&d->touched, 0, memory_order_relaxed);
    pl_map_forget(&map, map.data, map.size);
}

int64_t pl_dataset_row_length(pl_dataset *d, pl_data_part part, int64_t i, int64_t *trained)
{
    count_touched(d, TOUCHED_BY_LENGTH);
    const pl_cache_entry *e = &d->cache.entries[part][i];
    if (trained) *trained = e->trained;
    return e->n & ~PL_CACHE_LABELLED;
}

pl_row pl_dataset_row(pl_dataset *d, pl_data_part part, int64_t i)
{
    count_touched(d, TOUCHED_BY_ROW);
    const pl_cache_entry *e = &d->cache.entries[part][i];
    int64_t n = e->n & ~PL_CACHE_LABELLED;
    const int32_t *ids = (const int32_t *)(d->cache.data + e->at);
    return (pl_row){ids, e->n & PL_CACHE_LABELLED ? ids + n : NULL, n, e->trained};
}

const pl_data_stats *pl_dataset_stats(const pl_dataset *d, pl_data_part part)
{
    return &d->cache.stats[part];
}

size_t pl_dataset_files(const pl_dataset *d)
{
    return d->file_count;
}

void pl_dataset_file_rows(const pl_dataset *d, pl_data_part part, size_t file, int64_t *first, int64_t *count)
{
    *first = 0;
    for (size_t i = 0; i < file; i++) *first += d->cache.sources[i].rows[part];
    *count = d->cache.sources[file].rows[part];
}

pl_data_format pl_dataset_file_format(const pl_dataset *d, size_t file)
{
    return (pl_data_format)d->cache.sources[file].format;
}

bool pl_dataset_cached(const pl_dataset *d)
{
    return d->found;
}

static bool is_target(pl_row row, int64_t i)
{
    return i > 0 && (!row.labels || row.labels[i] != PL_NOT_TRAINED);
}

/* Where in text[begin..), which is the whole row's, the first n tokens end. A character that a token ends inside of is
   the next one's. */
static int text_end(
    pl_error *err, const pl_tokenizer *tokenizer, pl_row row, int64_t n, const pl_buf *text, size_t begin, size_t *out)
{
    pl_buf part = {0};
    int rc = pl_tokenizer_decode(err, tokenizer, row.ids, (size_t)n, false, &part);
    size_t end = 0;
    while (end < part.size && begin + end < text->size && part.data[end] == text->data[begin + end]) end++;
    *out = begin + end;
    pl_buf_free(&part);
    return rc;
}

int pl_row_show(pl_error *err, const pl_tokenizer *tokenizer, pl_row row, pl_buf *text, pl_spans *trained)
{
    size_t begin = text->size, from = 0, to = 0;
    PL_TRY(pl_tokenizer_decode(err, tokenizer, row.ids, (size_t)row.n, false, text));
    for (int64_t i = 0; i < row.n; i++) {
        if (!is_target(row, i)) continue;
        if (!is_target(row, i - 1)) PL_TRY(text_end(err, tokenizer, row, i, text, begin, &from));
        if (i + 1 < row.n && is_target(row, i + 1)) continue;
        PL_TRY(text_end(err, tokenizer, row, i + 1, text, begin, &to));
        if (from < to) PL_TRY(pl_spans_add(err, trained, from, to));
    }
    return 0;
}
