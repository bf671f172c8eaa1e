/* The store's own structures. store.c opens it and fills it; store_use.c has what happens while units are used, and
   store_exchange.c how gradients travel then; store_disk.c what lies on disk; store_step.c the optimizer's step;
   store_view.c the view from outside. */
#ifndef PL_TRAIN_STORE_INTERNAL_H
#define PL_TRAIN_STORE_INTERNAL_H

#include "comm/collective.h"
#include "train/store.h"

/* Elements to which a parameter's place in a flat buffer is rounded: 64 bytes of f32. Slices begin at multiples of it
   too, and of 64 bytes where bytes are cut. */
#define PL_STORE_GRAIN 16
#define PL_STORE_BYTES 64

/* Memory that was allocated, a dry device's is NULL; or bytes of the offload file. */
typedef struct pl_block {
    void *data;
    int64_t bytes;
    pl_mem_tag tag;
    bool there;   /* in memory, and this block's own */
    bool on_disk; /* from byte `at` of the file on */
    int64_t at;
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
    char *here, *frozen_here;          /* all values, when they are readable */
    int64_t value_place, frozen_place; /* where they are in a slot */
    bool fetched;                      /* this process's slices are in the slot, or on their way from the disk */
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

/* What a piece of gradients waits for. */
typedef enum pl_piece_stage {
    PL_PIECE_FREE,
    PL_PIECE_SUMS, /* for the slices of other processes, and the sum of the groups before */
    PL_PIECE_UP,   /* until its sum has gone to the next group */
    PL_PIECE_DOWN, /* for what has come of it there */
    PL_PIECE_LAST, /* until that has gone to the group before; or, where everything is kept everywhere, round */
    PL_PIECE_DONE
} pl_piece_stage;

/* A piece of a unit's gradients on its way: elements [skip, skip + piece_elements) of every slice. */
typedef struct pl_piece {
    pl_piece_stage stage;
    int unit;
    int64_t skip;
    pl_collective exchange, before, passing; /* slices; the sum of groups before; all that comes after */
} pl_piece;

/* Large messages are announced before they are sent, and over TCP announcement and answer wait behind what is being
   sent already: with few pieces under way at a time the link falls idle in turns. */
#define PL_STORE_PIECES 32   /* that are under way at a time */
#define PL_STORE_STAGINGS 16 /* so many of them may wait for what comes from other processes */

/* Memory that units take turns in. */
typedef struct pl_slot {
    pl_block memory;
    char *data;             /* in it, as aligned as disks want it */
    char *bounce;           /* host memory in the place of a device's that the disk cannot reach */
    pl_disk_batch transfer; /* from the disk, or to it */
} pl_slot;

/* Elements [low, high) of a unit's optimizer states, in memory for a while. */
typedef struct pl_buffer {
    pl_slot slot;
    int unit;
    int64_t low, high;
} pl_buffer;

#define PL_STORE_BUFFERS 3 /* one is read, one is stepped, one is written */

struct pl_store {
    pl_run *run;
    pl_model *model;
    pl_store_options options;
    pl_comm *all;                    /* options.sharding's, or `self` */
    pl_comm *comm;                   /* those that share out: all, or the group */
    pl_comm *self, *group, *across;  /* across: those of other groups that keep the same slices; NULL without groups */
    int stage;                       /* 0 where there is one process */
    bool whole_gradients;            /* units have gradient buffers of their own, not slots */
    int lowest;                      /* unit below which nothing trains */
    pl_placed *placed;               /* [nparams], by param->id */
    pl_unit_store *units;            /* [nunits] */
    pl_block states[PL_STATE_COUNT]; /* of all units, one after the other; those on disk are the units' own */
    pl_slot *slots;                  /* stage 3: gathered values */
    pl_slot *grad_slots;
    int nslots, ngrad_slots;
    int gathered_ahead, fetched_ahead; /* stage 3: units whose gather, or whose read, begins before their turn */
    pl_comm *for_sums, *for_round;     /* comm once more, for the two ways that gradients take: see store_exchange.c */
    pl_piece pieces[PL_STORE_PIECES];
    pl_block staging[PL_STORE_STAGINGS];
    pl_block before[PL_STORE_STAGINGS]; /* a piece's sum over the groups before this one */
    int64_t piece_elements;             /* of each slice that go into one piece */
    int next_piece;
    int *queue; /* [nunits], from queue_first on and round: units whose gradients are to travel, of the first of which
                   queue_skip elements of each slice do */
    int queue_first, queued;
    int64_t queue_skip;
    pl_aside aside;
    bool moving, move_failed;
    double looked; /* when pieces were last moved on, by pl_clock */
    double *sums;  /* [nunits * (all's size + 1)] of squares */
    int64_t disk_bytes;
    pl_buffer buffers[PL_STORE_BUFFERS];
    int64_t buffer_elements; /* of each state on disk, that a buffer has room for; without such states, any number */
    pl_buffer *open_buffer;  /* whose elements can be seen */
};

static inline bool pl_store_trains(const pl_store *s, const pl_param *p)
{
    return s->options.training && p->trainable;
}

static inline pl_dtype pl_store_dtype(const pl_store *s, const pl_param *p)
{
    return p->keep_f32 || p->role == PL_ROLE_DERIVED ? PL_F32 : s->model->dtype;
}

/* Whether its masters are bf16 and what that lacks. */
static inline bool pl_store_splits(const pl_store *s, const pl_param *p)
{
    return pl_store_trains(s, p) && pl_store_dtype(s, p) != PL_F32;
}

/* Bytes before element e of what operators read of a unit's trainable elements. */
static inline int64_t pl_store_value_at(const pl_store *s, const pl_unit_store *u, int64_t e)
{
    int64_t size = pl_dtype_size(s->model->dtype);
    return e <= u->narrow ? e * size : u->narrow * size + (e - u->narrow) * 4;
}

/* This process's slice. */
static inline int64_t pl_store_slice_low(const pl_store *s, const pl_unit_store *u)
{
    return u->bounds[s->comm->rank];
}
static inline int64_t pl_store_slice_high(const pl_store *s, const pl_unit_store *u)
{
    return u->bounds[s->comm->rank + 1];
}

/* A master is what operators read, and what that lacks of f32 where it is bf16 (pl_f32_split). So in the place of
   masters there are those 16 bits alone; none in a model of f32. */
static inline pl_dtype pl_store_state_dtype(pl_state state)
{
    return state == PL_STATE_MASTER ? PL_I16 : PL_F32;
}
static inline int64_t pl_store_state_bytes(pl_state state, int64_t n)
{
    return n * pl_dtype_size(pl_store_state_dtype(state));
}

static inline int64_t pl_store_round_up(int64_t n, int64_t grain)
{
    return (n + grain - 1) / grain * grain;
}

static inline void *pl_store_at(const void *base, int64_t bytes)
{
    return base ? (char *)base + bytes : NULL;
}

static inline pl_tensor pl_store_f32(const void *base, int64_t from, int64_t n)
{
    return pl_tensor_1d(pl_store_at(base, 4 * from), PL_F32, n);
}

/* Elements [from, from + n) of what is kept of a state, which are in memory, in the unit's own count. */
pl_tensor pl_store_elements(const pl_store *s, const pl_unit_store *u, pl_state state, int64_t from, int64_t n);
/* What operators read of them, which are in one dtype. */
pl_tensor pl_store_values(const pl_store *s, const pl_unit_store *u, int64_t from, int64_t n);

/* Elements [first, first + values.shape[0]) of a parameter or of one of its states; none are shape 0. */
typedef struct pl_part {
    pl_tensor values; /* on disk: they have no data, unless they are in a slot */
    int64_t first;
    bool on_disk; /* from byte `at` on */
    int64_t at;
} pl_part;
/* What is here of what operators read of a parameter. */
pl_part pl_store_value_part(const pl_store *s, const pl_param *p);

/* Points value and grad of the unit's parameters to where they are; to nothing where they are not here. */
void pl_store_point(pl_store *s, const pl_unit *unit);
/* This process's part of what operators read, from `low` on where that is sharded. */
void *pl_store_values_here(const pl_store *s, const pl_unit_store *u);

/* What is done to every unit in turn. States that lie on disk are seen by `piece` alone, which is called for all
   elements [low, high) of a unit that are kept here, or for some after the others; for none where there are none. */
typedef struct pl_tour {
    unsigned reads, writes;           /* a bit for each state on disk: 1 << PL_STATE_MASTER */
    bool reads_values, writes_values; /* of those on disk too */
    bool writes_frozen;
    bool publishes; /* values were changed, and go to those who keep all of them */
    int (*piece)(pl_store *s, pl_unit *unit, int64_t low, int64_t high, void *user);
    void *user;
} pl_tour;
/* Collective if it publishes. */
int pl_store_tour(pl_store *s, const pl_tour *tour);

/* ---- store_disk.c ---- */

static inline bool pl_store_params_on_disk(const pl_store *s)
{
    return s->options.offload.disk && s->options.offload.params;
}

/* Memory, which 0 bytes do not take. */
int pl_store_take(pl_store *s, pl_block *block, pl_mem_tag tag, int64_t bytes);
void pl_store_give_back(pl_store *s, pl_block *block);
/* Takes room on the disk for what begins `skew` bytes after a block of the disk does. */
void pl_store_place_on_disk(pl_store *s, pl_block *block, int64_t bytes, int64_t skew);
/* Bytes of a slot for the unit; sets where values and frozen ones will be in it. */
int64_t pl_store_slot_bytes(const pl_store *s, pl_unit_store *u);
/* Takes a slot's memory.bytes, and some more if the disk is to reach it; gives it back. */
int pl_store_open_slot(pl_store *s, pl_slot *slot, pl_mem_tag tag, bool by_disk);
void pl_store_close_slot(pl_store *s, pl_slot *slot);
int pl_store_open_buffers(pl_store *s);
/* The unit's values are to be in its slot: waits until that is free. */
int pl_store_enter_slot(pl_store *s, pl_unit_store *u);
/* Between the disk and a unit's slot: this process's slice of the values, and of the frozen ones. The end is for reads.
 */
int pl_store_read_slices(pl_store *s, pl_unit_store *u, bool frozen);
int pl_store_end_read(pl_store *s, pl_unit_store *u, bool frozen);
int pl_store_write_slices(pl_store *s, pl_unit_store *u, bool frozen);
/* Between the disk and a buffer: a bit for each state. The end is for reads. */
int pl_store_read_states(pl_store *s, pl_buffer *buffer, unsigned states);
int pl_store_end_states(pl_store *s, pl_buffer *buffer, unsigned states);
int pl_store_write_states(pl_store *s, pl_buffer *buffer, unsigned states);
/* Waits for all slots and buffers. */
int pl_store_end_transfers(pl_store *s);
/* Where element `low` of a state is in a buffer. */
void *pl_store_in_buffer(const pl_store *s, const pl_buffer *buffer, pl_state state);
/* Waits for what pl_collective's `gather` of each unit brings. */
int pl_store_end_gathers(pl_store *s);

/* ---- store_exchange.c ---- */

/* Elements. */
int64_t pl_store_longest_slice(const pl_store *s, const pl_unit_store *u);
int pl_store_open_exchange(pl_store *s);
void pl_store_close_exchange(pl_store *s);
/* Waits for all gradients that are on their way; for those in a slot, which can be used again then. */
int pl_store_finish_gradients(pl_store *s);
int pl_store_empty_slot(pl_store *s, int slot);

#endif
