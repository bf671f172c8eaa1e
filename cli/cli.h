/* The program around the library: commands, help, and what a person sees. Results go to stdout, all else to stderr. */
#ifndef PL_CLI_CLI_H
#define PL_CLI_CLI_H

#include <stdio.h>

#include "api/config.h"
#include "base/json.h"
#include "base/log.h"

/* What a command is started with. */
typedef struct cli_run {
    pl_config config;        /* defaults, the run file and flags; checked, but for init and inspect */
    const char **positional; /* what is not a flag, the run file left out */
    int npositional;
    int argc; /* of the program */
    char **argv;
    pl_comm *world; /* the processes that were started together; NULL: this one alone */
} cli_run;

typedef struct cli_command {
    const char *name;
    unsigned bit;          /* enum pl_command_bit: the fields it takes */
    const char *arguments; /* after the name, in the usage line */
    const char *summary;   /* one line */
    const char *text;      /* a paragraph, wrapped by help */
    bool run_file;         /* one positional argument is a run file */
    bool checked;          /* pl_config_check comes first */
    bool shared;           /* several processes can do it together */
    int (*main)(pl_error *err, cli_run *run);
} cli_command;

extern const cli_command cli_commands[];
extern const int cli_command_count;
const cli_command *cli_find_command(const char *name);

int cli_init(pl_error *err, cli_run *run);
int cli_train(pl_error *err, cli_run *run);
int cli_plan(pl_error *err, cli_run *run);
int cli_generate(pl_error *err, cli_run *run);
int cli_eval(pl_error *err, cli_run *run);
int cli_merge(pl_error *err, cli_run *run);
int cli_inspect(pl_error *err, cli_run *run);

#define CLI_STARTED "PLAIT_STARTED" /* in the environment of processes that --ranks started: their number */
#ifndef PL_MPIEXEC
#    define PL_MPIEXEC "mpiexec"
#endif

/* How many processes a launcher (mpiexec, srun) started with this one, by its environment, and which this is. */
typedef struct cli_launch {
    int rank, size;
} cli_launch;
cli_launch cli_launched(void);
/* Opens the world where there are several, and hands it to the configuration. */
int cli_open_world(pl_error *err, cli_run *run);
/* PL_EUSAGE where there are several, for a command that one process does; the first alone returns. */
int cli_refuse_others(pl_error *err);
/* With --ranks above 1 the program starts again as so many processes and ends as they do; returns where it need not, or
   cannot. */
int cli_start_ranks(pl_error *err, const cli_run *run);
/* After everything. Returns after success, or where there is no world. An error that not all processes know of is told
   by the one that met it and ends all of them; one that they know is told by the first, and each ends by itself. */
void cli_close_world(const pl_error *err, const cli_command *command, cli_run *run, int rc);

/* Help as wide as the terminal, between 72 and 120 columns; `width` 0 asks the terminal. Appended to out. */
int cli_help(pl_error *err, int width, pl_buf *out);
int cli_command_help(pl_error *err, const cli_command *command, int width, pl_buf *out);
int cli_terminal_width(FILE *file); /* 80 where it cannot be told */

/* SIGINT and SIGTERM ask a run to stop: it finishes its step and writes a checkpoint. A second one ends the program at
   once, as it would any other. */
void cli_catch_signals(void);
int cli_signal(void); /* the one that came, or 0 */

/* From now on, waiting threads sleep soon while other programs want the cores, unless the environment says how they
   wait (OMP_WAIT_POLICY, GOMP_SPINCOUNT). */
void cli_give_way(void);
/* Ends that, and the threads that it holds: the OpenMP runtime takes itself apart when the program exits, and clang's
   does not bear another thread's team then. */
void cli_stop_giving_way(void);
/* OpenBLAS, where it is behind LAPACK, starts its threads when it is loaded, and they look for work for tens of
   milliseconds, on the cores that ours are about to start on. This ends them; it starts them again when it has work. */
void cli_quiet_blas(void);

/* What the library has to tell, on stderr: a sink for pl_log. */
void cli_message(void *user, enum pl_log_level level, const char *message);
/* Prints the document on stdout and releases it; NULL is PL_ENOMEM. */
int cli_print_json(pl_error *err, json_t *json);

/* The error of a command (NULL: of none) on stderr; nothing for PL_ESTOPPED. */
void cli_print_error(const pl_error *err, const cli_command *command, int rc);
/* The exit status of the program for an error code. */
int cli_exit_status(int code);

#endif
