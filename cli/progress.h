/* What a person sees while a model trains: on a terminal one line that is drawn again and again, elsewhere a line every
   few steps. Colours only on a terminal without NO_COLOR. */
#ifndef PL_CLI_PROGRESS_H
#define PL_CLI_PROGRESS_H

#include <stdio.h>

#include "plait.h"

typedef struct cli_progress {
    FILE *out;
    bool live, color;
    int width;         /* of the terminal; 0: it is asked each time */
    int64_t every;     /* steps a line where it is not live */
    bool drawn;        /* the live line stands there */
    int64_t seen;      /* steps so far */
    double step_s;     /* running mean, for the time that is left */
    double val_loss;   /* the last one, NaN before */
    int64_t last_step; /* that was shown */
    pl_metrics latest;
} cli_progress;

/* Asks the environment (NO_COLOR, TERM) and whether `out` is a terminal. */
void cli_progress_open(cli_progress *progress, FILE *out, int64_t every);
void cli_progress_step(cli_progress *progress, const pl_metrics *metrics);
/* What the library has to tell; the live line moves below it. */
void cli_progress_message(cli_progress *progress, enum pl_log_level level, const char *message);
/* Leaves the last step's line standing. */
void cli_progress_close(cli_progress *progress);

/* The line of a step, cut at `width` columns (0: never) by leaving out what matters least. */
int cli_progress_line(const cli_progress *progress, const pl_metrics *metrics, int width, char *out, size_t size);

#endif
