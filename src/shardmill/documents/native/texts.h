#include <stddef.h>
#include <stdint.h>

typedef uint8_t u8;
typedef uint32_t u32;
typedef uint64_t u64;

/* texts.c */
int is_utf8(const u8 *text, const u8 *end);

/* xxh3.c */
u64 xxh3_64(const u8 *data, size_t size, u64 seed);
