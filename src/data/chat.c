#include "data/chat.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <xxhash.h>

#include "base/file.h"
#include "base/json.h"
#include "data/chat_internal.h"

void pl_chat_free(pl_chat *chat)
{
    if (!chat) return;
    pl_template_free(chat->plain);
    pl_template_free(chat->tool_use);
    json_decref(chat->variables);
    free(chat->where);
    free(chat);
}

static int new_chat(pl_error *err, const char *where, pl_chat **out)
{
    pl_chat *chat = NULL;
    int rc;
    PL_TRY(pl_calloc(err, 1, sizeof *chat, &chat));
    PL_GO(fail, pl_strdup(err, where, &chat->where));
    chat->variables = json_object();
    if (!chat->variables) PL_GO(fail, PL_FAIL_NOMEM(err));
    *out = chat;
    return 0;
fail:
    pl_chat_free(chat);
    return rc;
}

int pl_chat_set(pl_error *err, pl_chat *chat, const char *name, const json_t *value)
{
    json_t *copy;
    PL_TRY(pl_json_deep_copy(err, value, &copy));
    return json_object_set_new(chat->variables, name, copy) < 0 ? PL_FAIL_NOMEM(err) : 0;
}

/* ---- special tokens ---- */

/* A token is a text, or an object with its text in "content". NULL if it is neither. */
static const json_t *token_text(const json_t *token)
{
    if (json_is_object(token)) token = json_object_get(token, "content");
    return json_is_string(token) ? token : NULL;
}

static int add_token(pl_error *err, pl_chat *chat, const char *name, const json_t *token)
{
    const json_t *text = token_text(token);
    if (!text || json_object_get(chat->variables, name)) return 0;
    return pl_chat_set(err, chat, name, text);
}

/* The special tokens that an object names, unless they are known already. */
static int add_tokens(pl_error *err, pl_chat *chat, const json_t *from)
{
    static const char *const names[] = {
        "bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"};
    const char *name;
    json_t *value, *more = json_object_get(from, "additional_special_tokens"),
                   *extra = json_object_get(from, "extra_special_tokens");
    size_t i;
    for (int k = 0; k < PL_COUNT(names); k++) PL_TRY(add_token(err, chat, names[k], json_object_get(from, names[k])));
    json_object_foreach(extra, name, value) PL_TRY(add_token(err, chat, name, value));
    if (!json_is_array(more) || json_object_get(chat->variables, "additional_special_tokens")) return 0;
    json_t *list = json_array();
    json_array_foreach(more, i, value)
    {
        if (list && token_text(value) && json_array_append(list, (json_t *)token_text(value)) < 0) {
            json_decref(list);
            return PL_FAIL_NOMEM(err);
        }
    }
    if (!list || json_object_set_new(chat->variables, "additional_special_tokens", list) < 0) return PL_FAIL_NOMEM(err);
    return 0;
}

/* A JSON file of the folder; *out stays NULL when there is none. *path is the caller's to free. */
static int read_json(pl_error *err, const char *folder, const char *name, char **path, json_t **out)
{
    PL_TRY(pl_path_join(err, folder, name, path));
    if (!pl_file_exists(*path)) return 0;
    PL_TRY(pl_json_read(err, *path, out));
    if (!json_is_object(*out))
        return PL_FAIL(err, PL_EINPUT, "%s: is %s; an object was expected", *path, pl_json_type_name(*out));
    return 0;
}

/* What transformers' tokenizer classes have for tokens that no file names, and the families whose tokenizers are of
   that class when tokenizer_config.json names none. */
typedef struct class_tokens {
    const char *class, *families;
    struct {
        const char *name, *text;
    } tokens[5];
} class_tokens;

#define ENDOFTEXT "<|endoftext|>"
static const class_tokens classes[] = {
    {"GPT2Tokenizer", " gpt2 phi opt ", {{"bos_token", ENDOFTEXT}, {"eos_token", ENDOFTEXT}, {"unk_token", ENDOFTEXT}}},
    {"CodeGenTokenizer", "", {{"bos_token", ENDOFTEXT}, {"eos_token", ENDOFTEXT}, {"unk_token", ENDOFTEXT}}},
    {"Qwen2Tokenizer", " qwen2 qwen3 ", {{"eos_token", ENDOFTEXT}, {"unk_token", ENDOFTEXT}, {"pad_token", ENDOFTEXT}}},
    {"GPTNeoXTokenizer", " gpt_neox ",
        {{"bos_token", ENDOFTEXT}, {"eos_token", ENDOFTEXT}, {"unk_token", ENDOFTEXT}, {"pad_token", "<|padding|>"}}},
    {"GemmaTokenizer", " gemma gemma2 gemma3_text ",
        {{"bos_token", "<bos>"}, {"eos_token", "<eos>"}, {"unk_token", "<unk>"}, {"pad_token", "<pad>"},
            {"mask_token", "<mask>"}}},
};

/* The class that the files name, "Fast" at its end or not, or that the family has; NULL: one without such tokens. */
static const class_tokens *find_class(const json_t *tokenizer, const json_t *model)
{
    const char *class = json_string_value(json_object_get(tokenizer, "tokenizer_class")),
               *family = json_string_value(json_object_get(model, "model_type"));
    char word[64];
    snprintf(word, sizeof word, " %s ", family ? family : "");
    for (int i = 0; i < PL_COUNT(classes); i++) {
        size_t n = strlen(classes[i].class);
        if (class ? strncmp(class, classes[i].class, n) == 0 && (!class[n] || strcmp(class + n, "Fast") == 0)
                  : family && strstr(classes[i].families, word))
            return &classes[i];
    }
    return NULL;
}

/* A token that tokenizer_config.json says is null has none, whatever its class. */
static int add_class_tokens(pl_error *err, pl_chat *chat, const json_t *tokenizer, const json_t *model)
{
    const class_tokens *class = find_class(tokenizer, model);
    for (int i = 0; class && i < PL_COUNT(class->tokens) && class->tokens[i].name; i++) {
        const char *name = class->tokens[i].name;
        if (json_object_get(tokenizer, name)) continue;
        json_t *text = json_string(class->tokens[i].text);
        int rc = text ? add_token(err, chat, name, text) : PL_FAIL_NOMEM(err);
        json_decref(text);
        if (rc < 0) return rc;
    }
    return 0;
}

/* The special tokens of a folder. */
static int open_tokens(pl_error *err, const char *folder, pl_chat *chat)
{
    static const char *const names[] = {"tokenizer_config.json", "special_tokens_map.json", "config.json"};
    json_t *files[PL_COUNT(names)] = {0};
    int rc = 0;
    for (int i = 0; i < PL_COUNT(names) && rc == 0; i++) {
        char *path = NULL;
        rc = read_json(err, folder, names[i], &path, &files[i]);
        free(path);
    }
    if (rc == 0) rc = add_tokens(err, chat, files[0]);
    if (rc == 0) rc = add_tokens(err, chat, files[1]);
    if (rc == 0) rc = add_class_tokens(err, chat, files[0], files[2]);
    for (int i = 0; i < PL_COUNT(names); i++) json_decref(files[i]);
    return rc;
}

/* ---- where a folder keeps its template ---- */

/* A template that is a file; *out stays NULL when there is none. */
static int parse_file(pl_error *err, const char *folder, const char *name, pl_template **out)
{
    char *path = NULL;
    pl_buf text = {0};
    int rc = pl_path_join(err, folder, name, &path);
    if (rc == 0 && pl_file_exists(path)) {
        rc = pl_file_read(err, path, &text);
        if (rc == 0) rc = pl_template_parse(err, path, pl_buf_text(&text), text.size, out);
    }
    pl_buf_free(&text);
    free(path);
    return rc;
}

static int parse_string(pl_error *err, const char *path, const json_t *value, pl_template **out)
{
    char *where = NULL;
    PL_TRY(pl_format(err, &where, "%s: chat_template", path));
    int rc = pl_template_parse(err, where, json_string_value(value), json_string_length(value), out);
    free(where);
    return rc;
}

/* chat_template as a list of {name, template}. */
static int parse_list(pl_error *err, const char *path, const json_t *list, pl_chat *chat)
{
    size_t i;
    json_t *entry;
    json_array_foreach(list, i, entry)
    {
        const char *name = NULL;
        const json_t *text = json_object_get(entry, "template");
        PL_TRY(pl_json_string(err, path, entry, "name", &name));
        if (!name || !json_is_string(text))
            return PL_FAIL(err, PL_EINPUT, "%s: chat_template[%zu] needs a name and a template, both strings", path, i);
        if (strcmp(name, "default") == 0 && !chat->plain) PL_TRY(parse_string(err, path, text, &chat->plain));
        if (strcmp(name, "tool_use") == 0 && !chat->tool_use) PL_TRY(parse_string(err, path, text, &chat->tool_use));
    }
    if (!chat->plain && !chat->tool_use)
        return PL_FAIL(
            err, PL_EINPUT, "%s: chat_template is a list of %zu templates of which none is named \"default\"", path, i);
    return 0;
}

static int parse_field(pl_error *err, const char *path, const json_t *file, pl_chat *chat)
{
    const json_t *value = json_object_get(file, "chat_template");
    if (!value || json_is_null(value)) return 0;
    if (json_is_string(value)) return parse_string(err, path, value, &chat->plain);
    if (json_is_array(value)) return parse_list(err, path, value, chat);
    return PL_FAIL(err, PL_EINPUT, "%s: chat_template is %s; a string or a list of templates was expected", path,
        pl_json_type_name(value));
}

static int open_templates(pl_error *err, const char *folder, pl_chat *chat)
{
    static const char *const files[] = {"tokenizer_config.json", "chat_template.json"};
    int rc = 0;
    PL_TRY(parse_file(err, folder, "chat_template.jinja", &chat->plain));
    if (chat->plain) PL_TRY(parse_file(err, folder, "additional_chat_templates/tool_use.jinja", &chat->tool_use));
    for (int i = 0; i < PL_COUNT(files) && rc == 0 && !chat->plain && !chat->tool_use; i++) {
        char *path = NULL;
        json_t *file = NULL;
        rc = read_json(err, folder, files[i], &path, &file);
        if (rc == 0 && file) rc = parse_field(err, path, file, chat);
        json_decref(file);
        free(path);
    }
    return rc;
}

int pl_chat_open(pl_error *err, const char *folder, pl_chat **out)
{
    pl_chat *chat;
    PL_TRY(new_chat(err, folder, &chat));
    int rc = open_templates(err, folder, chat);
    if (rc == 0 && (chat->plain || chat->tool_use)) rc = open_tokens(err, folder, chat);
    if (rc < 0 || (!chat->plain && !chat->tool_use)) {
        pl_chat_free(chat);
        chat = NULL;
    }
    *out = chat;
    return rc;
}

int pl_chat_from_file(pl_error *err, const char *folder, const char *path, pl_chat **out)
{
    pl_chat *chat;
    pl_buf text = {0};
    PL_TRY(new_chat(err, path, &chat));
    int rc = pl_file_read(err, path, &text);
    if (rc == 0) rc = pl_template_parse(err, path, pl_buf_text(&text), text.size, &chat->plain);
    if (rc == 0) rc = open_tokens(err, folder, chat);
    pl_buf_free(&text);
    if (rc < 0) {
        pl_chat_free(chat);
        chat = NULL;
    }
    *out = chat;
    return rc;
}

int pl_chat_from_text(
    pl_error *err, const char *where, const char *text, size_t size, const json_t *special, pl_chat **out)
{
    pl_chat *chat;
    PL_TRY(new_chat(err, where, &chat));
    int rc = pl_template_parse(err, where, text, size, &chat->plain);
    if (rc == 0 && special) rc = add_tokens(err, chat, special);
    if (rc < 0) {
        pl_chat_free(chat);
        chat = NULL;
    }
    *out = chat;
    return rc;
}

int pl_chat_hash(pl_error *err, const pl_chat *chat, uint64_t *out)
{
    char *variables = json_dumps(chat->variables, JSON_COMPACT | JSON_SORT_KEYS);
    if (!variables) return PL_FAIL_NOMEM(err);
    const uint64_t parts[] = {chat->plain ? pl_template_hash(chat->plain) : 0,
        chat->tool_use ? pl_template_hash(chat->tool_use) : 0, XXH3_64bits(variables, strlen(variables))};
    free(variables);
    *out = XXH3_64bits(parts, sizeof parts);
    return 0;
}

/* ---- rendering ---- */

const pl_template *pl_chat_template(const pl_chat *chat, const json_t *tools)
{
    bool with_tools = tools && !json_is_null(tools);
    return chat->tool_use && (with_tools || !chat->plain) ? chat->tool_use : chat->plain;
}

int pl_chat_render_pieces(pl_error *err, const pl_chat *chat, const json_t *messages, const json_t *tools,
    bool add_generation_prompt, pl_buf *out, pl_pieces *pieces)
{
    if (!json_is_array(messages))
        return PL_FAIL(
            err, PL_EINPUT, "%s: messages are %s; a list was expected", chat->where, pl_json_type_name(messages));
    /* What is not given is none, not undefined: so transformers has it. */
    json_t *context;
    PL_TRY(pl_json_copy(err, chat->variables, &context));
    bool made = json_object_set(context, "messages", (json_t *)messages) == 0 &&
                json_object_set_new(context, "add_generation_prompt", json_boolean(add_generation_prompt)) == 0 &&
                (tools ? json_object_set(context, "tools", (json_t *)tools)
                       : json_object_set_new(context, "tools", json_null())) == 0 &&
                (json_object_get(context, "documents") || json_object_set_new(context, "documents", json_null()) == 0);
    int rc = made ? pl_template_render(err, pl_chat_template(chat, tools), context, out, pieces) : PL_FAIL_NOMEM(err);
    json_decref(context);
    return rc;
}

int pl_chat_render(pl_error *err, const pl_chat *chat, const json_t *messages, const json_t *tools,
    bool add_generation_prompt, pl_buf *out)
{
    return pl_chat_render_pieces(err, chat, messages, tools, add_generation_prompt, out, NULL);
}
