/* How long the GIL is held: a thread that never takes it samples every 25 µs whether it is locked. And an engine that
 * returns at once. Compiled by bench_cores_job.py; needs the internal headers of CPython 3.10 to 3.13.
 *
 * Held is a share of the time on the wall. Running is a share of the CPU time of the process: it leaves out when the
 * thread that holds the GIL had no core, which is often when sixteen workers share two; its CPU clock stands still then.
 * (CPython 3.10 does not tell which thread that is, so there it is an upper bound.)
 * Samples that come late, since others use the cores, tell nothing and are left out of both. */
#define Py_BUILD_CORE 1
#include <Python.h>
#if PY_VERSION_HEX >= 0x030C0000
#include <internal/pycore_interp.h>
#else
#include <internal/pycore_runtime.h>
#endif
#ifdef Py_GIL_DISABLED
#error "this Python has no GIL"
#endif
#include <pthread.h>
#include <sys/prctl.h>
#include <time.h>

#define READ(place, type) __atomic_load_n((type *)&(place), __ATOMIC_RELAXED)

#define LATE 0.0005

static struct _gil_runtime_state *gil;
static volatile int going;
static pthread_t thread;
static double held, running, wall, cpu, all;

static double seconds(clockid_t clock)
{
    struct timespec t;
    return clock_gettime(clock, &t) ? -1 : (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* The CPU clock of a thread by its number; see clock_getcpuclockid(3). A thread that has ended has none. */
static double cpu_of(const PyThreadState *state)
{
#if PY_VERSION_HEX >= 0x030B0000
    return state ? seconds(~(clockid_t)state->native_thread_id * 8 + 6) : -1;
#else
    return -1;
#endif
}

typedef struct {
    double wall, cpu, holder_cpu;
    const PyThreadState *holder;
} Sample;

static Sample sample(void)
{
    int locked = READ(gil->locked, int);
    const PyThreadState *holder = locked ? (const PyThreadState *)READ(gil->last_holder, uintptr_t) : NULL;
    double others = seconds(CLOCK_PROCESS_CPUTIME_ID) - seconds(CLOCK_THREAD_CPUTIME_ID);
    return (Sample){seconds(CLOCK_MONOTONIC), others, cpu_of(holder), holder};
}

static void *look(void *nothing)
{
    struct timespec pause = {0, 20000};
    prctl(PR_SET_TIMERSLACK, 1000);
    Sample last = sample();
    while (going) {
        nanosleep(&pause, NULL);
        Sample new = sample();
        double passed = new.wall - last.wall, ran = new.holder_cpu - last.holder_cpu;
        all += passed;
        if (passed < LATE) {
            int same = new.holder == last.holder && new.holder_cpu >= 0 && last.holder_cpu >= 0;
            wall += passed;
            cpu += new.cpu - last.cpu;
            held += new.holder ? passed : 0;
            running += !new.holder ? 0 : same && ran < passed ? ran : passed;
        }
        last = new;
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
    held = running = wall = cpu = all = 0;
    going = 1;
    pthread_create(&thread, NULL, look, NULL);
}

/* out: the share of the wall time in which it was held; the share of the CPU time that ran with it; the share of the time
 * in which samples came late; CPU seconds of the meter itself */
void meter_stop(double *out)
{
    clockid_t clock;
    pthread_getcpuclockid(thread, &clock);
    out[3] = seconds(clock);
    going = 0;
    pthread_join(thread, NULL);
    out[0] = held / (wall > 0 ? wall : 1);
    out[1] = running / (cpu > 0 ? cpu : 1);
    out[2] = 1 - wall / (all > 0 ? all : 1);
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
