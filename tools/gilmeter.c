/* How long the GIL is held: a thread that never takes it looks every 25 µs whether it is locked. And an engine that
 * returns at once. Compiled by bench_cores_job.py; needs the internal headers of CPython 3.10 to 3.13.
 *
 * Held is a share of the time on the wall. Running is a share of the CPU time of the process: it leaves out when the
 * thread that holds the GIL had no core, which is often when sixteen workers share two; its CPU clock stands still then.
 * (CPython 3.10 does not tell which thread that is, so there it is an upper bound.)
 * Each look takes a few microseconds, and only they count: what happens between two looks, which come late when others
 * use the cores, is not known. */
#define Py_BUILD_CORE 1
#define _GNU_SOURCE 1
#include <Python.h>
#if PY_VERSION_HEX >= 0x030C0000
#include <internal/pycore_interp.h>
#else
#include <internal/pycore_runtime.h>
#endif
#ifdef Py_GIL_DISABLED
#error "this Python has no GIL"
#endif
#include <dirent.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#define READ(place, type) __atomic_load_n((type *)&(place), __ATOMIC_RELAXED)

#define LOOK 4e-6

static struct _gil_runtime_state *gil;
static volatile int going;
static pthread_t thread;
static double held, running, wall, cpu;

static double seconds(clockid_t clock)
{
    struct timespec t;
    return clock_gettime(clock, &t) ? -1 : (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* See clock_getcpuclockid(3). */
static clockid_t clock_of(long number)
{
    return ~(clockid_t)number * 8 + 6;
}

/* A thread that has ended has none. */
static double cpu_of(const PyThreadState *state)
{
#if PY_VERSION_HEX >= 0x030B0000
    return state ? seconds(clock_of((long)state->native_thread_id)) : -1;
#else
    return -1;
#endif
}

#define MOST 128
static clockid_t others[MOST];
static int known;

/* The clock of the whole process stands still for threads on other cores, until the kernel looks at them. */
static void find_others(void)
{
    DIR *threads = opendir("/proc/self/task");
    long own = gettid();
    known = 0;
    for (struct dirent *entry; threads && known < MOST && (entry = readdir(threads));)
        if (atol(entry->d_name) > 0 && atol(entry->d_name) != own)
            others[known++] = clock_of(atol(entry->d_name));
    if (threads)
        closedir(threads);
}

typedef struct {
    double wall, cpu, holder_cpu;
    const PyThreadState *holder;
} Sample;

static Sample sample(void)
{
    int locked = READ(gil->locked, int);
    const PyThreadState *holder = locked ? (const PyThreadState *)READ(gil->last_holder, uintptr_t) : NULL;
    double cpu_of_all = 0;
    for (int i = 0; i < known; i++)
        cpu_of_all += seconds(others[i]);
    return (Sample){seconds(CLOCK_MONOTONIC), cpu_of_all, cpu_of(holder), holder};
}

static void *look(void *nothing)
{
    struct timespec pause = {0, 20000};
    prctl(PR_SET_TIMERSLACK, 1000);
    for (long number = 0; going; number++) {
        nanosleep(&pause, NULL);
        if (number % 200 == 0)
            find_others();
        Sample first = sample(), last;
        do
            last = sample();
        while (last.wall - first.wall < LOOK);
        double passed = last.wall - first.wall, ran = last.holder_cpu - first.holder_cpu;
        if (last.holder != first.holder || passed > 10 * LOOK || last.cpu < first.cpu)
            continue; /* handed on; this thread had no core; another thread ended: what happened meanwhile is not known */
        wall += passed;
        cpu += last.cpu - first.cpu;
        held += last.holder ? passed : 0;
        running += !last.holder ? 0 : first.holder_cpu >= 0 && last.holder_cpu >= 0 && ran < passed ? ran : passed;
    }
    return nothing;
}

void meter_start(void)
{
#if PY_VERSION_HEX >= 0x030C0000
    gil = PyInterpreterState_Main()->ceval.gil;
#else
    gil = &_PyRuntime.ceval.gil;
#endif
    held = running = wall = cpu = 0;
    going = 1;
    pthread_create(&thread, NULL, look, NULL);
}

/* out: the share of the wall time in which it was held; the share of the CPU time that ran with it; CPU seconds of the
 * meter itself */
void meter_stop(double *out)
{
    clockid_t clock;
    pthread_getcpuclockid(thread, &clock);
    out[2] = seconds(clock);
    going = 0;
    pthread_join(thread, NULL);
    out[0] = held / (wall > 0 ? wall : 1);
    out[1] = running / (cpu > 0 ? cpu : 1);
}

static int64_t asked;

/* In place of engine_encode: a token for every four bytes, whatever they are. */
int64_t encode_nothing(void *engine, const char **texts, const int64_t *sizes, int64_t count, void *ids, int64_t *counts)
{
    int64_t total = 0, bytes = 0;
    (void)engine, (void)texts, (void)ids;
    for (int64_t i = 0; i < count; i++) {
        bytes += sizes[i];
        total += counts[i] = sizes[i] / 4;
    }
    __atomic_add_fetch(&asked, bytes, __ATOMIC_RELAXED);
    return total;
}

/* What makes tokens of ids, as the engine has it. */
void (*layout_block)(void *);

/* In place of engine_block. */
int64_t block_of_nothing(void *engine, const char **texts, const int64_t *sizes, int64_t count, void *ids, int64_t *counts,
                         void *layout)
{
    int64_t total = encode_nothing(engine, texts, sizes, count, ids, counts);
    layout_block(layout);
    return total;
}

int64_t bytes_not_encoded(void)
{
    return asked;
}
