/* plait generate: text, as it comes. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/cli.h"

/* `user` is the text that stands before what is written: the prompt, once there is something that goes on from it. */
static bool on_text(void *user, const char *bytes, size_t size)
{
    const char **before = user;
    fputs(*before, stdout);
    *before = "";
    fwrite(bytes, 1, size, stdout);
    fflush(stdout);
    return cli_signal() == 0 && !ferror(stdout);
}

/* All of standard input, without its last line break. */
static int read_stdin(pl_error *err, pl_buf *text)
{
    char part[4096];
    if (isatty(0)) return PL_FAIL(err, PL_EUSAGE, "there is nothing to go on from; give --prompt TEXT");
    for (size_t n; (n = fread(part, 1, sizeof part, stdin)) > 0;) PL_TRY(pl_buf_append(err, text, part, n));
    if (memchr(pl_buf_text(text), 0, text->size))
        return PL_FAIL(err, PL_EINPUT, "standard input has a zero byte in it");
    if (text->size > 0 && text->data[text->size - 1] == '\n') text->data[--text->size] = 0;
    return 0;
}

int cli_generate(pl_error *err, cli_run *run)
{
    pl_buf input = {0};
    const char *prompt = run->config.generate.prompt;
    pl_log log = {.sink = cli_message};
    const char *before = "";
    pl_text_sink sink = {.user = &before, .text = on_text};
    pl_generate_result r;
    int rc = prompt ? 0 : read_stdin(err, &input);
    if (!prompt) prompt = pl_buf_text(&input);
    cli_catch_signals();
    /* A text that goes on from the prompt is read with it; an answer stands alone. */
    if (!run->config.generate.chat) before = prompt;
    if (rc == 0) rc = pl_generate_text(err, &log, &run->config, prompt, &sink, &r);
    if (rc == 0) {
        printf("%s\n", before);
        fflush(stdout);
        fprintf(stderr, "%lld tokens read in %.3f s, %lld written at %.1f a second\n", (long long)r.prompt_tokens,
            r.prompt_s, (long long)r.new_tokens, r.write_s > 0 ? (double)(r.new_tokens - 1) / r.write_s : 0.0);
    }
    pl_buf_free(&input);
    return rc;
}
