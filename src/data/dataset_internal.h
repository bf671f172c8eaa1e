/* What the files of the dataset share. Nobody else includes this. */
#ifndef PL_DATA_DATASET_INTERNAL_H
#define PL_DATA_DATASET_INTERNAL_H

#include <jansson.h>

#include "data/dataset.h"
#include "data/reader.h"

#define PL_DATA_NO_ANSWER SIZE_MAX

/* Where an example stands. */
typedef struct pl_place {
    const char *path;
    int64_t line;
} pl_place;

/* ---- dataset_format.c: which fields mean what ---- */

enum { PL_DATA_MAX_FIELDS = 5 };

/* Names that the user gives: the config's fields, names and field_count. */
typedef struct pl_data_names {
    const char *const *fields, *const *keys;
    size_t count;
} pl_data_names;

/* Each field is known and named once: else PL_EUSAGE. */
int pl_data_names_check(pl_error *err, const pl_data_names *names);

/* The format of a file of which this is the first example: recognised, or `named`, and then with its fields there. */
int pl_data_recognise(pl_error *err, pl_place place, const json_t *example, pl_data_format named,
    const pl_data_names *names, pl_data_format *out);
/* A field of an example by the format's name for it. NULL: absent or null; PL_EINPUT when it must be there. */
int pl_data_field(pl_error *err, pl_place place, const json_t *example, pl_data_format format,
    const pl_data_names *names, const char *field, const json_t **out);
/* The same for a string; *out is NULL where it is absent. */
int pl_data_string_field(pl_error *err, pl_place place, const json_t *example, pl_data_format format,
    const pl_data_names *names, const char *field, const json_t **out);

/* ---- dataset_example.c, dataset_chat.c: an example, checked ---- */

typedef enum pl_example_kind { PL_EXAMPLE_PLAIN, PL_EXAMPLE_CHAT, PL_EXAMPLE_TOKENS } pl_example_kind;

typedef struct pl_example {
    pl_example_kind kind;
    pl_buf text;              /* PLAIN */
    size_t answer;            /* PLAIN: where the answer starts in it, PL_DATA_NO_ANSWER if it has none */
    json_t *messages, *tools; /* CHAT, as templates want them; tools may be NULL */
    int32_t *ids, *labels;    /* TOKENS [count]; an id that is not trained has the label -100 */
    size_t count, ids_capacity, labels_capacity;
    bool labelled; /* TOKENS: labels differ from ids somewhere */
} pl_example;

typedef struct pl_data_rules {
    pl_data_template template;
    pl_data_loss loss;
    pl_data_overlong overlong;
    int64_t sequence_length;
    const pl_data_model *model;
    const pl_data_names *names;
} pl_data_rules;

/* Whether a format becomes a conversation under these rules. */
bool pl_data_is_chat(const pl_data_rules *rules, pl_data_format format);
/* What about the format does not go with the rules or the model: PL_EUSAGE, PL_EINPUT. */
int pl_data_check_format(pl_error *err, const char *path, pl_data_format format, const pl_data_rules *rules);
/* Reads a JSON example into `out`, whose memory is used again. */
int pl_example_read(pl_error *err, pl_place place, const json_t *example, pl_data_format format,
    const pl_data_rules *rules, pl_example *out);
int pl_example_read_chat(pl_error *err, pl_place place, const json_t *example, pl_data_format format,
    const pl_data_rules *rules, pl_example *out);
/* Forgets the content; free gives the memory back too. */
void pl_example_clear(pl_example *example);
void pl_example_free(pl_example *example);

/* ---- dataset_encode.c: rows ---- */

typedef struct pl_rows_row {
    int64_t at; /* in `data`: n ids, then n labels if labelled */
    int32_t n, trained;
    bool labelled;
    uint8_t part;
} pl_rows_row;

/* The rows of some examples. */
typedef struct pl_rows {
    int32_t *data;
    size_t used, data_capacity;
    pl_rows_row *rows;
    size_t count, capacity;
    pl_data_stats stats[PL_DATA_PARTS];
} pl_rows;

void pl_rows_free(pl_rows *rows);
/* Adds one row, or counts why it is dropped. labels NULL: every token is its own. `cut`: an end with trained tokens was
   cut off. */
int pl_rows_add(
    pl_error *err, pl_rows *rows, pl_data_part part, const int32_t *ids, const int32_t *labels, int64_t n, bool cut);
void pl_data_stats_add(pl_data_stats *sum, const pl_data_stats *more);

/* Working memory of one thread. */
typedef struct pl_encoder pl_encoder;
int pl_encoder_open(pl_error *err, const pl_data_rules *rules, pl_encoder **out);
void pl_encoder_close(pl_encoder *encoder);
int pl_encode_json(pl_error *err, pl_encoder *encoder, pl_place place, const char *bytes, size_t size,
    pl_data_format format, pl_data_part part, pl_rows *rows);
/* An id beyond the vocabulary is PL_EINPUT. Line 0: of a text, which has no examples. */
int pl_data_check_ids(pl_error *err, pl_place place, const pl_data_model *model, const int32_t *ids, size_t count);

/* ---- dataset_cache.c: the file of rows ---- */

typedef struct pl_cache_source {
    pl_file_identity identity;
    int64_t rows[PL_DATA_PARTS];
    int64_t format;
} pl_cache_source;

typedef struct pl_cache_writer pl_cache_writer;
int pl_cache_create(pl_error *err, const char *path, pl_cache_writer **out);
int pl_cache_add(pl_error *err, pl_cache_writer *w, const pl_rows *rows);
/* Completes the file, which appears under its name only now. */
int pl_cache_commit(pl_error *err, pl_cache_writer *w, const uint64_t key[2], const pl_cache_source *sources,
    size_t source_count, const pl_data_stats stats[PL_DATA_PARTS]);
void pl_cache_abort(pl_cache_writer *w); /* also after commit; NULL is fine */

typedef struct pl_cache_entry {
    uint64_t at; /* byte offset of the ids */
    uint32_t n;  /* top bit: labels follow the ids */
    uint32_t trained;
} pl_cache_entry;
#define PL_CACHE_LABELLED 0x80000000u

typedef struct pl_cache {
    const unsigned char *data;
    size_t size;
    const pl_cache_entry *entries[PL_DATA_PARTS];
    pl_data_stats stats[PL_DATA_PARTS];
    const pl_cache_source *sources;
    int64_t built_ns; /* CLOCK_REALTIME when the building began */
} pl_cache;

/* Opens a file of rows if it is whole and has this key; *reason says why not (a static text), NULL if it is good. */
int pl_cache_open(
    pl_error *err, const char *path, const uint64_t key[2], size_t source_count, pl_cache *out, const char **reason);
void pl_cache_close(pl_cache *cache);

/* ---- dataset_build.c ---- */

int pl_dataset_build(pl_error *err, const pl_data_config *config, const pl_data_rules *rules, int threads,
    pl_cache_writer *w, pl_cache_source *sources, pl_data_stats stats[PL_DATA_PARTS]);
/* dataset_text.c: one .txt file, its rows in order. */
int pl_dataset_build_text(pl_error *err, const pl_data_config *config, const pl_data_rules *rules, int threads,
    pl_cache_writer *w, size_t file, pl_reader *reader, pl_data_stats stats[PL_DATA_PARTS]);
/* The part of example `index` of a file. */
pl_data_part pl_data_part_of(const pl_data_config *config, size_t file, int64_t index);

#endif
