/* Flags: every field that a command takes, under its own name. */
#include <stdio.h>
#include <string.h>

#include "api/config.h"

/* The field that --NAME sets for that command: by its flag, or by its full name. */
static const pl_field *flag_field(const char *name, unsigned command, bool any_command)
{
    char text[PL_FIELD_NAME_SIZE];
    for (int i = 0; i < pl_config_field_count; i++) {
        const pl_field *field = &pl_config_fields[i];
        if (!any_command && !(field->commands & command)) continue;
        if (strcmp(pl_field_flag(field, text) + 2, name) == 0) return field;
        if (strcmp(pl_field_name(field, text), name) == 0) return field;
    }
    return NULL;
}

static const struct {
    unsigned bit;
    const char *name;
} commands[] = {{PL_CMD_TRAIN, "train"}, {PL_CMD_PLAN, "plan"}, {PL_CMD_GENERATE, "generate"}, {PL_CMD_EVAL, "eval"},
    {PL_CMD_MERGE, "merge"}, {PL_CMD_INSPECT, "inspect"}, {PL_CMD_INIT, "init"}};

static const char *command_name(unsigned bit)
{
    for (int i = 0; i < PL_COUNT(commands); i++) {
        if (commands[i].bit & bit) return commands[i].name;
    }
    return "?";
}

static int unknown_flag(pl_error *err, const char *name, unsigned command)
{
    const pl_field *elsewhere = flag_field(name, command, true);
    if (!elsewhere) {
        return pl_config_unknown(err, NULL, name, command);
    }
    return PL_FAIL(
        err, PL_EUSAGE, "--%s is not taken here; it is for plait %s", name, command_name(elsewhere->commands));
}

/* Whether the next argument is a value of a switch, and not something else that follows a bare one. */
static bool is_switch_value(const char *text)
{
    return text && text[0] != '-';
}

static int set_flag(pl_error *err, pl_config *config, const pl_field *field, const char *value)
{
    struct pl_origin *origin = &config->origin[field - pl_config_fields];
    char where[PL_FIELD_NAME_SIZE];
    pl_field_flag(field, where);
    /* The flag of a list or map may be repeated; the first one puts aside what a file said. Of others the last holds.
     */
    bool grows =
        origin->from == PL_FROM_FLAG && field->size == 0 && (pl_field_is_list(field) || pl_field_is_map(field));
    if (!grows) pl_field_free(field, config);
    *origin = (struct pl_origin){.from = PL_FROM_FLAG};
    PL_TRY(pl_field_set(err, field, config, where, value));
    return pl_field_complete(err, field, config, where);
}

int pl_config_flags(pl_error *err, pl_config *config, unsigned command, int argc, char *const *argv,
    const char **positional, int *npositional)
{
    bool ended = false;
    *npositional = 0;
    for (int i = 0; i < argc; i++) {
        const char *argument = argv[i];
        if (ended || argument[0] != '-' || argument[1] == 0) {
            positional[(*npositional)++] = argument;
            continue;
        }
        if (strcmp(argument, "--") == 0) {
            ended = true;
            continue;
        }
        if (argument[1] != '-') {
            return PL_FAIL(err, PL_EUSAGE, "there is no flag %.80s; flags begin with two dashes", argument);
        }
        const char *equals = strchr(argument, '='), *value = equals ? equals + 1 : NULL;
        char name[2 * PL_FIELD_NAME_SIZE];
        snprintf(name, sizeof name, "%.*s", equals ? (int)(equals - argument - 2) : 100, argument + 2);
        const pl_field *field = flag_field(name, command, false);
        if (!field) return unknown_flag(err, name, command);
        const char *next = i + 1 < argc ? argv[i + 1] : NULL;
        if (!value && field->kind == PL_FIELD_SWITCH && !is_switch_value(next)) value = "true";
        if (!value) {
            if (!next || strncmp(next, "--", 2) == 0) {
                return PL_FAIL(err, PL_EUSAGE, "--%s needs a value", name);
            }
            value = next;
            i++;
        }
        PL_TRY(set_flag(err, config, field, value));
    }
    return 0;
}
