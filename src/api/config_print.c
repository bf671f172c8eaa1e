/* The run as YAML, and how two runs differ. */
#include <stdio.h>
#include <string.h>

#include "api/config.h"
#include "base/file.h"

#define COMMENT_COLUMN 36

static bool is_given(const pl_config *config, const pl_field *field)
{
    return config->origin[field - pl_config_fields].from != PL_FROM_DEFAULT;
}

/* Whether the line stands for itself, or is commented out to show what could be. */
static bool is_live(const pl_config *config, const pl_field *field, pl_yaml_style style)
{
    if (style == PL_YAML_INIT) return is_given(config, field);
    return pl_field_has_value(field, config) && pl_config_applies(config, field);
}

static int print_help(pl_error *err, const pl_field *field, pl_buf *out)
{
    PL_TRY(pl_buf_printf(err, out, "# %s", field->help));
    if (!field->words || field->kind == PL_FIELD_SWITCH) return pl_buf_putc(err, out, '\n');
    int size;
    const char *word;
    for (int i = 0; (word = pl_word(field->words, i, &size)); i++) {
        PL_TRY(pl_buf_printf(err, out, "%s%.*s", i ? ", " : " (", size, word));
    }
    return pl_buf_puts(err, out, field->kind == PL_FIELD_WORD ? ")\n" : "...)\n");
}

/* Of what is in a section, which may be in another one. */
static int indent(const char *section)
{
    int n = section ? 2 : 0;
    for (; section && *section; section++) n += *section == '.' ? 2 : 0;
    return n;
}

static int print_field(pl_error *err, const pl_config *config, const pl_field *field, pl_yaml_style style, pl_buf *out)
{
    size_t start = out->size;
    bool live = is_live(config, field, style);
    PL_TRY(pl_buf_printf(err, out, "%*s%s%s: ", indent(field->section), "", live ? "" : "# ", field->name));
    if (style == PL_YAML_INIT && !pl_field_has_value(field, config)) {
        PL_TRY(pl_field_metavar(err, field, out)); /* what could be there */
    } else {
        PL_TRY(pl_field_print_yaml(err, field, config, out));
    }
    do PL_TRY(pl_buf_putc(err, out, ' '));
    while (out->size - start < COMMENT_COLUMN);
    return print_help(err, field, out);
}

static int print_header(pl_error *err, const pl_section *section, pl_buf *out)
{
    if (!section->name) return pl_buf_printf(err, out, "\n# %s\n", section->title);
    const char *dot = strrchr(section->name, '.');
    int n = indent(section->name) - 2;
    PL_TRY(pl_buf_printf(err, out, "%s%*s# %s\n", n ? "" : "\n", n, "", section->title));
    return pl_buf_printf(err, out, "%*s%s:\n", n, "", dot ? dot + 1 : section->name);
}

static int print_section(
    pl_error *err, const pl_config *config, const pl_section *section, pl_yaml_style style, pl_buf *out)
{
    bool any = false;
    for (int i = 0; i < pl_config_field_count; i++) {
        const pl_field *field = &pl_config_fields[i];
        if (field->flag_only || !pl_section_has(section, field)) continue;
        if (!any) PL_TRY(print_header(err, section, out));
        any = true;
        PL_TRY(print_field(err, config, field, style, out));
    }
    return 0;
}

int pl_config_print(pl_error *err, const pl_config *config, pl_yaml_style style, pl_buf *out)
{
    PL_TRY(pl_buf_puts(err, out,
        style == PL_YAML_RESOLVED
            ? "# A run of plait " PL_VERSION
              ", every field as it was resolved; `plait train` with this file runs it again.\n"
            : "# A run of plait: `plait train run.yaml`. Lines that begin with # show the defaults; every field is a "
              "flag\n"
              "# too (--lora.r 16), which overrides the file. docs/configuration.md explains them.\n"));
    for (int i = 0; i < pl_config_section_count; i++) {
        PL_TRY(print_section(err, config, &pl_config_sections[i], style, out));
    }
    return 0;
}

int pl_config_write(pl_error *err, const pl_config *config, const char *path)
{
    pl_buf text = {0};
    int rc = pl_config_print(err, config, PL_YAML_RESOLVED, &text);
    if (rc == 0) rc = pl_file_write(err, path, pl_buf_text(&text), text.size);
    pl_buf_free(&text);
    return rc;
}

int pl_config_compare(pl_error *err, const pl_config *config, const pl_config *before, const char *folder)
{
    pl_buf now = {0}, then = {0};
    int rc = 0;
    for (int i = 0; i < pl_config_field_count && rc == 0; i++) {
        const pl_field *field = &pl_config_fields[i];
        if (field->flag_only || field->volatile_) continue;
        bool applies = pl_config_applies(config, field), applied = pl_config_applies(before, field);
        if (!applies && !applied) continue;
        pl_buf_clear(&now);
        pl_buf_clear(&then);
        PL_GO(done, pl_field_print_flag(err, field, config, &now));
        PL_GO(done, pl_field_print_flag(err, field, before, &then));
        if (strcmp(pl_buf_text(&now), pl_buf_text(&then)) == 0) continue;
        char name[PL_FIELD_NAME_SIZE];
        const char *a = now.size ? pl_buf_text(&now) : "not set", *b = then.size ? pl_buf_text(&then) : "not set";
        rc = PL_FAIL(err, PL_EUSAGE,
            "%s holds another run: %s is %.200s here and %.200s there; choose another --output, or remove that one",
            folder, pl_field_name(field, name), a, b);
    }
done:
    pl_buf_free(&now);
    pl_buf_free(&then);
    return rc;
}
