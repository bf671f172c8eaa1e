/* The models that look words up: WordLevel as they are, WordPiece by the longest pieces from the left. */
#include <string.h>

#include "data/tokenizer_internal.h"

static int emit_unknown(pl_encoder *e, const pl_text *word)
{
    const pl_tokenizer *t = e->tokenizer;
    if (t->unk >= 0) return pl_emit(e, word, 0, word->size, t->unk);
    return PL_FAIL(e->err, PL_EINPUT,
        "the text has a word that the tokenizer does not know, \"%.*s\", and its unknown token "
        "\"%s\" is not in its vocabulary",
        (int)(word->size > 60 ? 60 : word->size), word->bytes, t->unk_name ? t->unk_name : "");
}

int pl_wordlevel_encode(pl_encoder *e, const pl_text *word)
{
    int32_t id = pl_vocab_find_model(&e->tokenizer->vocab, word->bytes, word->size);
    return id >= 0 ? pl_emit(e, word, 0, word->size, id) : emit_unknown(e, word);
}

/* The longest piece that word[from..) begins with; its end goes to *to. -1: there is none. */
static int longest_piece(pl_encoder *e, const pl_text *word, size_t from, size_t *to, int32_t *id)
{
    const pl_tokenizer *t = e->tokenizer;
    size_t prefix = from ? strlen(t->word_prefix) : 0;
    pl_buf_clear(&e->scratch);
    PL_TRY(pl_buf_append(e->err, &e->scratch, t->word_prefix, prefix));
    PL_TRY(pl_buf_append(e->err, &e->scratch, word->bytes + from, word->size - from));
    for (*to = word->size; *to > from;) {
        *id = pl_vocab_find_model(&t->vocab, e->scratch.data, prefix + *to - from);
        if (*id >= 0) return 0;
        --*to;
        while (*to > from && ((unsigned char)word->bytes[*to] & 0xC0) == 0x80) --*to;
    }
    *id = -1;
    return 0;
}

int pl_wordpiece_encode(pl_encoder *e, const pl_text *word)
{
    int64_t characters = 0;
    for (size_t at = 0; at < word->size; at += pl_utf8_length((unsigned char)word->bytes[at])) characters++;
    if (characters > e->tokenizer->word_limit) return emit_unknown(e, word);
    size_t count = e->out->count, to;
    for (size_t from = 0; from < word->size; from = to) {
        int32_t id;
        PL_TRY(longest_piece(e, word, from, &to, &id));
        if (id < 0) { /* a word that is not made of pieces to its end is unknown as a whole */
            e->out->count = count;
            return emit_unknown(e, word);
        }
        PL_TRY(pl_emit(e, word, from, to, id));
    }
    return 0;
}
