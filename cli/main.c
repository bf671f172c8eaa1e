/* plait COMMAND [run.yaml] [--field value ...] */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/cli.h"

static int print_help(pl_error *err, const cli_command *command, FILE *to)
{
    pl_buf text = {0};
    int width = cli_terminal_width(to);
    int rc = command ? cli_command_help(err, command, width, &text) : cli_help(err, width, &text);
    if (rc == 0) fputs(pl_buf_text(&text), to);
    pl_buf_free(&text);
    return rc;
}

/* Whether --help or -h is among the flags. */
static bool wants_help(int argc, char *const *argv)
{
    for (int i = 0; i < argc && strcmp(argv[i], "--") != 0; i++) {
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) return true;
    }
    return false;
}

/* A run file is the first argument that is no flag; nothing may follow it. */
static int read_run_file(pl_error *err, const cli_command *command, cli_run *run)
{
    if (!command->run_file || run->npositional == 0) return 0;
    if (run->npositional > 1) {
        return PL_FAIL(err, PL_EUSAGE, "one run file is taken, and '%s' is a second; flags begin with two dashes",
            run->positional[1]);
    }
    run->npositional = 0;
    return pl_config_read(err, &run->config, run->positional[0]);
}

/* What the command line and the run file say. */
static int read_arguments(pl_error *err, const cli_command *command, cli_run *run)
{
    PL_TRY(pl_config_flags(
        err, &run->config, command->bit, run->argc - 2, run->argv + 2, run->positional, &run->npositional));
    PL_TRY(read_run_file(err, command, run));
    return command->checked ? pl_config_check(err, &run->config, command->bit) : 0;
}

static int run_command(pl_error *err, const cli_command *command, int argc, char **argv)
{
    if (wants_help(argc - 2, argv + 2)) return print_help(err, command, stdout);
    cli_run run = {.argc = argc, .argv = argv};
    int rc = pl_calloc(err, (size_t)argc + 1, sizeof *run.positional, &run.positional);
    PL_TRY(rc);
    cli_quiet_blas();
    PL_GO(done, pl_config_open(err, &run.config));
    PL_GO(done, command->shared ? cli_open_world(err, &run) : cli_refuse_others(err));
    rc = read_arguments(err, command, &run);
    if (rc == 0 && command->shared) rc = cli_start_ranks(err, &run);
    if (run.world) rc = pl_comm_agree(err, run.world, rc);
    if (rc < 0) goto done;
    if (command->checked) cli_give_way();
    rc = command->main(err, &run);
    cli_stop_giving_way();
done:
    cli_close_world(err, command, &run, rc);
    pl_config_close(&run.config);
    free(run.positional);
    return rc;
}

static int unknown_command(pl_error *err, const char *name)
{
    const char *best = NULL;
    int best_distance = 3;
    for (int i = 0; i < cli_command_count; i++) {
        int distance = pl_edit_distance(name, cli_commands[i].name);
        if (distance >= best_distance) continue;
        best_distance = distance;
        best = cli_commands[i].name;
    }
    if (best) return PL_FAIL(err, PL_EUSAGE, "there is no command '%.80s'; did you mean %s?", name, best);
    return PL_FAIL(err, PL_EUSAGE, "there is no command '%.80s'; plait --help lists what there is", name);
}

/* plait help [COMMAND] and plait --help; nothing at all is a question too, but no success. */
static int general(pl_error *err, int argc, char **argv)
{
    const char *first = argc > 1 ? argv[1] : NULL;
    if (!first) {
        PL_TRY(print_help(err, NULL, stderr));
        return PL_FAIL(err, PL_EUSAGE, "no command is given");
    }
    if (strcmp(first, "--version") == 0 || strcmp(first, "version") == 0) {
        printf("plait %s\n", pl_version());
        return 0;
    }
    bool help = strcmp(first, "help") == 0 || strcmp(first, "--help") == 0 || strcmp(first, "-h") == 0;
    if (!help) return unknown_command(err, first);
    if (argc == 2) return print_help(err, NULL, stdout);
    const cli_command *command = cli_find_command(argv[2]);
    return command ? print_help(err, command, stdout) : unknown_command(err, argv[2]);
}

/* Jansson does not tell when it has no memory for a part of a string. Nothing is closed: threads may be at work. */
static void *allocate_json(size_t size)
{
    void *memory = malloc(size);
    if (memory) return memory;
    fputs("plait: out of memory\n", stderr);
    _exit(cli_exit_status(PL_ENOMEM));
}

int main(int argc, char **argv)
{
    json_set_alloc_funcs(allocate_json, free);
    pl_error err = {0};
    const cli_command *command = argc > 1 ? cli_find_command(argv[1]) : NULL;
    int rc = command ? run_command(&err, command, argc, argv) : general(&err, argc, argv);
    if (rc == 0 && (fflush(stdout) != 0 || ferror(stdout))) {
        rc = PL_FAIL(&err, PL_EIO, "the result could not be written to standard output: %s", strerror(errno));
    }
    if (rc < 0) cli_print_error(&err, command, rc);
    return cli_exit_status(rc);
}
