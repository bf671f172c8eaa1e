#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "data/chat.h"
#include "data/dataset_internal.h"
#include "data/tokenizer.h"
#include "model/batch.h"

struct pl_encoder {
    const pl_data_rules *rules;
    pl_example example;
    pl_tokens tokens;
    pl_buf text;           /* what a template wrote */
    pl_spans trained;      /* bytes of it */
    int32_t *ids, *labels; /* of the row being made */
    size_t ids_capacity, labels_capacity;
};

void pl_rows_free(pl_rows *rows)
{
    free(rows->data);
    free(rows->rows);
    *rows = (pl_rows){0};
}

void pl_data_stats_add(pl_data_stats *sum, const pl_data_stats *more)
{
    int64_t longest = sum->longest > more->longest ? sum->longest : more->longest;
    int64_t *to = (int64_t *)sum;
    const int64_t *from = (const int64_t *)more;
    _Static_assert(sizeof *sum % sizeof *to == 0, "all counts");
    for (size_t i = 0; i < sizeof *sum / sizeof *to; i++) to[i] += from[i];
    sum->longest = longest;
}

int pl_rows_add(
    pl_error *err, pl_rows *rows, pl_data_part part, const int32_t *ids, const int32_t *labels, int64_t n, bool cut)
{
    pl_data_stats *stats = &rows->stats[part];
    int64_t trained = n > 0 ? n - 1 : 0;
    for (int64_t i = 1; labels && i < n; i++) trained -= labels[i] == PL_NOT_TRAINED;
    if (trained == 0) {
        if (cut) {
            stats->dropped_cut++;
        } else {
            stats->dropped_untrained++;
        }
        return 0;
    }
    bool labelled = labels && memcmp(ids + 1, labels + 1, (size_t)(n - 1) * sizeof *ids) != 0;
    size_t size = (size_t)n * (labelled ? 2 : 1);
    PL_TRY(pl_grow(err, &rows->data, &rows->data_capacity, rows->used + size, sizeof *rows->data));
    PL_TRY(pl_grow(err, &rows->rows, &rows->capacity, rows->count + 1, sizeof *rows->rows));
    memcpy(rows->data + rows->used, ids, (size_t)n * sizeof *ids);
    if (labelled) memcpy(rows->data + rows->used + n, labels, (size_t)n * sizeof *labels);
    rows->rows[rows->count++] =
        (pl_rows_row){(int64_t)rows->used, (int32_t)n, (int32_t)trained, labelled, (uint8_t)part};
    rows->used += size;
    stats->rows++;
    stats->tokens += n;
    stats->trained += trained;
    if (n > stats->longest) stats->longest = n;
    stats->lengths[63 - __builtin_clzll((unsigned long long)n)]++;
    return 0;
}

int pl_encoder_open(pl_error *err, const pl_data_rules *rules, pl_encoder **out)
{
    PL_TRY(pl_calloc(err, 1, sizeof **out, out));
    (*out)->rules = rules;
    (*out)->tokens.spans = true;
    return 0;
}

void pl_encoder_close(pl_encoder *e)
{
    if (!e) return;
    pl_example_free(&e->example);
    pl_tokens_free(&e->tokens);
    pl_buf_free(&e->text);
    pl_spans_free(&e->trained);
    free(e->ids);
    free(e->labels);
    free(e);
}

/* Makes one row, or several of a text, of ids and labels (NULL: all trained). */
static int emit(pl_error *err, const pl_encoder *e, pl_data_part part, bool text, const int32_t *ids,
    const int32_t *labels, int64_t n, pl_rows *rows)
{
    int64_t limit = e->rules->sequence_length;
    if (n <= limit) return pl_rows_add(err, rows, part, ids, labels, n, false);
    if (e->rules->overlong == PL_DATA_DROP) {
        rows->stats[part].dropped_overlong++;
        return 0;
    }
    if (!text) {
        bool lost = labels == NULL;
        for (int64_t i = limit; labels && i < n && !lost; i++) lost = labels[i] != PL_NOT_TRAINED;
        rows->stats[part].cut++;
        return pl_rows_add(err, rows, part, ids, labels, limit, lost);
    }
    rows->stats[part].split++;
    for (int64_t at = 0; at < n; at += limit) {
        PL_TRY(pl_rows_add(err, rows, part, ids + at, labels, n - at < limit ? n - at : limit, false));
    }
    return 0;
}

/* Puts the tokens' ids into e->ids, and the model's eos behind them if they are a text and do not end with it. */
static int take_ids(pl_error *err, pl_encoder *e, bool with_eos, size_t *count)
{
    size_t n = e->tokens.count;
    int32_t eos = e->rules->model->eos;
    PL_TRY(pl_grow(err, &e->ids, &e->ids_capacity, n + 1, sizeof *e->ids));
    PL_TRY(pl_grow(err, &e->labels, &e->labels_capacity, n + 1, sizeof *e->labels));
    if (n) memcpy(e->ids, e->tokens.ids, n * sizeof *e->ids);
    if (with_eos && eos >= 0 && n > 0 && e->ids[n - 1] != eos) e->ids[n++] = eos;
    *count = n;
    return 0;
}

static int encode_plain(
    pl_error *err, pl_encoder *e, pl_place place, pl_data_format format, pl_data_part part, pl_rows *rows)
{
    const pl_example *x = &e->example;
    size_t n;
    if (x->text.size == 0) return pl_rows_add(err, rows, part, NULL, NULL, 0, false);
    PL_TRY(pl_tokenizer_encode(err, e->rules->model->tokenizer, x->text.data, x->text.size, true, &e->tokens));
    PL_TRY(take_ids(err, e, true, &n));
    PL_TRY(pl_data_check_ids(err, place, e->rules->model, e->ids, n));
    bool all = x->answer == PL_DATA_NO_ANSWER || e->rules->loss == PL_DATA_LOSS_ALL;
    bool answer = false; /* tokens that the tokenizer adds belong to what they stand behind */
    for (size_t i = 0; i < n && !all; i++) {
        int64_t begin = i < e->tokens.count ? e->tokens.begin[i] : -1;
        if (begin >= 0) answer = (size_t)begin >= x->answer;
        e->labels[i] = answer || i >= e->tokens.count ? e->ids[i] : PL_NOT_TRAINED;
    }
    return emit(err, e, part, format == PL_DATA_TEXT, e->ids, all ? NULL : e->labels, (int64_t)n, rows);
}

static bool writes_name(const pl_buf *text, const json_t *call)
{
    const json_t *function = json_object_get(call, "function");
    const json_t *name = json_object_get(function ? function : call, "name");
    return !json_is_string(name) ||
           memmem(pl_buf_text(text), text->size, json_string_value(name), json_string_length(name)) != NULL;
}

/* Many templates know nothing of tools and leave them out without a word, so it is counted. */
static bool writes_calls(const pl_buf *text, const pl_example *x)
{
    bool all = true;
    for (size_t i = 0; i < json_array_size(x->tools); i++) all &= writes_name(text, json_array_get(x->tools, i));
    for (size_t i = 0; i < json_array_size(x->messages); i++) {
        const json_t *calls = json_object_get(json_array_get(x->messages, i), "tool_calls");
        for (size_t k = 0; k < json_array_size(calls); k++) all &= writes_name(text, json_array_get(calls, k));
    }
    return all;
}

static int encode_chat(pl_error *err, pl_encoder *e, pl_place place, pl_data_part part, pl_rows *rows)
{
    const pl_data_model *model = e->rules->model;
    size_t n, span = 0;
    pl_buf_clear(&e->text);
    e->trained.count = 0;
    if (pl_chat_render_trained(err, model->chat, e->example.messages, e->example.tools, &e->text, &e->trained) < 0) {
        return pl_error_prefix(err, "%s:%lld", place.path, (long long)place.line);
    }
    rows->stats[part].calls_unwritten += !writes_calls(&e->text, &e->example);
    PL_TRY(pl_tokenizer_encode(err, model->tokenizer, pl_buf_text(&e->text), e->text.size, false, &e->tokens));
    PL_TRY(take_ids(err, e, false, &n));
    PL_TRY(pl_data_check_ids(err, place, model, e->ids, n));
    bool all = e->rules->loss == PL_DATA_LOSS_ALL;
    for (size_t i = 0; i < n && !all; i++) {
        int64_t begin = e->tokens.begin[i];
        while (span < e->trained.count && (int64_t)e->trained.items[span].end <= begin) span++;
        bool inside = span < e->trained.count && (int64_t)e->trained.items[span].begin <= begin;
        e->labels[i] = inside ? e->ids[i] : PL_NOT_TRAINED;
    }
    return emit(err, e, part, false, e->ids, all ? NULL : e->labels, (int64_t)n, rows);
}

int pl_encode_json(pl_error *err, pl_encoder *e, pl_place place, const char *bytes, size_t size, pl_data_format format,
    pl_data_part part, pl_rows *rows)
{
    json_t *json;
    PL_TRY(pl_json_parse_from(err, place.path, place.line, bytes, size, &json));
    int rc = pl_example_read(err, place, json, format, e->rules, &e->example);
    json_decref(json);
    PL_TRY(rc);
    const pl_example *x = &e->example;
    rows->stats[part].examples++;
    e->tokens.count = 0;
    switch (x->kind) {
    case PL_EXAMPLE_PLAIN: return encode_plain(err, e, place, format, part, rows);
    case PL_EXAMPLE_CHAT: return encode_chat(err, e, place, part, rows);
    case PL_EXAMPLE_TOKENS: break;
    }
    return emit(err, e, part, false, x->ids, x->labelled ? x->labels : NULL, (int64_t)x->count, rows);
}
