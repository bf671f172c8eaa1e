/* Several processes: who started them, and how they end together. launch.c starts them. */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

#include "cli/cli.h"

static int number_in(const char *variable, int otherwise)
{
    const char *text = getenv(variable);
    return text && *text ? atoi(text) : otherwise;
}

/* MPICH and its relatives, OpenMPI, srun: each tells its processes by variables of its own. */
cli_launch cli_launched(void)
{
    static const char *const known[][2] = {{"PMI_SIZE", "PMI_RANK"}, {"OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"},
        {"SLURM_STEP_NUM_TASKS", "SLURM_PROCID"}, {CLI_STARTED, "PMIX_RANK"}};
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
    if (size == launch.size) {
        pl_config_set_world(&run->config, run->world);
        return 0;
    }
    pl_world_close(run->world);
    run->world = NULL;
    if (launch.rank > 0) exit(0); /* the first one tells it */
    return PL_FAIL(err, PL_EUSAGE, "%d processes were started, but MPI tells this one of %d: %s", launch.size, size,
        getenv("SLURM_PROCID")
            ? "srun must be told how they find each other, by --mpi=pmi2 for MPICH or --mpi=pmix for "
              "OpenMPI (srun --mpi=list has what there is)"
            : "the mpiexec is another MPI's than that which plait was built with (" PL_MPIEXEC ")");
}

int cli_refuse_others(pl_error *err)
{
    cli_launch launch = cli_launched();
    if (launch.size == 1) return 0;
    if (launch.rank > 0) exit(0); /* the first one tells it, unless an error of another ends it before */
    return PL_FAIL(err, PL_EUSAGE, "%d processes were started, and one is what this takes; leave out mpiexec or srun",
        launch.size);
}

/* What was told stays in a pipe until mpiexec reads it, and is lost where it is first asked to end all. */
static void await_reader(void)
{
    int left;
    fflush(NULL);
    for (int i = 0; i < 200 && ioctl(STDERR_FILENO, FIONREAD, &left) == 0 && left > 0; i++)
        nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
}

/* MPI tells in its own way that it was told to abort, after what plait has told. */
static void abort_quietly(pl_comm *world, int status)
{
    await_reader();
    int nothing = open("/dev/null", O_WRONLY);
    if (nothing >= 0) dup2(nothing, STDERR_FILENO);
    pl_world_abort(world, status);
    _exit(status);
}

/* MPICH's mpiexec that was itself told to end has status 0 at times, whatever its processes end with, unless one
   aborts. */
static bool status_gets_lost(void)
{
    return cli_signal() != 0 && getenv("PMI_SIZE") && !getenv("SLURM_PROCID") && !getenv(CLI_STARTED);
}

/* An error that the others know nothing of ends them too, for they would wait for this process. Where several have met
   the same one, the first tells it and has ended the others before their time comes: they wait longer than it may wait
   for its reader. */
static void end_others(const pl_error *err, cli_run *run, int status)
{
    int rank = pl_world_rank(run->world);
    double wait = rank == 0 ? 0 : 1.5 + 1.5 * rank / pl_world_size(run->world);
    nanosleep(&(struct timespec){.tv_sec = (time_t)wait, .tv_nsec = (long)((wait - (double)(time_t)wait) * 1e9)}, NULL);
    fprintf(stderr, "plait: process %d of %d: %s\n", rank, pl_world_size(run->world), err->message);
    abort_quietly(run->world, status);
}

void cli_close_world(const pl_error *err, const cli_command *command, cli_run *run, int rc)
{
    pl_error ignored = {0};
    if (!run->world) return;
    int rank = pl_world_rank(run->world);
    if (rc < 0 && !pl_world_agreed(run->world)) end_others(err, run, cli_exit_status(rc));
    if (rank == 0 && rc == PL_ESTOPPED && status_gets_lost()) abort_quietly(run->world, cli_exit_status(rc));
    if (rank == 0 && rc < 0) cli_print_error(err, command, rc);
    /* OpenMPI's mpiexec ends all as soon as one ends with an error: not before it was told. */
    if (rc < 0) pl_comm_barrier(&ignored, run->world);
    pl_world_close(run->world);
    run->world = NULL;
    if (rc < 0) exit(cli_exit_status(rc));
}
