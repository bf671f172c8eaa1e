#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "data/dataset_internal.h"
#include "data/tokenizer.h"
#include "model/batch.h"

#define PLACE(place) (place).path, (long long)(place).line

bool pl_data_is_chat(const pl_data_rules *rules, pl_data_format format)
{
    switch (format) {
    case PL_DATA_MESSAGES:
    case PL_DATA_SHAREGPT: return true;
    case PL_DATA_ALPACA:
        if (rules->template == PL_DATA_TEMPLATE_AUTO) return rules->model->chat != NULL;
        return rules->template == PL_DATA_TEMPLATE_CHAT;
    case PL_DATA_QA:
    case PL_DATA_COMPLETION: return rules->template == PL_DATA_TEMPLATE_CHAT;
    default: return false;
    }
}

int pl_data_check_format(pl_error *err, const char *path, pl_data_format format, const pl_data_rules *rules)
{
    const char *name = pl_data_format_name(format);
    if (format != PL_DATA_TOKENS && !rules->model->tokenizer) {
        return PL_FAIL(err, PL_EINPUT,
            "%s: is of format %s, and the model's folder has no tokenizer.json; without one only rows that come "
            "tokenized "
            "({input_ids, labels}) can be read; " PL_TOKENIZER_HINT,
            path, name);
    }
    bool turns = format == PL_DATA_MESSAGES || format == PL_DATA_SHAREGPT;
    if (turns && rules->template == PL_DATA_TEMPLATE_PLAIN) {
        return PL_FAIL(
            err, PL_EUSAGE, "%s: is of format %s, which data.template plain cannot write; it needs chat", path, name);
    }
    if (pl_data_is_chat(rules, format) && !rules->model->chat) {
        return PL_FAIL(err, PL_EINPUT,
            "%s: is of format %s, and the model has no chat template to write it with; name one with data.template, or "
            "put "
            "a chat_template.jinja into the model's folder%s",
            path, name, turns ? ", or turn the file into {prompt, completion}" : ", or take data.template plain");
    }
    if (format == PL_DATA_TEXT && rules->loss == PL_DATA_LOSS_ANSWERS) {
        return PL_FAIL(err, PL_EUSAGE, "%s: is of format text, which has no answers for data.loss answers", path);
    }
    if (format == PL_DATA_TOKENS && rules->loss == PL_DATA_LOSS_ALL) {
        return PL_FAIL(err, PL_EUSAGE,
            "%s: comes tokenized, and its labels say what is trained; data.loss all contradicts them", path);
    }
    return 0;
}

/* ---- as text ---- */

static int append(pl_error *err, pl_buf *text, const json_t *string)
{
    return pl_buf_append(err, text, json_string_value(string), json_string_length(string));
}

/* The prompt that Stanford Alpaca was trained with, and everybody's adapters after it. */
static int write_alpaca(pl_error *err, const json_t *instruction, const json_t *input, pl_buf *text)
{
    bool with_input = input && json_string_length(input) > 0;
    PL_TRY(pl_buf_puts(err, text,
        with_input
            ? "Below is an instruction that describes a task, paired with an input that provides further context. "
              "Write a response that appropriately completes the request.\n\n### Instruction:\n"
            : "Below is an instruction that describes a task. "
              "Write a response that appropriately completes the request.\n\n### Instruction:\n"));
    PL_TRY(append(err, text, instruction));
    if (with_input) {
        PL_TRY(pl_buf_puts(err, text, "\n\n### Input:\n"));
        PL_TRY(append(err, text, input));
    }
    return pl_buf_puts(err, text, "\n\n### Response:");
}

/* A system's turn or earlier turns have no place in a plain text. */
static int refuse_turns(
    pl_error *err, pl_place place, const json_t *example, pl_data_format format, const pl_data_names *names)
{
    static const char *const fields[] = {"system", "history"};
    for (int i = 0; i < PL_COUNT(fields); i++) {
        const json_t *v;
        PL_TRY(pl_data_field(err, place, example, format, names, fields[i], &v));
        if (!v || json_string_length(v) + json_array_size(v) == 0) continue;
        return PL_FAIL(err, PL_EINPUT,
            "%s:%lld: %s has no place in plain text; take data.template chat, or leave it out: --data.fields %s=",
            PLACE(place), fields[i], fields[i]);
    }
    return 0;
}

static int read_plain(pl_error *err, pl_place place, const json_t *example, pl_data_format format,
    const pl_data_rules *rules, pl_example *out)
{
    const pl_data_names *names = rules->names;
    const json_t *first, *input, *answer;
    out->kind = PL_EXAMPLE_PLAIN;
    out->answer = PL_DATA_NO_ANSWER;
    if (format == PL_DATA_TEXT) {
        PL_TRY(pl_data_string_field(err, place, example, format, names, "text", &first));
        return append(err, &out->text, first);
    }
    PL_TRY(refuse_turns(err, place, example, format, names));
    if (format == PL_DATA_ALPACA) {
        PL_TRY(pl_data_string_field(err, place, example, format, names, "instruction", &first));
        PL_TRY(pl_data_string_field(err, place, example, format, names, "input", &input));
        PL_TRY(pl_data_string_field(err, place, example, format, names, "output", &answer));
        PL_TRY(write_alpaca(err, first, input, &out->text));
    } else {
        bool qa = format == PL_DATA_QA;
        PL_TRY(pl_data_string_field(err, place, example, format, names, qa ? "question" : "prompt", &first));
        PL_TRY(pl_data_string_field(err, place, example, format, names, qa ? "answer" : "completion", &answer));
        PL_TRY(append(err, &out->text, first));
        if (qa) PL_TRY(pl_buf_putc(err, &out->text, '\n'));
    }
    out->answer = out->text.size;
    return append(err, &out->text, answer);
}

/* ---- tokens ---- */

static int read_integers(
    pl_error *err, pl_place place, const char *name, const json_t *list, int32_t **out, size_t *capacity)
{
    if (!json_is_array(list)) {
        return PL_FAIL(err, PL_EINPUT, "%s:%lld: %s is %s; a list of whole numbers was expected%s", PLACE(place), name,
            pl_json_type_name(list), json_is_object(list) ? " (one row an example)" : "");
    }
    size_t n = json_array_size(list);
    PL_TRY(pl_grow(err, out, capacity, n, sizeof **out));
    for (size_t i = 0; i < n; i++) {
        const json_t *v = json_array_get(list, i);
        int64_t x = json_is_integer(v) ? json_integer_value(v) : INT64_MIN;
        if (x < INT32_MIN || x > INT32_MAX) {
            return PL_FAIL(err, PL_EINPUT, "%s:%lld: %s[%zu] is %s; a whole number was expected%s", PLACE(place), name,
                i, json_is_integer(v) ? "out of range" : pl_json_type_name(v),
                json_is_array(v) ? " (one row an example, not a batch)" : "");
        }
        (*out)[i] = (int32_t)x;
    }
    return 0;
}

int pl_data_check_ids(pl_error *err, pl_place place, const pl_data_model *model, const int32_t *ids, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        if (ids[i] >= 0 && ids[i] < model->vocab) continue;
        if (place.line == 0) {
            return PL_FAIL(err, PL_EINPUT,
                "%s: a token has the id %d, and the model's vocabulary is 0..%d; is the tokenizer another model's?",
                place.path, ids[i], model->vocab - 1);
        }
        return PL_FAIL(err, PL_EINPUT, "%s:%lld: token %zu has the id %d, and the model's vocabulary is 0..%d",
            PLACE(place), i, ids[i], model->vocab - 1);
    }
    return 0;
}

static int check_labels(pl_error *err, pl_place place, const pl_data_model *model, pl_example *e)
{
    for (size_t i = 0; i < e->count; i++) {
        int32_t label = e->labels[i];
        if (label != PL_NOT_TRAINED && (label < 0 || label >= model->vocab)) {
            return PL_FAIL(err, PL_EINPUT,
                "%s:%lld: labels[%zu] is %d; it must be 0..%d, or %d for a token that is not trained", PLACE(place), i,
                label, model->vocab - 1, PL_NOT_TRAINED);
        }
        e->labelled |= label != e->ids[i];
    }
    return 0;
}

static bool is_mask(const json_t *value, bool on)
{
    if (json_is_boolean(value)) return json_is_true(value) == on;
    return json_is_integer(value) && json_integer_value(value) == on;
}

/* attention_mask may mask a padded tail, which is cut off, and nothing else. */
static int apply_mask(pl_error *err, pl_place place, const json_t *mask, pl_example *e)
{
    if (!mask) return 0;
    if (!json_is_array(mask) || json_array_size(mask) != e->count) {
        return PL_FAIL(err, PL_EINPUT, "%s:%lld: attention_mask is not a list of as many numbers as input_ids (%zu)",
            PLACE(place), e->count);
    }
    size_t kept = e->count;
    while (kept > 0 && is_mask(json_array_get(mask, kept - 1), false)) kept--;
    for (size_t i = 0; i < e->count; i++) {
        if (is_mask(json_array_get(mask, i), i < kept)) continue;
        return PL_FAIL(err, PL_EINPUT,
            "%s:%lld: attention_mask[%zu] is not 1; a mask may only leave out padding at the end", PLACE(place), i);
    }
    e->count = kept;
    return 0;
}

static int check_positions(pl_error *err, pl_place place, const json_t *positions)
{
    for (size_t i = 0; i < json_array_size(positions); i++) {
        if (json_integer_value(json_array_get(positions, i)) == (int64_t)i) continue;
        return PL_FAIL(err, PL_EINPUT,
            "%s:%lld: position_ids[%zu] is not %zu; rows with positions of their own (packed ones) cannot be read: "
            "make each "
            "sequence a row, packing happens here",
            PLACE(place), i, i);
    }
    return 0;
}

static int read_tokens(
    pl_error *err, pl_place place, const json_t *example, const pl_data_rules *rules, pl_example *out)
{
    const json_t *ids, *labels, *mask, *positions;
    const pl_data_names *names = rules->names;
    out->kind = PL_EXAMPLE_TOKENS;
    PL_TRY(pl_data_field(err, place, example, PL_DATA_TOKENS, names, "input_ids", &ids));
    PL_TRY(pl_data_field(err, place, example, PL_DATA_TOKENS, names, "labels", &labels));
    PL_TRY(pl_data_field(err, place, example, PL_DATA_TOKENS, names, "attention_mask", &mask));
    PL_TRY(pl_data_field(err, place, example, PL_DATA_TOKENS, names, "position_ids", &positions));
    PL_TRY(read_integers(err, place, "input_ids", ids, &out->ids, &out->ids_capacity));
    out->count = json_array_size(ids);
    if (labels) {
        PL_TRY(read_integers(err, place, "labels", labels, &out->labels, &out->labels_capacity));
        if (json_array_size(labels) != out->count) {
            return PL_FAIL(err, PL_EINPUT, "%s:%lld: there are %zu labels for %zu input_ids", PLACE(place),
                json_array_size(labels), out->count);
        }
    }
    PL_TRY(check_positions(err, place, positions));
    PL_TRY(apply_mask(err, place, mask, out));
    PL_TRY(pl_data_check_ids(err, place, rules->model, out->ids, out->count));
    return labels ? check_labels(err, place, rules->model, out) : 0;
}

int pl_example_read(pl_error *err, pl_place place, const json_t *example, pl_data_format format,
    const pl_data_rules *rules, pl_example *out)
{
    pl_example_clear(out);
    if (!json_is_object(example)) {
        return PL_FAIL(err, PL_EINPUT, "%s:%lld: an example is %s; an object was expected", PLACE(place),
            pl_json_type_name(example));
    }
    if (format == PL_DATA_TOKENS) return read_tokens(err, place, example, rules, out);
    if (pl_data_is_chat(rules, format)) return pl_example_read_chat(err, place, example, format, rules, out);
    return read_plain(err, place, example, format, rules, out);
}

void pl_example_clear(pl_example *e)
{
    pl_buf_clear(&e->text);
    json_decref(e->messages);
    json_decref(e->tools);
    e->messages = e->tools = NULL;
    e->count = 0;
    e->labelled = false;
}

void pl_example_free(pl_example *e)
{
    pl_example_clear(e);
    pl_buf_free(&e->text);
    free(e->ids);
    free(e->labels);
    *e = (pl_example){0};
}
