/* Inside of arch.c: the table of families, and the reader of config.json that remembers which fields were used. */
#ifndef PL_MODEL_ARCH_FAMILIES_H
#define PL_MODEL_ARCH_FAMILIES_H

#include "model/arch.h"

/* An object of config.json while it is being read. Fields that nobody asked for are told in the end. */
typedef struct pl_config {
    pl_error *err;
    const pl_log *log;
    const char *where; /* the file's name, and the object's name when it is not the file itself */
    const json_t *object;
    const char *used[96];
    int nused;
} pl_config;

typedef enum pl_given { PL_ABSENT, PL_NULL, PL_GIVEN } pl_given;

/* Marks the field as used and says whether it is there. */
pl_given pl_config_given(pl_config *c, const char *field);
const json_t *pl_config_value(pl_config *c, const char *field); /* NULL when absent or null */
/* An absent or null field leaves *out alone. A value outside of low..high is PL_EINPUT; so is *out itself, when it is
   a default that does not fit the rest. */
int pl_config_int(pl_config *c, const char *field, int64_t low, int64_t high, int64_t *out);
int pl_config_real(pl_config *c, const char *field, double low, double high, double *out);
int pl_config_float(pl_config *c, const char *field, double low, double high, float *out);
int pl_config_bool(pl_config *c, const char *field, bool *out);
int pl_config_string(pl_config *c, const char *field, const char **out);
/* Two names of one field: reading both is fine as long as they agree. `other` may be NULL. */
int pl_config_int2(pl_config *c, const char *field, const char *other, int64_t low, int64_t high, int64_t *out);
int pl_config_act(pl_config *c, const char *field, pl_act *out);
/* A whole number, be it written 2 or 2.0. */
bool pl_config_whole(const json_t *value, int64_t *out);
/* How a message shows a value: its JSON, cut to what fits. */
const char *pl_config_show(const json_t *value, char text[64]);
/* Refuses what is left over and would change the result, and warns of what is left over and unknown. */
int pl_config_finish(pl_config *c, const char *model_type);
/* Says in one line which dropouts Hugging Face would apply in training. */
int pl_config_dropouts(pl_config *c, const char *const *by_default);

/* Which layers see only a window of keys, when layer_types does not say. */
typedef enum pl_window_rule {
    PL_WINDOW_NEVER,     /* none; the family has no such field */
    PL_WINDOW_ALWAYS,    /* all, when sliding_window is not null */
    PL_WINDOW_LATE,      /* those from max_window_layers on, when use_sliding_window */
    PL_WINDOW_ALTERNATE, /* the even ones */
    PL_WINDOW_PATTERN,   /* all but every sliding_window_pattern-th */
    PL_WINDOW_NOPE       /* those without a rotary embedding, when use_sliding_window */
} pl_window_rule;

/* A row of the table. `base` holds what all models of the family share (kinds and names) and, in the fields that
   config.json may set, Hugging Face's default for it: kv_heads 0 means as many as heads, head_dim 0 means
   hidden / heads, intermediate 0 means 4 * hidden, norm_eps 0 that there is no such field. */
typedef struct pl_family {
    const char *model_type;
    pl_arch base;
    /* What config.json calls a size; NULL: the usual name. `alias` is the usual name where HF takes that too. */
    const char *hidden_field, *layers_field, *heads_field, *intermediate_field, *positions_field;
    bool usual_names_too;
    const char *act_field, *eps_field, *init_field;
    bool one_head_size;            /* no grouped heads, and head_dim is hidden / heads whatever config.json says */
    bool attention_bias, mlp_bias; /* whether config.json has a say in q, k, v, o and in the mlp */
    double theta;                  /* HF's default base; 0: no rotary embedding */
    double partial_rotary;         /* HF's default; 0: the whole head is rotated, and no field changes that */
    const char *theta_field, *partial_field; /* the family's own names for rope_theta and partial_rotary_factor */
    bool rope_by_layer_type;                 /* full and sliding layers have embeddings of their own */
    pl_window_rule windows;
    int64_t window;                           /* HF's default for sliding_window; 0: null */
    bool pads_embedding;                      /* the embedding has a padding row */
    const char *const *dropouts;              /* fields whose default is not 0; NULL-terminated, or NULL */
    int (*read)(pl_config *c, pl_arch *arch); /* what only this family has, or NULL; arch is otherwise complete */
} pl_family;

const pl_family *pl_family_find(const char *model_type);
/* PL_EUNSUPPORTED, telling what the model_type is and which ones are supported. */
int pl_family_unknown(pl_error *err, const char *where, const char *model_type);

/* The rotary embeddings: fills arch->ropes and nropes. */
int pl_config_ropes(pl_config *c, const pl_family *family, pl_arch *arch);

#endif
