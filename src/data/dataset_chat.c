/* Conversations in the shapes that data sets have, as the messages that chat templates want:
   {role: system | user | assistant | tool, content: text or null, and whatever else the file says}. */
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "data/dataset_internal.h"

#define PLACE(place) (place).path, (long long)(place).line

/* Appends a value, which it takes over, to a list. */
static int append(pl_error *err, json_t *list, json_t *value)
{
    return json_array_append_new(list, value) == 0 ? 0 : PL_FAIL_NOMEM(err);
}

static int set(pl_error *err, json_t *object, const char *key, json_t *value)
{
    return json_object_set_new(object, key, value) == 0 ? 0 : PL_FAIL_NOMEM(err);
}

static int add_turn(pl_error *err, json_t *messages, const char *role, const json_t *content)
{
    json_t *message = json_object();
    if (!message) return PL_FAIL_NOMEM(err);
    int rc = set(err, message, "role", json_string(role));
    if (rc == 0) {
        rc = set(err, message, "content",
            json_is_string(content) ? json_stringn(json_string_value(content), json_string_length(content))
                                    : json_null());
    }
    if (rc < 0) {
        json_decref(message);
        return rc;
    }
    return append(err, messages, message);
}

/* ---- content ---- */

/* [{type: text, text}...] as one string. Other parts (images, sound) are beyond a language model. */
static int join_parts(pl_error *err, pl_place place, size_t turn, const json_t *parts, json_t **out)
{
    pl_buf text = {0};
    int rc = 0;
    for (size_t i = 0; i < json_array_size(parts) && rc == 0; i++) {
        const json_t *part = json_array_get(parts, i);
        const char *type = json_string_value(json_object_get(part, "type"));
        const json_t *value = json_object_get(part, "text");
        if (!value) value = json_object_get(part, "value");
        if (!type || strcmp(type, "text") != 0) {
            rc = PL_FAIL(err, PL_EINPUT,
                "%s:%lld: part %zu of the content of message %zu is %s%s%s; parts must be {type: text, text}",
                PLACE(place), i + 1, turn + 1, type ? "of type \"" : pl_json_type_name(part), type ? type : "",
                type ? "\"" : "");
        } else if (!json_is_string(value)) {
            rc = PL_FAIL(err, PL_EINPUT, "%s:%lld: part %zu of the content of message %zu has no text", PLACE(place),
                i + 1, turn + 1);
        } else {
            rc = pl_buf_append(err, &text, json_string_value(value), json_string_length(value));
        }
    }
    if (rc == 0) {
        *out = json_stringn(pl_buf_text(&text), text.size);
        if (!*out) rc = PL_FAIL_NOMEM(err);
    }
    pl_buf_free(&text);
    return rc;
}

/* The content of a turn that is not a string: a list of parts becomes one, null stays where the turn calls tools. */
static int mend_content(pl_error *err, pl_place place, size_t turn, json_t *message)
{
    const json_t *content = json_object_get(message, "content");
    if (json_is_string(content)) return 0;
    if (json_is_array(content)) {
        json_t *joined = NULL;
        PL_TRY(join_parts(err, place, turn, content, &joined));
        return set(err, message, "content", joined);
    }
    if (json_object_get(message, "tool_calls") && (!content || json_is_null(content))) return 0;
    return PL_FAIL(err, PL_EINPUT, "%s:%lld: the content of message %zu is %s; a string was expected", PLACE(place),
        turn + 1, pl_json_type_name(content));
}

/* ---- roles ---- */

static const char *role_of(const char *name)
{
    static const char *const roles[][2] = {{"system", "system"}, {"user", "user"}, {"assistant", "assistant"},
        {"tool", "tool"}, {"human", "user"}, {"gpt", "assistant"}, {"chatgpt", "assistant"}, {"model", "assistant"},
        {"bot", "assistant"}, {"observation", "tool"}, {"function_response", "tool"}, {"tool_response", "tool"}};
    for (int i = 0; i < PL_COUNT(roles); i++) {
        if (strcmp(roles[i][0], name) == 0) return roles[i][1];
    }
    return NULL;
}

static bool is_call(const char *name)
{
    return strcmp(name, "function_call") == 0 || strcmp(name, "tool_call") == 0;
}

/* JSON inside a string; *out is NULL when it is none. */
static int parse_inner(pl_error *err, const json_t *text, json_t **out)
{
    pl_error why = {0};
    *out = NULL;
    if (!json_is_string(text)) return 0;
    int rc = pl_json_parse(&why, "", json_string_value(text), json_string_length(text), out);
    if (rc < 0) *out = NULL;
    return rc == PL_ENOMEM ? PL_FAIL_NOMEM(err) : 0;
}

/* A call as text, {"name": ..., "arguments": {...}} or a list of them, as OpenAI's tool_calls. */
static int add_call(pl_error *err, pl_place place, size_t turn, json_t *messages, const json_t *value)
{
    json_t *call = NULL, *calls = json_array(), *message = json_object();
    int rc = calls && message ? 0 : PL_FAIL_NOMEM(err);
    if (rc == 0) rc = parse_inner(err, value, &call);
    size_t count = json_is_array(call) ? json_array_size(call) : 1;
    for (size_t i = 0; rc == 0 && i < count; i++) {
        json_t *one = json_is_array(call) ? json_array_get(call, i) : call;
        if (!json_is_string(json_object_get(one, "name"))) {
            rc = PL_FAIL(err, PL_EINPUT,
                "%s:%lld: the call of message %zu is not {\"name\": ..., \"arguments\": ...} in JSON", PLACE(place),
                turn + 1);
            break;
        }
        json_t *wrapped = json_pack("{s:s, s:O}", "type", "function", "function", one);
        rc = wrapped ? append(err, calls, wrapped) : PL_FAIL_NOMEM(err);
    }
    if (rc == 0) rc = set(err, message, "role", json_string("assistant"));
    if (rc == 0) rc = set(err, message, "content", json_string(""));
    if (rc == 0) rc = set(err, message, "tool_calls", json_incref(calls));
    if (rc == 0) rc = append(err, messages, json_incref(message));
    json_decref(message);
    json_decref(calls);
    json_decref(call);
    return rc;
}

/* Some files say of a turn that it is not to be trained. Templates cannot tell where a single turn stands. */
static int check_weight(pl_error *err, pl_place place, size_t turn, const json_t *message, const char *role)
{
    static const char *const keys[] = {"loss_weight", "weight", "train"};
    if (strcmp(role, "assistant") != 0) return 0;
    for (int i = 0; i < PL_COUNT(keys); i++) {
        const json_t *v = json_object_get(message, keys[i]);
        if (!v || json_is_null(v) || json_is_true(v)) continue;
        if (json_is_number(v) && json_number_value(v) == 1.0) continue;
        if (!json_is_number(v) && !json_is_boolean(v)) continue;
        return PL_FAIL(err, PL_EUNSUPPORTED,
            "%s:%lld: %s of message %zu asks for a weight of its own; plait trains all answers of a conversation "
            "alike. "
            "End the conversation before that answer, or remove the field",
            PLACE(place), keys[i], turn + 1);
    }
    return 0;
}

static int role_error(pl_error *err, pl_place place, size_t turn, const char *key, const json_t *name)
{
    return PL_FAIL(err, PL_EINPUT,
        "%s:%lld: %s of message %zu is %s%s%s; system, user, assistant or tool was expected (or human, gpt, "
        "observation, "
        "function_call)",
        PLACE(place), key, turn + 1, json_is_string(name) ? "\"" : pl_json_type_name(name),
        json_is_string(name) ? json_string_value(name) : "", json_is_string(name) ? "\"" : "");
}

/* One turn of any shape: {role, content, ...} or {from, value}. */
static int add_any_turn(pl_error *err, pl_place place, size_t turn, json_t *messages, const json_t *source)
{
    bool openai = json_object_get(source, "role") != NULL;
    const char *key = openai ? "role" : "from";
    const json_t *name = json_object_get(source, key);
    if (!json_is_object(source)) {
        return PL_FAIL(err, PL_EINPUT, "%s:%lld: message %zu is %s; an object was expected", PLACE(place), turn + 1,
            pl_json_type_name(source));
    }
    if (!name) {
        return PL_FAIL(err, PL_EINPUT, "%s:%lld: message %zu has neither role and content nor from and value",
            PLACE(place), turn + 1);
    }
    const char *text = json_string_value(name);
    if (openai) {
        /* A template may know roles that we do not (developer, ipython...), so they are its to refuse. */
        if (!text || !*text) return role_error(err, place, turn, key, name);
        PL_TRY(check_weight(err, place, turn, source, text));
        json_t *message = NULL;
        PL_TRY(pl_json_copy(err, source, &message));
        const char *role = role_of(text);
        int rc = role ? set(err, message, "role", json_string(role)) : 0;
        if (rc == 0) rc = mend_content(err, place, turn, message);
        if (rc < 0) {
            json_decref(message);
            return rc;
        }
        return append(err, messages, message);
    }
    const json_t *value = json_object_get(source, "value");
    if (text && is_call(text)) return add_call(err, place, turn, messages, value);
    const char *role = text ? role_of(text) : NULL;
    if (!role) return role_error(err, place, turn, key, name);
    PL_TRY(check_weight(err, place, turn, source, role));
    if (!json_is_string(value)) {
        return PL_FAIL(err, PL_EINPUT, "%s:%lld: the value of message %zu is %s; a string was expected", PLACE(place),
            turn + 1, pl_json_type_name(value));
    }
    return add_turn(err, messages, role, value);
}

/* ---- tools ---- */

/* A list, or text that is one in JSON. Bare functions become {type: function, function: ...}. */
static int read_tools(pl_error *err, pl_place place, const json_t *source, json_t **out)
{
    *out = NULL;
    json_t *tools = NULL;
    if (json_is_string(source)) {
        if (json_string_length(source) == 0) return 0;
        PL_TRY(parse_inner(err, source, &tools));
    } else if (source) {
        PL_TRY(pl_json_copy(err, source, &tools));
    } else {
        return 0;
    }
    if (!json_is_array(tools)) {
        json_decref(tools);
        return PL_FAIL(err, PL_EINPUT, "%s:%lld: tools is not a list of functions, nor JSON text of one", PLACE(place));
    }
    for (size_t i = 0; i < json_array_size(tools); i++) {
        json_t *tool = json_array_get(tools, i);
        if (!json_is_object(tool) || json_object_get(tool, "function") || !json_object_get(tool, "name")) continue;
        json_t *wrapped = json_pack("{s:s, s:O}", "type", "function", "function", tool);
        if (!wrapped || json_array_set_new(tools, i, wrapped) != 0) {
            json_decref(tools);
            return PL_FAIL_NOMEM(err);
        }
    }
    if (json_array_size(tools) == 0) {
        json_decref(tools);
        return 0;
    }
    *out = tools;
    return 0;
}

/* ---- the formats ---- */

static int read_turns(pl_error *err, pl_place place, const json_t *turns, const char *name, pl_example *out)
{
    if (!json_is_array(turns)) {
        return PL_FAIL(
            err, PL_EINPUT, "%s:%lld: %s is %s; a list was expected", PLACE(place), name, pl_json_type_name(turns));
    }
    if (json_array_size(turns) == 0) return PL_FAIL(err, PL_EINPUT, "%s:%lld: %s is empty", PLACE(place), name);
    for (size_t i = 0; i < json_array_size(turns); i++) {
        PL_TRY(add_any_turn(err, place, i, out->messages, json_array_get(turns, i)));
    }
    return 0;
}

/* history: [[question, answer]...] of earlier turns. */
static int add_history(pl_error *err, pl_place place, const json_t *history, json_t *messages)
{
    if (!history) return 0;
    for (size_t i = 0; i < json_array_size(history) || !json_is_array(history); i++) {
        const json_t *pair = json_array_get(history, i);
        if (json_array_size(pair) != 2 || !json_is_string(json_array_get(pair, 0)) ||
            !json_is_string(json_array_get(pair, 1))) {
            return PL_FAIL(err, PL_EINPUT, "%s:%lld: history is not a list of [question, answer]", PLACE(place));
        }
        PL_TRY(add_turn(err, messages, "user", json_array_get(pair, 0)));
        PL_TRY(add_turn(err, messages, "assistant", json_array_get(pair, 1)));
    }
    return 0;
}

static int add_system(pl_error *err, pl_place place, const json_t *example, pl_data_format format,
    const pl_data_names *names, json_t *messages)
{
    const json_t *system;
    PL_TRY(pl_data_string_field(err, place, example, format, names, "system", &system));
    return system && json_string_length(system) ? add_turn(err, messages, "system", system) : 0;
}

/* A question, with alpaca's input under it, and an answer. */
static int read_pair(pl_error *err, pl_place place, const json_t *example, pl_data_format format,
    const pl_data_names *names, pl_example *out)
{
    bool alpaca = format == PL_DATA_ALPACA, completion = format == PL_DATA_COMPLETION;
    const json_t *question, *input = NULL, *answer, *history;
    PL_TRY(pl_data_string_field(err, place, example, format, names,
        alpaca       ? "instruction"
        : completion ? "prompt"
                     : "question",
        &question));
    PL_TRY(pl_data_string_field(err, place, example, format, names, "input", &input));
    PL_TRY(pl_data_string_field(err, place, example, format, names,
        alpaca       ? "output"
        : completion ? "completion"
                     : "answer",
        &answer));
    PL_TRY(add_system(err, place, example, format, names, out->messages));
    PL_TRY(pl_data_field(err, place, example, format, names, "history", &history));
    PL_TRY(add_history(err, place, history, out->messages));
    if (input && json_string_length(input)) {
        pl_buf joined = {0};
        int rc = pl_buf_append(err, &joined, json_string_value(question), json_string_length(question));
        if (rc == 0 && joined.size) rc = pl_buf_putc(err, &joined, '\n');
        if (rc == 0) rc = pl_buf_append(err, &joined, json_string_value(input), json_string_length(input));
        json_t *both = rc == 0 ? json_stringn(joined.data, joined.size) : NULL;
        if (rc == 0) rc = both ? add_turn(err, out->messages, "user", both) : PL_FAIL_NOMEM(err);
        json_decref(both);
        pl_buf_free(&joined);
        PL_TRY(rc);
    } else {
        PL_TRY(add_turn(err, out->messages, "user", question));
    }
    return add_turn(err, out->messages, "assistant", answer);
}

int pl_example_read_chat(pl_error *err, pl_place place, const json_t *example, pl_data_format format,
    const pl_data_rules *rules, pl_example *out)
{
    const json_t *turns, *tools;
    out->kind = PL_EXAMPLE_CHAT;
    out->messages = json_array();
    if (!out->messages) return PL_FAIL_NOMEM(err);
    if (format != PL_DATA_MESSAGES && format != PL_DATA_SHAREGPT) {
        return read_pair(err, place, example, format, rules->names, out);
    }
    const char *name = format == PL_DATA_MESSAGES ? "messages" : "conversations";
    PL_TRY(pl_data_field(err, place, example, format, rules->names, name, &turns));
    PL_TRY(add_system(err, place, example, format, rules->names, out->messages));
    PL_TRY(read_turns(err, place, turns, name, out));
    PL_TRY(pl_data_field(err, place, example, format, rules->names, "tools", &tools));
    return read_tools(err, place, tools, &out->tools);
}
