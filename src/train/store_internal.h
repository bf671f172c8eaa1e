/* The store's own structures. store.c opens it and fills it; store_use.c has what happens while units are used: gathers
   and the exchange of gradients; store_step.c the optimizer's step and the view from outside. */
#ifndef PL_TRAIN_STORE_INTERNAL_H
#define PL_TRAIN_STORE_INTERNAL_H

#include "comm/collective.h"
#include "train/store.h"

/* Elements to which a parameter's place in a flat buffer is rounded: 64 bytes of f32. Slices begin at multiples of it
   too, and of 64 bytes where bytes are cut. */
#define PL_STORE_GRAIN 16
#define PL_STORE_BYTES 64

/* Memory that was allocated; a dry device's is NULL. */
typedef struct pl_block {
    void *data;
    int64_t bytes;
    pl_mem_tag tag;
    bool there;
} pl_block;

/* Where one parameter lives. */
typedef struct pl_placed {
    const pl_unit *unit;
    int64_t offset;      /* in elements of the unit's trainable buffers, or in bytes of its frozen one */
    const void *wrapped; /* the file's mapping, when that is used in place */
    int64_t wrapped_bytes;
} pl_placed;

/* Neighbours that the optimizer treats alike. */
typedef struct pl_sweep {
    int64_t offset, n;
    bool decay;
    float lr_scale;
} pl_sweep;

/* What operators read lies in `values` for trainable parameters and in `frozen` for others. Sharded values are this
   process's slice, and all of them are in a slot while the unit is used. */
typedef struct pl_unit_store {
    int64_t n;      /* trainable elements, padding included */
    int64_t narrow; /* so many of them, the first, are read in the model's dtype; the others in f32 */
    int64_t value_bytes, frozen_bytes;
    int64_t *bounds; /* [size + 1]: where they are cut, in elements; and what that is in bytes: */
    int64_t *value_bounds, *frozen_bounds, *gradient_bounds;
    int64_t low, high; /* elements whose masters and moments are here */
    pl_block values, frozen, states[PL_STATE_COUNT];
    char *here, *frozen_here; /* all values, when they are readable */
    bool readable;
    int lender_count;
    int *lenders; /* units whose parameters this one uses */
    bool lends;
    int slot, gradient_slot; /* of the store's; -1: it needs none */
    bool gradients_open;     /* its slot has gradients of this backward pass */
    pl_sweep *sweeps;
    int nsweeps;
    pl_collective gather, gather_frozen; /* values on their way, before a use or after a step; or whole gradients */
} pl_unit_store;

/* A piece of a unit's gradients on its way. */
typedef struct pl_piece {
    pl_collective exchange;
    pl_block staging;
    int unit;
    bool last; /* of the unit */
} pl_piece;

#define PL_STORE_PIECES 2

struct pl_store {
    pl_run *run;
    pl_model *model;
    pl_store_options options;
    pl_comm *all;                   /* options.sharding's, or `self` */
    pl_comm *comm;                  /* those that share out: all, or the group */
    pl_comm *self, *group, *across; /* across: those of other groups that keep the same slices; NULL without groups */
    int stage;                      /* 0 where there is one process */
    bool whole_gradients;           /* units have gradient buffers of their own, not slots */
    int lowest;                     /* unit below which nothing trains */
    pl_placed *placed;              /* [nparams], by param->id */
    pl_unit_store *units;           /* [nunits] */
    pl_block *slots;                /* stage 3: gathered values */
    pl_block *grad_slots;
    int nslots, ngrad_slots;
    pl_piece pieces[PL_STORE_PIECES];
    int64_t piece_elements; /* of each slice that go into one piece */
    int next_piece;
    pl_block before; /* a piece's sum over the groups before this one */
    double *sums;    /* [nunits * (all's size + 1)] of squares */
};

static inline bool pl_store_trains(const pl_store *s, const pl_param *p)
{
    return s->options.training && p->trainable;
}

static inline pl_dtype pl_store_dtype(const pl_store *s, const pl_param *p)
{
    return p->keep_f32 || p->role == PL_ROLE_DERIVED ? PL_F32 : s->model->dtype;
}

/* Bytes before element e of what operators read of a unit's trainable elements. */
static inline int64_t pl_store_value_at(const pl_store *s, const pl_unit_store *u, int64_t e)
{
    int64_t size = pl_dtype_size(s->model->dtype);
    return e <= u->narrow ? e * size : u->narrow * size + (e - u->narrow) * 4;
}

/* The elements of a state that are here, from u->low (a gradient: from this process's slice) on. A master of f32 may be
   what operators read. */
static inline int64_t pl_store_slice_low(const pl_store *s, const pl_unit_store *u)
{
    return u->bounds[s->comm->rank];
}
static inline int64_t pl_store_slice_high(const pl_store *s, const pl_unit_store *u)
{
    return u->bounds[s->comm->rank + 1];
}

static inline void *pl_store_at(const void *base, int64_t bytes)
{
    return base ? (char *)base + bytes : NULL;
}

static inline pl_tensor pl_store_f32(const void *base, int64_t from, int64_t n)
{
    return pl_tensor_1d(pl_store_at(base, 4 * from), PL_F32, n);
}

/* Elements [from, from + n) of a state, which are here, in the unit's own count. */
pl_tensor pl_store_elements(const pl_store *s, const pl_unit_store *u, pl_state state, int64_t from, int64_t n);

/* Elements [first, first + values.shape[0]) of a parameter or of one of its states, in memory; none are shape 0. */
typedef struct pl_part {
    pl_tensor values;
    int64_t first;
} pl_part;
/* What is here of a state; of what operators read of a parameter. */
pl_part pl_store_part(const pl_store *s, const pl_param *p, pl_state state);
pl_part pl_store_value_part(const pl_store *s, const pl_param *p);

/* Points value and grad of the unit's parameters to where they are; to nothing where they are not here. */
void pl_store_point(pl_store *s, const pl_unit *unit);
/* Masters, or the part that is here, to what operators read of it. With `wide` only what is read in f32. */
int pl_store_copy_masters(pl_store *s, pl_unit_store *u, bool wide);
/* Waits for all gradients that are on their way; for what pl_collective's `gather` of each unit brings. */
int pl_store_finish_gradients(pl_store *s);
int pl_store_end_gathers(pl_store *s);
/* Host memory of pieces and gathers. */
void pl_store_close_traffic(pl_store *s);

#endif
