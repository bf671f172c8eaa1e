/* Run files: whatever is read must be refused in words, or read back the same from what it prints. */
#include <stdlib.h>
#include <string.h>

#include "api/config.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    pl_error err = {0};
    pl_config config = {0}, back = {0};
    pl_buf text = {0};
    if (pl_config_open(&err, &config) < 0) abort();
    int rc = pl_config_parse(&err, &config, "run.yaml", (const char *)data, size);
    if (rc == 0) rc = pl_config_check(&err, &config, PL_CMD_TRAIN);
    if (rc < 0 && (err.code != rc || err.message[0] == 0)) abort();
    if (rc == 0) {
        bool same = pl_config_print(&err, &config, PL_YAML_RESOLVED, &text) == 0 && pl_config_open(&err, &back) == 0 &&
                    pl_config_parse(&err, &back, "out/run.yaml", pl_buf_text(&text), text.size) == 0 &&
                    pl_config_check(&err, &back, PL_CMD_TRAIN) == 0 &&
                    pl_config_compare(&err, &config, &back, "out") == 0;
        if (!same) abort();
    }
    pl_buf_free(&text);
    pl_config_close(&config);
    pl_config_close(&back);
    return 0;
}
