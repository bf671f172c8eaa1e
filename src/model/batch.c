#include "model/batch.h"

#include <stdlib.h>
#include <string.h>

#include "base/buf.h"

int pl_batch_open(pl_error *err, pl_batch *batch, int64_t capacity_tokens, int capacity_sequences)
{
    *batch = (pl_batch){.capacity_tokens = capacity_tokens, .capacity_sequences = capacity_sequences};
    int rc = 0;
    PL_GO(failed, pl_calloc(err, (size_t)capacity_tokens, sizeof *batch->ids, &batch->ids));
    PL_GO(failed, pl_calloc(err, (size_t)capacity_tokens, sizeof *batch->targets, &batch->targets));
    PL_GO(failed, pl_calloc(err, (size_t)capacity_tokens, sizeof *batch->positions, &batch->positions));
    PL_GO(failed, pl_calloc(err, (size_t)capacity_sequences, sizeof *batch->sequences, &batch->sequences));
    PL_GO(failed, pl_calloc(err, (size_t)capacity_sequences, sizeof *batch->numbers, &batch->numbers));
    return 0;
failed:
    pl_batch_close(batch);
    return rc;
}

void pl_batch_close(pl_batch *batch)
{
    free(batch->ids);
    free(batch->targets);
    free(batch->positions);
    free(batch->sequences);
    free(batch->numbers);
    *batch = (pl_batch){0};
}

void pl_batch_clear(pl_batch *batch)
{
    batch->next_number = 0;
    batch->tokens = 0;
    batch->nsequences = 0;
    batch->ntargets = 0;
    batch->max_length = 0;
    batch->rope_length = 0;
}

int pl_batch_append(pl_error *err, pl_batch *batch, const int32_t *ids, const int32_t *labels, int64_t n)
{
    if (batch->tokens + n > batch->capacity_tokens || batch->nsequences == batch->capacity_sequences) {
        return PL_FAIL(err, PL_ENOMEM, "a sequence of %lld tokens does not fit into a micro-batch of %lld",
            (long long)n, (long long)batch->capacity_tokens);
    }
    if (!labels) labels = ids;
    int64_t at = batch->tokens;
    memcpy(batch->ids + at, ids, (size_t)n * sizeof *ids);
    for (int64_t t = 0; t < n; t++) {
        int32_t target = t + 1 < n ? labels[t + 1] : PL_NOT_TRAINED;
        batch->targets[at + t] = target;
        batch->positions[at + t] = (int32_t)t;
        if (target >= 0) batch->ntargets++;
    }
    batch->numbers[batch->nsequences] = batch->next_number;
    batch->sequences[batch->nsequences++] = (pl_sequence){at, n, at, n};
    batch->next_number += n;
    batch->tokens += n;
    if (n > batch->max_length) batch->max_length = n;
    return 0;
}

int pl_batch_copy(pl_error *err, const pl_batch *from, pl_batch *to)
{
    int64_t at = to->tokens, n = from->tokens;
    if (at + n > to->capacity_tokens || to->nsequences + from->nsequences > to->capacity_sequences) {
        return PL_FAIL(err, PL_ENOMEM, "%lld more tokens do not fit into a micro-batch of %lld", (long long)n,
            (long long)to->capacity_tokens);
    }
    memcpy(to->ids + at, from->ids, (size_t)n * sizeof *to->ids);
    memcpy(to->targets + at, from->targets, (size_t)n * sizeof *to->targets);
    memcpy(to->positions + at, from->positions, (size_t)n * sizeof *to->positions);
    for (int i = 0; i < from->nsequences; i++) {
        pl_sequence s = from->sequences[i];
        to->numbers[to->nsequences] = to->next_number + s.q_begin;
        to->sequences[to->nsequences++] = (pl_sequence){s.q_begin + at, s.q_len, s.k_begin + at, s.k_len};
    }
    to->next_number += n;
    to->tokens += n;
    to->ntargets += from->ntargets;
    if (from->max_length > to->max_length) to->max_length = from->max_length;
    if (from->rope_length > to->rope_length) to->rope_length = from->rope_length;
    return 0;
}
