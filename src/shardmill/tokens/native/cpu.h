/* What this processor can do, and the system lets programs use: asked by cpuid itself, which every compiler has. */
#ifndef SHARDMILL_CPU_H
#define SHARDMILL_CPU_H

enum {
    CPU_AVX512 = 1,       /* F, BW, DQ and VL, with BMI2 */
    CPU_AVX512_VBMI2 = 2, /* VBMI and VBMI2 as well */
};

#if defined(__x86_64__) && !defined(PLAIN_C)
#include <cpuid.h>

static inline unsigned cpu_features(void)
{
    enum { OSXSAVE = 1 << 27, REGISTERS = 0xE6, BMI2 = 1 << 8, F = 1 << 16, DQ = 1 << 17, BW = 1 << 30 };
    enum { VBMI = 1 << 1, VBMI2 = 1 << 6 };
    const unsigned vl = 1u << 31, needed = BMI2 | F | DQ | BW | vl;
    unsigned a, b, c, d, enabled, high;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & OSXSAVE))
        return 0;
    __asm__ volatile("xgetbv" : "=a"(enabled), "=d"(high) : "c"(0));
    if ((enabled & REGISTERS) != REGISTERS || !__get_cpuid_count(7, 0, &a, &b, &c, &d) || (b & needed) != needed)
        return 0;
    return CPU_AVX512 | ((c & (VBMI | VBMI2)) == (VBMI | VBMI2) ? CPU_AVX512_VBMI2 : 0);
}
#else
static inline unsigned cpu_features(void)
{
    return 0;
}
#endif

#endif
