#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "data/dataset_internal.h"

/* A field, the other names that it goes by in data sets as they are, and whether examples must have it. */
typedef struct field {
    const char *name;
    const char *aliases[2];
    bool required;
} field;

typedef struct format {
    const char *name;
    pl_data_format format;
    field fields[PL_DATA_MAX_FIELDS];
} format;

/* In the order in which they are tried: alpaca files often carry a `text` too. */
static const format formats[] = {
    {"tokens", PL_DATA_TOKENS,
        {{"input_ids", {0}, true}, {"labels", {0}, false}, {"attention_mask", {0}, false},
            {"position_ids", {0}, false}}},
    {"messages", PL_DATA_MESSAGES, {{"messages", {0}, true}, {"tools", {0}, false}}},
    {"sharegpt", PL_DATA_SHAREGPT, {{"conversations", {0}, true}, {"system", {0}, false}, {"tools", {0}, false}}},
    {"alpaca", PL_DATA_ALPACA,
        {{"instruction", {0}, true}, {"input", {"context"}, false}, {"output", {"response"}, true},
            {"system", {0}, false}, {"history", {0}, false}}},
    {"qa", PL_DATA_QA,
        {{"question", {"query"}, true}, {"answer", {"response"}, true}, {"system", {"system_prompt"}, false},
            {"history", {0}, false}}},
    {"completion", PL_DATA_COMPLETION, {{"prompt", {0}, true}, {"completion", {"response"}, true}}},
    {"text", PL_DATA_TEXT, {{"text", {0}, true}}},
};

static const format *find_format(pl_data_format f)
{
    for (int i = 0; i < PL_COUNT(formats); i++) {
        if (formats[i].format == f) return &formats[i];
    }
    return &formats[PL_COUNT(formats) - 1];
}

const char *pl_data_format_name(pl_data_format f)
{
    return f == PL_DATA_AUTO ? "auto" : find_format(f)->name;
}

int pl_data_format_parse(pl_error *err, const char *name, pl_data_format *out)
{
    *out = PL_DATA_AUTO;
    if (strcmp(name, "auto") == 0) return 0;
    for (int i = 0; i < PL_COUNT(formats); i++) {
        if (strcmp(formats[i].name, name) != 0) continue;
        *out = formats[i].format;
        return 0;
    }
    return PL_FAIL(err, PL_EUSAGE,
        "data.format is \"%s\"; it must be auto, text, completion, alpaca, qa, messages, sharegpt or tokens", name);
}

/* ---- data.fields ---- */

static bool is_field_of(const format *f, const char *name)
{
    for (int i = 0; i < PL_DATA_MAX_FIELDS && f->fields[i].name; i++) {
        if (strcmp(f->fields[i].name, name) == 0) return true;
    }
    return false;
}

static int check_name(pl_error *err, const char *name)
{
    for (int i = 0; i < PL_COUNT(formats); i++) {
        if (is_field_of(&formats[i], name)) return 0;
    }
    pl_buf known = {0};
    for (int i = 0; i < PL_COUNT(formats); i++) {
        int rc = pl_buf_printf(err, &known, "%s%s (", i ? "; " : "", formats[i].name);
        for (int k = 0; rc == 0 && k < PL_DATA_MAX_FIELDS && formats[i].fields[k].name; k++) {
            rc = pl_buf_printf(err, &known, "%s%s", k ? ", " : "", formats[i].fields[k].name);
        }
        if (rc == 0) rc = pl_buf_putc(err, &known, ')');
        if (rc < 0) {
            pl_buf_free(&known);
            return rc;
        }
    }
    int rc = PL_FAIL(err, PL_EUSAGE, "data.fields: no format has a field \"%s\"; the fields are %s", name, known.data);
    pl_buf_free(&known);
    return rc;
}

int pl_data_names_check(pl_error *err, const pl_data_names *names)
{
    for (size_t i = 0; i < names->count; i++) {
        PL_TRY(check_name(err, names->fields[i]));
        for (size_t k = 0; k < i; k++) {
            if (strcmp(names->fields[i], names->fields[k]) != 0) continue;
            return PL_FAIL(err, PL_EUSAGE, "data.fields names %s twice", names->fields[i]);
        }
    }
    return 0;
}

/* The key that data.fields gives for a field; NULL: none. An empty one means that the field is to be passed over. */
static const char *named_key(const pl_data_names *names, const char *name)
{
    for (size_t i = 0; i < names->count; i++) {
        if (strcmp(names->fields[i], name) == 0) return names->keys[i];
    }
    return NULL;
}

static const json_t *lookup(const json_t *example, const field *f, const pl_data_names *names)
{
    const char *key = named_key(names, f->name);
    const json_t *value = json_object_get(example, key ? key : f->name);
    for (int i = 0; !key && !value && i < PL_COUNT(f->aliases) && f->aliases[i]; i++) {
        value = json_object_get(example, f->aliases[i]);
    }
    return value && json_is_null(value) ? NULL : value;
}

/* ---- recognition ---- */

/* "a, b, c": the keys of an object, not too many of them. */
static int list_keys(pl_error *err, const json_t *object, pl_buf *out)
{
    const char *key;
    json_t *value;
    int n = 0;
    json_object_foreach((json_t *)object, key, value)
    {
        if (n == 20) return pl_buf_puts(err, out, ", ...");
        PL_TRY(pl_buf_printf(err, out, "%s%.60s", n++ ? ", " : "", key));
    }
    return n ? 0 : pl_buf_puts(err, out, "no field at all");
}

static int fail_with_keys(pl_error *err, pl_place place, const json_t *example, const char *what, const char *hint)
{
    pl_buf keys = {0};
    int rc = list_keys(err, example, &keys);
    if (rc == 0) {
        rc = PL_FAIL(
            err, PL_EINPUT, "%s:%lld: %s (it has %s)%s", place.path, (long long)place.line, what, keys.data, hint);
    }
    pl_buf_free(&keys);
    return rc;
}

static bool fits(const format *f, const json_t *example, const pl_data_names *names)
{
    for (size_t i = 0; i < names->count; i++) {
        if (!is_field_of(f, names->fields[i])) return false;
    }
    for (int i = 0; i < PL_DATA_MAX_FIELDS && f->fields[i].name; i++) {
        if (f->fields[i].required && !lookup(example, &f->fields[i], names)) return false;
    }
    return true;
}

int pl_data_recognise(pl_error *err, pl_place place, const json_t *example, pl_data_format named,
    const pl_data_names *names, pl_data_format *out)
{
    *out = named;
    if (!json_is_object(example)) {
        return PL_FAIL(err, PL_EINPUT, "%s:%lld: an example is %s; an object was expected", place.path,
            (long long)place.line, pl_json_type_name(example));
    }
    if (named != PL_DATA_AUTO) {
        const format *f = find_format(named);
        for (size_t i = 0; i < names->count; i++) {
            if (is_field_of(f, names->fields[i])) continue;
            return PL_FAIL(
                err, PL_EUSAGE, "data.fields names %s, which data.format %s does not have", names->fields[i], f->name);
        }
        return 0;
    }
    bool preferences = json_object_get(example, "chosen") && json_object_get(example, "rejected");
    preferences |= json_object_get(example, "chosen_messages") && json_object_get(example, "rejected_messages");
    if (preferences) {
        return fail_with_keys(err, place, example, "this is preference data, chosen against rejected answers",
            "; plait trains on one answer an example: make the chosen ones a file of {prompt, completion} or "
            "{messages}");
    }
    for (int i = 0; i < PL_COUNT(formats); i++) {
        if (!fits(&formats[i], example, names)) continue;
        *out = formats[i].format;
        return 0;
    }
    return fail_with_keys(err, place, example, "the format cannot be told from the example's fields",
        "; the formats are text {text}, completion {prompt, completion}, alpaca {instruction, input, output}, qa "
        "{question, answer}, messages {messages}, sharegpt {conversations}, tokens {input_ids, labels}. Name one with "
        "--data.format, and fields of other names with --data.fields, as in --data.format qa --data.fields "
        "question=prompt_text,answer=gold");
}

int pl_data_field(pl_error *err, pl_place place, const json_t *example, pl_data_format which,
    const pl_data_names *names, const char *name, const json_t **out)
{
    const format *f = find_format(which);
    *out = NULL;
    for (int i = 0; i < PL_DATA_MAX_FIELDS && f->fields[i].name; i++) {
        if (strcmp(f->fields[i].name, name) != 0) continue;
        *out = lookup(example, &f->fields[i], names);
        if (*out || !f->fields[i].required) return 0;
        const char *key = named_key(names, name);
        char what[256];
        snprintf(what, sizeof what, "an example of format %s needs the field %.80s%s", f->name, key ? key : name,
            json_object_get(example, key ? key : name) ? ", which is null" : "");
        return fail_with_keys(err, place, example, what, "");
    }
    return 0;
}

int pl_data_string_field(pl_error *err, pl_place place, const json_t *example, pl_data_format which,
    const pl_data_names *names, const char *name, const json_t **out)
{
    PL_TRY(pl_data_field(err, place, example, which, names, name, out));
    if (!*out || json_is_string(*out)) return 0;
    return PL_FAIL(err, PL_EINPUT, "%s:%lld: %s is %s; a string was expected", place.path, (long long)place.line, name,
        pl_json_type_name(*out));
}
