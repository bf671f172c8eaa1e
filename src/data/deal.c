#include "data/deal.h"

#include <stdlib.h>

#include "base/buf.h"

void pl_deal_close(pl_deal *d)
{
    free(d->items);
    free(d->starts);
    free(d->scratch);
    *d = (pl_deal){0};
}

static int64_t divide_up(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

static int begin(pl_error *err, pl_deal *d, int64_t rows, int processes, int64_t micros)
{
    if (micros < 1) micros = 1;
    if (micros > INT32_MAX / processes)
        return PL_FAIL(err, PL_EUSAGE, "a step has more micro-batches than 31 bits hold");
    *d = (pl_deal){.processes = processes,
        .micros = (int)micros,
        .rows = rows,
        .items = d->items,
        .starts = d->starts,
        .scratch = d->scratch,
        .items_capacity = d->items_capacity,
        .starts_capacity = d->starts_capacity,
        .scratch_capacity = d->scratch_capacity};
    PL_TRY(pl_grow(err, &d->items, &d->items_capacity, (size_t)rows + 1, sizeof *d->items));
    return pl_grow(err, &d->starts, &d->starts_capacity, (size_t)(processes * micros) + 1, sizeof *d->starts);
}

int pl_deal_in_turn(pl_error *err, pl_deal *d, int64_t rows, int processes, int64_t micro_batch)
{
    PL_TRY(begin(err, d, rows, processes, divide_up(divide_up(rows, processes), micro_batch)));
    int64_t n = 0;
    for (int p = 0; p < processes; p++) {
        for (int m = 0; m < d->micros; m++) {
            d->starts[p * d->micros + m] = n;
            for (int64_t k = m * micro_batch; k < (m + 1) * micro_batch && k * processes + p < rows; k++) {
                d->items[n++] = k * processes + p;
            }
        }
    }
    d->starts[processes * d->micros] = n;
    return 0;
}

/* Longest first; of equal ones the earlier. */
static int by_length(const void *a, const void *b, void *lengths)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    int64_t nx = ((const int64_t *)lengths)[x], ny = ((const int64_t *)lengths)[y];
    if (nx != ny) return nx > ny ? -1 : 1;
    return x < y ? -1 : x > y;
}

/* Of `count` that have room, the one with the fewest tokens; of equal ones the first. */
static int64_t lightest(const int64_t *tokens, const int64_t *rows, int64_t count, int64_t room)
{
    int64_t best = -1;
    for (int64_t i = 0; i < count; i++) {
        if (rows[i] < room && (best < 0 || tokens[i] < tokens[best])) best = i;
    }
    return best;
}

int pl_deal_evenly(pl_error *err, pl_deal *d, const int64_t *lengths, int64_t rows, int processes, int64_t micro_batch)
{
    int64_t most = divide_up(rows, processes);
    PL_TRY(begin(err, d, rows, processes, divide_up(most, micro_batch)));
    int64_t bins = (int64_t)processes * d->micros, need = 2 * rows + 2 * processes + 2 * bins;
    PL_TRY(pl_grow(err, &d->scratch, &d->scratch_capacity, (size_t)need + 1, sizeof *d->scratch));
    int64_t *order = d->scratch, *bin_of = order + rows, *tokens = bin_of + rows, *held = tokens + processes,
            *bin_tokens = held + processes, *bin_rows = bin_tokens + bins;
    for (int64_t i = 0; i < 2 * processes + 2 * bins; i++) tokens[i] = 0;
    for (int64_t i = 0; i < rows; i++) order[i] = i;
    qsort_r(order, (size_t)rows, sizeof *order, by_length, (void *)lengths);
    for (int64_t i = 0; i < rows; i++) {
        int64_t row = order[i], p = lightest(tokens, held, processes, most), first = p * d->micros;
        int64_t bin = first + lightest(bin_tokens + first, bin_rows + first, d->micros, micro_batch);
        tokens[p] += lengths[row];
        held[p]++;
        bin_tokens[bin] += lengths[row];
        bin_rows[bin]++;
        bin_of[row] = bin;
    }
    d->starts[0] = 0;
    for (int64_t b = 0; b < bins; b++) d->starts[b + 1] = d->starts[b] + bin_rows[b];
    for (int64_t b = 0; b < bins; b++) bin_rows[b] = d->starts[b]; /* where the bin's next row goes */
    for (int64_t row = 0; row < rows; row++) d->items[bin_rows[bin_of[row]]++] = row;
    return 0;
}

int pl_deal_made(pl_error *err, pl_deal *d, const int64_t *sizes, int64_t count, int processes)
{
    int64_t rows = 0, n = 0;
    for (int64_t i = 0; i < count; i++) rows += sizes[i];
    PL_TRY(begin(err, d, rows, processes, divide_up(count, processes)));
    for (int p = 0; p < processes; p++) {
        int64_t first = 0;
        for (int64_t i = 0; i < (int64_t)d->micros * processes; i++) {
            int64_t size = i < count ? sizes[i] : 0;
            if (i % processes == p) {
                d->starts[p * d->micros + i / processes] = n;
                for (int64_t k = 0; k < size; k++) d->items[n++] = first + k;
            }
            first += size;
        }
    }
    d->starts[processes * d->micros] = n;
    return 0;
}
