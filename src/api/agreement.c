#include "api/agreement.h"

#include <sched.h>
#include <string.h>
#include <xxhash.h>

#include "base/file.h"

#define SAMPLE_BYTES 4096
#define SAMPLE_ROWS 4096

static uint64_t mix(uint64_t hash, const void *bytes, size_t size)
{
    return XXH3_64bits_withSeed(bytes, size, hash);
}

/* The program's own file: another build has another one. */
static int hash_build(pl_error *err, uint64_t *hash)
{
    pl_map map;
    PL_TRY(pl_map_open(err, "/proc/self/exe", &map));
    *hash = mix(mix(0, PL_VERSION, sizeof PL_VERSION), map.data, map.size);
    pl_map_close(&map);
    return 0;
}

/* Which cores this process may use, and how many. */
static uint64_t hash_cores(int *count)
{
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) != 0) CPU_ZERO(&set);
    *count = CPU_COUNT(&set) > 0 ? CPU_COUNT(&set) : 1;
    return mix(0, &set, sizeof set);
}

/* The whole text at once; field by field only where it differs, to tell which. */
static int same_settings(pl_error *err, const pl_config *c)
{
    pl_buf text = {0};
    char name[PL_FIELD_NAME_SIZE];
    PL_TRY(pl_comm_agree(err, c->world, pl_config_print(err, c, PL_YAML_RESOLVED, &text)));
    pl_error differs = {0};
    int rc = pl_comm_same(&differs, c->world, mix(0, text.data, text.size), "the run's settings");
    for (int i = 0; i < pl_config_field_count && rc == PL_EUSAGE; i++) {
        if (pl_config_fields[i].flag_only) continue;
        pl_buf_clear(&text);
        PL_GO(done, pl_comm_agree(err, c->world, pl_field_print_flag(err, &pl_config_fields[i], c, &text)));
        pl_field_name(&pl_config_fields[i], name);
        PL_GO(done, pl_comm_same(err, c->world, mix(0, text.data, text.size), name));
        rc = differs.code;
    }
    if (rc < 0) *err = differs;
done:
    pl_buf_free(&text);
    return rc;
}

int pl_agree_on_run(pl_error *err, pl_config *c)
{
    uint64_t build = 0;
    int cores;
    PL_TRY(pl_comm_agree(err, c->world, hash_build(err, &build)));
    PL_TRY(pl_comm_same(err, c->world, build, "the program (plait " PL_VERSION ")"));
    PL_TRY(same_settings(err, c));
    uint64_t mask = hash_cores(&cores);
    return pl_comm_share_cores(err, c->world, cores, mask, &c->cores);
}

static int hash_param(pl_error *err, const pl_source *source, const pl_param *p, uint64_t *hash)
{
    pl_host_tensor t;
    bool found;
    *hash = mix(*hash, p->name, strlen(p->name));
    *hash = mix(*hash, p->shape, sizeof p->shape[0] * (size_t)p->ndim);
    if (p->role == PL_ROLE_DERIVED) return 0;
    PL_TRY(source->find(err, source->user, p, &t, &found));
    if (!found) return 0;
    PL_TRY(pl_host_tensor_check(err, p, &t));
    int64_t bytes = pl_param_numel(p) * pl_dtype_size(t.dtype);
    *hash = mix(*hash + (uint64_t)t.dtype, t.data, bytes < SAMPLE_BYTES ? (size_t)bytes : SAMPLE_BYTES);
    return 0;
}

int pl_agree_on_model(pl_error *err, pl_session *s)
{
    const pl_source source = pl_session_source(s);
    uint64_t hash = 0;
    int rc = 0;
    for (int i = 0; i < s->model->nparams && rc == 0; i++) rc = hash_param(err, &source, s->model->params[i], &hash);
    PL_TRY(pl_comm_agree(err, s->comm, rc));
    return pl_comm_same(err, s->comm, hash, "the model's files");
}

static uint64_t hash_rows(pl_dataset *d, pl_data_part part)
{
    int64_t rows = pl_dataset_rows(d, part), step = rows / SAMPLE_ROWS + 1;
    uint64_t hash = mix(0, &rows, sizeof rows);
    for (int64_t i = 0; i < rows; i += step) {
        pl_row row = pl_dataset_row(d, part, i);
        hash = mix(hash + (uint64_t)row.n, row.ids, (size_t)row.n * sizeof *row.ids);
        if (row.labels) hash = mix(hash, row.labels, (size_t)row.n * sizeof *row.labels);
    }
    return hash;
}

int pl_agree_on_data(pl_error *err, pl_session *s, pl_run_data *data)
{
    uint64_t hash = hash_rows(data->dataset, PL_DATA_TRAIN) ^ hash_rows(data->dataset, PL_DATA_VALIDATION);
    return pl_comm_same(err, s->comm, hash, "the data, as it was read,");
}
