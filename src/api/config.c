#include "api/config.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int pl_config_open(pl_error *err, pl_config *config)
{
    *config = (pl_config){0};
    int rc = 0;
    for (int i = 0; i < pl_config_field_count; i++) {
        PL_GO(failed, pl_field_reset(err, &pl_config_fields[i], config));
    }
    return 0;
failed:
    pl_config_close(config);
    return rc;
}

void pl_config_close(pl_config *config)
{
    for (int i = 0; i < pl_config_field_count; i++) pl_field_free(&pl_config_fields[i], config);
    free(config->file);
    *config = (pl_config){0};
}

bool pl_section_has(const pl_section *section, const pl_field *field)
{
    if (!section->name || !field->section) return !section->name && !field->section;
    return strcmp(section->name, field->section) == 0;
}

int pl_config_new(pl_error *err, pl_config **out)
{
    pl_config *config;
    PL_TRY(pl_calloc(err, 1, sizeof *config, &config));
    int rc = pl_config_open(err, config);
    if (rc < 0) free(config);
    *out = rc < 0 ? NULL : config;
    return rc;
}

void pl_config_delete(pl_config *config)
{
    if (!config) return;
    pl_config_close(config);
    free(config);
}

const pl_field *pl_config_field(const pl_config *config, const void *member)
{
    size_t offset = (size_t)((const char *)member - (const char *)config);
    for (int i = 0; i < pl_config_field_count; i++) {
        if (pl_config_fields[i].offset == offset) return &pl_config_fields[i];
    }
    return NULL;
}

static const struct pl_origin *origin_of(const pl_config *config, const pl_field *field)
{
    return &config->origin[field - pl_config_fields];
}

bool pl_config_is_set(const pl_config *config, const void *member)
{
    const pl_field *field = pl_config_field(config, member);
    return field && origin_of(config, field)->from != PL_FROM_DEFAULT;
}

const char *pl_config_where(const pl_config *config, const void *member, char out[PL_WHERE_SIZE])
{
    const pl_field *field = pl_config_field(config, member);
    char name[PL_FIELD_NAME_SIZE];
    if (!field) return "an unknown field";
    const struct pl_origin *origin = origin_of(config, field);
    if (origin->from == PL_FROM_FLAG) {
        snprintf(out, PL_WHERE_SIZE, "%s", pl_field_flag(field, name));
    } else if (origin->from == PL_FROM_FILE) {
        snprintf(out, PL_WHERE_SIZE, "%.400s:%d: %s", config->file, origin->line, pl_field_name(field, name));
    } else {
        snprintf(out, PL_WHERE_SIZE, "%s", pl_field_name(field, name));
    }
    return out;
}

const pl_field *pl_config_find(const char *name)
{
    char full[PL_FIELD_NAME_SIZE];
    for (int i = 0; i < pl_config_field_count; i++) {
        if (strcmp(pl_field_name(&pl_config_fields[i], full), name) == 0) return &pl_config_fields[i];
    }
    return NULL;
}

void pl_config_set_world(pl_config *config, pl_comm *world)
{
    config->world = world;
}

int pl_config_set(pl_error *err, pl_config *config, const char *name, const char *value)
{
    const pl_field *field = pl_config_find(name);
    if (!field) return pl_config_unknown(err, NULL, name, 0);
    struct pl_origin *origin = &config->origin[field - pl_config_fields];
    bool grows =
        origin->from == PL_FROM_CODE && field->size == 0 && (pl_field_is_list(field) || pl_field_is_map(field));
    if (!grows) pl_field_free(field, config);
    *origin = (struct pl_origin){.from = PL_FROM_CODE};
    PL_TRY(pl_field_set(err, field, config, name, value));
    return pl_field_complete(err, field, config, name);
}

/* Whether the first n characters are the same, where - and _ are one: the peers' programs take either. */
static bool same_word(const char *a, const char *b, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (a[i] != b[i] && !((a[i] == '-' || a[i] == '_') && (b[i] == '-' || b[i] == '_'))) return false;
    }
    return true;
}

/* Whether "HF:learning_rate DeepSpeed:lr" has the name; *peer and *size are then whose it is. */
static bool is_peer_name(const char *peers, const char *name, const char **peer, int *size)
{
    size_t n = strlen(name);
    for (const char *p = peers; p && *p;) {
        const char *colon = strchr(p, ':'), *end = strchr(p, ' ');
        if (!colon) break;
        size_t length = end ? (size_t)(end - colon - 1) : strlen(colon + 1);
        if (length == n && same_word(colon + 1, name, n)) {
            *peer = p;
            *size = (int)(colon - p);
            return true;
        }
        p = end ? end + 1 : NULL;
    }
    return false;
}

/* The field that was most likely meant, or NULL. *peer is set where the name is another program's. */
static const pl_field *nearest(const char *name, unsigned command, const char **peer, int *peer_size)
{
    const pl_field *best = NULL, *same_leaf = NULL;
    const char *dot = strrchr(name, '.'), *leaf = dot ? dot + 1 : name;
    int best_distance = 1000, leaves = 0;
    for (int i = 0; i < pl_config_field_count; i++) {
        const pl_field *field = &pl_config_fields[i];
        if (command ? !(field->commands & command) : field->flag_only) continue;
        if (is_peer_name(field->peers, leaf, peer, peer_size)) return field;
        char full[PL_FIELD_NAME_SIZE];
        int distance = pl_edit_distance(name, pl_field_name(field, full));
        if (distance < best_distance) {
            best_distance = distance;
            best = field;
        }
        if (strcmp(field->name, leaf) == 0) {
            same_leaf = field;
            leaves++;
        }
    }
    int limit = (int)strlen(name) / 3;
    if (best_distance <= (limit < 1 ? 1 : limit)) return best;
    return leaves == 1 ? same_leaf : NULL;
}

/* The fields of the section that name begins with, "steps, epochs"; nothing where there is no such section. */
static int list_section(pl_error *err, const char *name, unsigned command, pl_buf *list)
{
    const char *dot = strchr(name, '.');
    for (int i = 0; i < pl_config_field_count && dot; i++) {
        const pl_field *f = &pl_config_fields[i];
        size_t n = (size_t)(dot - name);
        if (f->flag_only || !f->section || strlen(f->section) != n || strncmp(f->section, name, n) != 0) continue;
        if (command && !(f->commands & command)) continue;
        PL_TRY(pl_buf_printf(err, list, "%s%s", list->size ? ", " : "", f->name));
    }
    return 0;
}

/* What can be told about a name that is not there, after "there is no field NAME". */
static int unknown_hint(pl_error *err, const char *name, unsigned command, const pl_field *near, pl_buf *hint)
{
    char full[PL_FIELD_NAME_SIZE];
    if (near) {
        const char *known = command ? pl_field_flag(near, full) : pl_field_name(near, full);
        return pl_buf_printf(err, hint, "did you mean %s?", known);
    }
    for (int i = 1; i < pl_config_section_count && !command && !strchr(name, '.'); i++) {
        const char *section = pl_config_sections[i].name;
        if (pl_edit_distance(name, section) <= 2) return pl_buf_printf(err, hint, "did you mean %s?", section);
    }
    pl_buf list = {0};
    int rc = list_section(err, name, command, &list);
    if (rc == 0 && list.size) {
        rc = pl_buf_printf(err, hint, "%.*s has %s", (int)strcspn(name, "."), name, pl_buf_text(&list));
    } else if (rc == 0) {
        rc = pl_buf_puts(err, hint,
            command ? "--help lists what there is" : "docs/configuration.md and `plait init` list what there is");
    }
    pl_buf_free(&list);
    return rc;
}

int pl_config_unknown(pl_error *err, const char *where, const char *name, unsigned command)
{
    const char *peer = NULL, *what = command ? "flag --" : "field ";
    int peer_size = 0;
    const pl_field *near = nearest(name, command, &peer, &peer_size);
    pl_buf text = {0};
    int rc = 0;
    if (where) PL_GO(done, pl_buf_printf(err, &text, "%s: ", where));
    if (near && peer) {
        char full[PL_FIELD_NAME_SIZE];
        const char *known = command ? pl_field_flag(near, full) : pl_field_name(near, full);
        bool hf = strncmp(peer, "HF:", 3) == 0;
        PL_GO(done, pl_buf_printf(err, &text, "%s%.80s is %.*s's name for it; here it is %s", command ? "--" : "", name,
                        hf ? 12 : peer_size, hf ? "Hugging Face" : peer, known));
    } else {
        PL_GO(done, pl_buf_printf(err, &text, "there is no %s%.80s; ", what, name));
        PL_GO(done, unknown_hint(err, name, command, near, &text));
    }
    rc = PL_FAIL(err, PL_EUSAGE, "%s", pl_buf_text(&text));
done:
    pl_buf_free(&text);
    return rc;
}

bool pl_config_told_by_adapter(const pl_config *config, const pl_field *field)
{
    return config->adapter && field->section && strcmp(field->section, "lora") == 0 &&
           field->offset != offsetof(pl_config, lora.lr_ratio);
}

/* "optimizer.name=adamw|sgd", "parallel.zero=2|3" */
static bool holds(const pl_config *config, const char *condition)
{
    const char *equals = strchr(condition, '=');
    char name[PL_FIELD_NAME_SIZE];
    snprintf(name, sizeof name, "%.*s", (int)(equals - condition), condition);
    const pl_field *by = pl_config_find(name);
    if (!by) return true;
    if (by->kind == PL_FIELD_SWITCH) {
        bool wanted = strcmp(equals + 1, "true") == 0;
        return *PL_CONST_MEMBER(bool, by, config) == wanted;
    }
    char number[24];
    int size, other_size;
    const char *word = number, *other;
    if (by->kind == PL_FIELD_INT) {
        size = snprintf(number, sizeof number, "%lld", (long long)*PL_CONST_MEMBER(int64_t, by, config));
    } else {
        word = pl_word(by->words, *PL_CONST_MEMBER(int, by, config), &size);
    }
    for (int i = 0; word && (other = pl_word(equals + 1, i, &other_size)); i++) {
        if (size == other_size && strncmp(word, other, (size_t)size) == 0) return true;
    }
    return false;
}

bool pl_config_applies(const pl_config *config, const pl_field *field)
{
    if (pl_config_told_by_adapter(config, field)) return false;
    for (const char *at = field->when; at;) {
        char condition[512];
        const char *end = strstr(at, " or ");
        snprintf(condition, sizeof condition, "%.*s", end ? (int)(end - at) : (int)strlen(at), at);
        if (holds(config, condition)) return true;
        at = end ? end + strlen(" or ") : NULL;
    }
    return !field->when;
}
