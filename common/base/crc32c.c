/*
 * CRC-32C: the choice of path. Every append passes here once on each side. Knows nothing of
 * messages.
 */
#include "common/base/crc32c.h"

#include <pthread.h>

#include "common/base/crc32c_paths.h"

static pthread_once_t once = PTHREAD_ONCE_INIT;
static uint32_t (*chosen)(uint32_t crc, const void *data, size_t bytes);

bool pp_crc32c_vpclmul_supported(void)
{
    __builtin_cpu_init();
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("vpclmulqdq") && __builtin_cpu_supports("sse4.2");
}

static void choose(void)
{
    __builtin_cpu_init();
    pp_crc32c_scalar_prepare();
    chosen = pp_crc32c_scalar;
    if (__builtin_cpu_supports("sse4.2")) {
        pp_crc32c_sse42_prepare();
        chosen = pp_crc32c_sse42;
    }
    if (pp_crc32c_vpclmul_supported()) {
        pp_crc32c_vpclmul_prepare();
        chosen = pp_crc32c_vpclmul;
    }
}

uint32_t pp_crc32c(uint32_t crc, const void *data, size_t bytes)
{
    pthread_once(&once, choose);
    return chosen(crc, data, bytes);
}
