/* What lies on disk: parameters, which pass through slots, and optimizer states, which pass through buffers. */
#include <stdlib.h>

#include "base/buf.h"
#include "train/store_internal.h"

/* ---- places ---- */

void pl_store_place_on_disk(pl_store *s, pl_block *block, int64_t bytes, int64_t skew)
{
    if (bytes == 0) return;
    *block = (pl_block){.bytes = bytes, .on_disk = true, .at = s->disk_bytes + skew};
    s->disk_bytes += pl_disk_round(skew + bytes);
}

/* Whole blocks go to and from the disk, so the slices that this process keeps must lie in the slot as they do in the
   file. What is beside a slice in its first and last block is other processes', which comes later, or nothing. */
int64_t pl_store_slot_bytes(const pl_store *s, pl_unit_store *u)
{
    int r = s->comm->rank;
    int64_t grain = pl_store_params_on_disk(s) ? PL_DISK_BLOCK : PL_STORE_BYTES,
            skew = u->value_bounds[r] % PL_STORE_BYTES, before = u->value_bounds[r] - skew,
            frozen_before = u->frozen_bounds[r];
    if (u->value_bytes + u->frozen_bytes == 0) return 0;
    u->value_place = pl_store_round_up(before, grain) - before;
    int64_t end = u->value_place + u->value_bytes,
            own_end =
                u->value_place + before + pl_store_round_up(skew + u->value_bounds[r + 1] - u->value_bounds[r], grain);
    if (own_end > end) end = own_end;
    u->frozen_place = pl_store_round_up(end + frozen_before, grain) - frozen_before;
    end = u->frozen_place + u->frozen_bytes;
    own_end = u->frozen_place + frozen_before + pl_store_round_up(u->frozen_bounds[r + 1] - frozen_before, grain);
    return own_end > end ? own_end : end;
}

/* ---- slots ---- */

int pl_store_open_slot(pl_store *s, pl_slot *slot, pl_mem_tag tag, bool by_disk)
{
    int64_t bytes = slot->memory.bytes;
    if (bytes == 0) return 0;
    PL_TRY(pl_store_take(s, &slot->memory, tag, bytes + (by_disk ? PL_DISK_BLOCK : 0)));
    slot->data = slot->memory.data;
    if (!by_disk || !slot->data) return 0;
    slot->data += (PL_DISK_BLOCK - (int64_t)((uintptr_t)slot->data % PL_DISK_BLOCK)) % PL_DISK_BLOCK;
    if (s->run->device->host_memory) return 0;
    slot->bounce = aligned_alloc((size_t)PL_DISK_BLOCK, (size_t)pl_disk_round(bytes));
    return slot->bounce ? 0 : PL_FAIL_NOMEM(s->run->err);
}

void pl_store_close_slot(pl_store *s, pl_slot *slot)
{
    pl_store_give_back(s, &slot->memory);
    free(slot->bounce);
}

/* What the disk reads from, or writes to, in the place of some memory of the slot. */
static char *reachable(const pl_slot *slot, char *data)
{
    return slot->bounce ? slot->bounce + (data - slot->data) : data;
}

static int read_block(pl_store *s, pl_slot *slot, const pl_block *block, char *data)
{
    int64_t skew = block->at % PL_DISK_BLOCK;
    if (block->bytes == 0) return 0;
    return pl_disk_read(s->run->err, s->options.offload.disk, &slot->transfer, block->at - skew,
        reachable(slot, pl_store_at(data, -skew)), pl_disk_round(skew + block->bytes));
}

/* After its read. */
static void take_block(pl_store *s, const pl_slot *slot, const pl_block *block, char *data)
{
    pl_device *device = s->run->device;
    if (slot->bounce && block->bytes > 0) device->ops->copy_in(device, data, reachable(slot, data), block->bytes);
}

static int write_block(pl_store *s, pl_slot *slot, const pl_block *block, char *data)
{
    pl_device *device = s->run->device;
    int64_t skew = block->at % PL_DISK_BLOCK;
    if (block->bytes == 0) return 0;
    if (slot->bounce) device->ops->copy_out(device, reachable(slot, data), data, block->bytes);
    return pl_disk_write(s->run->err, s->options.offload.disk, &slot->transfer, block->at - skew,
        reachable(slot, pl_store_at(data, -skew)), pl_disk_round(skew + block->bytes));
}

/* ---- units ---- */

int pl_store_enter_slot(pl_store *s, pl_unit_store *u)
{
    pl_slot *slot = &s->slots[u->slot];
    if (s->options.offload.disk) PL_TRY(pl_disk_wait(s->run->err, s->options.offload.disk, &slot->transfer));
    u->here = pl_store_at(slot->data, u->value_place);
    u->frozen_here = pl_store_at(slot->data, u->frozen_place);
    return 0;
}

static char *own_values(const pl_store *s, const pl_unit_store *u)
{
    return pl_store_at(u->here, u->value_bounds[s->comm->rank]);
}

static char *own_frozen(const pl_store *s, const pl_unit_store *u)
{
    return pl_store_at(u->frozen_here, u->frozen_bounds[s->comm->rank]);
}

int pl_store_read_slices(pl_store *s, pl_unit_store *u, bool frozen)
{
    PL_TRY(read_block(s, &s->slots[u->slot], &u->values, own_values(s, u)));
    return frozen ? read_block(s, &s->slots[u->slot], &u->frozen, own_frozen(s, u)) : 0;
}

int pl_store_end_read(pl_store *s, pl_unit_store *u, bool frozen)
{
    pl_slot *slot = &s->slots[u->slot];
    PL_TRY(pl_disk_wait(s->run->err, s->options.offload.disk, &slot->transfer));
    take_block(s, slot, &u->values, own_values(s, u));
    if (frozen) take_block(s, slot, &u->frozen, own_frozen(s, u));
    return 0;
}

int pl_store_write_slices(pl_store *s, pl_unit_store *u, bool frozen)
{
    PL_TRY(write_block(s, &s->slots[u->slot], &u->values, own_values(s, u)));
    return frozen ? write_block(s, &s->slots[u->slot], &u->frozen, own_frozen(s, u)) : 0;
}

/* ---- buffers ---- */

/* Whether units have that state on disk. */
static bool is_buffered(const pl_store *s, int state)
{
    if (!s->options.offload.optimizer || !s->options.training) return false;
    if (state == PL_STATE_MASTER) return s->model->dtype != PL_F32;
    return state >= PL_STATE_MOMENT1 && state < PL_STATE_MOMENT1 + s->options.moments;
}

/* Bytes of an element of all such states below this one. */
static int64_t buffered_below(const pl_store *s, int state)
{
    int64_t bytes = 0;
    for (int k = 0; k < state; k++) bytes += is_buffered(s, k) ? pl_store_state_bytes((pl_state)k, 1) : 0;
    return bytes;
}

int pl_store_open_buffers(pl_store *s)
{
    int64_t grain = PL_DISK_BLOCK / 2, longest = 0; /* whole blocks of each state */
    int64_t element = s->options.offload.disk ? buffered_below(s, PL_STATE_COUNT) : 0;
    s->buffer_elements = INT64_MAX;
    if (element == 0) return 0;
    for (int i = 0; i < s->model->nunits; i++) {
        const pl_unit_store *u = &s->units[i];
        if (u->high - u->low > longest) longest = u->high - u->low;
    }
    int64_t elements = s->options.offload.buffer / element / grain * grain;
    if (elements < grain) elements = grain;
    if (elements > longest) elements = pl_store_round_up(longest, grain);
    if (elements == 0) return 0;
    s->buffer_elements = elements;
    for (int i = 0; i < PL_STORE_BUFFERS; i++) {
        s->buffers[i].slot.memory.bytes = element * elements;
        PL_TRY(pl_store_open_slot(s, &s->buffers[i].slot, PL_MEM_OFFLOAD, true));
    }
    return 0;
}

void *pl_store_in_buffer(const pl_store *s, const pl_buffer *buffer, pl_state state)
{
    return pl_store_at(buffer->slot.data, buffered_below(s, (int)state) * s->buffer_elements);
}

/* Those elements of a state, as a block of their own. */
static bool find_in_file(const pl_store *s, const pl_buffer *b, unsigned states, int k, pl_block *out)
{
    const pl_unit_store *u = &s->units[b->unit];
    if (!(states & 1u << k) || !u->states[k].on_disk) return false;
    *out = (pl_block){.bytes = pl_store_state_bytes((pl_state)k, b->high - b->low),
        .at = u->states[k].at + pl_store_state_bytes((pl_state)k, b->low - u->low)};
    return true;
}

int pl_store_read_states(pl_store *s, pl_buffer *b, unsigned states)
{
    pl_block block;
    for (int k = 0; k < PL_STATE_COUNT; k++) {
        if (!find_in_file(s, b, states, k, &block)) continue;
        PL_TRY(read_block(s, &b->slot, &block, pl_store_in_buffer(s, b, (pl_state)k)));
    }
    return 0;
}

int pl_store_end_states(pl_store *s, pl_buffer *b, unsigned states)
{
    pl_block block;
    PL_TRY(pl_disk_wait(s->run->err, s->options.offload.disk, &b->slot.transfer));
    for (int k = 0; k < PL_STATE_COUNT; k++) {
        if (find_in_file(s, b, states, k, &block))
            take_block(s, &b->slot, &block, pl_store_in_buffer(s, b, (pl_state)k));
    }
    return 0;
}

int pl_store_write_states(pl_store *s, pl_buffer *b, unsigned states)
{
    pl_block block;
    for (int k = 0; k < PL_STATE_COUNT; k++) {
        if (!find_in_file(s, b, states, k, &block)) continue;
        PL_TRY(write_block(s, &b->slot, &block, pl_store_in_buffer(s, b, (pl_state)k)));
    }
    return 0;
}

int pl_store_end_transfers(pl_store *s)
{
    pl_disk *disk = s->options.offload.disk;
    for (int i = 0; i < PL_STORE_BUFFERS && disk; i++) {
        PL_TRY(pl_disk_wait(s->run->err, disk, &s->buffers[i].slot.transfer));
    }
    for (int i = 0; i < s->nslots && disk; i++) PL_TRY(pl_disk_wait(s->run->err, disk, &s->slots[i].transfer));
    return 0;
}
