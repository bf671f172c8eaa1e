#include "device/ref.h"

#include <math.h>
#include <stdlib.h>

/* Keys [*from, *to) of the sequence are visible to its query i. */
static void visible(const pl_sequence *s, int64_t window, int64_t i, int64_t *from, int64_t *to)
{
    int64_t position = i + s->k_len - s->q_len;
    *to = position + 1;
    *from = window > 0 && position - window + 1 > 0 ? position - window + 1 : 0;
}

static double dot(pl_heads a, int64_t row_a, int head_a, pl_heads b, int64_t row_b, int head_b)
{
    double sum = 0;
    for (int d = 0; d < a.head_dim; d++)
        sum += pl_ref_get_head(a, row_a, head_a, d) * pl_ref_get_head(b, row_b, head_b, d);
    return sum;
}

static double capped(double score, float scale, float softcap)
{
    score *= scale;
    return softcap > 0 ? softcap * tanh(score / softcap) : score;
}

static void attend(const pl_attention_args *args, const pl_sequence *s, int h, int64_t i, double *p)
{
    int kv = h / (args->q.heads / args->k.heads);
    int64_t from, to, row = s->q_begin + i;
    visible(s, args->window, i, &from, &to);
    double most = -INFINITY, sum = 0;
    for (int64_t j = from; j < to; j++) {
        p[j] = capped(dot(args->q, row, h, args->k, s->k_begin + j, kv), args->scale, args->softcap);
        most = fmax(most, p[j]);
    }
    for (int64_t j = from; j < to; j++) sum += p[j] = exp(p[j] - most);
    for (int d = 0; d < args->q.head_dim; d++) {
        double out = 0;
        for (int64_t j = from; j < to; j++) out += p[j] * pl_ref_get_head(args->v, s->k_begin + j, kv, d);
        pl_ref_set_head(args->out, row, h, d, out / sum);
    }
    if (!pl_tensor_none(args->lse)) pl_ref_set(args->lse, h, row, most + log(sum));
}

/* Room for one number for each key. */
static double *key_room(const pl_sequence *sequences, int n)
{
    int64_t most = 1;
    for (int s = 0; s < n; s++) most = sequences[s].k_len > most ? sequences[s].k_len : most;
    return malloc((size_t)most * sizeof(double));
}

int pl_ref_attention(pl_device *device, pl_error *err, const pl_attention_args *args, void *scratch)
{
    (void)scratch;
    double *p = key_room(args->sequences, args->nsequences);
    if (!p) return PL_FAIL_NOMEM(err);
    int rc = pl_ref_begin(device, err);
    if (rc == 0) {
        for (int n = 0; n < args->nsequences; n++) {
            for (int h = 0; h < args->q.heads; h++) {
                for (int64_t i = 0; i < args->sequences[n].q_len; i++) attend(args, &args->sequences[n], h, i, p);
            }
        }
        pl_ref_end(device);
    }
    free(p);
    return rc;
}

/* Sums in double of the gradients of one sequence and one key head: [q_len or k_len, head_dim]. */
typedef struct sums {
    double *dq, *dk, *dv;
} sums;

static void add_query(const pl_attention_backward_args *args, const pl_sequence *s, int h, int64_t i, sums g)
{
    int kv = h / (args->q.heads / args->k.heads), dim = args->q.head_dim;
    int64_t from, to, row = s->q_begin + i;
    visible(s, args->window, i, &from, &to);
    double lse = pl_ref_get(args->lse, h, row), delta = dot(args->dout, row, h, args->out, row, h);
    pl_ref_set(args->delta, h, row, delta);
    for (int64_t j = from; j < to; j++) {
        int64_t key = s->k_begin + j;
        double z = capped(dot(args->q, row, h, args->k, key, kv), args->scale, args->softcap);
        double p = exp(z - lse), dp = dot(args->dout, row, h, args->v, key, kv);
        double dz = p * (dp - delta) * args->scale;
        if (args->softcap > 0) dz *= 1 - (z / args->softcap) * (z / args->softcap);
        for (int d = 0; d < dim; d++) {
            g.dq[i * dim + d] += dz * pl_ref_get_head(args->k, key, kv, d);
            g.dk[j * dim + d] += dz * pl_ref_get_head(args->q, row, h, d);
            g.dv[j * dim + d] += p * pl_ref_get_head(args->dout, row, h, d);
        }
    }
}

static void store(pl_heads x, int64_t begin, int64_t length, int h, const double *sum)
{
    for (int64_t t = 0; t < length; t++) {
        for (int d = 0; d < x.head_dim; d++) pl_ref_set_head(x, begin + t, h, d, sum[t * x.head_dim + d]);
    }
}

static int one_key_head(pl_error *err, const pl_attention_backward_args *args, const pl_sequence *s, int kv)
{
    int group = args->q.heads / args->k.heads, dim = args->q.head_dim;
    size_t nq = (size_t)(s->q_len * dim), nk = (size_t)(s->k_len * dim);
    double *room = calloc(nq + 2 * nk + 1, sizeof *room);
    if (!room) return PL_FAIL_NOMEM(err);
    sums g = {.dq = room, .dk = room + nq, .dv = room + nq + nk};
    for (int h = kv * group; h < (kv + 1) * group; h++) {
        for (size_t i = 0; i < nq; i++) g.dq[i] = 0;
        for (int64_t i = 0; i < s->q_len; i++) add_query(args, s, h, i, g);
        store(args->dq, s->q_begin, s->q_len, h, g.dq);
    }
    store(args->dk, s->k_begin, s->k_len, kv, g.dk);
    store(args->dv, s->k_begin, s->k_len, kv, g.dv);
    free(room);
    return 0;
}

int pl_ref_attention_backward(pl_device *device, pl_error *err, const pl_attention_backward_args *args, void *scratch)
{
    (void)scratch;
    int rc = pl_ref_begin(device, err);
    if (rc < 0) return rc;
    for (int n = 0; rc == 0 && n < args->nsequences; n++) {
        for (int kv = 0; rc == 0 && kv < args->k.heads; kv++) rc = one_key_head(err, args, &args->sequences[n], kv);
    }
    pl_ref_end(device);
    return rc;
}
