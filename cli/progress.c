#include "cli/progress.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/cli.h"

/* Of a step's time in the running mean: it follows a change within some ten steps. */
#define NEWEST_SHARE 0.1

void cli_progress_open(cli_progress *p, FILE *out, int64_t every)
{
    const char *term = getenv("TERM"), *no_color = getenv("NO_COLOR");
    bool dumb = !term || strcmp(term, "dumb") == 0;
    *p = (cli_progress){.out = out, .every = every < 1 ? 1 : every, .val_loss = NAN};
    p->live = isatty(fileno(out)) && !dumb;
    p->color = p->live && !(no_color && *no_color);
}

/* "2:05", "1:02:05", "3d 04h" */
static void print_duration(double seconds, char out[32])
{
    if (!(seconds >= 0) || seconds > 86400.0 * 9999) {
        snprintf(out, 32, "?");
        return;
    }
    long long s = (long long)(seconds + 0.5);
    if (s >= 86400)
        snprintf(out, 32, "%lldd %02lldh", s / 86400, s / 3600 % 24);
    else if (s >= 3600)
        snprintf(out, 32, "%lld:%02lld:%02lld", s / 3600, s / 60 % 60, s % 60);
    else
        snprintf(out, 32, "%lld:%02lld", s / 60, s % 60);
}

static void print_bytes(int64_t bytes, char out[32])
{
    if (bytes >= (int64_t)1 << 30)
        snprintf(out, 32, "%.2f GiB", (double)bytes / 0x1p30);
    else
        snprintf(out, 32, "%.0f MiB", (double)bytes / 0x1p20);
}

int cli_progress_line(const cli_progress *p, const pl_metrics *m, int width, char *out, size_t size)
{
    char parts[7][64], time_left[32], bytes[32];
    /* In the order in which they stand; `rank` says which go first when the line is too long. */
    static const int rank[7] = {0, 1, 4, 6, 3, 2, 5};
    memset(parts, 0, sizeof parts);
    if (m->steps > 0)
        snprintf(parts[0], 64, "step %lld/%lld", (long long)m->step, (long long)m->steps);
    else
        snprintf(parts[0], 64, "step %lld", (long long)m->step);
    snprintf(parts[1], 64, "loss %.4f", m->loss);
    snprintf(parts[2], 64, "lr %.3g", m->lr);
    snprintf(parts[3], 64, "grad %.3g", m->grad_norm);
    snprintf(parts[4], 64, "%.0f tok/s", m->tokens_per_s);
    if (m->steps > m->step && p->step_s > 0) {
        print_duration((double)(m->steps - m->step) * p->step_s, time_left);
        snprintf(parts[5], 64, "%s left", time_left);
    }
    print_bytes(m->peak_bytes, bytes);
    snprintf(parts[6], 64, "%s", bytes);
    for (int keep = 7;; keep--) {
        size_t n = 0;
        out[0] = 0;
        for (int i = 0; i < 7; i++) {
            if (rank[i] >= keep || !parts[i][0]) continue;
            int wrote = snprintf(out + n, size - n, "%s%s", n ? "  " : "", parts[i]);
            n = wrote < 0 || (size_t)wrote >= size - n ? size - 1 : n + (size_t)wrote;
        }
        if (width <= 0 || (int)n <= width || keep == 1) {
            if (width > 0 && (int)n > width) out[width] = 0;
            return (int)strlen(out);
        }
    }
}

static void erase(cli_progress *p)
{
    if (p->drawn) fputs("\r\033[K", p->out);
    p->drawn = false;
}

static void draw(cli_progress *p, const pl_metrics *m)
{
    char line[512];
    int width = p->width ? p->width : cli_terminal_width(p->out);
    /* A line that fills the last column makes some terminals begin the next. */
    cli_progress_line(p, m, width > 1 ? width - 1 : width, line, sizeof line);
    fprintf(p->out, "\r\033[K%s", line);
    fflush(p->out);
    p->drawn = true;
}

void cli_progress_step(cli_progress *p, const pl_metrics *m)
{
    /* The first step sets things up and tells little of the others, so the second begins the mean anew. */
    p->seen++;
    p->step_s = p->seen <= 2 ? m->step_s : p->step_s + NEWEST_SHARE * (m->step_s - p->step_s);
    p->latest = *m;
    bool evaluated = !isnan(m->val_loss);
    if (evaluated) {
        bool better = isnan(p->val_loss) || m->val_loss < p->val_loss;
        erase(p);
        fprintf(p->out, "step %lld: validation loss %.4f%s\n", (long long)m->step, m->val_loss,
            isnan(p->val_loss) ? ""
            : better           ? ", lower"
                               : ", not lower");
        p->val_loss = m->val_loss;
    }
    if (p->live) {
        draw(p, m);
        return;
    }
    bool due = m->step == 1 || m->step % p->every == 0 || m->step == m->steps;
    if (!due) return;
    char line[512];
    cli_progress_line(p, m, 0, line, sizeof line);
    fprintf(p->out, "%s\n", line);
    fflush(p->out);
    p->last_step = m->step;
}

void cli_progress_message(cli_progress *p, enum pl_log_level level, const char *message)
{
    bool drawn = p->drawn;
    erase(p);
    const char *begin = level != PL_LOG_WARNING ? "" : p->color ? "\033[33mwarning:\033[0m " : "warning: ";
    fprintf(p->out, "%s%s\n", begin, message);
    if (drawn) draw(p, &p->latest);
    fflush(p->out);
}

void cli_progress_close(cli_progress *p)
{
    if (p->drawn) {
        fputc('\n', p->out);
        p->drawn = false;
    } else if (!p->live && p->latest.step > p->last_step) {
        char line[512];
        cli_progress_line(p, &p->latest, 0, line, sizeof line);
        fprintf(p->out, "%s\n", line);
        p->last_step = p->latest.step;
    }
    fflush(p->out);
}
