#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include "cli/cli.h"

const cli_command cli_commands[] = {
    {.name = "init",
        .bit = PL_CMD_INIT,
        .arguments = "[run.yaml] [--field value ...]",
        .summary = "write a commented run file to start from",
        .text = "Writes a run file with every field, its default and what it means; the fields that are given as flags "
                "are filled in. A file that is there already is left alone.",
        .main = cli_init},
    {.name = "train",
        .bit = PL_CMD_TRAIN,
        .arguments = "[run.yaml] [--field value ...]",
        .summary = "train or fine-tune a model",
        .text = "Trains every weight of a model, or an adapter beside them, on files of text. Needs a model and data. "
                "Fields come from the run file, and flags override it. The output folder holds run.yaml as it was "
                "resolved, metrics.jsonl, checkpoints, and the result as a Hugging Face folder or a PEFT adapter. "
                "The same command again goes on where a run was stopped.",
        .run_file = true,
        .checked = true,
        .shared = true,
        .main = cli_train},
    {.name = "plan",
        .bit = PL_CMD_PLAN,
        .arguments = "[run.yaml] [--field value ...]",
        .summary = "tell what training would need, without doing it",
        .text =
            "Takes what train takes, and prints the memory by what it is for and the FLOPs of a step, from a dry run "
            "of the same program; says whether it fits this machine.",
        .run_file = true,
        .checked = true,
        .main = cli_plan},
    {.name = "generate",
        .bit = PL_CMD_GENERATE,
        .arguments = "[run.yaml] --model DIR [--adapter DIR] --prompt TEXT ...",
        .summary = "let a model write",
        .text =
            "Goes on from a prompt, with or without an adapter. The text streams to standard output. Several prompts, "
            "or a file of them, are written together, as many at once as --batch says; their texts come in the "
            "order of the prompts, under a heading each, and are what they would be one by one. A row of a .jsonl "
            "or .json file is {\"prompt\": TEXT} or {\"messages\": [...]}, which the chat template writes. With "
            "--json each text is a line of JSON: number, prompt, text, prompt_tokens, new_tokens, finish_reason.",
        .run_file = true,
        .checked = true,
        .main = cli_generate},
    {.name = "eval",
        .bit = PL_CMD_EVAL,
        .arguments = "[run.yaml] --model DIR [--adapter DIR] --data FILE",
        .summary = "loss and perplexity of a file",
        .text = "Reads the data as train does, and prints the mean loss of its trained tokens and the perplexity.",
        .run_file = true,
        .checked = true,
        .main = cli_eval},
    {.name = "merge",
        .bit = PL_CMD_MERGE,
        .arguments = "--model DIR --adapter DIR --output DIR",
        .summary = "put an adapter into its model's weights",
        .text = "Writes a Hugging Face folder that needs no adapter any more. Its weights have the dtype that the "
                "model's files have, or that of --precision: f32 loses nothing of the adapter, bf16 rounds.",
        .run_file = true,
        .checked = true,
        .main = cli_merge},
    {.name = "inspect",
        .bit = PL_CMD_INSPECT,
        .arguments = "[PATH] [--model DIR] [--adapter DIR] [--data FILE]",
        .summary = "show a model, an adapter, a checkpoint or a dataset",
        .text = "Shows a model's units, tensors, parameters and memory; an adapter's settings; what a checkpoint "
                "holds; or, "
                "with a model and data, the lengths of its examples and one of them with its trained tokens marked.",
        .main = cli_inspect},
};
const int cli_command_count = PL_COUNT(cli_commands);

const cli_command *cli_find_command(const char *name)
{
    for (int i = 0; i < cli_command_count; i++) {
        if (strcmp(cli_commands[i].name, name) == 0) return &cli_commands[i];
    }
    return NULL;
}

static volatile sig_atomic_t signal_seen;

static void on_signal(int number)
{
    signal_seen = number;
}

static void *wait_for_signals(void *unused)
{
    for (;;) pause();
    return unused;
}

/* Signals are taken by a thread of their own, and blocked in this one and in those that it starts. A handler that
   interrupts the backward pass in f32 corrupts the heap, even if it does nothing, unless it has a stack of its own
   (SA_ONSTACK): something there, generated code of oneDNN 2.6.3 it seems, keeps data far below the stack pointer. */
void cli_catch_signals(void)
{
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESETHAND | SA_RESTART};
    sigset_t caught;
    pthread_t thread;
    sigemptyset(&action.sa_mask);
    sigemptyset(&caught);
    sigaddset(&caught, SIGINT);
    sigaddset(&caught, SIGTERM);
    /* Without a thread the signals keep their usual effect: the run ends, and goes on from its last checkpoint. */
    if (pthread_create(&thread, NULL, wait_for_signals, NULL) != 0) return;
    pthread_detach(thread);
    pthread_sigmask(SIG_BLOCK, &caught, NULL);
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
}

int cli_signal(void)
{
    return signal_seen;
}

int cli_exit_status(int code)
{
    switch (code) {
    case 0: return 0;
    case PL_EUSAGE:
    case PL_EINPUT:
    case PL_ENOENT:
    case PL_EUNSUPPORTED: return 2;
    case PL_ESTOPPED: return 128 + (signal_seen ? signal_seen : SIGTERM);
    default: return 1;
    }
}
