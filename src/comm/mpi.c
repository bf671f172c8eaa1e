/* Communicators of MPI: what mpiexec or srun started.

   MPI moves messages only while somebody calls it, and its own waiting keeps a core busy, which another process of the
   same machine may need. So nothing here blocks inside MPI: whoever waits asks, and sleeps between its questions
   (comm.c); and while messages are on their way and the program computes for long without asking, a thread asks in its
   place. */
#include "comm/comm.h"

#ifdef PL_HAVE_MPI

#    include <mpi.h>
#    include <pthread.h>
#    include <stdlib.h>
#    include <time.h>

#    include "base/buf.h"
#    include "base/clock.h"
#    include "base/thread.h"

/* Seconds for which the program has not asked, and after which the thread does. It takes the core from what computes,
   so it is for the longest operators only. */
#    define PATIENCE 2e-3
#    define LOOK_EVERY 500 /* microseconds */

/* One for all communicators of the process. */
typedef struct mpi_world {
    pthread_mutex_t lock; /* of MPI, and of what follows */
    pthread_cond_t begun;
    pthread_t thread;
    size_t on_their_way;
    double asked; /* when the program last called MPI, by pl_clock */
    bool has_thread, ends, initialized;
} mpi_world;

typedef struct mpi_comm {
    pl_comm base;
    MPI_Comm comm;
    mpi_world *world;
    bool is_world;
} mpi_comm;

static int check(pl_error *err, int code, const char *what)
{
    char text[MPI_MAX_ERROR_STRING] = "";
    int size = 0;
    if (code == MPI_SUCCESS) return 0;
    MPI_Error_string(code, text, &size);
    return PL_FAIL(err, PL_EIO, "MPI failed to %s: %.500s", what, text);
}

static void sleep_us(long microseconds)
{
    nanosleep(&(struct timespec){.tv_nsec = microseconds * 1000}, NULL);
}

static void *keep_moving(void *user)
{
    mpi_world *w = user;
    pthread_mutex_lock(&w->lock);
    while (!w->ends) {
        if (w->on_their_way == 0) {
            pthread_cond_wait(&w->begun, &w->lock);
            continue;
        }
        /* A question about other processes moves everything; one about this process alone, nothing. */
        int ignored;
        if (pl_clock() - w->asked > PATIENCE)
            MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &ignored, MPI_STATUS_IGNORE);
        pthread_mutex_unlock(&w->lock);
        sleep_us(LOOK_EVERY);
        pthread_mutex_lock(&w->lock);
    }
    pthread_mutex_unlock(&w->lock);
    return NULL;
}

static void count(mpi_world *w, size_t more)
{
    if (w->on_their_way == 0) pthread_cond_signal(&w->begun);
    w->on_their_way += more;
    w->asked = pl_clock();
}

static int mpi_send(pl_comm *comm, pl_error *err, int to, const void *data, int64_t bytes, void *handle)
{
    mpi_comm *c = (mpi_comm *)comm;
    pthread_mutex_lock(&c->world->lock);
    int rc = MPI_Isend(data, (int)bytes, MPI_BYTE, to, 0, c->comm, handle);
    if (rc == MPI_SUCCESS) count(c->world, 1);
    pthread_mutex_unlock(&c->world->lock);
    return check(err, rc, "send");
}

static int mpi_receive(pl_comm *comm, pl_error *err, int from, void *data, int64_t bytes, void *handle)
{
    mpi_comm *c = (mpi_comm *)comm;
    pthread_mutex_lock(&c->world->lock);
    int rc = MPI_Irecv(data, (int)bytes, MPI_BYTE, from, 0, c->comm, handle);
    if (rc == MPI_SUCCESS) count(c->world, 1);
    pthread_mutex_unlock(&c->world->lock);
    return check(err, rc, "receive");
}

static int mpi_test(pl_comm *comm, pl_error *err, void *handles, size_t messages, bool *done)
{
    mpi_world *w = ((mpi_comm *)comm)->world;
    int all = 0;
    pthread_mutex_lock(&w->lock);
    int rc = MPI_Testall((int)messages, handles, &all, MPI_STATUSES_IGNORE);
    if (all || rc != MPI_SUCCESS) w->on_their_way -= messages;
    w->asked = pl_clock();
    pthread_mutex_unlock(&w->lock);
    *done = all;
    return check(err, rc, "wait for messages");
}

static void mpi_abort(pl_comm *comm, int status)
{
    (void)comm;
    MPI_Abort(MPI_COMM_WORLD, status);
}

static void close_world(mpi_world *w)
{
    if (w->has_thread) {
        pthread_mutex_lock(&w->lock);
        w->ends = true;
        pthread_cond_signal(&w->begun);
        pthread_mutex_unlock(&w->lock);
        pthread_join(w->thread, NULL);
    }
    if (w->initialized) MPI_Finalize();
    pthread_cond_destroy(&w->begun);
    pthread_mutex_destroy(&w->lock);
    free(w);
}

static void mpi_destroy(pl_comm *comm)
{
    mpi_comm *c = (mpi_comm *)comm;
    if (c->comm != MPI_COMM_NULL) MPI_Comm_free(&c->comm);
    if (c->is_world) close_world(c->world);
    free(c);
}

static const pl_comm_ops mpi_ops;

static int wrap(pl_error *err, mpi_world *world, pl_comm **out)
{
    mpi_comm *c;
    PL_TRY(pl_calloc(err, 1, sizeof *c, &c));
    c->base.ops = &mpi_ops;
    c->base.traffic = &c->base.own;
    c->comm = MPI_COMM_NULL;
    c->world = world;
    *out = &c->base;
    return 0;
}

static int mpi_split(pl_comm *comm, pl_error *err, int color, int rank, int size, pl_comm **out)
{
    mpi_comm *c = (mpi_comm *)comm;
    pl_comm *part;
    PL_TRY(wrap(err, c->world, &part));
    part->rank = rank;
    part->size = size;
    pthread_mutex_lock(&c->world->lock);
    int rc = MPI_Comm_split(c->comm, color, c->base.rank, &((mpi_comm *)part)->comm);
    pthread_mutex_unlock(&c->world->lock);
    if (rc != MPI_SUCCESS) {
        mpi_destroy(part);
        return check(err, rc, "divide the processes into groups");
    }
    *out = part;
    return 0;
}

static const pl_comm_ops mpi_ops = {
    "mpi", sizeof(MPI_Request), mpi_send, mpi_receive, mpi_test, mpi_split, mpi_abort, mpi_destroy};

static int start_thread(pl_error *err, mpi_world *w)
{
    PL_TRY(pl_thread_start(err, "messages between processes", keep_moving, w, &w->thread));
    w->has_thread = true;
    return 0;
}

static int initialize(pl_error *err, mpi_world *w)
{
    int before, provided;
    MPI_Initialized(&before);
    if (before) {
        MPI_Query_thread(&provided);
    } else {
        PL_TRY(check(err, MPI_Init_thread(NULL, NULL, MPI_THREAD_SERIALIZED, &provided), "begin"));
        w->initialized = true;
        MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN); /* waiting for lost processes fails there */
    }
    if (provided >= MPI_THREAD_SERIALIZED) return 0;
    return PL_FAIL(err, PL_EUNSUPPORTED,
        "this MPI allows calls from its first thread only; MPI_THREAD_SERIALIZED or more is needed");
}

int pl_comm_mpi(pl_error *err, pl_comm **out)
{
    mpi_world *w;
    pl_comm *comm = NULL;
    PL_TRY(pl_calloc(err, 1, sizeof *w, &w));
    pthread_mutex_init(&w->lock, NULL);
    pthread_cond_init(&w->begun, NULL);
    int rc;
    PL_GO(failed, initialize(err, w));
    PL_GO(failed, wrap(err, w, &comm));
    mpi_comm *c = (mpi_comm *)comm;
    PL_GO(failed, check(err, MPI_Comm_dup(MPI_COMM_WORLD, &c->comm), "begin"));
    MPI_Comm_set_errhandler(c->comm, MPI_ERRORS_RETURN); /* parts inherit it */
    MPI_Comm_rank(c->comm, &comm->rank);
    MPI_Comm_size(c->comm, &comm->size);
    if (comm->size > 1) PL_GO(failed, start_thread(err, w));
    c->is_world = true;
    *out = comm;
    return 0;
failed:
    if (comm) mpi_destroy(comm);
    close_world(w);
    return rc;
}

#else

int pl_comm_mpi(pl_error *err, pl_comm **out)
{
    *out = NULL;
    return PL_FAIL(err, PL_EUNSUPPORTED,
        "this plait was built without MPI and runs as one process; install MPICH (libmpich-dev) and build it again");
}

#endif
