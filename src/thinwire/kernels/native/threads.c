/* Loops over several threads; a part of kernels.c.
 *
 * A job handles a range of indices and writes to the results of that range alone, so bits depend neither on the number of
 * threads nor on which of them takes which range. Threads are started for one loop and end with it: there is no pool that a
 * fork could lose. Tensors below SPLIT * grain elements (4 MB) get none.
 */
#include <pthread.h>
#include <signal.h>

/* The larger of what is there and this; these two are for several threads at once. */
static void raise_to(any32 *place, u32 value) {
  u32 held = __atomic_load_n(place, __ATOMIC_RELAXED);
  while (held < value && !__atomic_compare_exchange_n(place, &held, value, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {}
}

static void add_to(i64 *place, i64 value) { __atomic_fetch_add(place, value, __ATOMIC_RELAXED); }

typedef void (*Job)(void *state, i64 from, i64 to);
enum { GRAIN = 1 << 16, SPLIT = 16, MAX_THREADS = 256 };

/* Of the thread that calls; helpers keep one, so that their jobs start no threads. */
static _Thread_local int num_threads = 1;
static _Thread_local i64 grain = GRAIN; /* elements that a thread takes at a time */

/* How many threads the kernels called by this thread use. elements: the grain, 0 for the default. */
void tw_set_threads(int count, i64 elements) {
  num_threads = count < 1 ? 1 : count > MAX_THREADS ? MAX_THREADS : count;
  grain = elements > 0 ? elements : GRAIN;
}

static i64 started_threads; /* by this process so far */

i64 tw_started_threads(void) { return __atomic_load_n(&started_threads, __ATOMIC_RELAXED); }

/* The caller waits for ranges that were taken, not for helpers: while another thread keeps their core busy (torch's own
 * threads spin for some milliseconds after their last loop), a helper may begin long after the caller has done all. So the
 * loop is freed by its last holder. */
typedef struct {
  Job job;
  void *state;
  i64 n, piece, next, done;
  int holders;
  pthread_mutex_t lock;
  pthread_cond_t all_done;
} Loop;

/* Whether a loop over so many elements is divided. */
static int divides(i64 elements) { return num_threads > 1 && elements >= SPLIT * grain; }

static void take_pieces(Loop *loop) {
  for (;;) {
    i64 from = __atomic_fetch_add(&loop->next, loop->piece, __ATOMIC_RELAXED);
    if (from >= loop->n) return;
    i64 to = least(from + loop->piece, loop->n);
    loop->job(loop->state, from, to);
    if (__atomic_add_fetch(&loop->done, to - from, __ATOMIC_ACQ_REL) < loop->n) continue;
    pthread_mutex_lock(&loop->lock);
    pthread_cond_signal(&loop->all_done);
    pthread_mutex_unlock(&loop->lock);
  }
}

static void release(Loop *loop, int holders) {
  if (__atomic_sub_fetch(&loop->holders, holders, __ATOMIC_ACQ_REL)) return;
  pthread_cond_destroy(&loop->all_done);
  pthread_mutex_destroy(&loop->lock);
  free(loop);
}

static void *help(void *loop) {
  take_pieces(loop);
  release(loop, 1);
  return NULL;
}

/* With all signals blocked: those are for Python's own threads. Fewer helpers if the system has no more. */
static void start_helpers(Loop *loop, int count) {
  sigset_t all, before;
  pthread_attr_t detached;
  pthread_t helper;
  int started = 0;
  if (pthread_attr_init(&detached)) { release(loop, count); return; }
  pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  while (started < count && !pthread_create(&helper, &detached, help, loop)) started++;
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  pthread_attr_destroy(&detached);
  add_to(&started_threads, started);
  if (started < count) release(loop, count - started);
}

/* job over 0 ... n - 1, which stand for so many elements, in ranges that begin at multiples of `unit`; in one range if that
 * is not divided. */
static void run_parallel(Job job, void *state, i64 n, i64 unit, i64 elements) {
  if (n < 1) return;
  i64 units = (n + unit - 1) / unit;
  Loop *loop = divides(elements) && units > 1 ? malloc(sizeof *loop) : NULL;
  if (!loop) { job(state, 0, n); return; }
  double share = (double)grain / (double)elements * (double)units;
  i64 piece = (share < 1 ? 1 : (i64)share) * unit, pieces = (n + piece - 1) / piece;
  int helpers = (int)least(num_threads, pieces) - 1;
  *loop = (Loop){.job = job, .state = state, .n = n, .piece = piece, .holders = helpers + 1};
  pthread_mutex_init(&loop->lock, NULL);
  pthread_cond_init(&loop->all_done, NULL);
  start_helpers(loop, helpers);
  take_pieces(loop);
  pthread_mutex_lock(&loop->lock);
  while (__atomic_load_n(&loop->done, __ATOMIC_ACQUIRE) < n) pthread_cond_wait(&loop->all_done, &loop->lock);
  pthread_mutex_unlock(&loop->lock);
  release(loop, 1);
}
