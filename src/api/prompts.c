#include "api/prompts.h"

#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "data/reader.h"

static int add(pl_error *err, pl_prompt_list *list, pl_prompt_text **out)
{
    PL_TRY(pl_grow(err, &list->items, &list->capacity, list->count + 1, sizeof *list->items));
    *out = &list->items[list->count++];
    **out = (pl_prompt_text){0};
    return 0;
}

static int add_text(pl_error *err, pl_prompt_list *list, const char *text, size_t size, pl_prompt_text **out)
{
    PL_TRY(add(err, list, out));
    return pl_buf_append(err, &(*out)->text, text, size);
}

/* ---- from the command line ---- */

static int read_given(pl_error *err, const pl_config *c, pl_prompt_list *list)
{
    const pl_strings *given = &c->generate.prompt;
    for (int i = 0; i < given->count; i++) {
        pl_prompt_text *p;
        PL_TRY(add_text(err, list, given->items[i], strlen(given->items[i]), &p));
        PL_TRY(given->count == 1 ? pl_strdup(err, "the prompt", &p->where)
                                 : pl_format(err, &p->where, "prompt %d", i + 1));
    }
    return 0;
}

/* ---- from a file ---- */

static int read_lines(pl_error *err, const char *path, pl_reader *reader, pl_prompt_list *list)
{
    pl_buf all = {0};
    int rc = 0;
    for (bool more = true; more;) PL_GO(done, pl_reader_text(err, reader, 1 << 16, &all, &more));
    const char *at = pl_buf_text(&all), *end = at + all.size;
    for (int line = 1; at < end; line++) {
        const char *stop = memchr(at, '\n', (size_t)(end - at));
        if (!stop) stop = end;
        if (stop > at) {
            pl_prompt_text *p;
            PL_GO(done, add_text(err, list, at, (size_t)(stop - at), &p));
            PL_GO(done, pl_format(err, &p->where, "%s:%d: the prompt", path, line));
        }
        at = stop + 1;
    }
done:
    pl_buf_free(&all);
    return rc;
}

/* Templates say little of what is wrong with messages, so their shape is looked at here. */
static int check_messages(pl_error *err, const char *where, const char *name, const json_t *messages)
{
    const char *role = NULL;
    for (size_t i = 0; i < json_array_size(messages); i++) {
        const json_t *message = json_array_get(messages, i);
        role = json_string_value(json_object_get(message, "role"));
        if (role) continue;
        return PL_FAIL(err, PL_EINPUT,
            "%s: message %zu of %s has no role; {\"role\": ..., \"content\": ...} was expected", where, i + 1, name);
    }
    if (!role) return PL_FAIL(err, PL_EINPUT, "%s: %s is empty; there is nothing to answer", where, name);
    if (strcmp(role, "assistant") == 0) {
        return PL_FAIL(err, PL_EINPUT,
            "%s: the last message of %s is the assistant's; a user's was expected, which the model then answers", where,
            name);
    }
    return 0;
}

/* `value` is the row's field of that name. */
static int add_messages(pl_error *err, const pl_config *c, const char *where, const char *name, const json_t *row,
    json_t *value, pl_prompt_text *p)
{
    PL_TRY(check_messages(err, where, name, value));
    json_t *tools = json_object_get(row, "tools");
    if (json_is_null(tools)) tools = NULL;
    if (tools && !json_is_array(tools)) {
        return PL_FAIL(err, PL_EINPUT, "%s: tools is %s; an array was expected", where, pl_json_type_name(tools));
    }
    if (c->generate.system) {
        return PL_FAIL(err, PL_EINPUT,
            "%s: %s has its own messages; put the system's among them, and leave --system out", where, name);
    }
    p->chat = p->messages = true;
    p->conversation = json_incref(value);
    p->tools = tools ? json_incref(tools) : NULL;
    return 0;
}

static int add_row(pl_error *err, const pl_config *c, const char *where, const json_t *row, pl_prompt_list *list)
{
    json_t *prompt = json_object_get(row, "prompt"), *messages = json_object_get(row, "messages");
    pl_prompt_text *p;
    if (!json_is_object(row)) {
        return PL_FAIL(
            err, PL_EINPUT, "%s: is %s; an object with prompt or messages was expected", where, pl_json_type_name(row));
    }
    if (!prompt == !messages) {
        return PL_FAIL(err, PL_EINPUT, "%s: has %s; one of them was expected", where,
            prompt ? "both prompt and messages" : "neither prompt nor messages");
    }
    if (json_is_string(prompt)) {
        PL_TRY(add_text(err, list, json_string_value(prompt), json_string_length(prompt), &p));
    } else {
        json_t *value = prompt ? prompt : messages;
        const char *name = prompt ? "prompt" : "messages";
        if (!json_is_array(value)) {
            return PL_FAIL(err, PL_EINPUT, "%s: %s is %s; %s was expected", where, name, pl_json_type_name(value),
                prompt ? "a text, or an array of messages," : "an array of messages");
        }
        PL_TRY(add(err, list, &p));
        PL_TRY(add_messages(err, c, where, name, row, value, p));
    }
    return pl_format(err, &p->where, "%s: the prompt", where);
}

static int read_rows(pl_error *err, const pl_config *c, const char *path, pl_reader *reader, pl_prompt_list *list)
{
    for (;;) {
        pl_record record;
        json_t *row;
        char *where;
        PL_TRY(pl_reader_next(err, reader, &record));
        if (!record.bytes) return 0;
        PL_TRY(pl_json_parse_from(err, path, record.line, record.bytes, record.size, &row));
        int rc = pl_format(err, &where, "%s:%lld", path, (long long)record.line);
        if (rc == 0) {
            rc = add_row(err, c, where, row, list);
            free(where);
        }
        json_decref(row);
        if (rc < 0) return rc;
    }
}

static int read_file(pl_error *err, const pl_config *c, pl_prompt_list *list)
{
    const char *path = c->generate.prompts;
    pl_reader *reader;
    PL_TRY(pl_reader_open(err, path, &reader));
    int rc = pl_reader_is_text(reader) ? read_lines(err, path, reader, list) : read_rows(err, c, path, reader, list);
    pl_reader_close(reader);
    if (rc == 0 && list->count == 0) rc = PL_FAIL(err, PL_EINPUT, "%s: there is no prompt in it", path);
    return rc;
}

/* ---- to tokens ---- */

static int add_turn(pl_error *err, json_t *messages, const char *role, const char *text, size_t size)
{
    json_t *content = json_stringn(text, size); /* none if it is not UTF-8 */
    if (!content) return PL_FAIL(err, PL_EINPUT, "the %s's message is not valid UTF-8", role);
    json_t *message = json_pack("{s:s, s:o}", "role", role, "content", content);
    return json_array_append_new(messages, message) == 0 ? 0 : PL_FAIL_NOMEM(err);
}

/* A text as a user's message. */
static int as_message(pl_error *err, const pl_config *c, pl_prompt_text *p)
{
    const char *system = c->generate.system;
    p->chat = true;
    p->conversation = json_array();
    if (!p->conversation) return PL_FAIL_NOMEM(err);
    if (system) PL_TRY(add_turn(err, p->conversation, "system", system, strlen(system)));
    return add_turn(err, p->conversation, "user", pl_buf_text(&p->text), p->text.size);
}

static int encode_chat(pl_error *err, const pl_config *c, const pl_texts *texts, pl_prompt_text *p)
{
    if (!texts->chat) {
        return PL_FAIL(err, PL_EINPUT, "%s has no chat template; %s, or name one with --data.template", c->model,
            p->messages ? "give the prompt as a text" : "leave --chat out");
    }
    pl_buf text = {0};
    int rc = pl_chat_render(err, texts->chat, p->conversation, p->tools, true, &text);
    /* The template wrote the special tokens itself. */
    if (rc == 0) rc = pl_tokenizer_encode(err, texts->tokenizer, pl_buf_text(&text), text.size, false, &p->tokens);
    pl_buf_free(&text);
    return rc;
}

static int encode(pl_error *err, const pl_config *c, const pl_texts *texts, pl_prompt_text *p)
{
    if (c->generate.chat && !p->messages) PL_TRY(as_message(err, c, p));
    if (p->chat) return encode_chat(err, c, texts, p);
    return pl_tokenizer_encode(err, texts->tokenizer, pl_buf_text(&p->text), p->text.size, true, &p->tokens);
}

static void forget_conversation(pl_prompt_text *p)
{
    json_decref(p->conversation);
    json_decref(p->tools);
    p->conversation = p->tools = NULL;
}

/* With one prompt it is plain which is meant. */
static int encode_one(pl_error *err, const pl_config *c, const pl_texts *texts, bool only, pl_prompt_text *p)
{
    int rc = encode(err, c, texts, p);
    forget_conversation(p);
    if (rc < 0) return only ? rc : pl_error_prefix(err, "%s", p->where);
    if (p->tokens.count == 0) return PL_FAIL(err, PL_EUSAGE, "%s is empty; there is nothing to go on from", p->where);
    return 0;
}

int pl_prompts_open(pl_error *err, const pl_config *c, const pl_texts *texts, pl_prompt_list *list)
{
    *list = (pl_prompt_list){0};
    if (!texts->tokenizer) {
        return PL_FAIL(err, PL_EINPUT,
            "%s has no tokenizer.json, without which there is no text to write; " PL_TOKENIZER_HINT, c->model);
    }
    int rc;
    PL_GO(failed, c->generate.prompts ? read_file(err, c, list) : read_given(err, c, list));
    if (list->count == 0) {
        rc = PL_FAIL(err, PL_EUSAGE, "there is nothing to go on from; give --prompt TEXT or --prompts FILE");
        goto failed;
    }
    bool only = !c->generate.prompts && list->count == 1;
    for (size_t i = 0; i < list->count; i++) PL_GO(failed, encode_one(err, c, texts, only, &list->items[i]));
    return 0;
failed:
    pl_prompts_close(list);
    return rc;
}

void pl_prompts_close(pl_prompt_list *list)
{
    for (size_t i = 0; i < list->count; i++) {
        pl_prompt_text *p = &list->items[i];
        forget_conversation(p);
        pl_tokens_free(&p->tokens);
        pl_buf_free(&p->text);
        free(p->where);
    }
    free(list->items);
    *list = (pl_prompt_list){0};
}
