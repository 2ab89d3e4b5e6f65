/*
 * What this machine's processor can do, read once; PIGPEN_ISA forces a lower path for tests.
 */
#ifndef PIGPEN_COMMON_RUN_CPU_H
#define PIGPEN_COMMON_RUN_CPU_H

#include "common/base/status.h"

/* In ascending order. AVX512 means F, BW, VL, DQ, CD; AVX512BF16 adds BF16, VNNI, VBMI, VBMI2. */
enum pp_isa { PP_ISA_SCALAR, PP_ISA_AVX2, PP_ISA_AVX512, PP_ISA_AVX512BF16 };

/* The best of this machine (the system must save its registers too), or what PIGPEN_ISA names when
 * that is lower. A PIGPEN_ISA that this machine lacks or that is unknown: the best, logged once. */
enum pp_isa pp_isa_get(void);
enum pp_isa pp_isa_best(void); /* ignores PIGPEN_ISA */
const char *pp_isa_name(enum pp_isa isa);
PP_MUST_USE enum pp_status pp_isa_parse(const char *text, enum pp_isa *isa_out);

#endif
