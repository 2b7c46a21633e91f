/* What this processor can do, and the system lets programs use: asked by cpuid itself, which every compiler has. */
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "cpu.h"

#if defined(__x86_64__)
#include <cpuid.h>

static int x86_has(int path)
{
    enum { POPCNT = 1 << 23, OSXSAVE = 1 << 27, LZCNT = 1 << 5 };                       /* leaves 1 and 0x80000001, ecx */
    enum { BMI = 1 << 3, AVX2 = 1 << 5, BMI2 = 1 << 8, F = 1 << 16, DQ = 1 << 17, BW = 1 << 30 }; /* leaf 7, ebx */
    enum { VBMI = 1 << 1, VBMI2 = 1 << 6 };                                             /* leaf 7, ecx */
    enum { YMM = 0x06, ZMM = 0xE6 };                                                    /* what the system saves */
    const unsigned vl = 1u << 31, avx2 = BMI | AVX2 | BMI2, avx512 = avx2 | F | DQ | BW | vl;
    unsigned a, b, c, d, enabled, high;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & OSXSAVE) || !(c & POPCNT))
        return 0;
    if (!__get_cpuid(0x80000001, &a, &b, &c, &d) || !(c & LZCNT) || !__get_cpuid_count(7, 0, &a, &b, &c, &d))
        return 0;
    __asm__ volatile("xgetbv" : "=a"(enabled), "=d"(high) : "c"(0));
    if (path == CPU_AVX2)
        return (enabled & YMM) == YMM && (b & avx2) == avx2;
    return (enabled & ZMM) == ZMM && (b & avx512) == avx512 && (c & (VBMI | VBMI2)) == (VBMI | VBMI2);
}
#endif

static int has(int path)
{
    if (path == CPU_PLAIN)
        return 1;
#if defined(__x86_64__)
    return (path == CPU_AVX2 || path == CPU_AVX512) && x86_has(path);
#elif defined(__aarch64__)
    return path == CPU_NEON;
#else
    return 0;
#endif
}

const char *cpu_name(int path)
{
    static const char *const names[CPU_PATHS] = {
        [CPU_AVX512] = "avx512", [CPU_AVX2] = "avx2", [CPU_NEON] = "neon", [CPU_PLAIN] = "plain"};
    return path >= 0 && path < CPU_PATHS && has(path) ? names[path] : NULL;
}

int cpu_path(void)
{
    const char *asked = getenv("SHARDMILL_CPU");
    for (int path = 0; path < CPU_PATHS; path++)
        if (cpu_name(path) && (!asked || !*asked || !strcmp(asked, cpu_name(path))))
            return path;
    return -1;
}
