/* Fields of a configuration, described as data: what a field is called, what it may be, where it lies in its struct.
   Files, flags, help, errors and the reference page all come from the one description. */
#ifndef PL_API_FIELD_H
#define PL_API_FIELD_H

#include <stdint.h>

#include "base/buf.h"
#include "base/error.h"

/* Lists and maps of a configuration own what they hold. */
typedef struct pl_strings {
    char **items;
    int count;
} pl_strings;

typedef struct pl_numbers {
    double *items;
    int count;
} pl_numbers;

typedef struct pl_entries {
    char **keys;
    char **texts; /* the values as they were written */
    int count;
} pl_entries;

typedef enum pl_field_kind {
    PL_FIELD_TEXT,    /* char *, NULL when it is not set */
    PL_FIELD_FILE,    /* char * */
    PL_FIELD_FOLDER,  /* char * */
    PL_FIELD_FILES,   /* pl_strings; the flag is repeated */
    PL_FIELD_STRINGS, /* pl_strings: any texts, empty ones too; the flag is repeated */
    PL_FIELD_NAMES,   /* pl_strings; separated by commas, or one regular expression */
    PL_FIELD_SWITCH,  /* bool */
    PL_FIELD_INT,     /* int64_t; words stand for 0, 1, ... */
    PL_FIELD_REAL,    /* double, NaN when it is not set */
    PL_FIELD_BYTES,   /* int64_t; "8GiB" */
    PL_FIELD_WORD,    /* int, the place among words */
    PL_FIELD_INTS,    /* pl_numbers */
    PL_FIELD_REALS,   /* pl_numbers */
    PL_FIELD_TEXTS,   /* pl_entries: name=text */
    PL_FIELD_INT_MAP, /* pl_entries: name=whole number */
    PL_FIELD_REAL_MAP /* pl_entries: name=number */
} pl_field_kind;

#define PL_INT_UNSET INT64_MIN /* of a PL_FIELD_INT without a default */

typedef struct pl_range {
    double min, max;           /* +-HUGE_VAL: unbounded */
    bool above_min, below_max; /* the bound itself is excluded */
} pl_range;

typedef struct pl_field {
    const char *section; /* NULL: top level */
    const char *name;    /* within its section */
    const char *flag;    /* the flag's name where it is not section.name, e.g. "data" for data.files */
    pl_field_kind kind;
    size_t offset;        /* in the struct */
    const char *fallback; /* the default, as one would write it; NULL: not set */
    const char *words;    /* "full|lora" */
    const char *refused;  /* "fp16: why": a word or number that people try, and what to tell them */
    int size;             /* a list must have this many items; 0: any */
    pl_range range;       /* of a number, or of each in a list or map */
    const char *when;     /* "method=lora": another field decides whether this one applies; "optimizer.name=sgd|adamw";
                             alternatives are separated by " or " */
    const char *peers;    /* "PEFT:r HF:learning_rate" */
    const char *help;     /* one line */
    unsigned commands;    /* which take it as a flag: enum pl_command_bit */
    bool flag_only;       /* an option of a command, no part of a run's description */
    bool volatile_;       /* may differ when a run is resumed */
} pl_field;

/* section.name; returns out. */
#define PL_FIELD_NAME_SIZE 64
const char *pl_field_name(const pl_field *field, char out[PL_FIELD_NAME_SIZE]);
/* --lora.r, --data, --from-scratch; returns out. */
const char *pl_field_flag(const pl_field *field, char out[PL_FIELD_NAME_SIZE]);

/* Puts the default in. The member must be zero or hold a value (which is freed). */
int pl_field_reset(pl_error *err, const pl_field *field, void *object);
void pl_field_free(const pl_field *field, void *object);
/* One value as it is written on a command line; lists and maps are split and added to. `where` names the field in
   messages: "run.yaml:12: lora.r" or "--lora.r". PL_EUSAGE says what was expected. */
int pl_field_set(pl_error *err, const pl_field *field, void *object, const char *where, const char *text);
/* One item of a list, not split. */
int pl_field_add(pl_error *err, const pl_field *field, void *object, const char *where, const char *text);
/* One entry of a map; a name that is there already is an error. */
int pl_field_put(
    pl_error *err, const pl_field *field, void *object, const char *where, const char *key, const char *text);
/* What only the whole value shows: a list's length. Call it after the last pl_field_add. */
int pl_field_complete(pl_error *err, const pl_field *field, const void *object, const char *where);
bool pl_field_is_list(const pl_field *field);
bool pl_field_is_map(const pl_field *field);
/* The member as what its kind says it is. */
#define PL_MEMBER(type, field, object) ((type *)((char *)(object) + (field)->offset))
#define PL_CONST_MEMBER(type, field, object) ((const type *)((const char *)(object) + (field)->offset))
/* Whether it has a value at all: a text that is set, a list that is not empty, a number that is not NaN. */
bool pl_field_has_value(const pl_field *field, const void *object);

/* Appends the value: as YAML (lists in brackets, texts quoted where they must be), or as a flag's value. */
int pl_field_print_yaml(pl_error *err, const pl_field *field, const void *object, pl_buf *out);
int pl_field_print_flag(pl_error *err, const pl_field *field, const void *object, pl_buf *out);
/* What may be written, for help and errors: "full|lora", "N", "DIR", "true|false", "A,B". Appended. */
int pl_field_metavar(pl_error *err, const pl_field *field, pl_buf *out);
/* "at least 1", "from 0 to 1"; nothing is appended for a number without bounds. */
int pl_range_print(pl_error *err, const pl_range *range, pl_buf *out);

/* The i-th of "a|b|c", its length in *size; NULL past the last. */
const char *pl_word(const char *words, int i, int *size);
/* The place of text among the words, or -1. */
int pl_word_index(const char *words, const char *text);

/* Whether a list of module or parameter names is one regular expression (as PEFT's target_modules may be): it has a
   character that no such name has. */
bool pl_is_regex(const char *text);

/* How many letters must be inserted, dropped, replaced or swapped with their neighbour to make one from the other. */
int pl_edit_distance(const char *a, const char *b);

#endif
