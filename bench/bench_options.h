/*
 * Rows of a bench's option table. target points into the program's settings; further fields
 * (`.min = 1`) may follow the help. Usable in static tables only: target must be a constant
 * address.
 */
#ifndef PIGPEN_BENCH_BENCH_OPTIONS_H
#define PIGPEN_BENCH_BENCH_OPTIONS_H

#include "common/base/options.h"

#define BENCH_OPTION(of_kind, flag, to, otherwise, value, ...)                                     \
    {                                                                                              \
        .name = flag, .kind = PP_OPTION_##of_kind, .target = to, .default_text = otherwise,        \
        .value_name = value, .help = __VA_ARGS__                                                   \
    }
/* uint64_t *, double * from 0 to most, const char **. */
#define BENCH_NUMBER(flag, to, otherwise, ...)                                                     \
    BENCH_OPTION(U64, flag, to, otherwise, "N", __VA_ARGS__)
#define BENCH_REAL(flag, to, otherwise, value, most, ...)                                          \
    BENCH_OPTION(DOUBLE, flag, to, otherwise, value, __VA_ARGS__, .number_max = most)
#define BENCH_TEXT(flag, to, otherwise, value, ...)                                                \
    BENCH_OPTION(TEXT, flag, to, otherwise, value, __VA_ARGS__)

/* What every bench has: where its reports go, and how many threads it takes. */
#define BENCH_JSON(to)    BENCH_TEXT("json", to, "", "PATH", "Append the report here.")
#define BENCH_THREADS(to) BENCH_NUMBER("threads", to, "0", "Threads; 0: what this process may use.")

#endif
