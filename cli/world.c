/* Several processes: who started them, how plait starts them itself, and how they end together. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "cli/cli.h"

#ifndef PL_MPIEXEC
#    define PL_MPIEXEC "mpiexec"
#endif
#define STARTED "PLAIT_STARTED"

static int number_in(const char *variable, int otherwise)
{
    const char *text = getenv(variable);
    return text && *text ? atoi(text) : otherwise;
}

/* MPICH and its relatives, OpenMPI, srun: each tells its processes by variables of its own. */
cli_launch cli_launched(void)
{
    static const char *const known[][2] = {{"PMI_SIZE", "PMI_RANK"}, {"OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"},
        {"SLURM_STEP_NUM_TASKS", "SLURM_PROCID"}, {STARTED, "PMIX_RANK"}};
    for (int i = 0; i < PL_COUNT(known); i++) {
        int size = number_in(known[i][0], 0);
        if (size > 0) return (cli_launch){.size = size, .rank = number_in(known[i][1], 0)};
    }
    return (cli_launch){.size = 1};
}

int cli_open_world(pl_error *err, cli_run *run)
{
    cli_launch launch = cli_launched();
    if (launch.size == 1) return 0;
    PL_TRY(pl_world_open(err, &run->world));
    int size = pl_world_size(run->world);
    pl_config_set_world(&run->config, run->world);
    if (size == launch.size) return 0;
    return PL_FAIL(err, PL_EUSAGE,
        "%d processes were started, but MPI tells this one of %d: the mpiexec is another MPI's than that which plait "
        "was "
        "built with (%s)",
        launch.size, size, PL_MPIEXEC);
}

int cli_refuse_others(pl_error *err)
{
    cli_launch launch = cli_launched();
    if (launch.size == 1) return 0;
    if (launch.rank > 0) exit(cli_exit_status(PL_EUSAGE));
    return PL_FAIL(err, PL_EUSAGE, "%d processes were started, and one is what this takes; leave out mpiexec or srun",
        launch.size);
}

/* Becomes mpiexec, which starts this program with the same arguments. */
int cli_start_ranks(pl_error *err, const cli_run *run)
{
    char **argv, ranks[24], self[4096];
    int n = 0, world = run->world ? pl_world_size(run->world) : 1;
    if (run->config.ranks == world || !pl_config_is_set(&run->config, &run->config.ranks)) return 0;
    if (run->world) {
        return PL_FAIL(err, PL_EUSAGE, "--ranks is %lld, but %d processes were started; leave it out under mpiexec",
            (long long)run->config.ranks, world);
    }
    ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
    if (length < 0) return PL_FAIL(err, PL_EIO, "/proc/self/exe: cannot be read: %s", strerror(errno));
    self[length] = 0;
    PL_TRY(pl_calloc(err, (size_t)run->argc + 5, sizeof *argv, &argv));
    snprintf(ranks, sizeof ranks, "%lld", (long long)run->config.ranks);
    argv[n++] = (char *)"mpiexec";
    argv[n++] = (char *)"-n";
    argv[n++] = ranks;
    argv[n++] = self;
    for (int i = 1; i < run->argc; i++) argv[n++] = run->argv[i];
    setenv(STARTED, ranks, 1);
    execv(PL_MPIEXEC, argv);
    execvp("mpiexec", argv);
    int reason = errno;
    free(argv);
    return PL_FAIL(
        err, PL_ENOENT, "mpiexec, which starts the processes of --ranks, cannot be run: %s", strerror(reason));
}

/* An error that the others know nothing of ends them too, for they would wait for this process. Where several have met
   the same one, the first tells it and has ended the others before their time comes. */
static void end_others(const pl_error *err, cli_run *run, int status)
{
    int rank = pl_world_rank(run->world);
    double wait = rank == 0 ? 0 : 0.5 + 1.5 * rank / pl_world_size(run->world);
    nanosleep(&(struct timespec){.tv_sec = (time_t)wait, .tv_nsec = (long)((wait - (double)(time_t)wait) * 1e9)}, NULL);
    fprintf(stderr, "plait: process %d of %d: %s\n", rank, pl_world_size(run->world), err->message);
    fflush(NULL);
    pl_world_abort(run->world, status);
    _exit(status);
}

void cli_close_world(const pl_error *err, cli_run *run, int rc)
{
    if (!run->world) return;
    int rank = pl_world_rank(run->world);
    if (rc < 0 && !pl_world_agreed(run->world)) end_others(err, run, cli_exit_status(rc));
    pl_world_close(run->world);
    run->world = NULL;
    if (rank > 0 && rc < 0) exit(cli_exit_status(rc)); /* the first one tells it */
}
