/* Transfers by a thread that calls pread and pwrite, in the order in which they were begun. */
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>

#include "base/buf.h"
#include "base/thread.h"
#include "disk/disk.h"

typedef struct queue {
    pl_disk_request *first, *last;
} queue;

typedef struct worker {
    pl_disk *disk;
    pthread_t thread;
    pthread_mutex_t lock; /* of what follows */
    pthread_cond_t begun, ended;
    queue todo, done;
    bool stop;
} worker;

static void append(queue *q, pl_disk_request *r)
{
    r->next = NULL;
    if (q->last) {
        q->last->next = r;
    } else {
        q->first = r;
    }
    q->last = r;
}

static pl_disk_request *take(queue *q)
{
    pl_disk_request *r = q->first;
    q->first = r->next;
    if (!q->first) q->last = NULL;
    return r;
}

static void transfer(const pl_disk *d, pl_disk_request *r)
{
    ssize_t n = r->write ? d->calls.write(d->fd, r->data, (size_t)r->bytes, (off_t)r->offset)
                         : d->calls.read(d->fd, r->data, (size_t)r->bytes, (off_t)r->offset);
    r->moved = n < 0 ? -errno : n;
}

static void *work(void *user)
{
    worker *w = user;
    pthread_mutex_lock(&w->lock);
    for (;;) {
        while (!w->todo.first && !w->stop) pthread_cond_wait(&w->begun, &w->lock);
        if (!w->todo.first) break;
        pl_disk_request *r = take(&w->todo);
        pthread_mutex_unlock(&w->lock);
        transfer(w->disk, r);
        pthread_mutex_lock(&w->lock);
        append(&w->done, r);
        pthread_cond_signal(&w->ended);
    }
    pthread_mutex_unlock(&w->lock);
    return NULL;
}

static int begin(pl_disk *d, pl_error *err, pl_disk_request *r)
{
    worker *w = d->kind;
    (void)err;
    pthread_mutex_lock(&w->lock);
    append(&w->todo, r);
    pthread_cond_signal(&w->begun);
    pthread_mutex_unlock(&w->lock);
    return 0;
}

static int end(pl_disk *d, pl_error *err, pl_disk_request **request, int64_t *moved)
{
    worker *w = d->kind;
    (void)err;
    pthread_mutex_lock(&w->lock);
    while (!w->done.first) pthread_cond_wait(&w->ended, &w->lock);
    *request = take(&w->done);
    pthread_mutex_unlock(&w->lock);
    *moved = (*request)->moved;
    return 0;
}

static void destroy(pl_disk *d)
{
    worker *w = d->kind;
    pthread_mutex_lock(&w->lock);
    w->stop = true;
    pthread_cond_signal(&w->begun);
    pthread_mutex_unlock(&w->lock);
    pthread_join(w->thread, NULL);
    pthread_cond_destroy(&w->ended);
    pthread_cond_destroy(&w->begun);
    pthread_mutex_destroy(&w->lock);
    free(w);
}

static const pl_disk_ops thread_ops = {"thread", begin, end, destroy};

int pl_disk_by_thread(pl_error *err, pl_disk *d)
{
    worker *w;
    PL_TRY(pl_calloc(err, 1, sizeof *w, &w));
    w->disk = d;
    pthread_mutex_init(&w->lock, NULL);
    pthread_cond_init(&w->begun, NULL);
    pthread_cond_init(&w->ended, NULL);
    int rc = pl_thread_start(err, "what is offloaded", work, w, &w->thread);
    if (rc < 0) {
        free(w);
        return rc;
    }
    d->kind = w;
    d->ops = &thread_ops;
    return 0;
}
