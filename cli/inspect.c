/* plait inspect: what something holds, for a person or as JSON. */
#include "api/inspect.h"

#include <string.h>
#include <unistd.h>

#include "cli/cli.h"

static const char *text(const json_t *json, const char *key)
{
    const char *s = json_string_value(json_object_get(json, key));
    return s ? s : "-";
}

static long long number(const json_t *json, const char *key)
{
    return (long long)json_integer_value(json_object_get(json, key));
}

static void print_shape(const json_t *shape)
{
    for (size_t d = 0; d < json_array_size(shape); d++) {
        printf("%s%lld", d ? " x " : "", (long long)json_integer_value(json_array_get(shape, d)));
    }
}

static void print_tensors(const json_t *tensors)
{
    size_t i;
    json_t *t;
    json_array_foreach((json_t *)tensors, i, t)
    {
        printf("    %-58s %-5s ", text(t, "name"), text(t, "dtype"));
        print_shape(json_object_get(t, "shape"));
        putchar('\n');
    }
}

/* Blocks that are alike are shown once. */
static void print_units(const json_t *units)
{
    size_t n = json_array_size(units);
    for (size_t i = 0, end; i < n; i = end) {
        const json_t *u = json_array_get(units, i);
        for (end = i + 1; end < n; end++) {
            const json_t *v = json_array_get(units, end);
            if (strcmp(text(v, "kind"), "block") != 0 || strcmp(text(u, "kind"), "block") != 0) break;
            if (number(v, "parameters") != number(u, "parameters")) break;
        }
        printf("  %s (%s): %lld parameters", text(u, "name"), text(u, "kind"), number(u, "parameters"));
        if (end > i + 1)
            printf(", and %zu more like it, to %s", end - i - 1, text(json_array_get(units, end - 1), "name"));
        putchar('\n');
        print_tensors(json_object_get(u, "tensors"));
    }
}

static void print_model(const json_t *m)
{
    const json_t *bytes = json_object_get(m, "weights_bytes");
    printf("%s: a %s model of %lld parameters\n", text(m, "path"), text(m, "model_type"), number(m, "parameters"));
    printf("  weights      %.1f MiB in f32, %.1f MiB in bf16\n", (double)number(bytes, "f32") / 0x1p20,
        (double)number(bytes, "bf16") / 0x1p20);
    printf("  shape        %lld layers, hidden %lld, %lld heads (%lld for keys and values) of %lld, mlp %lld\n",
        number(m, "layers"), number(m, "hidden"), number(m, "heads"), number(m, "kv_heads"), number(m, "head_dim"),
        number(m, "intermediate"));
    printf("  vocabulary   %lld%s, %lld positions\n", number(m, "vocab"),
        json_is_true(json_object_get(m, "tied")) ? " (the head shares the embedding)" : "", number(m, "positions"));
    printf("  tokenizer    %s; chat template: %s\nunits\n",
        json_is_true(json_object_get(m, "tokenizer")) ? "yes" : "none",
        json_is_true(json_object_get(m, "chat_template")) ? "yes" : "none");
    print_units(json_object_get(m, "units"));
}

static void print_names(const char *label, const json_t *names)
{
    if (json_array_size(names) == 0) return;
    printf("  %-12s ", label);
    for (size_t i = 0; i < json_array_size(names); i++) {
        printf("%s%s", i ? ", " : "", json_string_value(json_array_get(names, i)));
    }
    putchar('\n');
}

static void print_adapter(const json_t *a)
{
    printf("%s: a LoRA adapter of %lld parameters in %lld tensors\n", text(a, "path"), number(a, "parameters"),
        number(a, "tensors"));
    printf("  for          %s\n  r            %lld, alpha %g, dropout %g%s%s\n  init         %s, bias %s\n",
        text(a, "base_model"), number(a, "r"), json_number_value(json_object_get(a, "alpha")),
        json_number_value(json_object_get(a, "dropout")), json_is_true(json_object_get(a, "dora")) ? ", DoRA" : "",
        json_is_true(json_object_get(a, "rslora")) ? ", rsLoRA" : "", text(a, "init"), text(a, "bias"));
    print_names("targets", json_object_get(a, "targets"));
    print_names("saved whole", json_object_get(a, "modules_to_save"));
}

static void print_weights(const json_t *w)
{
    const json_t *tensors = json_object_get(w, "tensors");
    printf(
        "%s: %zu tensors, %.1f MiB\n", text(w, "path"), json_array_size(tensors), (double)number(w, "bytes") / 0x1p20);
    print_tensors(tensors);
}

static void print_dataset(const json_t *d)
{
    const json_t *s = json_object_get(d, "train"), *files = json_object_get(d, "files"), *lengths, *example;
    for (size_t i = 0; i < json_array_size(files); i++) {
        const json_t *f = json_array_get(files, i);
        printf("%s: %s, %lld sequences\n", text(f, "path"), text(f, "format"), number(f, "rows"));
    }
    printf("  examples     %lld read\n  sequences    %lld, the longest of %lld tokens\n", number(s, "examples"),
        number(s, "rows"), number(s, "longest"));
    printf("  tokens       %lld, of which %lld are trained\n", number(s, "tokens"), number(s, "trained"));
    if (number(s, "cut")) printf("  cut          %lld lost their end\n", number(s, "cut"));
    if (number(s, "split")) printf("  split        %lld go on in further sequences\n", number(s, "split"));
    long long dropped[] = {number(s, "dropped_overlong"), number(s, "dropped_cut"), number(s, "dropped_untrained")};
    if (dropped[0] + dropped[1] + dropped[2] > 0) {
        printf("  dropped      %lld too long, %lld with every answer cut off, %lld with nothing to train\n", dropped[0],
            dropped[1], dropped[2]);
    }
    lengths = json_object_get(s, "lengths");
    for (size_t i = 0; i < json_array_size(lengths); i++) {
        long long n = (long long)json_integer_value(json_array_get(lengths, i));
        if (n > 0) printf("  %6lld to %-6lld tokens: %lld\n", 1LL << i, (1LL << (i + 1)) - 1, n);
    }
    bool color = isatty(1);
    printf("the first one, with what is trained %s:\n", color ? "in green" : "between [[ and ]]");
    example = json_object_get(d, "example");
    for (size_t i = 0; i < json_array_size(example); i++) {
        const json_t *run = json_array_get(example, i);
        bool trained = json_is_true(json_object_get(run, "trained"));
        printf("%s%s%s", trained ? (color ? "\033[32m" : "[[") : "", text(run, "text"),
            trained ? (color ? "\033[0m" : "]]") : "");
    }
    putchar('\n');
}

static void print_any(const json_t *json)
{
    const char *kind = text(json, "kind");
    if (strcmp(kind, "model") == 0) print_model(json);
    if (strcmp(kind, "adapter") == 0) print_adapter(json);
    if (strcmp(kind, "weights") == 0) print_weights(json);
    if (strcmp(kind, "dataset") == 0) print_dataset(json);
    if (strcmp(kind, "run") == 0) {
        long long step = number(json, "latest_checkpoint");
        printf("%s: a run", text(json, "path"));
        if (step >= 0) printf("; its latest checkpoint is checkpoints/step-%08lld", step);
        putchar('\n');
    }
    if (strcmp(kind, "checkpoint") == 0) {
        const json_t *state = json_object_get(json, "state");
        printf("%s: a checkpoint after step %lld, %lld trained tokens\n", text(json, "path"), number(state, "step"),
            number(state, "targets"));
        print_any(json_object_get(json, "content"));
    }
}

int cli_inspect(pl_error *err, cli_run *run)
{
    json_t *json;
    pl_log log = {.sink = cli_message};
    if (run->npositional > 1) {
        return PL_FAIL(err, PL_EUSAGE, "one path is taken, and '%s' is a second", run->positional[1]);
    }
    PL_TRY(pl_inspect_document(err, &log, &run->config, run->npositional ? run->positional[0] : NULL, &json));
    if (run->config.json) return cli_print_json(err, json);
    print_any(json);
    json_decref(json);
    return 0;
}
