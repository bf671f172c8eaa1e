/* A line of a data set from memory: whatever the bytes, its format is recognised or not, and each format reads it or
   says what is wrong; what comes out keeps its promises. The first byte chooses how the rules are set. */
#include <stdlib.h>

#include "base/json.h"
#include "data/dataset_internal.h"
#include "model/batch.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

static void check(const pl_example *e, const pl_data_model *model)
{
    for (size_t i = 0; i < e->count; i++) {
        if (e->ids[i] < 0 || e->ids[i] >= model->vocab) abort();
        if (e->labelled && e->labels[i] != PL_NOT_TRAINED && (e->labels[i] < 0 || e->labels[i] >= model->vocab))
            abort();
    }
    if (e->kind == PL_EXAMPLE_PLAIN && e->answer != PL_DATA_NO_ANSWER && e->answer > e->text.size) abort();
    if (e->kind == PL_EXAMPLE_CHAT && !json_is_array(e->messages)) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    static const char *const fields[] = {"question", "text"}, *const keys[] = {"q", ""};
    pl_error err = {0};
    if (size == 0) return 0;
    const pl_data_names names = {fields, keys, (bytes[0] >> 6) % 3};
    const pl_data_model model = {.vocab = 300, .eos = -1};
    const pl_data_rules rules = {
        .template = (pl_data_template)(bytes[0] % 3), .sequence_length = 100, .model = &model, .names = &names};
    const pl_place place = {"fuzz.jsonl", 1};
    pl_example example = {0};
    pl_data_format format;
    json_t *json;
    if (pl_json_parse_from(&err, place.path, place.line, (const char *)bytes + 1, size - 1, &json) < 0) return 0;
    if (pl_data_recognise(&err, place, json, PL_DATA_AUTO, rules.names, &format) < 0) {
        if (err.code == 0 || !err.message[0]) abort();
    }
    for (int f = PL_DATA_TEXT; f <= PL_DATA_TOKENS; f++) {
        pl_error_clear(&err);
        if (pl_example_read(&err, place, json, (pl_data_format)f, &rules, &example) == 0) {
            check(&example, &model);
        } else if (err.code == 0 || !err.message[0]) {
            abort();
        }
    }
    pl_example_free(&example);
    json_decref(json);
    return 0;
}
