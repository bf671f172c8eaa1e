#include "cli/cli.h"

#include "base/file.h"

/* `plait init -` prints the file. */
int cli_init(pl_error *err, cli_run *run)
{
    const char *path = run->npositional ? run->positional[0] : "run.yaml";
    bool print = path[0] == '-' && path[1] == 0;
    if (run->npositional > 1) {
        return PL_FAIL(err, PL_EUSAGE, "one file can be written, and '%s' is a second", run->positional[1]);
    }
    if (!print && (pl_file_exists(path) || pl_dir_exists(path))) {
        return PL_FAIL(err, PL_EUSAGE, "%s is there already; give another name, or remove it", path);
    }
    pl_buf text = {0};
    int rc = pl_config_print(err, &run->config, PL_YAML_INIT, &text);
    if (rc == 0 && print) fputs(pl_buf_text(&text), stdout);
    if (rc == 0 && !print) {
        rc = pl_file_write(err, path, pl_buf_text(&text), text.size);
        if (rc == 0) fprintf(stderr, "%s is written; edit it, then: plait train %s\n", path, path);
    }
    pl_buf_free(&text);
    return rc;
}
