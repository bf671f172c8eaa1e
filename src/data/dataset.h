/* A dataset: files of examples turned into rows of tokens, once, into a file on disk that is then only mapped.

   What a file holds is recognised from its first example, or named by `format`:

     text        {text}                            .txt files too: the whole file is one text
     completion  {prompt, completion}              completion may be called response
     alpaca      {instruction, input, output}      input may be called context, output response; also system, history
     qa          {question, answer}                or query, response; also system, history
     messages    {messages: [{role, content}]}     also tools, and what else the template knows (tool_calls...)
     sharegpt    {conversations: [{from, value}]}  also system, tools
     tokens      {input_ids, labels}               labels may be absent; -100 = not trained; also attention_mask

   `fields` tells other names, as in question=prompt_text. Fields that a format does not know are harmless; one
   that it lacks, or of another type, is an error with file and line.

   How they become tokens (template AUTO):
     text        the text
     completion  prompt and completion, nothing between them
     qa          question, a line feed, answer
     alpaca      a conversation if the model has a chat template, else Stanford Alpaca's prompt and the output
     messages, sharegpt   the model's chat template; it is an error if it has none
   PLAIN and CHAT choose for alpaca, qa and completion: as text as above, or as a user's turn and an assistant's. The
   tokenizer's own first and last tokens (bos) are added to texts, and the model's eos if they do not end with it; to
   what a chat template wrote nothing is added, and to tokens neither. Prompt and answer are tokenized as one text: a
   token is part of the answer if its first byte is.

   A row is at most sequence_length tokens. CUT: the texts of format text go on in further rows, so nothing of them is
   lost; the others lose their end. DROP: examples that are longer are left out (a .txt file is cut all the same). Rows
   without a token to train are dropped. All of it is counted.

   The cache file in cache_dir is named by the settings, the files' paths, the tokenizer and the template, and holds
   each file's size, times and content hash. It is used if a file's size, times and inode are unchanged, or else its
   content; and if its own checksum is right, which is tried at each start (about 10 GB/s). Everything else is made
   again, with a line in the log. Two processes may build the same one at once. */
#ifndef PL_DATA_DATASET_H
#define PL_DATA_DATASET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/error.h"
#include "base/log.h"

struct pl_tokenizer;
struct pl_chat;
struct pl_spans;

typedef enum pl_data_format {
    PL_DATA_AUTO,
    PL_DATA_TEXT,
    PL_DATA_COMPLETION,
    PL_DATA_ALPACA,
    PL_DATA_QA,
    PL_DATA_MESSAGES,
    PL_DATA_SHAREGPT,
    PL_DATA_TOKENS
} pl_data_format;

const char *pl_data_format_name(pl_data_format format);                         /* "qa" */
int pl_data_format_parse(pl_error *err, const char *name, pl_data_format *out); /* PL_EUSAGE lists the names */

typedef enum pl_data_template { PL_DATA_TEMPLATE_AUTO, PL_DATA_TEMPLATE_PLAIN, PL_DATA_TEMPLATE_CHAT } pl_data_template;
/* AUTO: the answers where a format has them, else all. Rows that come tokenized say it by their labels. */
typedef enum pl_data_loss { PL_DATA_LOSS_AUTO, PL_DATA_LOSS_ANSWERS, PL_DATA_LOSS_ALL } pl_data_loss;
typedef enum pl_data_overlong { PL_DATA_CUT, PL_DATA_DROP } pl_data_overlong;
typedef enum pl_data_part { PL_DATA_TRAIN, PL_DATA_VALIDATION, PL_DATA_PARTS } pl_data_part;

typedef struct pl_data_file {
    const char *path;
    bool validation; /* all of it is for validation */
} pl_data_file;

typedef struct pl_data_config {
    const pl_data_file *files;
    size_t file_count;
    /* The share of examples (of a .txt file: of rows) that is kept for validation, 0 <= share < 1. Which ones depends
       on the seed and on each example's number in its file alone. Not together with validation files. */
    double validation_split;
    uint64_t seed;
    pl_data_format format;
    /* The field that is called fields[i] above has the name names[i] in the files; "": it is passed over. */
    const char *const *fields, *const *names; /* [field_count] */
    size_t field_count;
    pl_data_template template;
    pl_data_loss loss;
    pl_data_overlong overlong;
    int64_t sequence_length; /* >= 2 */
    const char *cache_dir;   /* is made if it is not there; NULL: the file is temporary and gone after close */
} pl_data_config;

/* What the rows are for. */
typedef struct pl_data_model {
    const struct pl_tokenizer *tokenizer; /* NULL, and no folder: only rows that come tokenized can be read */
    const char *tokenizer_folder; /* instead of it: where it lies; it is read, for a while, to make rows alone */
    const struct pl_chat *chat;   /* NULL: the model has no chat template */
    int32_t vocab;                /* ids are below it */
    int32_t eos;                  /* -1: none */
    int64_t positions;            /* how long a row may be; 0: no limit */
} pl_data_model;

enum { PL_DATA_LENGTHS = 32 };

/* Counts of one part. */
typedef struct pl_data_stats {
    int64_t examples; /* read */
    int64_t rows, tokens;
    int64_t trained;                  /* tokens that are targets: a row's first never is */
    int64_t cut;                      /* examples that lost their end */
    int64_t split;                    /* texts that go on in further rows */
    int64_t dropped_overlong;         /* longer than sequence_length, and to be dropped */
    int64_t dropped_cut;              /* rows whose trained tokens were all cut off */
    int64_t dropped_untrained;        /* rows that had none: no answer, an empty text, labels all -100 */
    int64_t calls_unwritten;          /* conversations with tools or calls that the chat template leaves out */
    int64_t longest;                  /* row */
    int64_t lengths[PL_DATA_LENGTHS]; /* [i]: rows of 2^i to 2^(i+1) - 1 tokens */
} pl_data_stats;

typedef struct pl_row {
    const int32_t *ids;
    const int32_t *labels; /* as pl_batch_append takes them; NULL: every token is its own */
    int64_t n, trained;
} pl_row;

typedef struct pl_dataset pl_dataset;

/* Builds the rows, or finds them in the cache. The result does not depend on `threads`. An error in a file (PL_EINPUT)
   names file and line, the first one of the file; a dataset, or a split's part, without a row is PL_EINPUT with the
   counts that say why; a row longer than the model's positions is PL_EINPUT. */
int pl_dataset_open(pl_error *err, const pl_log *log, const pl_data_config *config, const pl_data_model *model,
    int threads, pl_dataset **out);
void pl_dataset_close(pl_dataset *dataset); /* NULL is fine */

/* The rest may be called by many threads at once. Rows are in the order of the files and, in a file, of its examples.
 */
int64_t pl_dataset_rows(const pl_dataset *dataset, pl_data_part part);
/* Row i of a part. The pointers lead into the mapped file; how much of that stays resident is bounded. */
pl_row pl_dataset_row(pl_dataset *dataset, pl_data_part part, int64_t i);
int64_t pl_dataset_row_length(pl_dataset *dataset, pl_data_part part, int64_t i, int64_t *trained);
const pl_data_stats *pl_dataset_stats(const pl_dataset *dataset, pl_data_part part);
size_t pl_dataset_files(const pl_dataset *dataset);
/* The rows [*first, *first + *count) of a part are those of file `file`. */
void pl_dataset_file_rows(const pl_dataset *dataset, pl_data_part part, size_t file, int64_t *first, int64_t *count);
pl_data_format pl_dataset_file_format(const pl_dataset *dataset, size_t file); /* recognised or named */
/* Appends the text of a row, special tokens and all, and to `trained` which bytes of it trained tokens stand for. */
int pl_row_show(
    pl_error *err, const struct pl_tokenizer *tokenizer, pl_row row, pl_buf *text, struct pl_spans *trained);
bool pl_dataset_cached(const pl_dataset *dataset); /* found, not built */

#endif
