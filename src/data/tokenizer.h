/* Text to token ids and back, as a Hugging Face tokenizer.json describes it. Results are those of the `tokenizers`
   library (0.23), spans included.

   Known: models BPE (byte-level or with byte fallback), Unigram, WordLevel and WordPiece; the normalizers,
   pre-tokenizers, post-processors and decoders of that format. What is not known (dropout in encoding, UnicodeScripts,
   CTC...) is PL_EUNSUPPORTED when the file is opened, with the name of the construct.

   Read and left out on purpose, as transformers 5 does where there is a tokenizer.json: `truncation` and `padding`
   (switched off unless a call asks for them), and of tokenizer_config.json `add_bos_token`, `add_eos_token` (the
   post-processor decides), `add_prefix_space` and `clean_up_tokenization_spaces` (not for BPE).

   Where `tokenizers` is not followed: an added token has the id that the file gives it, also where that leaves a gap,
   and decodes to its content as the file has it (0.23 counts on from the last id, and decodes to the normalized
   content); a special token of tokenizer_config.json that is no piece is not added, for no model has a row for it;
   characters that a model without unknown token drops do not shift the spans behind them.

   Text must be UTF-8: a byte that is not is PL_EINPUT with its offset, never a silent U+FFFD. A text may be as long as
   2^31 - 1 bytes. Memory beside the result is a fixed megabyte or so, plus a copy of the text where a normalizer
   changes it (9 bytes a byte when spans are kept), plus 28 bytes for each byte of the longest stretch in which any two
   neighbours are part of some piece, which in written language is a word.

   Characters are classified by utf8proc and PCRE2 (Unicode 14), where `tokenizers` uses tables of several ages: they
   may disagree about characters that are newer than Unicode 9. */
#ifndef PL_DATA_TOKENIZER_H
#define PL_DATA_TOKENIZER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/error.h"

/* What to tell whoever has a tokenizer in an older form. */
#define PL_TOKENIZER_HINT                                                                                              \
    "from tokenizer.model or vocab.json transformers makes it: "                                                       \
    "AutoTokenizer.from_pretrained(DIR).save_pretrained(DIR)"

typedef struct pl_tokenizer pl_tokenizer; /* immutable: one may be used by many threads at once */

/* Whether a folder has tokenizer.json, or vocab.json and merges.txt. */
int pl_tokenizer_exists(pl_error *err, const char *folder, bool *out);
/* Reads FOLDER/tokenizer.json, and FOLDER/tokenizer_config.json if it is there, for what changes ids:
   added_tokens_decoder, and the special tokens that it names. Where there is no tokenizer.json, vocab.json and
   merges.txt of a GPT2Tokenizer, with added_tokens.json and special_tokens_map.json, as transformers puts them
   together. PL_ENOENT when there is neither; PL_EINPUT, PL_EUNSUPPORTED with the file and the field. */
int pl_tokenizer_open(pl_error *err, const char *folder, pl_tokenizer **out);
/* The same from memory, without a tokenizer_config.json; `where` names the source in messages. */
int pl_tokenizer_parse(pl_error *err, const char *where, const char *json, size_t size, pl_tokenizer **out);
void pl_tokenizer_close(pl_tokenizer *tokenizer); /* NULL is fine */

/* Token ids, and with `spans` set (before the call) the bytes of the text that each token stands for: [begin, end).
   They are the offsets that `tokenizers` gives, in bytes: through normalizers, without the leading space of a token
   when the post-processor trims offsets, and for the tokens that share one character, the whole character. Both are -1
   for a token that the post-processor adds. {0} to start with; free with pl_tokens_free. */
typedef struct pl_tokens {
    int32_t *ids;
    int64_t *begin, *end; /* NULL unless spans */
    size_t count, capacity;
    bool spans;
} pl_tokens;

void pl_tokens_free(pl_tokens *tokens); /* empty and usable afterwards; `spans` stays */

/* Appends the tokens of text[0..size). Special tokens are recognised wherever they are written in the text;
   add_special_tokens adds those of the post-processor (bos, eos). After an error `out` holds what it held before. */
int pl_tokenizer_encode(pl_error *err, const pl_tokenizer *tokenizer, const char *text, size_t size,
    bool add_special_tokens, pl_tokens *out);

/* Appends the text of the ids; always UTF-8 (bytes that are none become U+FFFD). PL_EINPUT for an id that no token has.
 */
int pl_tokenizer_decode(pl_error *err, const pl_tokenizer *tokenizer, const int32_t *ids, size_t count,
    bool skip_special_tokens, pl_buf *out);

/* Decoding one id at a time, for generation. What push appends is final: all that was appended, with what finish
   appends, is the text that pl_tokenizer_decode gives for all the ids, and every part is whole characters. */
typedef struct pl_decoder pl_decoder;
int pl_decoder_open(pl_error *err, const pl_tokenizer *tokenizer, bool skip_special_tokens, pl_decoder **out);
int pl_decoder_push(pl_error *err, pl_decoder *decoder, int32_t id, pl_buf *out);
int pl_decoder_finish(pl_error *err, pl_decoder *decoder, pl_buf *out); /* and is ready for another text */
void pl_decoder_close(pl_decoder *decoder);

int32_t pl_tokenizer_vocab_size(const pl_tokenizer *tokenizer);            /* highest id + 1 */
int32_t pl_tokenizer_id(const pl_tokenizer *tokenizer, const char *token); /* by its exact piece; -1: none */
const char *pl_tokenizer_piece(const pl_tokenizer *tokenizer, int32_t id); /* as the file spells it; NULL: none */
bool pl_tokenizer_is_special(const pl_tokenizer *tokenizer, int32_t id);   /* an added token marked special */
/* The ids that the post-processor puts before and after a text (in `count`, how many); what bos and eos mean here. */
const int32_t *pl_tokenizer_prefix(const pl_tokenizer *tokenizer, size_t *count);
const int32_t *pl_tokenizer_suffix(const pl_tokenizer *tokenizer, size_t *count);
uint64_t pl_tokenizer_hash(const pl_tokenizer *tokenizer); /* of the files' bytes: the same hash, the same results */
/* The same of the tokenizer that pl_tokenizer_open would make of the folder now, without making it: the files are
   hashed and not understood, so what is wrong in them does not show. PL_ENOENT, PL_EIO. */
int pl_tokenizer_hash_folder(pl_error *err, const char *folder, uint64_t *out);

#endif
