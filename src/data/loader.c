#include "data/loader.h"

#include <math.h>
#include <stdlib.h>

#include "base/rng.h"
#include "data/deal.h"

/* Weighted files share out the draws in blocks of this many, so that any draw is found without counting all before. */
#define BLOCK 1024

struct pl_loader {
    pl_dataset *dataset;
    pl_loader_config config;
    int64_t rows;  /* of the part */
    int64_t limit; /* draws until the end; INT64_MAX: none */
    /* weights: */
    size_t files;
    double *share;  /* [files] sums of the weights up to and with a file, the last one 1 */
    int64_t *first; /* [files] of its rows */
    int64_t *count;
    int64_t *drawn;       /* [files] draws in the blocks before `block` */
    int64_t *block_drawn; /* [files] draws in it */
    int64_t block;        /* the one that was looked at last; -1 at first */
    struct {
        uint32_t file;
        uint32_t before; /* draws of that file earlier in the block */
    } places[BLOCK];
    /* micro_batch_tokens: where the steps start that were looked at so far */
    int64_t *starts;
    size_t start_count, start_capacity;
    /* the step that was dealt out last, by its first draw; -1: none */
    int64_t dealt;
    pl_deal deal;
    int64_t *sizes; /* scratch: lengths of a step's rows, or rows of its micro-batches */
    size_t size_capacity;
};

/* ---- the order of rows ---- */

static int64_t shuffled(const pl_loader *l, int64_t index, int64_t n, uint32_t domain)
{
    if (!l->config.shuffle) return index;
    const pl_rng rng = {l->config.seed, PL_RNG_SHUFFLE, domain};
    return (int64_t)pl_rng_permute(&rng, (uint64_t)index, (uint64_t)n);
}

/* Of the draws of a block, those before this one belong to files up to and with `file`. The common offset of a block is
   what makes the shares right on the whole, however small a weight is. */
static int64_t edge(const pl_loader *l, int64_t block, size_t file)
{
    if (file + 1 == l->files) return BLOCK;
    const pl_rng rng = {l->config.seed, PL_RNG_MIX, 0};
    return (int64_t)floor(BLOCK * l->share[file] + pl_rng_uniform(&rng, (uint64_t)block));
}

/* A place in a block in another order, so that files alternate: at random, or by a step that meets each place once. */
static int64_t scatter(const pl_loader *l, int64_t block, int64_t place)
{
    if (!l->config.shuffle) return place * 633 % BLOCK;
    const pl_rng rng = {l->config.seed, PL_RNG_MIX, (uint32_t)block + 1};
    return (int64_t)pl_rng_permute(&rng, (uint64_t)place, BLOCK);
}

static int64_t low_edge(const pl_loader *l, int64_t block, size_t file)
{
    return file == 0 ? 0 : edge(l, block, file - 1);
}

/* Goes to a block, from the one that was looked at last: steps are asked for one after another. */
static void go_to_block(pl_loader *l, int64_t block)
{
    if (l->block == block) return;
    int64_t at = l->block < 0 ? 0 : l->block;
    for (; at != block; at += at < block ? 1 : -1) {
        int64_t over = at < block ? at : at - 1, sign = at < block ? 1 : -1;
        for (size_t f = 0; f < l->files; f++) l->drawn[f] += sign * (edge(l, over, f) - low_edge(l, over, f));
    }
    l->block = block;
    for (size_t f = 0; f < l->files; f++) l->block_drawn[f] = 0;
    for (int64_t i = 0; i < BLOCK; i++) {
        int64_t place = scatter(l, block, i);
        uint32_t file = 0;
        while (place >= edge(l, block, file)) file++;
        l->places[i].file = file;
        l->places[i].before = (uint32_t)l->block_drawn[file]++;
    }
}

static int64_t weighted_row(pl_loader *l, int64_t draw)
{
    go_to_block(l, draw / BLOCK);
    size_t file = l->places[draw % BLOCK].file;
    int64_t index = l->drawn[file] + l->places[draw % BLOCK].before, n = l->count[file], epoch = index / n;
    return l->first[file] + shuffled(l, index % n, n, (uint32_t)(epoch * (int64_t)l->files + (int64_t)file));
}

int64_t pl_loader_row(pl_loader *l, int64_t draw)
{
    if (l->share) return weighted_row(l, draw);
    return shuffled(l, draw % l->rows, l->rows, (uint32_t)(draw / l->rows));
}

static int64_t row_length(pl_loader *l, int64_t draw, int64_t *trained)
{
    return pl_dataset_row_length(l->dataset, l->config.part, pl_loader_row(l, draw), trained);
}

/* ---- steps ---- */

static int64_t rows_a_step(const pl_loader *l)
{
    return l->config.micro_batch * l->config.accumulation;
}

/* Where the micro-batch that starts with draw `first` ends. */
static int64_t micro_end(pl_loader *l, int64_t first)
{
    if (l->config.micro_batch_tokens == 0) {
        return l->limit - first < l->config.micro_batch ? l->limit : first + l->config.micro_batch;
    }
    int64_t end = first, tokens = 0;
    while (end < l->limit) {
        tokens += row_length(l, end, NULL);
        if (tokens > l->config.micro_batch_tokens) break;
        end++;
    }
    return end;
}

static int64_t step_end(pl_loader *l, int64_t first)
{
    for (int64_t i = 0; i < l->config.accumulation && first < l->limit; i++) first = micro_end(l, first);
    return first;
}

/* The first draw of a step; *found is false for steps after the end. */
static int step_start(pl_error *err, pl_loader *l, int64_t step, int64_t *start, bool *found)
{
    *start = 0;
    *found = false;
    if (l->config.micro_batch_tokens == 0) {
        *found = step <= (l->limit - 1) / rows_a_step(l);
        if (*found) *start = step * rows_a_step(l);
        return 0;
    }
    while ((int64_t)l->start_count <= step) {
        int64_t next = l->start_count ? step_end(l, l->starts[l->start_count - 1]) : 0;
        if (next >= l->limit) return 0;
        PL_TRY(pl_grow(err, &l->starts, &l->start_capacity, l->start_count + 1, sizeof *l->starts));
        l->starts[l->start_count++] = next;
    }
    *start = l->starts[step];
    *found = true;
    return 0;
}

int pl_loader_steps(pl_error *err, pl_loader *l, int64_t *out)
{
    *out = INT64_MAX;
    if (l->limit == INT64_MAX) return 0;
    if (l->config.micro_batch_tokens == 0) {
        *out = (l->limit - 1) / rows_a_step(l) + 1;
        return 0;
    }
    int64_t start;
    bool found = true;
    while (found) PL_TRY(step_start(err, l, (int64_t)l->start_count, &start, &found));
    *out = (int64_t)l->start_count;
    return 0;
}

static int find_step(pl_error *err, pl_loader *l, int64_t step, int64_t *start)
{
    bool found = false;
    if (step >= 0) PL_TRY(step_start(err, l, step, start, &found));
    return found ? 0 : PL_FAIL(err, PL_EBUG, "the data has no step %lld", (long long)step);
}

/* Deals out the rows of the step whose first draw this is. */
static int deal_out(pl_error *err, pl_loader *l, int64_t first)
{
    const pl_loader_config *c = &l->config;
    if (l->dealt == first) return 0;
    l->dealt = -1;
    if (c->micro_batch_tokens > 0) {
        int64_t count = 0;
        PL_TRY(pl_grow(err, &l->sizes, &l->size_capacity, (size_t)l->config.accumulation, sizeof *l->sizes));
        for (int64_t at = first; count < l->config.accumulation && at < l->limit; count++) {
            int64_t end = micro_end(l, at);
            l->sizes[count] = end - at;
            at = end;
        }
        PL_TRY(pl_deal_made(err, &l->deal, l->sizes, count, c->processes));
    } else {
        int64_t rows = l->limit - first < rows_a_step(l) ? l->limit - first : rows_a_step(l);
        if (c->processes == 1 || !c->shuffle) {
            PL_TRY(pl_deal_in_turn(err, &l->deal, rows, c->processes, c->micro_batch));
        } else {
            PL_TRY(pl_grow(err, &l->sizes, &l->size_capacity, (size_t)rows, sizeof *l->sizes));
            for (int64_t i = 0; i < rows; i++) l->sizes[i] = row_length(l, first + i, NULL);
            PL_TRY(pl_deal_evenly(err, &l->deal, l->sizes, rows, c->processes, c->micro_batch));
        }
    }
    l->dealt = first;
    return 0;
}

int pl_loader_step_at(pl_error *err, pl_loader *l, int64_t step, pl_loader_step *out)
{
    int64_t first;
    *out = (pl_loader_step){0};
    PL_TRY(find_step(err, l, step, &first));
    PL_TRY(deal_out(err, l, first));
    *out = (pl_loader_step){.first_row = first, .rows = l->deal.rows, .micro_batches = l->deal.micros};
    for (int64_t i = 0; i < l->deal.rows; i++) {
        int64_t trained;
        out->tokens += row_length(l, first + i, &trained);
        out->targets += trained;
    }
    return 0;
}

int pl_loader_fill(pl_error *err, pl_loader *l, int64_t step, int micro, pl_batch *batch)
{
    int64_t first;
    pl_batch_clear(batch);
    PL_TRY(find_step(err, l, step, &first));
    PL_TRY(deal_out(err, l, first));
    if (micro < 0 || micro >= l->deal.micros) {
        return PL_FAIL(err, PL_EBUG, "step %lld has no micro-batch %d", (long long)step, micro);
    }
    const int64_t *starts = l->deal.starts + l->config.process * l->deal.micros + micro;
    int64_t counted = 0, number = 0; /* rows of the step, and their tokens, before the one that comes next */
    for (int64_t i = starts[0]; i < starts[1]; i++) {
        int64_t draw = first + l->deal.items[i];
        for (; first + counted < draw; counted++) number += row_length(l, first + counted, NULL);
        batch->next_number = number;
        pl_row row = pl_dataset_row(l->dataset, l->config.part, pl_loader_row(l, draw));
        PL_TRY(pl_batch_append(err, batch, row.ids, row.labels, row.n));
    }
    return 0;
}

int pl_loader_find_largest(pl_error *err, pl_loader *l, int64_t first, int64_t end, pl_loader_largest *out)
{
    *out = (pl_loader_largest){0};
    for (int64_t step = first; step < end; step++) {
        int64_t draw;
        PL_TRY(find_step(err, l, step, &draw));
        PL_TRY(deal_out(err, l, draw));
        for (int b = 0; b < l->deal.processes * l->deal.micros; b++) {
            int64_t tokens = 0, rows = l->deal.starts[b + 1] - l->deal.starts[b];
            if (rows > out->sequences) out->sequences = rows;
            for (int64_t i = l->deal.starts[b]; i < l->deal.starts[b + 1]; i++) {
                int64_t n = row_length(l, draw + l->deal.items[i], NULL);
                tokens += n;
                if (n > out->length) out->length = n;
            }
            if (tokens > out->tokens) out->tokens = tokens;
        }
    }
    return 0;
}

/* ---- opening ---- */

static double weight_of(const pl_loader *l, size_t file)
{
    return file < l->config.weight_count ? l->config.weights[file] : 0;
}

static int set_weights(pl_error *err, pl_loader *l)
{
    double sum = 0, so_far = 0;
    l->files = pl_dataset_files(l->dataset);
    PL_TRY(pl_calloc(err, l->files, sizeof *l->share, &l->share));
    PL_TRY(pl_calloc(err, l->files, sizeof *l->first, &l->first));
    PL_TRY(pl_calloc(err, l->files, sizeof *l->count, &l->count));
    PL_TRY(pl_calloc(err, l->files, sizeof *l->drawn, &l->drawn));
    PL_TRY(pl_calloc(err, l->files, sizeof *l->block_drawn, &l->block_drawn));
    l->block = -1;
    for (size_t i = 0; i < l->files; i++) {
        double w = weight_of(l, i);
        pl_dataset_file_rows(l->dataset, l->config.part, i, &l->first[i], &l->count[i]);
        if (!(w >= 0) || !isfinite(w)) {
            return PL_FAIL(err, PL_EUSAGE, "the weight of data file %zu is %g; it must be 0 or more", i + 1, w);
        }
        if (w > 0 && l->count[i] == 0) {
            return PL_FAIL(err, PL_EUSAGE, "data file %zu has the weight %g, and no row to draw", i + 1, w);
        }
        sum += w;
    }
    if (!(sum > 0)) return PL_FAIL(err, PL_EUSAGE, "the weights of the data files are all 0");
    for (size_t i = 0; i < l->files; i++) {
        so_far += weight_of(l, i);
        l->share[i] = so_far >= sum ? 1 : so_far / sum; /* the same sum in the same order: 1 after the last weight */
    }
    return 0;
}

static int check(pl_error *err, pl_loader *l)
{
    const pl_loader_config *c = &l->config;
    int64_t longest = pl_dataset_stats(l->dataset, c->part)->longest;
    if (l->rows == 0)
        return PL_FAIL(
            err, PL_EINPUT, "the data has no row for %s", c->part == PL_DATA_TRAIN ? "training" : "validation");
    if (c->micro_batch_tokens == 0 && (c->micro_batch < 1 || c->micro_batch > INT32_MAX)) {
        return PL_FAIL(err, PL_EUSAGE, "train.micro_batch is %lld; it must be 1 or more, and fit 31 bits",
            (long long)c->micro_batch);
    }
    if (c->micro_batch_tokens < 0 || (c->micro_batch_tokens > 0 && c->micro_batch_tokens < longest)) {
        return PL_FAIL(err, PL_EUSAGE,
            "train.micro_batch_tokens is %lld, and the longest row has %lld tokens; it must be as large, or "
            "data.sequence_length smaller",
            (long long)c->micro_batch_tokens, (long long)longest);
    }
    if (c->accumulation < 1 || c->accumulation > INT32_MAX) {
        return PL_FAIL(err, PL_EUSAGE, "train.accumulation is %lld; it must be 1 or more, and fit 31 bits",
            (long long)c->accumulation);
    }
    if (c->process < 0 || c->process >= c->processes) {
        return PL_FAIL(err, PL_EBUG, "rows for process %d of %d", c->process, c->processes);
    }
    if (!(c->epochs >= 0) || c->epochs * (double)l->rows > 9e18) {
        return PL_FAIL(err, PL_EUSAGE, "train.epochs is %g; it must be more than 0", c->epochs);
    }
    return 0;
}

int pl_loader_open(pl_error *err, pl_dataset *dataset, const pl_loader_config *config, pl_loader **out)
{
    pl_loader *l;
    PL_TRY(pl_calloc(err, 1, sizeof *l, &l));
    l->dataset = dataset;
    l->config = *config;
    l->rows = pl_dataset_rows(dataset, config->part);
    l->limit = INT64_MAX;
    l->dealt = -1;
    if (config->processes == 0) l->config.processes = 1;
    int rc = 0;
    PL_GO(failed, check(err, l));
    if (config->epochs > 0) l->limit = (int64_t)fmax(1, ceil(config->epochs * (double)l->rows - 1e-6));
    if (config->weight_count) PL_GO(failed, set_weights(err, l));
    *out = l;
    return 0;
failed:
    pl_loader_close(l);
    return rc;
}

void pl_loader_close(pl_loader *l)
{
    if (!l) return;
    free(l->share);
    free(l->first);
    free(l->count);
    free(l->drawn);
    free(l->block_drawn);
    free(l->starts);
    free(l->sizes);
    pl_deal_close(&l->deal);
    free(l);
}
