/* Run files: YAML through libyaml, whose nodes know their lines. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <yaml.h>

#include "api/config.h"
#include "base/file.h"

typedef struct reader {
    pl_error *err;
    pl_config *config;
    const char *where;
    yaml_document_t *document;
    unsigned sections; /* a bit for each that was met */
} reader;

static int line_of(const yaml_node_t *node)
{
    return (int)node->start_mark.line + 1;
}

static int fail_at(reader *r, const yaml_node_t *node, const char *what)
{
    return PL_FAIL(r->err, PL_EUSAGE, "%s:%d: %s", r->where, line_of(node), what);
}

static bool has_tag(const yaml_node_t *node, const char *tag)
{
    return node->tag && strcmp((const char *)node->tag, tag) == 0;
}

/* The standard tags say nothing that the field does not; others ask for a program's own objects. */
static int check_tag(reader *r, const yaml_node_t *node)
{
    static const char *const known[] = {
        YAML_STR_TAG, YAML_INT_TAG, YAML_FLOAT_TAG, YAML_BOOL_TAG, YAML_NULL_TAG, YAML_SEQ_TAG, YAML_MAP_TAG, "!"};
    for (int i = 0; i < PL_COUNT(known); i++) {
        if (has_tag(node, known[i])) return 0;
    }
    return PL_FAIL(r->err, PL_EUSAGE, "%s:%d: the tag %.80s is not supported", r->where, line_of(node),
        node->tag ? (const char *)node->tag : "?");
}

/* A scalar's text; PL_EUSAGE where it has a 0 inside. */
static int scalar(reader *r, const yaml_node_t *node, const char **out)
{
    PL_TRY(check_tag(r, node));
    *out = (const char *)node->data.scalar.value;
    if (strlen(*out) != node->data.scalar.length) return fail_at(r, node, "a text holds a zero byte");
    return 0;
}

static bool is_plain(const yaml_node_t *node)
{
    return node->type == YAML_SCALAR_NODE && node->data.scalar.style == YAML_PLAIN_SCALAR_STYLE;
}

static bool is_empty(const yaml_node_t *node)
{
    return is_plain(node) && node->data.scalar.length == 0;
}

static bool is_null(const yaml_node_t *node)
{
    if (!is_plain(node)) return false;
    const char *text = (const char *)node->data.scalar.value;
    return strcmp(text, "null") == 0 || strcmp(text, "Null") == 0 || strcmp(text, "NULL") == 0 ||
           strcmp(text, "~") == 0;
}

static int set_list(reader *r, const pl_field *field, const char *where, const yaml_node_t *node)
{
    if (!pl_field_is_list(field)) return PL_FAIL(r->err, PL_EUSAGE, "%s is a list; a single value was expected", where);
    PL_TRY(check_tag(r, node));
    yaml_node_item_t *item = node->data.sequence.items.start, *end = node->data.sequence.items.top;
    for (; item < end; item++) {
        const yaml_node_t *value = yaml_document_get_node(r->document, *item);
        const char *text;
        if (value->type != YAML_SCALAR_NODE) {
            return PL_FAIL(r->err, PL_EUSAGE, "%s has an item that is itself a list or a mapping", where);
        }
        PL_TRY(scalar(r, value, &text));
        PL_TRY(pl_field_add(r->err, field, r->config, where, text));
    }
    return 0;
}

static int set_map(reader *r, const pl_field *field, const char *where, const yaml_node_t *node)
{
    if (!pl_field_is_map(field)) {
        const char *expected = pl_field_is_list(field) ? "a list" : "a single value";
        return PL_FAIL(r->err, PL_EUSAGE, "%s is a mapping; %s was expected", where, expected);
    }
    PL_TRY(check_tag(r, node));
    yaml_node_pair_t *pair = node->data.mapping.pairs.start, *end = node->data.mapping.pairs.top;
    for (; pair < end; pair++) {
        const yaml_node_t *key = yaml_document_get_node(r->document, pair->key);
        const yaml_node_t *value = yaml_document_get_node(r->document, pair->value);
        const char *name, *text;
        if (key->type != YAML_SCALAR_NODE || value->type != YAML_SCALAR_NODE) {
            return PL_FAIL(r->err, PL_EUSAGE, "%s has an entry that is itself a list or a mapping", where);
        }
        PL_TRY(scalar(r, key, &name));
        PL_TRY(scalar(r, value, &text));
        PL_TRY(pl_field_put(r->err, field, r->config, where, name, text));
    }
    return 0;
}

static int set_field(reader *r, const pl_field *field, const yaml_node_t *key, const yaml_node_t *node)
{
    struct pl_origin *origin = &r->config->origin[field - pl_config_fields];
    char name[PL_FIELD_NAME_SIZE], where[PL_WHERE_SIZE];
    pl_field_name(field, name);
    snprintf(where, sizeof where, "%.400s:%d: %s", r->where, line_of(key), name);
    if (origin->from == PL_FROM_FILE) {
        return PL_FAIL(r->err, PL_EUSAGE, "%s is given twice; line %d has it already", where, origin->line);
    }
    if (is_empty(node)) {
        return PL_FAIL(r->err, PL_EUSAGE, "%s has no value; give one, or leave the line out for the default", where);
    }
    /* A flag overrides the file, whichever is read first. */
    if (is_null(node) || origin->from == PL_FROM_FLAG || origin->from == PL_FROM_CODE) return 0;
    pl_field_free(field, r->config);
    *origin = (struct pl_origin){.from = PL_FROM_FILE, .line = line_of(key)};
    const char *text;
    switch (node->type) {
    case YAML_SCALAR_NODE:
        PL_TRY(scalar(r, node, &text));
        PL_TRY(pl_field_set(r->err, field, r->config, where, text));
        break;
    case YAML_SEQUENCE_NODE: PL_TRY(set_list(r, field, where, node)); break;
    case YAML_MAPPING_NODE: PL_TRY(set_map(r, field, where, node)); break;
    default: return PL_FAIL(r->err, PL_EBUG, "%s: a YAML node of no kind", where);
    }
    return pl_field_complete(r->err, field, r->config, where);
}

static int section_index(const char *name)
{
    for (int i = 1; i < pl_config_section_count; i++) {
        if (strcmp(pl_config_sections[i].name, name) == 0) return i;
    }
    return -1;
}

/* `data: train.jsonl` is data.files, as --data is. */
static const pl_field *field_of(const char *name)
{
    for (int i = 0; i < pl_config_field_count; i++) {
        const pl_field *field = &pl_config_fields[i];
        if (field->flag && strcmp(field->flag, name) == 0) return field;
    }
    return pl_config_find(name);
}

static int read_mapping(reader *r, const char *section, const yaml_node_t *node);

static int read_pair(reader *r, const char *section, const yaml_node_t *key, const yaml_node_t *value)
{
    const char *text;
    if (key->type != YAML_SCALAR_NODE) return fail_at(r, key, "a field's name was expected");
    PL_TRY(scalar(r, key, &text));
    if (strcmp(text, "<<") == 0) return fail_at(r, key, "merge keys (<<) are not supported; write the fields out");
    char name[2 * PL_FIELD_NAME_SIZE];
    snprintf(name, sizeof name, "%s%s%.80s", section ? section : "", section ? "." : "", text);
    int index = section_index(name);
    bool nothing = is_empty(value) || is_null(value);
    if (index >= 0 && (value->type == YAML_MAPPING_NODE || nothing)) {
        if (r->sections & 1u << index) {
            return PL_FAIL(r->err, PL_EUSAGE, "%s:%d: the section %s is given twice", r->where, line_of(key), name);
        }
        r->sections |= 1u << index;
        return nothing ? 0 : read_mapping(r, pl_config_sections[index].name, value);
    }
    const pl_field *field = field_of(name);
    if (!field && index >= 0) {
        return PL_FAIL(
            r->err, PL_EUSAGE, "%s:%d: %s is a section; fields were expected in it", r->where, line_of(key), name);
    }
    char where[PL_WHERE_SIZE];
    snprintf(where, sizeof where, "%.400s:%d", r->where, line_of(key));
    if (field && field->flag_only) {
        /* Such a name may be another program's for a field, as `seed` is. */
        return pl_config_unknown(r->err, where, name, 0);
    }
    return field ? set_field(r, field, key, value) : pl_config_unknown(r->err, where, name, 0);
}

static int read_mapping(reader *r, const char *section, const yaml_node_t *node)
{
    PL_TRY(check_tag(r, node));
    yaml_node_pair_t *pair = node->data.mapping.pairs.start, *end = node->data.mapping.pairs.top;
    for (; pair < end; pair++) {
        const yaml_node_t *key = yaml_document_get_node(r->document, pair->key);
        const yaml_node_t *value = yaml_document_get_node(r->document, pair->value);
        PL_TRY(read_pair(r, section, key, value));
    }
    return 0;
}

static int yaml_failed(pl_error *err, const char *where, const yaml_parser_t *parser)
{
    if (parser->error == YAML_MEMORY_ERROR) return PL_FAIL_NOMEM(err);
    const char *problem = parser->problem ? parser->problem : "it cannot be read";
    if (parser->error == YAML_READER_ERROR) {
        return PL_FAIL(err, PL_EUSAGE, "%s: is not valid YAML: %s at byte %zu", where, problem, parser->problem_offset);
    }
    return PL_FAIL(err, PL_EUSAGE, "%s:%zu: is not valid YAML: %s", where, parser->problem_mark.line + 1, problem);
}

static int read_document(pl_error *err, pl_config *config, const char *where, yaml_parser_t *parser)
{
    yaml_document_t document, second;
    if (!yaml_parser_load(parser, &document)) return yaml_failed(err, where, parser);
    reader r = {.err = err, .config = config, .where = where, .document = &document};
    const yaml_node_t *root = yaml_document_get_root_node(&document);
    int rc = 0;
    if (root && root->type == YAML_MAPPING_NODE) {
        rc = read_mapping(&r, NULL, root);
    } else if (root && !is_empty(root) && !is_null(root)) {
        rc = fail_at(&r, root, "a run file is a mapping of fields, such as `model: DIR`");
    }
    yaml_document_delete(&document);
    PL_TRY(rc);
    if (!root) return 0;
    if (!yaml_parser_load(parser, &second)) return yaml_failed(err, where, parser);
    root = yaml_document_get_root_node(&second);
    if (root) {
        rc = PL_FAIL(err, PL_EUSAGE, "%s:%d: a second document begins; a run file has one", where, line_of(root));
    }
    yaml_document_delete(&second);
    return rc;
}

int pl_config_parse(pl_error *err, pl_config *config, const char *where, const char *text, size_t size)
{
    char *file;
    PL_TRY(pl_strdup(err, where, &file));
    free(config->file);
    config->file = file;
    yaml_parser_t parser;
    if (!yaml_parser_initialize(&parser)) return PL_FAIL_NOMEM(err);
    yaml_parser_set_input_string(&parser, (const unsigned char *)text, size);
    int rc = read_document(err, config, where, &parser);
    yaml_parser_delete(&parser);
    return rc;
}

int pl_config_read(pl_error *err, pl_config *config, const char *path)
{
    pl_buf text = {0};
    if (pl_dir_exists(path)) {
        return PL_FAIL(
            err, PL_EINPUT, "%s: is a folder; a run file was expected (--model %s names a model's folder)", path, path);
    }
    int rc = pl_file_read(err, path, &text);
    if (rc == 0) rc = pl_config_parse(err, config, path, pl_buf_text(&text), text.size);
    pl_buf_free(&text);
    return rc;
}
