/*
 * cpuid, once. The tables of kernels ask here which column to take; nothing else branches on it.
 */
#include "common/run/cpu.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/log.h"

static const char *const names[] = {"scalar", "avx2", "avx512", "avx512bf16"};

static pthread_once_t once = PTHREAD_ONCE_INIT;
static enum pp_isa best;
static enum pp_isa used;

/* The compiler's support checks XGETBV too: registers that the system does not save do not count.
 */
static enum pp_isa find_best(void)
{
    __builtin_cpu_init();
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma") ||
        !__builtin_cpu_supports("bmi") || !__builtin_cpu_supports("bmi2")) {
        return PP_ISA_SCALAR;
    }
    if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512bw") ||
        !__builtin_cpu_supports("avx512vl") || !__builtin_cpu_supports("avx512dq") ||
        !__builtin_cpu_supports("avx512cd")) {
        return PP_ISA_AVX2;
    }
    if (!__builtin_cpu_supports("avx512bf16") || !__builtin_cpu_supports("avx512vnni") ||
        !__builtin_cpu_supports("avx512vbmi") || !__builtin_cpu_supports("avx512vbmi2")) {
        return PP_ISA_AVX512;
    }
    return PP_ISA_AVX512BF16;
}

static void choose(void)
{
    best = find_best();
    used = best;
    const char *wanted = getenv("PIGPEN_ISA");
    if (wanted == NULL || wanted[0] == '\0') {
        return;
    }
    enum pp_isa isa;
    if (pp_isa_parse(wanted, &isa) != PP_OK) {
        PP_LOG_WARNF("cpu", "PIGPEN_ISA is unknown, the best is used", "given=\"%s\" used=%s",
                     wanted, names[best]);
    } else if (isa > best) {
        PP_LOG_WARNF("cpu", "PIGPEN_ISA is not supported here, the best is used",
                     "given=%s used=%s", names[isa], names[best]);
    } else {
        used = isa;
    }
}

enum pp_isa pp_isa_get(void)
{
    pthread_once(&once, choose);
    return used;
}

enum pp_isa pp_isa_best(void)
{
    pthread_once(&once, choose);
    return best;
}

const char *pp_isa_name(enum pp_isa isa)
{
    return names[isa];
}

enum pp_status pp_isa_parse(const char *text, enum pp_isa *isa_out)
{
    for (int isa = PP_ISA_SCALAR; isa <= PP_ISA_AVX512BF16; ++isa) {
        if (strcmp(text, names[isa]) == 0) {
            *isa_out = (enum pp_isa)isa;
            return PP_OK;
        }
    }
    return PP_INVALID_ARGUMENT;
}
