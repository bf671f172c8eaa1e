/* Communicators, under mpiexec with any number of processes: what arrives, in which order sums are taken, what is
   counted, and that a dry communicator counts the same. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "base/buf.h"
#include "base/clock.h"
#include "comm/collective.h"
#include "comm/grid.h"

static pl_comm *world;
static pl_error err;

#define OK(call)                                                                                                       \
    do {                                                                                                               \
        if ((call) < 0) fail_msg("process %d: %s: %s", world->rank, #call, err.message);                               \
    } while (0)

/* A device with a run on it. */
typedef struct place {
    pl_device *device;
    pl_mem mem;
    pl_stack work;
    pl_run run;
} place;

static void open_place(place *p, bool ref)
{
    OK(ref ? pl_device_ref(&err, &p->device) : pl_device_cpu(&err, 1, &p->device));
    pl_mem_init(&p->mem, p->device);
    OK(pl_stack_open(&err, &p->work, &p->mem, PL_MEM_WORK, 1 << 20));
    p->run = (pl_run){.err = &err, .device = p->device, .mem = &p->mem, .work = &p->work};
}

static void close_place(place *p)
{
    pl_stack_close(&p->work);
    pl_device_close(p->device);
}

static pl_tensor vector(place *p, int64_t n)
{
    pl_tensor t;
    OK(pl_stack_push(&err, &p->work, PL_F32, 1, &n, &t));
    return t;
}

/* Numbers whose sum depends on the order in which they are added. */
static float number(int rank, int64_t i)
{
    return (float)((rank * 7919 + i * 104729) % 1000003) * (rank % 2 ? 1e-3f : 1.7f) - 400.0f;
}

static float ordered_sum(int64_t i)
{
    float sum = number(0, i);
    for (int r = 1; r < world->size; r++) sum += number(r, i);
    return sum;
}

static void fill(place *p, pl_tensor t, int rank)
{
    int64_t n = t.shape[0];
    float *host = malloc((size_t)n * 4 + 1);
    for (int64_t i = 0; i < n; i++) host[i] = number(rank, i);
    p->device->ops->copy_in(p->device, t.data, host, n * 4);
    free(host);
}

static float *fetch(place *p, pl_tensor t)
{
    float *host = malloc((size_t)t.shape[0] * 4 + 1);
    p->device->ops->copy_out(p->device, host, t.data, t.shape[0] * 4);
    return host;
}

static void cuts(int64_t *bounds, int64_t n, int64_t grain)
{
    for (int r = 0; r <= world->size; r++) bounds[r] = pl_comm_cut(n, grain, world->size, r);
    assert_int_equal(bounds[0], 0);
    assert_int_equal(bounds[world->size], n);
}

static const int64_t sizes[] = {0, 1, 2, 7, 16, 1000, 4099};

/* In pieces of `most` elements of each slice; what is not this process's slice stays as it was. */
static void check_reduce_scatter(place *p, int64_t n, int64_t most)
{
    int64_t *bounds = malloc((size_t)(world->size + 1) * sizeof *bounds), mark = pl_stack_mark(&p->work);
    cuts(bounds, n, 1);
    pl_tensor t = vector(p, n), staging = vector(p, (world->size - 1) * most);
    fill(p, t, world->rank);
    int64_t before = world->traffic->sent[PL_TRAFFIC_GRADIENTS], low = bounds[world->rank],
            high = bounds[world->rank + 1], longest = 0;
    for (int r = 0; r < world->size; r++) {
        if (bounds[r + 1] - bounds[r] > longest) longest = bounds[r + 1] - bounds[r];
    }
    pl_collective c = {0};
    for (int64_t skip = 0; skip < longest; skip += most) {
        OK(pl_reduce_scatter_begin(&p->run, world, &c, t, bounds, skip, most, staging, PL_TRAFFIC_GRADIENTS));
        OK(pl_reduce_scatter_end(&p->run, &c, (pl_tensor){0}));
    }
    pl_collective_close(&c);
    float *host = fetch(p, t);
    for (int64_t i = 0; i < n; i++) {
        float want = i >= low && i < high ? ordered_sum(i) : number(world->rank, i);
        if (memcmp(&host[i], &want, 4) != 0)
            fail_msg("%lld of %lld: %.9g, not %.9g", (long long)i, (long long)n, (double)host[i], (double)want);
    }
    assert_int_equal(world->traffic->sent[PL_TRAFFIC_GRADIENTS] - before, 4 * (n - (high - low)));
    free(host);
    free(bounds);
    pl_stack_pop(&p->work, mark);
}

static void reduce_scatter(void **state)
{
    (void)state;
    for (int ref = 0; ref < 2; ref++) {
        place p;
        open_place(&p, ref);
        for (int i = 0; i < PL_COUNT(sizes); i++) {
            check_reduce_scatter(&p, sizes[i], sizes[i] + 1);
            if (sizes[i] > 1) check_reduce_scatter(&p, sizes[i], sizes[i] / (2 * world->size) + 1);
        }
        close_place(&p);
    }
}

static void all_gather(void **state)
{
    (void)state;
    for (int ref = 0; ref < 2; ref++) {
        place p;
        open_place(&p, ref);
        for (int i = 0; i < PL_COUNT(sizes); i++) {
            int64_t n = sizes[i], *bounds = malloc((size_t)(world->size + 1) * sizeof *bounds);
            cuts(bounds, n, 1);
            for (int r = 0; r <= world->size; r++) bounds[r] *= 4;
            pl_tensor t = vector(&p, n);
            fill(&p, t, world->rank);
            pl_collective c = {0};
            int64_t before = world->traffic->sent[PL_TRAFFIC_PARAMETERS];
            OK(pl_all_gather_begin(&p.run, world, &c, t.data, bounds, 0, INT64_MAX, PL_TRAFFIC_PARAMETERS));
            OK(pl_all_gather_end(&p.run, &c));
            pl_collective_close(&c);
            float *host = fetch(&p, t);
            for (int r = 0; r < world->size; r++) {
                for (int64_t e = bounds[r] / 4; e < bounds[r + 1] / 4; e++) assert_true(host[e] == number(r, e));
            }
            assert_int_equal(world->traffic->sent[PL_TRAFFIC_PARAMETERS] - before,
                (world->size - 1) * (bounds[world->rank + 1] - bounds[world->rank]));
            free(host);
            free(bounds);
        }
        close_place(&p);
    }
}

static void all_reduce_and_broadcast(void **state)
{
    (void)state;
    for (int way = 0; way < 4; way++) {
        place p;
        open_place(&p, way & 1);
        int64_t n = 1003;
        pl_tensor t = vector(&p, n), staging = vector(&p, way & 2 ? 4096 : world->size);
        fill(&p, t, world->rank);
        OK(pl_all_reduce(&p.run, world, t, staging, PL_TRAFFIC_GRADIENTS));
        float *host = fetch(&p, t);
        for (int64_t i = 0; i < n; i++) assert_true(host[i] == ordered_sum(i));
        free(host);
        for (int root = 0; root < world->size; root++) {
            fill(&p, t, world->rank);
            OK(pl_broadcast(&p.run, world, t.data, 4 * n, root));
            host = fetch(&p, t);
            for (int64_t i = 0; i < n; i++) assert_true(host[i] == number(root, i));
            free(host);
        }
        close_place(&p);
    }
}

/* Two collective calls under way at once, ended in the other order, and other messages in between. */
static void at_once(void **state)
{
    (void)state;
    place p;
    open_place(&p, false);
    int64_t n = 300, *bounds = malloc((size_t)(world->size + 1) * sizeof *bounds),
            *bytes = malloc((size_t)(world->size + 1) * sizeof *bytes);
    cuts(bounds, n, 1);
    for (int r = 0; r <= world->size; r++) bytes[r] = 4 * bounds[r];
    pl_tensor sums = vector(&p, n), all = vector(&p, n), staging = vector(&p, world->size * n);
    fill(&p, sums, world->rank);
    fill(&p, all, world->rank);
    pl_collective a = {0}, b = {0};
    OK(pl_reduce_scatter_begin(&p.run, world, &a, sums, bounds, 0, n, staging, PL_TRAFFIC_GRADIENTS));
    OK(pl_all_gather_begin(&p.run, world, &b, all.data, bytes, 0, INT64_MAX, PL_TRAFFIC_PARAMETERS));
    double total = world->rank;
    OK(pl_comm_sum(&err, world, &total, 1));
    assert_true(total == world->size * (world->size - 1) / 2);
    OK(pl_all_gather_end(&p.run, &b));
    OK(pl_reduce_scatter_end(&p.run, &a, (pl_tensor){0}));
    float *host = fetch(&p, sums), *others = fetch(&p, all);
    for (int64_t i = bounds[world->rank]; i < bounds[world->rank + 1]; i++) assert_true(host[i] == ordered_sum(i));
    for (int r = 0; r < world->size; r++) {
        for (int64_t i = bounds[r]; i < bounds[r + 1]; i++) assert_true(others[i] == number(r, i));
    }
    pl_collective_close(&a);
    pl_collective_close(&b);
    free(host);
    free(others);
    free(bounds);
    free(bytes);
    close_place(&p);
}

/* A gather in pieces, which is asked after until it is done. */
static void gather_in_pieces(void **state)
{
    (void)state;
    place p;
    open_place(&p, false);
    int64_t n = 4099, most = 240, *bounds = malloc((size_t)(world->size + 1) * sizeof *bounds);
    cuts(bounds, n, 1);
    for (int r = 0; r <= world->size; r++) bounds[r] *= 4;
    pl_tensor t = vector(&p, n);
    fill(&p, t, world->rank);
    pl_collective c = {0};
    int64_t before = world->traffic->sent[PL_TRAFFIC_GRADIENTS];
    for (int64_t skip = 0; skip < 4 * n; skip += most) {
        bool done = false;
        OK(pl_all_gather_begin(&p.run, world, &c, t.data, bounds, skip, most, PL_TRAFFIC_GRADIENTS));
        for (int asked = 0; !done; asked++) {
            OK(pl_comm_pause(&err, world, asked));
            OK(pl_collective_test(&p.run, &c, &done));
        }
        OK(pl_all_gather_end(&p.run, &c));
        float *host = fetch(&p, t);
        for (int r = 0; r < world->size; r++) {
            for (int64_t e = bounds[r] / 4; e < bounds[r + 1] / 4; e++) {
                bool come = 4 * e < bounds[r] + skip + most;
                assert_true(host[e] == number(come ? r : world->rank, e));
            }
        }
        free(host);
    }
    assert_int_equal(world->traffic->sent[PL_TRAFFIC_GRADIENTS] - before,
        (world->size - 1) * (bounds[world->rank + 1] - bounds[world->rank]));
    pl_collective_close(&c);
    free(bounds);
    close_place(&p);
}

static int send_on(void *user, pl_error *e)
{
    pl_transfer *t = user;
    static const char text[] = "aside";
    if (t->count > 0) return 0;
    return pl_comm_send(e, world, t, (world->rank + 1) % world->size, text, sizeof text, PL_TRAFFIC_CONTROL);
}

/* Everybody waits for what its neighbour sends only when that one waits too. */
static void goes_on_aside(void **state)
{
    (void)state;
    if (world->size == 1) return;
    pl_transfer in = {0}, out = {0};
    pl_aside aside = {.move = send_on, .user = &out};
    pl_comm *part;
    int *colors = calloc((size_t)world->size, sizeof *colors);
    char text[8] = "";
    OK(pl_comm_split(&err, world, colors, &part));
    pl_comm_begin_aside(part, &aside);
    OK(pl_comm_receive(&err, world, &in, (world->rank + world->size - 1) % world->size, text, 6));
    OK(pl_comm_wait(&err, world, &in));
    while (out.count == 0) OK(pl_comm_pause(&err, world, 0));
    pl_comm_end_aside(world, &aside);
    assert_null(world->traffic->asides);
    OK(pl_comm_wait(&err, world, &out));
    assert_string_equal(text, "aside");
    pl_transfer_close(&in);
    pl_transfer_close(&out);
    pl_comm_close(part);
    free(colors);
}

/* A large message comes while nobody asks for it. */
static void comes_unasked(void **state)
{
    (void)state;
    if (world->size == 1) return;
    size_t bytes = (size_t)8 << 20;
    char *out = malloc(bytes);
    volatile char *in = calloc(bytes, 1);
    pl_transfer t = {0};
    memset(out, 1, bytes);
    OK(pl_comm_receive(&err, world, &t, (world->rank + world->size - 1) % world->size, (char *)in, (int64_t)bytes));
    OK(pl_comm_send(&err, world, &t, (world->rank + 1) % world->size, out, (int64_t)bytes, PL_TRAFFIC_CONTROL));
    double begin = pl_clock();
    while (!in[bytes - 1] && pl_clock() - begin < 20) nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    assert_int_equal(in[bytes - 1], 1);
    OK(pl_comm_wait(&err, world, &t));
    pl_transfer_close(&t);
    free((char *)in);
    free(out);
}

static void host_calls(void **state)
{
    (void)state;
    int n = world->size;
    int32_t mine = 100 + world->rank, *all = malloc((size_t)n * sizeof *all);
    OK(pl_comm_gather(&err, world, &mine, sizeof mine, all));
    for (int r = 0; r < n; r++) assert_int_equal(all[r], 100 + r);
    free(all);
    /* 1e16 + 1 - 1e16 is 0 or 1, by the order. */
    double values[2] = {world->rank == 0 ? 1e16 : (world->rank == 1 ? 1 : (world->rank == 2 ? -1e16 : 0)), 0.1},
           want[2] = {0};
    for (int r = 0; r < n; r++) {
        want[0] += r == 0 ? 1e16 : (r == 1 ? 1 : (r == 2 ? -1e16 : 0));
        want[1] += 0.1;
    }
    OK(pl_comm_sum(&err, world, values, 2));
    assert_true(values[0] == want[0] && values[1] == want[1]);
    for (int root = 0; root < n; root++) {
        char text[40] = "";
        if (world->rank == root) snprintf(text, sizeof text, "from %d", root);
        OK(pl_comm_broadcast(&err, world, text, sizeof text, root));
        char expected[40];
        snprintf(expected, sizeof expected, "from %d", root);
        assert_string_equal(text, expected);
        OK(pl_comm_barrier(&err, world));
    }
    /* Point to point, nothing at all among it. */
    pl_transfer t = {0};
    int to = (world->rank + 1) % n, from = (world->rank + n - 1) % n;
    char out[1000], in[1000] = {0};
    memset(out, 'a' + world->rank, sizeof out);
    for (int i = 0; i < 3 && n > 1; i++) {
        int64_t bytes = i == 1 ? 0 : 500;
        OK(pl_comm_send(&err, world, &t, to, out + 250 * i, bytes, PL_TRAFFIC_CONTROL));
        OK(pl_comm_receive(&err, world, &t, from, in + 250 * i, bytes));
    }
    OK(pl_comm_wait(&err, world, &t));
    pl_transfer_close(&t);
    for (int i = 0; i < 1000 && n > 1; i++) assert_int_equal(in[i], 'a' + from);
}

/* One process fails, or several, or all: each gets the first one's error. */
static void agreement(void **state)
{
    (void)state;
    int n = world->size, last = n - 1;
    pl_error e = {0};
    assert_int_equal(pl_comm_agree(&e, world, 0), 0);
    int rc = world->rank == last ? PL_FAIL(&e, PL_EINPUT, "data.jsonl: is empty") : 0;
    assert_int_equal(pl_comm_agree(&e, world, rc), PL_EINPUT);
    assert_int_equal(e.code, PL_EINPUT);
    char want[100];
    snprintf(want, sizeof want, "process %d of %d: data.jsonl: is empty", last, n);
    assert_string_equal(e.message, n > 1 ? want : "data.jsonl: is empty");
    e = (pl_error){0};
    rc = PL_FAIL(&e, world->rank ? PL_EIO : PL_EUSAGE, "said by %d", world->rank);
    assert_int_equal(pl_comm_agree(&e, world, rc), PL_EUSAGE);
    assert_string_equal(e.message, "said by 0");
}

/* Everything again on the parts of a grid: their members, and that they do not disturb each other. */
static void grid(void **state)
{
    (void)state;
    int n = world->size, tp = n % 2 == 0 ? 2 : 1, dp = n / tp % 2 == 0 ? 2 : n / tp, pp = n / tp / dp;
    const int axes[PL_AXIS_COUNT] = {[PL_AXIS_PP] = pp, [PL_AXIS_DP] = dp, [PL_AXIS_CP] = 1, [PL_AXIS_TP] = tp};
    pl_grid g;
    OK(pl_grid_open(&err, world, axes, &g));
    int coordinates[PL_AXIS_COUNT] = {world->rank / (tp * dp), world->rank / tp % dp, 0, world->rank % tp};
    int distance[PL_AXIS_COUNT] = {tp * dp, tp, tp, 1};
    for (int a = 0; a < PL_AXIS_COUNT; a++) {
        int32_t members[8], mine = world->rank;
        assert_int_equal(g.axes[a]->size, axes[a]);
        assert_int_equal(g.axes[a]->rank, coordinates[a]);
        OK(pl_comm_gather(&err, g.axes[a], &mine, sizeof mine, members));
        for (int r = 0; r < axes[a]; r++) assert_int_equal(members[r], mine + (r - coordinates[a]) * distance[a]);
    }
    /* What a part sends is counted with the whole. */
    int64_t before = world->traffic->sent[PL_TRAFFIC_CONTROL];
    double one = 1;
    OK(pl_comm_sum(&err, g.axes[PL_AXIS_DP], &one, 1));
    assert_true(one == dp);
    assert_int_equal(world->traffic->sent[PL_TRAFFIC_CONTROL] - before, 8 * (dp - 1));
    pl_grid_close(&g);
    const int wrong[PL_AXIS_COUNT] = {1, n + 1, 1, 1}, none[PL_AXIS_COUNT] = {1, n, 0, 1};
    pl_error e = {0};
    assert_int_equal(pl_grid_open(&e, world, wrong, &g), PL_EUSAGE);
    e = (pl_error){0};
    assert_int_equal(pl_grid_open(&e, world, none, &g), PL_EUSAGE);
}

static int64_t some_work(place *p, pl_comm *comm)
{
    const int axes[PL_AXIS_COUNT] = {1, comm->size, 1, 1};
    int64_t n = 1000, *bounds = malloc((size_t)(comm->size + 1) * sizeof *bounds);
    for (int r = 0; r <= comm->size; r++) bounds[r] = pl_comm_cut(n, 16, comm->size, r);
    bounds[comm->size] = n;
    pl_grid g;
    OK(pl_grid_open(&err, comm, axes, &g));
    pl_comm *dp = g.axes[PL_AXIS_DP];
    int64_t before = 0, after = 0;
    for (int k = 0; k < PL_TRAFFIC_COUNT; k++) before += (k + 1) * comm->traffic->sent[k];
    pl_tensor t = vector(p, n), staging = vector(p, dp->size * n);
    pl_collective c = {0};
    double x = 1;
    OK(pl_reduce_scatter_begin(&p->run, dp, &c, t, bounds, 0, n, staging, PL_TRAFFIC_GRADIENTS));
    OK(pl_reduce_scatter_end(&p->run, &c, (pl_tensor){0}));
    OK(pl_all_gather_begin(&p->run, dp, &c, t.data, bounds, 0, INT64_MAX, PL_TRAFFIC_PARAMETERS));
    OK(pl_all_gather_end(&p->run, &c));
    OK(pl_comm_sum(&err, dp, &x, 1));
    OK(pl_comm_broadcast(&err, dp, &x, sizeof x, 0));
    OK(pl_comm_barrier(&err, dp));
    for (int k = 0; k < PL_TRAFFIC_COUNT; k++) after += (k + 1) * comm->traffic->sent[k];
    pl_collective_close(&c);
    pl_grid_close(&g);
    free(bounds);
    return after - before;
}

static void dry_counts_the_same(void **state)
{
    (void)state;
    place real, dry;
    pl_comm *comm;
    open_place(&real, false);
    OK(pl_device_dry(&err, real.device, &dry.device));
    pl_mem_init(&dry.mem, dry.device);
    OK(pl_stack_open(&err, &dry.work, &dry.mem, PL_MEM_WORK, PL_STACK_UNLIMITED));
    dry.run = (pl_run){.err = &err, .device = dry.device, .mem = &dry.mem, .work = &dry.work};
    OK(pl_comm_dry(&err, world->rank, world->size, &comm));
    assert_int_equal(some_work(&real, world), some_work(&dry, comm));
    pl_comm_close(comm);
    close_place(&dry);
    close_place(&real);
}

int main(void)
{
    if (pl_world_open(&err, &world) < 0) {
        fprintf(stderr, "%s\n", err.message);
        return 1;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(host_calls),
        cmocka_unit_test(reduce_scatter),
        cmocka_unit_test(all_gather),
        cmocka_unit_test(all_reduce_and_broadcast),
        cmocka_unit_test(at_once),
        cmocka_unit_test(gather_in_pieces),
        cmocka_unit_test(goes_on_aside),
        cmocka_unit_test(comes_unasked),
        cmocka_unit_test(agreement),
        cmocka_unit_test(grid),
        cmocka_unit_test(dry_counts_the_same),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    pl_world_close(world);
    return failed;
}
