/* Prints what follows from the tables of fields and commands: `make_docs reference` is docs/configuration.md, `man` is
   docs/plait.1, `completion` is packaging/plait.bash. */
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"

/* Text with what the target language takes for its own put in `escape`. */
static int escaped(pl_error *err, const char *text, const char *special, const char *escape, pl_buf *out)
{
    for (; *text; text++) {
        if (strchr(special, *text)) PL_TRY(pl_buf_puts(err, out, escape));
        PL_TRY(pl_buf_putc(err, out, *text));
    }
    return 0;
}

static int values(pl_error *err, const pl_field *field, const char *special, const char *escape, pl_buf *out)
{
    pl_buf value = {0};
    int rc = pl_field_metavar(err, field, &value);
    if (rc == 0) rc = escaped(err, pl_buf_text(&value), special, escape, out);
    pl_buf_free(&value);
    return rc;
}

static int commands_of(pl_error *err, unsigned bits, pl_buf *out)
{
    int count = 0;
    for (int i = 0; i < cli_command_count; i++) {
        if (!(cli_commands[i].bit & bits)) continue;
        PL_TRY(pl_buf_printf(err, out, "%s%s", count++ ? ", " : "", cli_commands[i].name));
    }
    return 0;
}

/* ---- docs/configuration.md ---- */

static int reference_range(pl_error *err, const pl_field *field, pl_buf *out)
{
    if (field->range.min == 0 && field->range.max == 0) return 0;
    PL_TRY(pl_buf_puts(err, out, ", "));
    return pl_range_print(err, &field->range, out);
}

static int reference_peers(pl_error *err, const char *peers, pl_buf *out)
{
    for (const char *p = peers; p && *p;) {
        int whose = (int)strcspn(p, ":"), size = (int)strcspn(p, " ");
        bool hf = strncmp(p, "HF:", 3) == 0;
        PL_TRY(pl_buf_printf(err, out, "%s%.*s: `%.*s`", p == peers ? "" : "; ", hf ? 12 : whose,
            hf ? "Hugging Face" : p, size - whose - 1, p + whose + 1));
        p += size + (p[size] == ' ');
    }
    return 0;
}

static int reference_field(pl_error *err, const pl_field *field, pl_buf *out)
{
    char name[PL_FIELD_NAME_SIZE], flag[PL_FIELD_NAME_SIZE];
    pl_field_name(field, name);
    pl_field_flag(field, flag);
    PL_TRY(pl_buf_printf(err, out, "| `%s` | ", field->flag_only ? flag : name));
    PL_TRY(values(err, field, "|", "\\", out));
    PL_TRY(reference_range(err, field, out));
    PL_TRY(pl_buf_printf(err, out, " | %s%s%s | ", field->fallback ? "`" : "", field->fallback ? field->fallback : "",
        field->fallback ? "`" : ""));
    PL_TRY(pl_buf_puts(err, out, field->help));
    if (field->flag) PL_TRY(pl_buf_printf(err, out, "; the flag is `%s`", flag));
    if (field->when) {
        PL_TRY(pl_buf_puts(err, out, "; with "));
        PL_TRY(escaped(err, field->when, "|", "\\", out));
    }
    PL_TRY(pl_buf_puts(err, out, " | "));
    PL_TRY(reference_peers(err, field->peers, out));
    return pl_buf_puts(err, out, " |\n");
}

static int reference(pl_error *err, pl_buf *out)
{
    PL_TRY(pl_buf_puts(err, out,
        "# Configuration\n\n"
        "<!-- Made by `make docs` from src/api/config_fields.c. -->\n\n"
        "A run is described by a YAML file (JSON is YAML too), by flags, or by both: flags override the file. Every "
        "field\n"
        "of the file is a flag of the same name: `--lora.r 16` or `--lora.r=16` is\n\n"
        "```yaml\nlora:\n  r: 16\n```\n\n"
        "and `lora.r: 16` at the top of the file is the same. `plait init` writes a commented file to start from;\n"
        "`plait COMMAND --help` lists the fields that a command takes. Every field is optional but the model and the "
        "data.\n\n"
        "- Lists are `[a, b]` in the file and `a,b` as a flag; `--data` is repeated instead. Maps are `{a: 1}` and "
        "`a=1`.\n"
        "- Switches are `true` and `false`; a switch at the end of the flags, or before another flag, may stand "
        "alone.\n"
        "- Sizes are bytes, or have a unit: `8GiB`, `512MiB`, `4GB`.\n"
        "- `null` in the file is the default. Paths are relative to the current folder.\n"
        "- YAML's anchors and aliases work; merge keys (`<<`), tags of other programs and second documents are "
        "refused.\n"
        "- An unknown name, a value out of range, a field that is given twice or does not apply is an error, with its "
        "file\n"
        "  and line. A field that does not apply may be off (0 or false).\n"));
    for (int s = 0; s < pl_config_section_count; s++) {
        const pl_section *section = &pl_config_sections[s];
        bool generate = section->name && strcmp(section->name, "generate") == 0;
        PL_TRY(pl_buf_printf(err, out, "\n## %s\n\n", section->title));
        if (generate) PL_TRY(pl_buf_puts(err, out, "Flags of `plait generate`, and no fields of a run file.\n\n"));
        PL_TRY(pl_buf_puts(err, out, "| Field | Value | Default | Meaning | Elsewhere |\n|---|---|---|---|---|\n"));
        for (int i = 0; i < pl_config_field_count; i++) {
            const pl_field *field = &pl_config_fields[i];
            if (pl_section_has(section, field)) PL_TRY(reference_field(err, field, out));
        }
    }
    return 0;
}

/* ---- docs/plait.1 ---- */

static int roff(pl_error *err, const char *text, pl_buf *out)
{
    for (; *text; text++) {
        if (*text == '-')
            PL_TRY(pl_buf_puts(err, out, "\\-"));
        else if (*text == '\\')
            PL_TRY(pl_buf_puts(err, out, "\\e"));
        else
            PL_TRY(pl_buf_putc(err, out, *text));
    }
    return 0;
}

static int man_field(pl_error *err, const pl_field *field, pl_buf *out)
{
    char flag[PL_FIELD_NAME_SIZE];
    PL_TRY(pl_buf_puts(err, out, ".TP\n.B "));
    PL_TRY(roff(err, pl_field_flag(field, flag), out));
    PL_TRY(pl_buf_putc(err, out, ' '));
    PL_TRY(values(err, field, "", "", out));
    PL_TRY(pl_buf_putc(err, out, '\n'));
    PL_TRY(roff(err, field->help, out));
    if (field->fallback) {
        PL_TRY(pl_buf_puts(err, out, " ["));
        PL_TRY(roff(err, field->fallback, out));
        PL_TRY(pl_buf_putc(err, out, ']'));
    }
    PL_TRY(pl_buf_puts(err, out, ".\nFor "));
    PL_TRY(commands_of(err, field->commands, out));
    return pl_buf_puts(err, out, ".\n");
}

static int man(pl_error *err, pl_buf *out)
{
    PL_TRY(pl_buf_printf(err, out,
        ".\\\" Made by `make docs` from the tables of fields and commands.\n"
        ".TH PLAIT 1 \"\" \"plait %s\" \"User Commands\"\n"
        ".SH NAME\nplait \\- train and fine\\-tune large language models\n"
        ".SH SYNOPSIS\n.B plait\n.I command\n.RI [ run.yaml ]\n.RB [ \\-\\-\\fIfield\\fR\n.IR value\\ ... ]\n"
        ".SH DESCRIPTION\n"
        "A run is described by a YAML file, by flags, or by both: every field of the file is a flag of the same name, "
        "and "
        "flags override the file. Results go to standard output, all else to standard error.\n"
        ".SH COMMANDS\n",
        pl_version()));
    for (int i = 0; i < cli_command_count; i++) {
        PL_TRY(pl_buf_printf(err, out, ".TP\n.B %s ", cli_commands[i].name));
        PL_TRY(roff(err, cli_commands[i].arguments, out));
        PL_TRY(pl_buf_putc(err, out, '\n'));
        PL_TRY(roff(err, cli_commands[i].text, out));
        PL_TRY(pl_buf_putc(err, out, '\n'));
    }
    PL_TRY(pl_buf_puts(err, out, ".PP\n.B plait \\fIcommand\\fB \\-\\-help\nlists the flags that a command takes.\n"));
    for (int s = 0; s < pl_config_section_count; s++) {
        PL_TRY(pl_buf_printf(err, out, ".SH \"%s\"\n", pl_config_sections[s].title));
        for (int i = 0; i < pl_config_field_count; i++) {
            if (pl_section_has(&pl_config_sections[s], &pl_config_fields[i]))
                PL_TRY(man_field(err, &pl_config_fields[i], out));
        }
    }
    return pl_buf_puts(err, out,
        ".SH EXIT STATUS\n.TP\n.B 0\nDone.\n.TP\n.B 1\nIt failed: a disk that is full, too little memory, a number "
        "that is "
        "not finite.\n.TP\n.B 2\nWrong usage or input: a flag, a field, a file that is not what it must be.\n"
        ".TP\n.BR 130 \", \" 143\nStopped by SIGINT or SIGTERM, after a checkpoint was written. The same command again "
        "goes "
        "on from there. A second signal ends the program at once.\n"
        ".SH FILES\n.TP\n.I OUTPUT/run.yaml\nThe run as it was resolved.\n.TP\n.I OUTPUT/metrics.jsonl\nOne object for "
        "each "
        "step.\n.TP\n.I OUTPUT/checkpoints\nWhat a stopped run goes on from.\n"
        ".SH ENVIRONMENT\n.TP\n.B NO_COLOR\nNo colours are used when it is set.\n.TP\n.B COLUMNS\nThe width of help "
        "where the "
        "terminal does not tell it.\n");
}

/* ---- packaging/plait.bash ---- */

static int completion_values(pl_error *err, const pl_field *field, pl_buf *out)
{
    char flag[PL_FIELD_NAME_SIZE];
    bool file = field->kind == PL_FIELD_FILE || field->kind == PL_FIELD_FILES;
    bool folder = field->kind == PL_FIELD_FOLDER, truth = field->kind == PL_FIELD_SWITCH;
    if (!file && !folder && !truth && !field->words) return 0;
    PL_TRY(pl_buf_printf(err, out, "        %s) ", pl_field_flag(field, flag)));
    if (truth || field->words) {
        PL_TRY(pl_buf_puts(err, out, "words=\""));
        int size;
        const char *word, *words = truth ? "true|false" : field->words;
        for (int i = 0; (word = pl_word(words, i, &size)); i++) {
            PL_TRY(pl_buf_printf(err, out, "%s%.*s", i ? " " : "", size, word));
        }
        PL_TRY(pl_buf_puts(err, out, "\" "));
    }
    return pl_buf_puts(err, out, file ? "files=f ;;\n" : folder ? "files=d ;;\n" : ";;\n");
}

static int completion_flags(pl_error *err, const cli_command *command, pl_buf *out)
{
    char flag[PL_FIELD_NAME_SIZE];
    PL_TRY(pl_buf_printf(err, out, "        %s) flags=\"--help", command->name));
    for (int i = 0; i < pl_config_field_count; i++) {
        if (!(pl_config_fields[i].commands & command->bit)) continue;
        PL_TRY(pl_buf_printf(err, out, " %s", pl_field_flag(&pl_config_fields[i], flag)));
    }
    return pl_buf_puts(err, out, "\" ;;\n");
}

static int completion(pl_error *err, pl_buf *out)
{
    PL_TRY(pl_buf_puts(err, out,
        "# Bash completion of plait. Made by `make docs` from the tables of fields and commands.\n"
        "_plait()\n{\n"
        "    local cur=\"${COMP_WORDS[COMP_CWORD]}\" prev=\"${COMP_WORDS[COMP_CWORD-1]}\" words=\"\" files=\"\" "
        "flags=\"\"\n"
        "    COMPREPLY=()\n"
        "    # Bash splits --field=value at the sign.\n"
        "    if [[ $cur == \"=\" ]]; then\n        cur=\"\"\n"
        "    elif [[ $prev == \"=\" ]]; then\n        prev=\"${COMP_WORDS[COMP_CWORD-2]}\"\n    fi\n"
        "    if [[ $COMP_CWORD == 1 ]]; then\n        COMPREPLY=($(compgen -W \""));
    for (int i = 0; i < cli_command_count; i++) PL_TRY(pl_buf_printf(err, out, "%s ", cli_commands[i].name));
    PL_TRY(pl_buf_puts(
        err, out, "help --help --version\" -- \"$cur\"))\n        return\n    fi\n    case \"$prev\" in\n"));
    for (int i = 0; i < pl_config_field_count; i++) PL_TRY(completion_values(err, &pl_config_fields[i], out));
    PL_TRY(pl_buf_puts(err, out,
        "    esac\n"
        "    if [[ -z $words$files && $cur != -* ]]; then\n        files=f\n    fi\n"
        "    case \"${COMP_WORDS[1]}\" in\n"));
    for (int i = 0; i < cli_command_count; i++) PL_TRY(completion_flags(err, &cli_commands[i], out));
    return pl_buf_puts(err, out,
        "        help) words=\"init train plan generate eval merge inspect\" files=\"\" ;;\n"
        "    esac\n"
        "    if [[ $cur == -* ]]; then\n        words=\"$flags\" files=\"\"\n    fi\n"
        "    COMPREPLY=($(compgen -W \"$words\" -- \"$cur\"))\n"
        "    if [[ -n $files ]]; then\n        compopt -o filenames 2>/dev/null\n"
        "        local IFS=$'\\n'\n"
        "        COMPREPLY+=($(compgen -\"$files\" -- \"$cur\"))\n    fi\n"
        "}\ncomplete -F _plait plait\n");
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        int (*make)(pl_error *err, pl_buf *out);
    } pages[] = {{"reference", reference}, {"man", man}, {"completion", completion}};
    pl_error err = {0};
    pl_buf text = {0};
    for (int i = 0; argc == 2 && i < PL_COUNT(pages); i++) {
        if (strcmp(argv[1], pages[i].name) != 0) continue;
        int rc = pages[i].make(&err, &text);
        if (rc == 0 && fputs(pl_buf_text(&text), stdout) == EOF) rc = PL_EIO;
        pl_buf_free(&text);
        return rc == 0 && fflush(stdout) == 0 ? 0 : 1;
    }
    fprintf(stderr, "usage: make_docs reference|man|completion\n");
    return 2;
}
