/* plait generate: texts, as they come. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/json.h"
#include "cli/cli.h"

typedef struct printing {
    pl_error *err;
    bool chat, json;
    bool begun;  /* the text whose turn it is has its heading and its prompt */
    pl_buf text; /* of a JSON object to come */
    int rc;
} printing;

static bool go_on(const printing *p)
{
    return p->rc == 0 && cli_signal() == 0 && !ferror(stdout);
}

/* A text that goes on from the prompt is read with it; an answer stands alone. */
static void begin(printing *p, const pl_written *of)
{
    if (p->begun) return;
    p->begun = true;
    if (of->count > 1)
        printf("%s--- %lld of %lld\n", of->number > 1 ? "\n" : "", (long long)of->number, (long long)of->count);
    if (!p->chat && of->prompt) fwrite(of->prompt, 1, of->prompt_size, stdout);
}

static bool on_text(void *user, const pl_written *of, const char *bytes, size_t size)
{
    printing *p = user;
    if (p->json) {
        p->rc = pl_buf_append(p->err, &p->text, bytes, size);
        return go_on(p);
    }
    begin(p, of);
    fwrite(bytes, 1, size, stdout);
    fflush(stdout);
    return go_on(p);
}

/* One line for each text. */
static int print_line(pl_error *err, const printing *p, const pl_written *of)
{
    static const char *const reasons[] = {
        [PL_WRITTEN_STOP] = "stop", [PL_WRITTEN_LENGTH] = "length", [PL_WRITTEN_INTERRUPTED] = "interrupted"};
    json_t *text = json_stringn(pl_buf_text(&p->text), p->text.size);
    json_t *prompt = of->prompt ? json_stringn(of->prompt, of->prompt_size) : json_null();
    json_t *line = json_pack("{s:I, s:o, s:o, s:I, s:I, s:s}", "number", (json_int_t)of->number, "prompt", prompt,
        "text", text, "prompt_tokens", (json_int_t)of->prompt_tokens, "new_tokens", (json_int_t)of->new_tokens,
        "finish_reason", reasons[of->end]);
    if (!line) return PL_FAIL_NOMEM(err);
    json_dumpf(line, stdout, JSON_COMPACT);
    putchar('\n');
    json_decref(line);
    return 0;
}

static bool on_end(void *user, const pl_written *of)
{
    printing *p = user;
    if (p->json) {
        p->rc = print_line(p->err, p, of);
        pl_buf_clear(&p->text);
    } else {
        begin(p, of);
        putchar('\n');
    }
    p->begun = false;
    fflush(stdout);
    return go_on(p);
}

/* All of standard input as the one prompt, without its last line break. */
static int read_stdin(pl_error *err, pl_config *config)
{
    char part[4096];
    pl_buf text = {0};
    int rc = 0;
    if (isatty(0))
        return PL_FAIL(err, PL_EUSAGE, "there is nothing to go on from; give --prompt TEXT or --prompts FILE");
    for (size_t n; (n = fread(part, 1, sizeof part, stdin)) > 0;) PL_GO(done, pl_buf_append(err, &text, part, n));
    if (memchr(pl_buf_text(&text), 0, text.size)) {
        rc = PL_FAIL(err, PL_EINPUT, "standard input has a zero byte in it");
        goto done;
    }
    if (text.size > 0 && text.data[text.size - 1] == '\n') text.data[--text.size] = 0;
    rc = pl_config_set(err, config, "prompt", pl_buf_text(&text));
done:
    pl_buf_free(&text);
    return rc;
}

int cli_generate(pl_error *err, cli_run *run)
{
    pl_config *c = &run->config;
    pl_log log = {.sink = cli_message};
    printing p = {.err = err, .chat = c->generate.chat, .json = c->json};
    pl_text_sink sink = {.user = &p, .text = on_text, .end = on_end};
    pl_generate_result r;
    if (c->generate.prompt.count == 0 && !c->generate.prompts) PL_TRY(read_stdin(err, c));
    cli_catch_signals();
    int rc = pl_generate_texts(err, &log, c, &sink, &r);
    pl_buf_free(&p.text);
    if (p.rc < 0) return p.rc;
    if (rc == PL_ESTOPPED && ferror(stdout)) {
        /* It is the output that has stopped it, and main tells that. */
        pl_error_clear(err);
        return 0;
    }
    if (rc < 0) return rc;
    /* A text's first token comes with its prompt. */
    int64_t after = r.new_tokens > r.texts ? r.new_tokens - r.texts : 0;
    fprintf(stderr, "%lld tokens read in %.3f s, %lld written at %.1f a second\n", (long long)r.prompt_tokens,
        r.prompt_s, (long long)r.new_tokens, r.write_s > 0 ? (double)after / r.write_s : 0.0);
    return 0;
}
