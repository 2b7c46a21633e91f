/* The code paths, the fastest first. */
#ifndef SHARDMILL_CPU_H
#define SHARDMILL_CPU_H

enum { CPU_AVX512, CPU_AVX2, CPU_NEON, CPU_PLAIN, CPU_PATHS };

/* The name of a path that this processor can take, and the system lets it; NULL of all others. */
const char *cpu_name(int path);

/* The path to take: what SHARDMILL_CPU names, for tests, or the fastest; -1 where that names none that can be taken. */
int cpu_path(void);

#endif
