/* Turns files into rows. One thread reads examples into chunks of some 64 KiB, all threads encode a round of chunks,
   one writes their rows in order: so the result is the same for any number of threads, and memory holds one round. */
#include <omp.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/rng.h"
#include "data/dataset_internal.h"

#define CHUNK_BYTES ((size_t)64 << 10)
#define CHUNKS_A_THREAD 4

typedef struct item {
    size_t at, size; /* in the chunk's bytes */
    int64_t line;
    pl_data_part part;
} item;

typedef struct chunk {
    pl_buf bytes;
    item *items;
    size_t count, capacity;
    pl_rows rows;
    pl_error err;
} chunk;

typedef struct builder {
    const pl_data_config *config;
    const pl_data_rules *rules;
    int threads, chunk_count;
    chunk *chunks;
    pl_encoder **encoders; /* [threads] */
    pl_cache_writer *writer;
    pl_data_stats *stats;
    /* the file at hand */
    size_t file;
    pl_reader *reader;
    int64_t examples;
    pl_data_format format; /* AUTO until the first example is seen */
    bool ended;
} builder;

pl_data_part pl_data_part_of(const pl_data_config *config, size_t file, int64_t index)
{
    if (config->files[file].validation) return PL_DATA_VALIDATION;
    if (config->validation_split <= 0) return PL_DATA_TRAIN;
    const pl_rng rng = {config->seed, PL_RNG_SPLIT, (uint32_t)file};
    return pl_rng_uniform(&rng, (uint64_t)index) < config->validation_split ? PL_DATA_VALIDATION : PL_DATA_TRAIN;
}

static void chunk_clear(chunk *c)
{
    pl_buf_clear(&c->bytes);
    c->count = 0;
    c->rows.used = c->rows.count = 0;
    memset(c->rows.stats, 0, sizeof c->rows.stats);
    pl_error_clear(&c->err);
}

/* The first example tells the file's format. */
static int learn_format(pl_error *err, builder *b, const pl_record *record)
{
    const char *path = b->config->files[b->file].path;
    json_t *json;
    PL_TRY(pl_json_parse_from(err, path, record->line, record->bytes, record->size, &json));
    pl_place place = {path, record->line};
    int rc = pl_data_recognise(err, place, json, b->config->format, b->rules->names, &b->format);
    json_decref(json);
    return rc < 0 ? rc : pl_data_check_format(err, path, b->format, b->rules);
}

/* Reads the next examples of the file into a chunk. */
static int fill(pl_error *err, builder *b, chunk *c)
{
    chunk_clear(c);
    while (!b->ended && c->bytes.size < CHUNK_BYTES) {
        pl_record record;
        PL_TRY(pl_reader_next(err, b->reader, &record));
        if (!record.bytes) {
            b->ended = true;
            break;
        }
        if (b->format == PL_DATA_AUTO) PL_TRY(learn_format(err, b, &record));
        PL_TRY(pl_grow(err, &c->items, &c->capacity, c->count + 1, sizeof *c->items));
        size_t at = c->bytes.size;
        PL_TRY(pl_buf_append(err, &c->bytes, record.bytes, record.size));
        c->items[c->count++] = (item){at, record.size, record.line, pl_data_part_of(b->config, b->file, b->examples++)};
    }
    return 0;
}

static void encode(const builder *b, chunk *c, pl_encoder *encoder)
{
    for (size_t i = 0; i < c->count; i++) {
        const item *x = &c->items[i];
        pl_place place = {b->config->files[b->file].path, x->line};
        if (pl_encode_json(&c->err, encoder, place, c->bytes.data + x->at, x->size, b->format, x->part, &c->rows) < 0) {
            return;
        }
    }
}

static int pass_error(pl_error *err, const pl_error *from)
{
    if (from->code == 0) return 0;
    pl_error_set(err, from->code, from->file, from->line, "%s", from->message);
    return from->code;
}

static int write_chunk(pl_error *err, builder *b, chunk *c, pl_cache_source *source)
{
    PL_TRY(pass_error(err, &c->err));
    PL_TRY(pl_cache_add(err, b->writer, &c->rows));
    for (int p = 0; p < PL_DATA_PARTS; p++) {
        source->rows[p] += c->rows.stats[p].rows;
        pl_data_stats_add(&b->stats[p], &c->rows.stats[p]);
    }
    return 0;
}

static int build_examples(pl_error *err, builder *b, pl_cache_source *source)
{
    while (!b->ended) {
        int filled = 0, read = 0;
        /* A failure to read comes after what is wrong with the examples before it. */
        pl_error late = {0};
        while (filled < b->chunk_count && !b->ended && read == 0) read = fill(&late, b, &b->chunks[filled++]);
#pragma omp parallel for num_threads(b->threads) schedule(dynamic, 1)
        for (int i = 0; i < filled; i++) encode(b, &b->chunks[i], b->encoders[omp_get_thread_num()]);
        for (int i = 0; i < filled; i++) PL_TRY(write_chunk(err, b, &b->chunks[i], source));
        PL_TRY(pass_error(err, &late));
    }
    return 0;
}

static int build_file(pl_error *err, builder *b, pl_cache_source *source)
{
    const char *path = b->config->files[b->file].path;
    b->ended = false;
    b->examples = 0;
    b->format = PL_DATA_AUTO;
    PL_TRY(pl_reader_open(err, path, &b->reader));
    if (pl_reader_is_text(b->reader)) {
        b->format = PL_DATA_TEXT;
        if (b->config->format != PL_DATA_AUTO && b->config->format != PL_DATA_TEXT) {
            return PL_FAIL(err, PL_EUSAGE, "%s: is a text file, which cannot be of data.format %s", path,
                pl_data_format_name(b->config->format));
        }
        PL_TRY(pl_data_check_format(err, path, PL_DATA_TEXT, b->rules));
        pl_data_stats stats[PL_DATA_PARTS] = {0};
        PL_TRY(pl_dataset_build_text(err, b->config, b->rules, b->threads, b->writer, b->file, b->reader, stats));
        for (int p = 0; p < PL_DATA_PARTS; p++) {
            source->rows[p] = stats[p].rows;
            pl_data_stats_add(&b->stats[p], &stats[p]);
        }
    } else {
        PL_TRY(build_examples(err, b, source));
        if (b->examples == 0) return PL_FAIL(err, PL_EINPUT, "%s: there is no example in it", path);
    }
    source->format = b->format;
    pl_reader_identity(b->reader, &source->identity);
    return 0;
}

int pl_dataset_build(pl_error *err, const pl_data_config *config, const pl_data_rules *rules, int threads,
    pl_cache_writer *w, pl_cache_source *sources, pl_data_stats stats[PL_DATA_PARTS])
{
    builder b = {.config = config, .rules = rules, .threads = threads < 1 ? 1 : threads, .writer = w, .stats = stats};
    b.chunk_count = CHUNKS_A_THREAD * b.threads;
    int rc = 0;
    PL_GO(done, pl_calloc(err, (size_t)b.chunk_count, sizeof *b.chunks, &b.chunks));
    PL_GO(done, pl_calloc(err, (size_t)b.threads, sizeof *b.encoders, &b.encoders));
    for (int i = 0; i < b.threads; i++) PL_GO(done, pl_encoder_open(err, rules, &b.encoders[i]));
    for (b.file = 0; b.file < config->file_count; b.file++) {
        rc = build_file(err, &b, &sources[b.file]);
        pl_reader_close(b.reader);
        b.reader = NULL;
        if (rc < 0) goto done;
    }
done:
    for (int i = 0; i < b.threads && b.encoders; i++) pl_encoder_close(b.encoders[i]);
    for (int i = 0; i < b.chunk_count && b.chunks; i++) {
        pl_buf_free(&b.chunks[i].bytes);
        free(b.chunks[i].items);
        pl_rows_free(&b.chunks[i].rows);
    }
    free(b.encoders);
    free(b.chunks);
    return rc;
}
