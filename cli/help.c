/* Help from the table of fields: grouped by section, aligned, as wide as the terminal. */
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "base/number.h"
#include "cli/cli.h"

#define FLAG_COLUMN 34 /* where the explanations begin */

int cli_terminal_width(FILE *file)
{
    struct winsize size;
    int64_t columns;
    const char *variable = getenv("COLUMNS");
    if (ioctl(fileno(file), TIOCGWINSZ, &size) == 0 && size.ws_col > 0) return size.ws_col;
    if (variable && pl_parse_int(variable, &columns) && columns > 0 && columns < 10000) return (int)columns;
    return 80;
}

static int clamp_width(int width)
{
    return width < 72 ? 72 : width > 120 ? 120 : width;
}

static int spaces(pl_error *err, int count, pl_buf *out)
{
    for (int i = 0; i < count; i++) PL_TRY(pl_buf_putc(err, out, ' '));
    return 0;
}

/* Words of text from column `at` on, wrapped to `indent`; ends the line. */
static int wrap(pl_error *err, const char *text, int at, int indent, int width, pl_buf *out)
{
    bool first = true;
    while (*text) {
        int n = (int)strcspn(text, " ");
        if (!first && at + 1 + n > width) {
            PL_TRY(pl_buf_putc(err, out, '\n'));
            PL_TRY(spaces(err, indent, out));
            at = indent;
        } else if (!first) {
            PL_TRY(pl_buf_putc(err, out, ' '));
            at++;
        }
        PL_TRY(pl_buf_append(err, out, text, (size_t)n));
        at += n;
        first = false;
        text += n + (text[n] == ' ');
    }
    return pl_buf_putc(err, out, '\n');
}

/* "--lora.r N", or only the flag where what may be given is long and follows in the explanation. */
static int flag_usage(pl_error *err, const pl_field *field, bool *listed, pl_buf *out)
{
    char flag[PL_FIELD_NAME_SIZE];
    pl_buf value = {0};
    int rc = pl_field_metavar(err, field, &value);
    *listed = rc == 0 && value.size > 24;
    if (rc == 0) {
        rc = pl_buf_printf(err, out, "  %s %s", pl_field_flag(field, flag), *listed ? "NAME" : pl_buf_text(&value));
    }
    pl_buf_free(&value);
    return rc;
}

/* "the update's rank [8]" */
static int explanation(pl_error *err, const pl_field *field, bool list_words, pl_buf *out)
{
    PL_TRY(pl_buf_puts(err, out, field->help));
    int size;
    const char *word;
    for (int i = 0; list_words && (word = pl_word(field->words, i, &size)); i++) {
        PL_TRY(pl_buf_printf(err, out, "%s%.*s", i ? ", " : " (", size, word));
    }
    if (list_words) PL_TRY(pl_buf_putc(err, out, ')'));
    return field->fallback ? pl_buf_printf(err, out, " [%s]", field->fallback) : 0;
}

static int print_flag(pl_error *err, const pl_field *field, int width, pl_buf *out)
{
    size_t start = out->size;
    bool listed;
    pl_buf text = {0};
    int rc = flag_usage(err, field, &listed, out);
    int at = (int)(out->size - start);
    if (rc == 0 && at + 2 > FLAG_COLUMN) {
        rc = pl_buf_putc(err, out, '\n');
        at = 0;
    }
    if (rc == 0) rc = spaces(err, FLAG_COLUMN - at, out);
    if (rc == 0) rc = explanation(err, field, listed, &text);
    if (rc == 0) rc = wrap(err, pl_buf_text(&text), FLAG_COLUMN, FLAG_COLUMN, width, out);
    pl_buf_free(&text);
    return rc;
}

static int print_section(pl_error *err, const pl_section *section, unsigned command, int width, pl_buf *out)
{
    bool any = false;
    for (int i = 0; i < pl_config_field_count; i++) {
        const pl_field *field = &pl_config_fields[i];
        if (!(field->commands & command) || !pl_section_has(section, field)) continue;
        if (!any) PL_TRY(pl_buf_printf(err, out, "\n%s\n", section->title));
        any = true;
        PL_TRY(print_flag(err, field, width, out));
    }
    return 0;
}

int cli_command_help(pl_error *err, const cli_command *command, int width, pl_buf *out)
{
    width = clamp_width(width);
    PL_TRY(pl_buf_printf(err, out, "usage: plait %s %s\n\n", command->name, command->arguments));
    PL_TRY(wrap(err, command->text, 0, 0, width, out));
    for (int i = 0; i < pl_config_section_count; i++) {
        PL_TRY(print_section(err, &pl_config_sections[i], command->bit, width, out));
    }
    return 0;
}

int cli_help(pl_error *err, int width, pl_buf *out)
{
    width = clamp_width(width);
    PL_TRY(pl_buf_puts(err, out, "usage: plait COMMAND [run.yaml] [--field value ...]\n\n"));
    PL_TRY(wrap(err, "Trains and fine-tunes large language models.", 0, 0, width, out));
    PL_TRY(pl_buf_puts(err, out, "\nCommands\n"));
    for (int i = 0; i < cli_command_count; i++) {
        PL_TRY(pl_buf_printf(err, out, "  %-10s  %s\n", cli_commands[i].name, cli_commands[i].summary));
    }
    PL_TRY(pl_buf_puts(err, out,
        "\nA first fine-tune\n"
        "  plait train --model SmolLM2-135M --data train.jsonl --method lora --output out\n"
        "  plait generate --model SmolLM2-135M --adapter out --prompt 'Once'\n\n"));
    return wrap(err,
        "`plait COMMAND --help` lists a command's flags, `plait --version` tells the version. Every flag but "
        "those of generate is also a field of a run file: --lora.r 16 is r: 16 under lora:. Switches take true "
        "and false; of a flag that is given twice the last holds, and lists grow.",
        0, 0, width, out);
}
