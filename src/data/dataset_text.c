/* A .txt file is one text that may be larger than memory, so it is tokenized in windows that overlap. Near the ends of
   a window its tokens may differ from those of the whole text; further inside they are the same. Two neighbours are
   joined where they agree on a stretch of tokens in the middle of what they share, and if they nowhere do, they become
   one window. So the result is that of the whole text, for any number of threads. */
#include <omp.h>
#include <stdlib.h>
#include <string.h>

#include "data/dataset_internal.h"
#include "data/tokenizer.h"

#define WINDOW_BYTES ((size_t)128 << 10)
#define OVERLAP_BYTES ((size_t)4 << 10)
#define AGREE 32 /* tokens on which neighbours must agree; they are joined in the middle */
#define WINDOWS_A_THREAD 2

typedef struct window {
    pl_buf text;
    int64_t start; /* of the window, in the whole text */
    size_t shared; /* how many of its first bytes are the last ones of the window before */
    pl_tokens tokens;
    size_t next; /* the first token that is not in a row yet */
    pl_error err;
} window;

typedef struct text_builder {
    const pl_data_config *config;
    const pl_data_rules *rules;
    pl_cache_writer *writer;
    pl_data_stats *stats;
    size_t file;
    int64_t row_index; /* rows made so far */
    int32_t *row;      /* [sequence_length] ids of the row being filled */
    int64_t row_count;
    int32_t last; /* the last id, -1 while there is none */
    pl_rows rows; /* made and not written yet */
} text_builder;

static int flush_rows(pl_error *err, text_builder *b)
{
    PL_TRY(pl_cache_add(err, b->writer, &b->rows));
    for (int p = 0; p < PL_DATA_PARTS; p++) pl_data_stats_add(&b->stats[p], &b->rows.stats[p]);
    memset(b->rows.stats, 0, sizeof b->rows.stats);
    b->rows.used = b->rows.count = 0;
    return 0;
}

static int finish_row(pl_error *err, text_builder *b)
{
    pl_data_part part = pl_data_part_of(b->config, b->file, b->row_index++);
    PL_TRY(pl_rows_add(err, &b->rows, part, b->row, NULL, b->row_count, false));
    b->row_count = 0;
    return b->rows.used > WINDOW_BYTES / sizeof(int32_t) ? flush_rows(err, b) : 0;
}

static int put_ids(pl_error *err, text_builder *b, const int32_t *ids, size_t count)
{
    pl_place place = {b->config->files[b->file].path, 0};
    PL_TRY(pl_data_check_ids(err, place, b->rules->model, ids, count));
    if (count > 0) b->last = ids[count - 1];
    while (count > 0) {
        int64_t room = b->rules->sequence_length - b->row_count;
        size_t take = count < (size_t)room ? count : (size_t)room;
        memcpy(b->row + b->row_count, ids, take * sizeof *ids);
        b->row_count += (int64_t)take;
        ids += take;
        count -= take;
        if (b->row_count == b->rules->sequence_length) PL_TRY(finish_row(err, b));
    }
    return 0;
}

static int tokenize(pl_error *err, const text_builder *b, window *w)
{
    w->tokens.count = 0;
    w->next = 0;
    w->tokens.spans = true;
    return pl_tokenizer_encode(err, b->rules->model->tokenizer, pl_buf_text(&w->text), w->text.size, false, &w->tokens);
}

static bool same_token(const window *a, size_t i, const window *b, size_t j)
{
    return a->tokens.ids[i] == b->tokens.ids[j] && a->start + a->tokens.begin[i] == b->start + b->tokens.begin[j];
}

/* Finds tokens i of a and j of b, its next neighbour, at which to go over from one to the other: the same place, in the
   middle of AGREE tokens that are the same in both. */
static bool find_joint(const window *a, const window *b, size_t *out_i, size_t *out_j)
{
    size_t i = a->next, run = 0;
    for (size_t j = 0; j < b->tokens.count && b->tokens.begin[j] < (int64_t)b->shared; j++) {
        int64_t at = b->start + b->tokens.begin[j];
        while (i < a->tokens.count && a->start + a->tokens.begin[i] < at) {
            i++;
            run = 0;
        }
        if (i == a->tokens.count) return false;
        if (!same_token(a, i, b, j)) {
            run = 0;
            continue;
        }
        i++;
        /* Tokens may share a character and thus a place, so a joint is where the place moves on. */
        if (++run < AGREE || i - AGREE / 2 <= a->next) continue;
        size_t x = i - AGREE / 2, y = j + 1 - AGREE / 2;
        if (a->tokens.begin[x] == a->tokens.begin[x - 1]) continue;
        *out_i = x;
        *out_j = y;
        return true;
    }
    return false;
}

/* Makes a and its next neighbour one window, which stays in a. */
static int merge(pl_error *err, text_builder *b, window *a, const window *next)
{
    int64_t done = a->next < a->tokens.count ? a->tokens.begin[a->next] : (int64_t)a->text.size;
    PL_TRY(pl_buf_append(err, &a->text, next->text.data + next->shared, next->text.size - next->shared));
    PL_TRY(tokenize(err, b, a));
    while (a->next < a->tokens.count && a->tokens.begin[a->next] < done) a->next++;
    return 0;
}

/* The tokens of `before` up to where `w` takes over go into rows; `before` is w afterwards, and w what it was. */
static int join(pl_error *err, text_builder *b, window *before, window *w)
{
    size_t i, j;
    if (before->text.size > 0) {
        if (!find_joint(before, w, &i, &j)) return merge(err, b, before, w);
        PL_TRY(put_ids(err, b, before->tokens.ids + before->next, i - before->next));
        w->next = j;
    }
    window swap = *before;
    *before = *w;
    *w = swap;
    return 0;
}

/* Reads the next window: the end of the one before, and WINDOW_BYTES of new text. */
static int read_window(pl_error *err, pl_reader *reader, pl_buf *carry, int64_t *end, window *w, bool *more)
{
    pl_buf_clear(&w->text);
    pl_error_clear(&w->err);
    w->shared = carry->size;
    w->start = *end - (int64_t)carry->size;
    PL_TRY(pl_buf_append(err, &w->text, pl_buf_text(carry), carry->size));
    PL_TRY(pl_reader_text(err, reader, WINDOW_BYTES, &w->text, more));
    *end = w->start + (int64_t)w->text.size;
    size_t from = w->text.size > OVERLAP_BYTES ? w->text.size - OVERLAP_BYTES : 0;
    while (from > 0 && from < w->text.size && ((unsigned char)w->text.data[from] & 0xc0) == 0x80) from--;
    pl_buf_clear(carry);
    return pl_buf_append(err, carry, pl_buf_text(&w->text) + from, w->text.size - from);
}

static int build_windows(pl_error *err, text_builder *b, int threads, pl_reader *reader, window *windows, int count,
    window *before, pl_buf *carry)
{
    int64_t end = 0;
    bool more = true;
    while (more) {
        int filled = 0;
        while (filled < count && more) PL_TRY(read_window(err, reader, carry, &end, &windows[filled++], &more));
#pragma omp parallel for num_threads(threads) schedule(dynamic, 1)
        for (int i = 0; i < filled; i++) tokenize(&windows[i].err, b, &windows[i]);
        for (int i = 0; i < filled; i++) {
            const pl_error *e = &windows[i].err;
            if (e->code) {
                pl_error_set(err, e->code, e->file, e->line, "%s: %s", b->config->files[b->file].path, e->message);
                return e->code;
            }
            if (windows[i].text.size > windows[i].shared) PL_TRY(join(err, b, before, &windows[i]));
        }
    }
    return put_ids(err, b, before->tokens.ids + before->next, before->tokens.count - before->next);
}

/* All of the text, between what the tokenizer and the model put around one. */
static int build_text(pl_error *err, text_builder *b, int threads, pl_reader *reader, window *windows, int count,
    window *before, pl_buf *carry)
{
    const pl_tokenizer *tokenizer = b->rules->model->tokenizer;
    int32_t eos = b->rules->model->eos;
    size_t prefix_count, suffix_count;
    const int32_t *prefix = pl_tokenizer_prefix(tokenizer, &prefix_count);
    const int32_t *suffix = pl_tokenizer_suffix(tokenizer, &suffix_count);
    PL_TRY(put_ids(err, b, prefix, prefix_count));
    PL_TRY(build_windows(err, b, threads, reader, windows, count, before, carry));
    if (before->text.size == 0) { /* no text at all */
        b->row_count = 0;
        PL_TRY(finish_row(err, b));
        return flush_rows(err, b);
    }
    PL_TRY(put_ids(err, b, suffix, suffix_count));
    if (eos >= 0 && b->last != eos) PL_TRY(put_ids(err, b, &eos, 1));
    if (b->row_index > 0) b->rows.stats[pl_data_part_of(b->config, b->file, 0)].split++;
    if (b->row_count > 0) PL_TRY(finish_row(err, b));
    return flush_rows(err, b);
}

int pl_dataset_build_text(pl_error *err, const pl_data_config *config, const pl_data_rules *rules, int threads,
    pl_cache_writer *w, size_t file, pl_reader *reader, pl_data_stats stats[PL_DATA_PARTS])
{
    text_builder b = {
        .config = config, .rules = rules, .writer = w, .stats = stats, .file = file, .last = -1, .row = NULL};
    window *windows = NULL, before = {0};
    pl_buf carry = {0};
    int count = WINDOWS_A_THREAD * threads, rc = 0;
    PL_GO(done, pl_calloc(err, (size_t)count, sizeof *windows, &windows));
    PL_GO(done, pl_calloc(err, (size_t)rules->sequence_length, sizeof *b.row, &b.row));
    stats[config->files[file].validation ? PL_DATA_VALIDATION : PL_DATA_TRAIN].examples++;
    PL_GO(done, build_text(err, &b, threads, reader, windows, count, &before, &carry));
done:
    for (int i = 0; windows && i < count; i++) {
        pl_buf_free(&windows[i].text);
        pl_tokens_free(&windows[i].tokens);
    }
    pl_buf_free(&before.text);
    pl_tokens_free(&before.tokens);
    pl_buf_free(&carry);
    pl_rows_free(&b.rows);
    free(b.row);
    free(windows);
    return rc;
}
