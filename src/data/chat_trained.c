/* Which bytes of a rendered conversation the assistant wrote, for templates that do not mark them. */
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "data/chat_internal.h"

/* A text that was rendered; `known` false when the template refuses those messages. */
typedef struct text {
    pl_buf buf;
    bool known;
} text;

typedef struct search {
    pl_error *err;
    const pl_chat *chat;
    const json_t *messages, *tools;
    const pl_buf *full; /* the whole conversation */
    size_t turn;        /* the message that is looked at */
    bool by_call;       /* its place is that of its first call's name, not that of its content */
    text before;        /* what comes before that turn, without a generation prompt */
    text prompt;        /* with one */
    text after;         /* what comes before it, and the turn */
} search;

static bool is_blank(char c)
{
    return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

static bool all_blank(const pl_buf *b, size_t begin, size_t end)
{
    while (begin < end && is_blank(b->data[begin])) begin++;
    return begin >= end;
}

static bool is_prefix(const pl_buf *of, const pl_buf *part)
{
    return part->size <= of->size && (part->size == 0 || memcmp(of->data, part->data, part->size) == 0);
}

static size_t common_prefix(const pl_buf *a, const pl_buf *b)
{
    size_t n = 0;
    while (n < a->size && n < b->size && a->data[n] == b->data[n]) n++;
    return n;
}

static size_t common_suffix(const pl_buf *a, const pl_buf *b, size_t at_most)
{
    size_t n = 0;
    while (n < a->size && n < b->size && n < at_most && a->data[a->size - 1 - n] == b->data[b->size - 1 - n]) n++;
    return n;
}

/* Where the token begins, if `at` lies inside one like <|name|> or [NAME]. */
static size_t token_begin(const pl_buf *b, size_t at)
{
    for (size_t i = at; i > 0; i--) {
        char c = b->data[i - 1];
        if (c == '<' || c == '[') return i - 1;
        if (c == '>' || c == ']' || is_blank(c)) break;
    }
    return at;
}

/* Where the generation prompt begins in s->prompt: where the text without one goes on otherwise, or ends. */
static size_t header_begin(const search *s)
{
    size_t same = common_prefix(&s->before.buf, &s->prompt.buf);
    return same == s->before.buf.size ? same : token_begin(&s->prompt.buf, same);
}

/* Renders; that the template refuses is no error here, but running out of memory is. */
static int try_render(search *s, const json_t *messages, bool add_generation_prompt, text *out)
{
    pl_error refused = {0};
    pl_buf_free(&out->buf);
    int rc = pl_chat_render(&refused, s->chat, messages, s->tools, add_generation_prompt, &out->buf);
    out->known = rc == 0;
    if (rc == PL_ENOMEM) *s->err = refused;
    return rc == PL_ENOMEM ? rc : 0;
}

/* The first `count` messages of the conversation. */
static int first_messages(search *s, size_t count, json_t **out)
{
    *out = json_array();
    for (size_t i = 0; i < count && *out; i++) {
        if (json_array_append(*out, json_array_get(s->messages, i)) == 0) continue;
        json_decref(*out);
        *out = NULL;
    }
    return *out ? 0 : PL_FAIL_NOMEM(s->err);
}

static int try_first(search *s, size_t count, bool add_generation_prompt, text *out)
{
    json_t *some;
    PL_TRY(first_messages(s, count, &some));
    int rc = try_render(s, some, add_generation_prompt, out);
    json_decref(some);
    return rc;
}

/* A copy of an object with one field replaced; takes over the reference to `value`, which may be NULL for lack of
 * memory. */
static int with_field(search *s, const json_t *object, const char *name, json_t *value, json_t **out)
{
    *out = NULL;
    if (!value) return PL_FAIL_NOMEM(s->err);
    int rc = pl_json_copy(s->err, object, out);
    if (rc == 0 && json_object_set(*out, name, value) < 0) rc = PL_FAIL_NOMEM(s->err);
    json_decref(value);
    if (rc == 0) return 0;
    json_decref(*out);
    *out = NULL;
    return rc;
}

/* The turn's message with another name of its first call. *out is NULL when it calls nothing. */
static int change_call(search *s, const char *name, json_t **out)
{
    const json_t *message = json_array_get(s->messages, s->turn), *calls = json_object_get(message, "tool_calls");
    const json_t *call = json_array_get(calls, 0), *function = json_object_get(call, "function");
    json_t *changed, *list;
    *out = NULL;
    if (!json_is_string(json_object_get(function ? function : call, "name"))) return 0;
    PL_TRY(with_field(s, function ? function : call, "name", json_string(name), &changed));
    if (function) PL_TRY(with_field(s, call, "function", changed, &changed));
    int rc = pl_json_copy(s->err, calls, &list);
    if (rc == 0 && json_array_set(list, 0, changed) < 0) {
        json_decref(list);
        rc = PL_FAIL_NOMEM(s->err);
    }
    json_decref(changed);
    return rc < 0 ? rc : with_field(s, message, "tool_calls", list, out);
}

/* The turn's message with other content. *out is NULL when its content is nothing that can be changed. */
static int change_content(search *s, const char *content, json_t **out)
{
    if (s->by_call) return change_call(s, content, out);
    const json_t *message = json_array_get(s->messages, s->turn), *old = json_object_get(message, "content");
    *out = NULL;
    if (!old || json_is_null(old) || json_is_string(old))
        return with_field(s, message, "content", json_string(content), out);
    json_t *part = json_array_get(old, 0);
    if (json_array_size(old) != 1 || !json_is_string(json_object_get(part, "text"))) return 0;
    PL_TRY(with_field(s, part, "text", json_string(content), &part));
    json_t *list = json_pack("[O]", part);
    json_decref(part);
    return with_field(s, message, "content", list, out);
}

typedef struct region {
    size_t begin, end;
    bool known;
    bool twice; /* the content is written more than once */
} region;

/* One comparison: `rendered` (of `messages`) against the same with the turn's content changed. */
static int compare_content(search *s, const json_t *messages, bool add_generation_prompt, const pl_buf *rendered,
    const char *content, region *out)
{
    json_t *others = NULL, *message = NULL;
    text changed = {0};
    int rc;
    *out = (region){0};
    PL_GO(out, change_content(s, content, &message));
    if (!message) goto out;
    PL_GO(out, pl_json_copy(s->err, messages, &others));
    if (json_array_set(others, s->turn, message) < 0) PL_GO(out, PL_FAIL_NOMEM(s->err));
    PL_GO(out, try_render(s, others, add_generation_prompt, &changed));
    size_t same = common_prefix(rendered, &changed.buf);
    out->known = changed.known && !(same == rendered->size && same == changed.buf.size);
    size_t shorter = rendered->size < changed.buf.size ? rendered->size : changed.buf.size;
    out->begin = same;
    size_t behind = common_suffix(rendered, &changed.buf, shorter - same), size = strlen(content);
    out->end = rendered->size - behind;
    const char *at =
        out->known ? memmem(changed.buf.data + same, changed.buf.size - behind - same, content, size) : NULL;
    out->twice =
        at && memmem(at + size, (size_t)(changed.buf.data + changed.buf.size - behind - (at + size)), content, size);
out:
    pl_buf_free(&changed.buf);
    json_decref(others);
    json_decref(message);
    return rc;
}

/* Where the turn's content is in `rendered`. Two different contents are tried: the text may begin or end like one. */
static int find_content(
    search *s, const json_t *messages, bool add_generation_prompt, const pl_buf *rendered, region *out)
{
    region second;
    PL_TRY(compare_content(s, messages, add_generation_prompt, rendered, "7zq7", out));
    PL_TRY(compare_content(s, messages, add_generation_prompt, rendered, "Qxj", &second));
    out->known = out->known && second.known;
    out->twice = out->twice || second.twice;
    if (second.begin < out->begin) out->begin = second.begin;
    if (second.end > out->end) out->end = second.end;
    /* A thought in the content may be written otherwise: <think> against </think> part inside a token. */
    out->begin = token_begin(rendered, out->begin);
    return 0;
}

static int unclear(const search *s, const char *why)
{
    return PL_FAIL(s->err, PL_EUNSUPPORTED,
        "%s: which part of the text is the assistant's message %zu cannot be told: %s. A template that encloses the "
        "assistant's "
        "turns in {%% generation %%} and {%% endgeneration %%} says it",
        s->chat->where, s->turn, why);
}

/* ---- where a turn ends ---- */

/* A text that goes on behind the turn, and where the turn's content is in it. */
typedef struct longer {
    const pl_buf *buf;
    const region *content;
} longer;

/* Does `in` go on with the turn as alone[0..size) ends with it? That text is a rendering of the messages up to the
   turn. If so *end is where the turn ends in `in`. */
static int ends_alike(search *s, const json_t *upto, bool add_generation_prompt, const pl_buf *alone, size_t size,
    const longer *in, size_t *end, bool *alike)
{
    const pl_buf part = {.data = alone->data, .size = size};
    region content;
    *end = size;
    *alike = is_prefix(in->buf, &part);
    if (*alike || !in->content->known) return 0;
    PL_TRY(find_content(s, upto, add_generation_prompt, alone, &content));
    if (!content.known || content.end > size) return 0;
    size_t tail = size - content.end;
    *end = in->content->end + tail;
    *alike = *end <= in->buf->size &&
             (tail == 0 || memcmp(in->buf->data + in->content->end, alone->data + content.end, tail) == 0);
    return 0;
}

/* The end of the turn in `in`: as the template ends it when it is the last one, or, where it then closes the whole
   conversation too, as it ends it before a generation prompt. *found false when neither is what `in` has. *closed: it
   was the second. */
static int find_end_in(search *s, const json_t *upto, const longer *in, size_t *end, bool *found, bool *closed)
{
    text next = {0};
    *closed = false;
    *found = false;
    if (s->after.known) PL_TRY(ends_alike(s, upto, false, &s->after.buf, s->after.buf.size, in, end, found));
    if (*found || !s->prompt.known || !s->before.known) return 0;
    size_t before = header_begin(s), header = s->prompt.buf.size - before;
    int rc = try_render(s, upto, true, &next);
    size_t rest = next.buf.size >= header ? next.buf.size - header : 0;
    *closed = rc == 0 && header > 0 && next.known && next.buf.size >= header &&
              memcmp(next.buf.data + rest, s->prompt.buf.data + before, header) == 0;
    if (*closed) rc = ends_alike(s, upto, true, &next.buf, rest, in, end, found);
    /* With nothing but the content left it may as well have lost its end-of-turn token. */
    if (*found && in->content->known) *found = !all_blank(in->buf, in->content->end, *end);
    pl_buf_free(&next.buf);
    return rc;
}

/* Where the last turn ends. The end of the text, unless a further message shows that the template closes the whole
   conversation behind it. */
static int find_last_end(search *s, const region *content, size_t *end)
{
    json_t *messages = NULL, *further = json_pack("{s:s, s:s}", "role", "user", "content", "Q");
    text more = {0};
    region inside;
    size_t ignored;
    bool found, closed;
    int rc = pl_json_copy(s->err, s->messages, &messages);
    if (rc == 0 && (!further || json_array_append(messages, further) < 0)) rc = PL_FAIL_NOMEM(s->err);
    *end = s->full->size;
    if (rc == 0) rc = try_render(s, messages, false, &more);
    if (rc < 0 || !more.known || json_object_get(json_array_get(s->messages, s->turn), "tool_calls")) goto out;
    PL_GO(out, find_content(s, messages, false, &more.buf, &inside));
    PL_GO(out, find_end_in(s, s->messages, &(longer){&more.buf, &inside}, &ignored, &found, &closed));
    if (!found && inside.known)
        PL_GO(out, unclear(s, "behind it the template writes what it does not write when a message follows"));
    if (!found || !closed) goto out;
    /* Closed by more than the turn's end: leave that out. Closed by something in its place: that is the turn's end. */
    json_t *upto = (json_t *)s->messages;
    s->after.known = false;
    PL_GO(out, find_end_in(s, upto, &(longer){s->full, content}, &ignored, &found, &closed));
    s->after.known = true;
    if (found) *end = ignored;
out:
    pl_buf_free(&more.buf);
    json_decref(further);
    json_decref(messages);
    return rc;
}

/* Where the turn ends, white space behind the end-of-turn token included. */
static int find_end(search *s, const region *content, size_t *end)
{
    bool found, closed;
    json_t *upto;
    if (s->turn + 1 == json_array_size(s->messages)) return find_last_end(s, content, end);
    PL_TRY(first_messages(s, s->turn + 1, &upto));
    int rc = find_end_in(s, upto, &(longer){s->full, content}, end, &found, &closed);
    json_decref(upto);
    return rc < 0 || found ? rc : unclear(s, "the template ends it otherwise when it is the last one");
}

/* ---- where a turn begins ---- */

static bool ends_with(const pl_buf *b, size_t end, const char *what, size_t size)
{
    return size <= end && (size == 0 || memcmp(b->data + end - size, what, size) == 0);
}

/* Where the turn begins in a text that has the same before it: where the prompt ends, or where the two part, as when
   the prompt opens a thought and the turn has none. False when they part before the prompt's header has begun. */
static bool begin_after_prompt(const search *s, const pl_buf *in, const region *content, size_t *begin)
{
    size_t same = common_prefix(&s->prompt.buf, in), header = header_begin(s);
    bool whole = same == s->prompt.buf.size;
    *begin = whole ? same : token_begin(in, same);
    if (content->known && content->begin < *begin) *begin = content->begin;
    if (whole && *begin == same) return true;
    return s->before.known && content->known && same >= header && *begin >= header &&
           (*begin > header || content->begin == header);
}

/* The same by the generation prompt behind the whole conversation, when those before it cannot be rendered. */
static int begin_by_last_prompt(search *s, const region *content, size_t *begin)
{
    text all = {0};
    int rc = try_render(s, s->messages, true, &all);
    if (rc == 0 && (!all.known || !is_prefix(&all.buf, s->full) ||
                       !ends_with(s->full, content->begin, all.buf.data + s->full->size, all.buf.size - s->full->size)))
        rc = unclear(s, "the template refuses what comes before it, and does not begin it with a generation prompt");
    *begin = content->begin;
    pl_buf_free(&all.buf);
    return rc;
}

static int find_begin(search *s, const region *content, size_t *begin)
{
    region alone;
    json_t *upto;
    size_t alone_begin, header;
    if (s->prompt.known && begin_after_prompt(s, s->full, content, begin)) return 0;
    if (!content->known) return unclear(s, "the template writes what comes before it otherwise on its own");
    if (!s->prompt.known || !s->before.known) return begin_by_last_prompt(s, content, begin);
    if (!s->after.known) return unclear(s, "the template refuses the conversation up to it");
    PL_TRY(first_messages(s, s->turn + 1, &upto));
    int rc = find_content(s, upto, false, &s->after.buf, &alone);
    json_decref(upto);
    if (rc < 0) return rc;
    header = header_begin(s);
    if (alone.known && begin_after_prompt(s, &s->after.buf, &alone, &alone_begin) && alone_begin >= header) {
        /* The header and what the assistant writes before the content, or the header and the content right behind it.
         */
        const char *text_header = s->after.buf.data + header;
        *begin = content->begin - (alone.begin - alone_begin);
        if (ends_with(s->full, content->begin, text_header, alone.begin - header)) return 0;
        *begin = content->begin;
        if (ends_with(s->full, content->begin, text_header, alone_begin - header)) return 0;
    }
    /* The content right behind the generation prompt, or behind its first tokens. */
    const pl_buf prompt = {.data = s->prompt.buf.data + header, .size = s->prompt.buf.size - header};
    *begin = content->begin;
    for (size_t n = prompt.size; n > 0; n--)
        if (ends_with(s->full, content->begin, prompt.data, n) && token_begin(&prompt, n) == n) return 0;
    return prompt.size == 0 ? 0 : unclear(s, "the template does not begin it with the generation prompt");
}

/* White space behind an end-of-turn token goes; where nothing but white space ends the turn, that is its end. */
static size_t trim(const search *s, const region *content, size_t begin, size_t end)
{
    size_t floor = content->known && content->end > begin && content->end <= end ? content->end : begin, last = end;
    while (last > floor && is_blank(s->full->data[last - 1])) last--;
    return last > floor ? last : end;
}

/* One turn of the assistant, which must lie behind `after`. */
static int find_turn(search *s, size_t after, pl_span *out)
{
    region content;
    PL_TRY(try_first(s, s->turn, false, &s->before));
    PL_TRY(try_first(s, s->turn, true, &s->prompt));
    PL_TRY(try_first(s, s->turn + 1, false, &s->after));
    PL_TRY(find_content(s, s->messages, false, s->full, &content));
    if (content.twice) return unclear(s, "the template writes its content more than once");
    PL_TRY(find_end(s, &content, &out->end));
    PL_TRY(find_begin(s, &content, &out->begin));
    if (out->begin < after || out->begin > out->end ||
        (content.known && (content.begin < out->begin || content.end > out->end)))
        return unclear(s, "its content is also written elsewhere, or not in the order of the messages");
    out->end = trim(s, &content, out->begin, out->end);
    return 0;
}

/* A turn that calls tools has often no content, and where it has, that may be written apart from the calls: what cannot
   be told by the content may be told by the calls. */
static int find_turn_or_calls(search *s, size_t after, pl_span *out)
{
    int rc = find_turn(s, after, out);
    if (rc != PL_EUNSUPPORTED || !json_object_get(json_array_get(s->messages, s->turn), "tool_calls")) return rc;
    pl_error first = *s->err;
    pl_error_clear(s->err);
    s->by_call = true;
    rc = find_turn(s, after, out);
    s->by_call = false;
    if (rc == PL_EUNSUPPORTED) *s->err = first;
    return rc;
}

static int find_turns(search *s, pl_spans *spans)
{
    size_t after = 0, count = json_array_size(s->messages);
    int rc = 0;
    for (s->turn = 0; s->turn < count && rc == 0; s->turn++) {
        const char *role = json_string_value(json_object_get(json_array_get(s->messages, s->turn), "role"));
        pl_span span;
        if (!role || (strcmp(role, "assistant") != 0 && strcmp(role, "model") != 0)) continue;
        rc = find_turn_or_calls(s, after, &span);
        if (rc == 0) rc = pl_spans_add(s->err, spans, span.begin, span.end);
        if (rc == 0) after = span.end;
    }
    pl_buf_free(&s->before.buf);
    pl_buf_free(&s->prompt.buf);
    pl_buf_free(&s->after.buf);
    return rc;
}

int pl_chat_render_trained(
    pl_error *err, const pl_chat *chat, const json_t *messages, const json_t *tools, pl_buf *out, pl_spans *trained)
{
    bool marked = pl_template_has_generation(pl_chat_template(chat, tools));
    pl_buf full = {0};
    pl_spans spans = {0};
    size_t count = trained->count;
    search s = {.err = err, .chat = chat, .messages = messages, .tools = tools, .full = &full};
    int rc;
    PL_GO(out, pl_chat_render_spans(err, chat, messages, tools, false, &full, marked ? &spans : NULL));
    if (!marked) PL_GO(out, find_turns(&s, &spans));
    PL_GO(out, pl_grow(err, &trained->items, &trained->capacity, count + spans.count, sizeof *spans.items));
    PL_GO(out, pl_buf_append(err, out, full.data, full.size));
    if (spans.count) memcpy(trained->items + count, spans.items, spans.count * sizeof *spans.items);
    trained->count = count + spans.count;
out:
    pl_buf_free(&full);
    pl_spans_free(&spans);
    return rc;
}
