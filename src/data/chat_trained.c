/* Which bytes of a rendered conversation the assistant writes. What the template writes while it goes through a message
   is that message's (template_origin.c tells); of an assistant's, what the generation prompt gives already is not
   trained. Where a turn begins and ends is found by rendering: with the prompt in its place, and up to the turn. */
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "data/chat_internal.h"

/* A text that was rendered, and where it comes from; `known` false when the template refuses those messages. */
typedef struct rendering {
    pl_buf text;
    pl_pieces pieces;
    bool known;
} rendering;

typedef struct search {
    pl_error *err;
    const pl_chat *chat;
    const json_t *messages, *tools;
    rendering full; /* the whole conversation */
    size_t turn;    /* the message that is looked at */
    pl_spans parts; /* what the template writes for it; there may be something else in between, like tools' answers */
} search;

static bool is_blank(char c)
{
    return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

static bool all_blank(const char *text, size_t size)
{
    while (size && is_blank(text[size - 1])) size--;
    return size == 0;
}

static size_t common_prefix(const char *a, size_t a_size, const char *b, size_t b_size)
{
    size_t n = 0;
    while (n < a_size && n < b_size && a[n] == b[n]) n++;
    return n;
}

/* Where the token begins, if `at` lies inside one like <|name|> or [NAME]. */
static size_t token_begin(const char *text, size_t at)
{
    for (size_t i = at; i > 0; i--) {
        char c = text[i - 1];
        if (c == '<' || c == '[') return i - 1;
        if (c == '>' || c == ']' || is_blank(c)) break;
    }
    return at;
}

static int unclear(const search *s, const char *why)
{
    return PL_FAIL(s->err, PL_EUNSUPPORTED,
        "%s: which part of the text is the assistant's message %zu cannot be told: %s. A template that encloses the "
        "assistant's turns in {%% generation %%} and {%% endgeneration %%} says it",
        s->chat->where, s->turn, why);
}

static bool is_assistant(const json_t *messages, size_t i)
{
    const char *role = json_string_value(json_object_get(json_array_get(messages, i), "role"));
    return role && (strcmp(role, "assistant") == 0 || strcmp(role, "model") == 0);
}

/* ---- rendering ---- */

static void free_rendering(rendering *r)
{
    pl_buf_free(&r->text);
    pl_pieces_free(&r->pieces);
    r->known = false;
}

/* Renders; that the template refuses is no error here, but running out of memory is. */
static int try_render(search *s, const json_t *messages, bool add_generation_prompt, rendering *out)
{
    pl_error refused = {0};
    int rc =
        pl_chat_render_pieces(&refused, s->chat, messages, s->tools, add_generation_prompt, &out->text, &out->pieces);
    out->known = rc == 0;
    if (rc == PL_ENOMEM) *s->err = refused;
    return rc == PL_ENOMEM ? rc : 0;
}

/* The first `count` messages of the conversation. */
static int try_first(search *s, size_t count, bool add_generation_prompt, rendering *out)
{
    json_t *some = json_array();
    int rc = some ? 0 : PL_FAIL_NOMEM(s->err);
    for (size_t i = 0; i < count && rc == 0; i++)
        if (json_array_append(some, json_array_get(s->messages, i)) < 0) rc = PL_FAIL_NOMEM(s->err);
    if (rc == 0) rc = try_render(s, some, add_generation_prompt, out);
    json_decref(some);
    return rc;
}

static int try_question(search *s, bool add_generation_prompt, rendering *out)
{
    json_t *question = json_pack("[{s:s, s:s}]", "role", "user", "content", "Q");
    int rc = question ? try_render(s, question, add_generation_prompt, out) : PL_FAIL_NOMEM(s->err);
    json_decref(question);
    return rc;
}

/* ---- what is written for a message ---- */

static bool is_part(const pl_piece *p, int64_t message, bool quoted)
{
    return quoted ? p->writes < 0 && p->quotes == message : p->writes == message;
}

/* The parts of a text that are a message's, with what lies between two of them if it is nobody else's. A template that
   does not go through the messages one by one has only their words. */
static int find_parts(search *s, const rendering *in, size_t message, pl_spans *out)
{
    out->count = 0;
    for (int quoted = 0; quoted < 2 && out->count == 0; quoted++) {
        bool apart = true; /* from the last part */
        for (size_t i = 0; i < in->pieces.count; i++) {
            const pl_piece *p = &in->pieces.items[i];
            if (is_part(p, (int64_t)message, quoted)) {
                size_t begin = apart ? p->begin : out->items[out->count - 1].end;
                PL_TRY(pl_spans_add(s->err, out, begin, p->end));
                apart = false;
            } else if (p->writes >= 0 || p->quotes >= 0) {
                apart = true;
            }
        }
    }
    return 0;
}

static const pl_piece *piece_at(const rendering *in, size_t at)
{
    for (size_t i = 0; i < in->pieces.count; i++)
        if (at < in->pieces.items[i].end) return &in->pieces.items[i];
    return NULL;
}

/* Is there anything that belongs to a message (with `assistant`, to one of the assistant's) in a part of a text? */
static bool has_message(const search *s, const rendering *in, size_t begin, size_t end, bool assistant)
{
    for (size_t i = 0; i < in->pieces.count; i++) {
        const pl_piece *p = &in->pieces.items[i];
        int64_t message = p->writes >= 0 ? p->writes : p->quotes;
        if (p->begin < end && p->end > begin && message >= 0 &&
            (!assistant || is_assistant(s->messages, (size_t)message)))
            return true;
    }
    return false;
}

/* ---- where a turn begins ---- */

/* How much of a generation prompt the turn that begins at `first` has: all, or the tokens before they part, as where
   the prompt opens a thought and the turn has none. Words of the message are no part of that: they are alike by chance.
 */
static size_t prompt_size(const search *s, const char *prompt, size_t size, size_t first)
{
    const char *turn = s->full.text.data + first;
    size_t same = common_prefix(prompt, size, turn, s->full.text.size - first);
    if (same == size) return size;
    same = token_begin(turn, same);
    const pl_piece *p = same ? piece_at(&s->full, first + same - 1) : NULL;
    if (p && !p->literal) same = p->begin > first ? p->begin - first : 0;
    return same;
}

/* The same for a turn in which the template says something else first, like a system's words before the first message:
   up to the end of the prompt, which is whole in there, before the message's own words. 0: it is not. */
static size_t prompt_inside(const search *s, const char *prompt, size_t size, size_t first)
{
    const char *turn = s->full.text.data + first;
    size_t literal = first, end = 0;
    for (const pl_piece *p; (p = piece_at(&s->full, literal)) && p->literal;) literal = p->end;
    for (size_t n = size; n <= literal - first; n++)
        if (memcmp(turn + n - size, prompt, size) == 0) end = n;
    return end;
}

/* Is the prompt, or its first tokens, right before the turn? */
static bool prompt_before(const search *s, const char *prompt, size_t size, size_t first)
{
    for (size_t n = size; n > 0; n--)
        if (n <= first && memcmp(s->full.text.data + first - n, prompt, n) == 0 &&
            (n == size || token_begin(prompt, n) == n))
            return true;
    return false;
}

typedef struct prompt {
    size_t size; /* what the turn has of it, and before it */
    bool any;    /* there is a prompt */
    bool before; /* it stands before the turn */
} prompt;

/* The generation prompt at the end of `with`: what `without` does not have, or what is written behind all messages,
   asked for or not; the one of them that the turn begins with. */
static void find_prompt(const search *s, const rendering *without, const rendering *with, size_t first, prompt *out)
{
    const pl_buf *a = &without->text, *b = &with->text;
    size_t begins[2] = {b->size, 0};
    if (!with->known) return;
    if (without->known) {
        size_t same = common_prefix(pl_buf_text(a), a->size, pl_buf_text(b), b->size);
        begins[0] = same == a->size ? same : token_begin(b->data, same);
    }
    for (size_t i = 0; i < with->pieces.count; i++)
        if (with->pieces.items[i].writes >= 0 || with->pieces.items[i].quotes >= 0)
            begins[1] = with->pieces.items[i].end;
    for (int i = 0; i < 2; i++) {
        const char *text = pl_buf_text(b) + begins[i];
        size_t size = b->size - begins[i], blank = 0;
        if (all_blank(text, size)) continue;
        size_t has = prompt_size(s, text, size, first);
        for (; has == 0 && is_blank(text[blank]); blank++)
            has = prompt_size(s, text + blank + 1, size - blank - 1, first);
        if (has == 0) has = prompt_inside(s, text, size, first);
        if (has > out->size) out->size = has;
        out->any = true;
        out->before = out->before || prompt_before(s, text, size, first);
    }
}

/* The same where what comes before the turn is written otherwise when it is last, or the prompt adds nothing there;
   `outside`: the prompt's text is all before the turn. */
static int find_begin_apart(search *s, const rendering *with, size_t first, bool outside, size_t *begin)
{
    rendering without = {0}, question[2] = {0};
    prompt found = {0};
    int rc = try_first(s, s->turn, false, &without);
    if (rc == 0) find_prompt(s, &without, with, first, &found);
    bool here = found.any;
    if (rc == 0 && !found.any) {
        rc = try_question(s, false, &question[0]);
        if (rc == 0) rc = try_question(s, true, &question[1]);
        if (rc == 0) find_prompt(s, &question[0], &question[1], first, &found);
    }
    *begin = first + (here && outside ? 0 : found.size);
    /* A turn that begins with the message's own words has no header; one with words of the template has another one. */
    bool foreign = found.any && found.size == 0 && !found.before && piece_at(&s->full, first)->literal;
    if (rc == 0 && foreign && (here || !with->known))
        rc = unclear(s, "the template does not begin it with the generation prompt");
    if (rc == 0 && !found.any && !with->known && !question[1].known)
        rc = unclear(s, "the template refuses what comes before it");
    free_rendering(&without);
    free_rendering(&question[0]);
    free_rendering(&question[1]);
    return rc;
}

static int find_begin(search *s, size_t *begin)
{
    const pl_buf *full = &s->full.text;
    size_t first = s->parts.items[0].begin;
    rendering with = {0};
    PL_TRY(try_first(s, s->turn, true, &with));
    size_t at = with.text.size;
    bool whole = with.known && at <= full->size && memcmp(pl_buf_text(&with.text), full->data, at) == 0;
    int rc = 0;
    *begin = at;
    if (!whole || at == first || (at < first && has_message(s, &s->full, at, first, false)))
        rc = find_begin_apart(s, &with, first, whole && at == first, begin);
    free_rendering(&with);
    return rc;
}

/* ---- where a turn ends ---- */

/* The last byte of the turn that is not white space; its piece tells whether the template ends turns by words of its
   own, or leaves that to what follows. */
static bool ends_itself(const search *s, size_t begin, size_t end, size_t *last)
{
    size_t n = end;
    while (n > begin && is_blank(s->full.text.data[n - 1])) n--;
    *last = n;
    const pl_piece *p = n > begin ? piece_at(&s->full, n - 1) : NULL;
    return p && p->literal;
}

/* Does the text go on with `more` bytes as it does behind `end`, when the conversation goes on by a question or by a
   generation prompt? *other is how much it has there. */
static int goes_on(search *s, bool question, size_t end, size_t more, bool *alike, size_t *other)
{
    rendering next = {0};
    const pl_buf *full = &s->full.text;
    json_t *messages = NULL, *user = json_pack("{s:s, s:s}", "role", "user", "content", "Q");
    int rc = pl_json_copy(s->err, s->messages, &messages);
    if (rc == 0 && (!user || (question && json_array_append(messages, user) < 0))) rc = PL_FAIL_NOMEM(s->err);
    if (rc == 0) rc = try_render(s, messages, !question, &next);
    size_t size = next.text.size;
    bool same = next.known && size >= end && memcmp(next.text.data, full->data, end) == 0;
    *alike = same && size - end >= more && memcmp(next.text.data + end, full->data + end, more) == 0;
    *other = same ? size - end : 0;
    free_rendering(&next);
    json_decref(user);
    json_decref(messages);
    return rc;
}

/* Behind the last turn: what is there too when a question follows belongs to it. So does what closes the conversation,
   where turns have no end of their own, unless it is there before a generation prompt. */
static int find_last_end(search *s, size_t begin, size_t *end)
{
    const pl_buf *full = &s->full.text;
    size_t last, other, more = full->size - *end;
    bool alike;
    while (more && is_blank(full->data[*end + more - 1])) more--;
    if (more == 0 || has_message(s, &s->full, *end, full->size, false)) return 0;
    PL_TRY(goes_on(s, true, *end, more, &alike, &other));
    if (alike) *end += more;
    if (alike || ends_itself(s, begin, *end, &last)) return 0;
    PL_TRY(goes_on(s, false, *end, more, &alike, &other));
    if (alike && other != full->size - *end)
        return unclear(s, "what follows it may be its end or the beginning of the next turn");
    if (!alike && other) *end += more;
    return 0;
}

/* A turn before the last: what the template writes behind it when it is the last one belongs to it, if the text goes on
   so. A call of tools may end by a token that begins their answer, and a turn by one that begins the next. */
static int find_end(search *s, size_t *end)
{
    rendering upto = {0};
    pl_spans parts = {0};
    const pl_span own = s->parts.items[0];
    const pl_buf *full = &s->full.text, *alone = &upto.text;
    size_t size = own.end - own.begin;
    int rc = try_first(s, s->turn + 1, false, &upto);
    if (rc == 0 && upto.known) rc = find_parts(s, &upto, s->turn, &parts);
    if (rc == 0 && parts.count && s->parts.count == 1) {
        size_t begin = parts.items[0].begin, behind = begin + size, more = alone->size;
        while (more > behind && is_blank(alone->data[more - 1])) more--;
        if (more > behind && memcmp(alone->data + begin, full->data + own.begin, size) == 0) {
            more -= behind;
            if (more <= full->size - own.end && memcmp(alone->data + behind, full->data + own.end, more) == 0 &&
                !has_message(s, &s->full, own.end, own.end + more, true))
                *end = own.end + more;
        }
    }
    pl_spans_free(&parts);
    free_rendering(&upto);
    return rc;
}

/* ---- turns ---- */

/* Does the message have anything that a template should write? */
static bool says_something(const json_t *message)
{
    const json_t *content = json_object_get(message, "content");
    return json_string_length(content) || json_array_size(content) ||
           json_array_size(json_object_get(message, "tool_calls"));
}

/* One turn of the assistant. */
static int find_turn(search *s, pl_spans *spans)
{
    size_t begin, last;
    PL_TRY(find_parts(s, &s->full, s->turn, &s->parts));
    if (s->parts.count == 0)
        return says_something(json_array_get(s->messages, s->turn))
                   ? PL_FAIL(s->err, PL_EUNSUPPORTED,
                         "%s: nothing of the assistant's message %zu is in the text that the template makes, so it "
                         "cannot be trained",
                         s->chat->where, s->turn)
                   : 0;
    PL_TRY(find_begin(s, &begin));
    size_t *end = &s->parts.items[s->parts.count - 1].end;
    bool is_last = s->turn + 1 == json_array_size(s->messages);
    PL_TRY(is_last ? find_last_end(s, begin, end) : find_end(s, end));
    if (begin < s->parts.items[0].begin) s->parts.items[0].begin = begin;
    if (ends_itself(s, begin, *end, &last)) *end = last;
    for (size_t i = 0; i < s->parts.count; i++) {
        pl_span part = s->parts.items[i];
        if (spans->count && part.begin < spans->items[spans->count - 1].end)
            return unclear(s, "the template does not write the messages in their order");
        PL_TRY(pl_spans_add(s->err, spans, part.begin > begin ? part.begin : begin, part.end));
    }
    return 0;
}

static int find_turns(search *s, pl_spans *spans)
{
    for (s->turn = 0; s->turn < json_array_size(s->messages); s->turn++)
        if (is_assistant(s->messages, s->turn)) PL_TRY(find_turn(s, spans));
    return 0;
}

/* What {% generation %} encloses. */
static int find_generated(search *s, pl_spans *spans)
{
    for (size_t i = 0; i < s->full.pieces.count; i++) {
        const pl_piece *p = &s->full.pieces.items[i];
        if (p->generated) PL_TRY(pl_spans_add(s->err, spans, p->begin, p->end));
    }
    return 0;
}

int pl_chat_render_trained(
    pl_error *err, const pl_chat *chat, const json_t *messages, const json_t *tools, pl_buf *out, pl_spans *trained)
{
    pl_spans spans = {0};
    size_t count = trained->count;
    search s = {.err = err, .chat = chat, .messages = messages, .tools = tools};
    bool marked = pl_template_has_generation(pl_chat_template(chat, tools));
    int rc;
    PL_GO(out, pl_chat_render_pieces(err, chat, messages, tools, false, &s.full.text, &s.full.pieces));
    PL_GO(out, marked ? find_generated(&s, &spans) : find_turns(&s, &spans));
    PL_GO(out, pl_grow(err, &trained->items, &trained->capacity, count + spans.count, sizeof *spans.items));
    PL_GO(out, pl_buf_append(err, out, s.full.text.data, s.full.text.size));
    if (spans.count) memcpy(trained->items + count, spans.items, spans.count * sizeof *spans.items);
    trained->count = count + spans.count;
out:
    free_rendering(&s.full);
    pl_spans_free(&s.parts);
    pl_spans_free(&spans);
    return rc;
}
