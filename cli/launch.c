/* `--ranks`: this program starts mpiexec, which starts it again as so many processes, and stands before it. Signals go
   to the processes themselves, not to mpiexec: they finish their step and write a checkpoint, and mpiexec ends as they
   do. It would end at once if it were told, MPICH's with a status that says now one thing, now another. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/thread.h"
#include "cli/cli.h"

/* Signals the processes below `parent` that run the program `self`. Returns how many there were on this machine. */
static int signal_below(pid_t parent, const char *self, int number)
{
    char path[64], exe[4096];
    int told = 0;
    long child;
    snprintf(path, sizeof path, "/proc/%ld/task/%ld/children", (long)parent, (long)parent);
    FILE *children = fopen(path, "r");
    while (children && fscanf(children, "%ld", &child) == 1) {
        snprintf(path, sizeof path, "/proc/%ld/exe", child);
        ssize_t n = readlink(path, exe, sizeof exe - 1);
        exe[n > 0 ? n : 0] = 0;
        if (strcmp(exe, self) == 0) {
            told += kill((pid_t)child, number) == 0;
        } else {
            told += signal_below((pid_t)child, self, number);
        }
    }
    if (children) fclose(children);
    return told;
}

/* Passes signals on until mpiexec has ended, and returns its exit status. */
static int stand_before(pid_t mpiexec, const char *self, const sigset_t *caught)
{
    int status = 0, asked = 0, number;
    for (;;) {
        if (sigwait(caught, &number) != 0) continue;
        if (number == SIGCHLD) {
            if (waitpid(mpiexec, &status, WNOHANG) == mpiexec && !WIFSTOPPED(status)) break;
            continue;
        }
        if (number == SIGTSTP) {
            /* The processes are of a group without a terminal, which this stop does not reach; this one stops last. */
            signal_below(mpiexec, self, SIGSTOP);
            kill(getpid(), SIGSTOP);
            signal_below(mpiexec, self, SIGCONT);
            continue;
        }
        /* The second time nobody is asked to finish anything. */
        if (asked++ > 0 || signal_below(mpiexec, self, number) == 0) kill(mpiexec, number);
    }
    return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

/* In the child: a group of its own, for a terminal sends its signals to the whole of one; nothing to read; and no
   longer than its parent. */
static void become_mpiexec(char **argv, const sigset_t *before, pid_t parent)
{
    int nothing = open("/dev/null", O_RDONLY);
    if (nothing >= 0) dup2(nothing, 0);
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(1);
    sigprocmask(SIG_SETMASK, before, NULL);
    execv(PL_MPIEXEC, argv);
    execvp("mpiexec", argv);
    fprintf(stderr,
        "plait: --ranks starts its processes by mpiexec, and neither " PL_MPIEXEC
        " nor one on the PATH can be run (%s); install the MPI that plait was built with\n",
        strerror(errno));
    _exit(2);
}

/* mpiexec -n RANKS SELF ARGUMENTS */
static int command_line(pl_error *err, const cli_run *run, char *ranks, char *self, char ***out)
{
    char **argv;
    int n = 0;
    PL_TRY(pl_calloc(err, (size_t)run->argc + 5, sizeof *argv, &argv));
    argv[n++] = (char *)"mpiexec";
    argv[n++] = (char *)"-n";
    argv[n++] = ranks;
    argv[n++] = self;
    for (int i = 1; i < run->argc; i++) argv[n++] = run->argv[i];
    *out = argv;
    return 0;
}

/* OpenMPI's mpiexec otherwise refuses more processes than cores, and root, and binds each of two processes to one core
   of however many there are. What the user has set stays. */
static void fit_open_mpi(void)
{
    static const char *const settings[][2] = {{"OMPI_MCA_rmaps_base_oversubscribe", "1"},
        {"OMPI_MCA_hwloc_base_binding_policy", "none"}, {"OMPI_ALLOW_RUN_AS_ROOT", "1"},
        {"OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"}};
    for (int i = 0; i < PL_COUNT(settings); i++) setenv(settings[i][0], settings[i][1], 0);
}

/* So many processes take turns at one processor without much use, and more are a slip of the finger. */
#define MOST_A_PROCESSOR 64
/* Files that mpiexec needs for each process, and for itself. */
#define FILES_A_PROCESS 4
#define FILES_BESIDES 32

/* mpiexec would tell in its own way that there are too many, or take the machine down. */
static int check_room(pl_error *err, long long ranks)
{
    int cores = pl_cores();
    struct rlimit files;
    long long most = (long long)cores * MOST_A_PROCESSOR;
    if (ranks > most) {
        return PL_FAIL(err, PL_EUSAGE,
            "--ranks is %lld, but it starts processes on this machine, which has %d processor%s and so takes at most "
            "%lld; mpiexec with a list of hosts, or srun, starts some on each of many machines",
            ranks, cores, cores == 1 ? "" : "s", most);
    }
    if (getrlimit(RLIMIT_NOFILE, &files) == 0 && files.rlim_cur != RLIM_INFINITY) {
        most = ((long long)files.rlim_cur - FILES_BESIDES) / FILES_A_PROCESS;
        if (ranks > most) {
            return PL_FAIL(err, PL_EUSAGE,
                "--ranks is %lld, but with %lld open files allowed mpiexec can start %lld; raise that by ulimit -n "
                "%lld",
                ranks, (long long)files.rlim_cur, most > 0 ? most : 0, ranks * FILES_A_PROCESS + FILES_BESIDES);
        }
    }
    if (ranks > cores) {
        char message[160];
        snprintf(message, sizeof message,
            "%lld processes take turns at %d processor%s, which is good for a trial and no faster", ranks, cores,
            cores == 1 ? "" : "s");
        cli_message(NULL, PL_LOG_INFO, message);
    }
    return 0;
}

int cli_start_ranks(pl_error *err, const cli_run *run)
{
    char **argv, ranks[24], self[4096];
    int world = run->world ? pl_world_size(run->world) : 1;
    if (run->config.ranks == world || !pl_config_is_set(&run->config, &run->config.ranks)) return 0;
    if (run->world) {
        return PL_FAIL(err, PL_EUSAGE, "--ranks is %lld, but %d processes were started; leave it out under mpiexec",
            (long long)run->config.ranks, world);
    }
    PL_TRY(check_room(err, run->config.ranks));
    ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
    if (length < 0) return PL_FAIL(err, PL_EIO, "/proc/self/exe: cannot be read: %s", strerror(errno));
    self[length] = 0;
    snprintf(ranks, sizeof ranks, "%lld", (long long)run->config.ranks);
    PL_TRY(command_line(err, run, ranks, self, &argv));
    fit_open_mpi();
    sigset_t caught, before;
    sigemptyset(&caught);
    sigaddset(&caught, SIGINT);
    sigaddset(&caught, SIGTERM);
    sigaddset(&caught, SIGTSTP);
    sigaddset(&caught, SIGCHLD);
    sigprocmask(SIG_BLOCK, &caught, &before);
    setenv(CLI_STARTED, ranks, 1);
    pid_t parent = getpid(), child = fork();
    if (child == 0) become_mpiexec(argv, &before, parent);
    free(argv);
    if (child < 0) return PL_FAIL(err, PL_ENOMEM, "no process can be started for mpiexec: %s", strerror(errno));
    exit(stand_before(child, self, &caught));
}
