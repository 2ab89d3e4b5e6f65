/*
 * Statuses: one table of reason and gRPC code.
 */
#include "common/base/status.h"

#include <stddef.h>
#include <string.h>

enum grpc_code {
    CODE_OK = 0,
    CODE_CANCELLED = 1,
    CODE_UNKNOWN = 2,
    CODE_INVALID_ARGUMENT = 3,
    CODE_DEADLINE_EXCEEDED = 4,
    CODE_NOT_FOUND = 5,
    CODE_ALREADY_EXISTS = 6,
    CODE_PERMISSION_DENIED = 7,
    CODE_RESOURCE_EXHAUSTED = 8,
    CODE_FAILED_PRECONDITION = 9,
    CODE_ABORTED = 10,
    CODE_OUT_OF_RANGE = 11,
    CODE_UNIMPLEMENTED = 12,
    CODE_INTERNAL = 13,
    CODE_UNAVAILABLE = 14,
    CODE_DATA_LOSS = 15,
    CODE_UNAUTHENTICATED = 16,
};

/* The first row of a code is the plain status of that code. */
static const struct {
    const char *name;
    enum grpc_code code;
} table[PP_STATUS_COUNT] = {
    [PP_OK] = {"OK", CODE_OK},
    [PP_INVALID_ARGUMENT] = {"INVALID_ARGUMENT", CODE_INVALID_ARGUMENT},
    [PP_BAD_SHAPE] = {"BAD_SHAPE", CODE_INVALID_ARGUMENT},
    [PP_BAD_DTYPE] = {"BAD_DTYPE", CODE_INVALID_ARGUMENT},
    [PP_NON_FINITE] = {"NON_FINITE", CODE_INVALID_ARGUMENT},
    [PP_MESSAGE_TOO_LARGE] = {"MESSAGE_TOO_LARGE", CODE_INVALID_ARGUMENT},
    [PP_NOT_FOUND] = {"NOT_FOUND", CODE_NOT_FOUND},
    [PP_PART_NOT_FOUND] = {"PART_NOT_FOUND", CODE_NOT_FOUND},
    [PP_PART_EXPIRED] = {"PART_EXPIRED", CODE_NOT_FOUND},
    [PP_PART_EXISTS] = {"PART_EXISTS", CODE_ALREADY_EXISTS},
    [PP_FAILED_PRECONDITION] = {"FAILED_PRECONDITION", CODE_FAILED_PRECONDITION},
    [PP_MODEL_MISMATCH] = {"MODEL_MISMATCH", CODE_FAILED_PRECONDITION},
    [PP_PROTOCOL] = {"PROTOCOL", CODE_FAILED_PRECONDITION},
    [PP_SHORT_PART] = {"SHORT_PART", CODE_FAILED_PRECONDITION},
    [PP_ABORTED] = {"ABORTED", CODE_ABORTED},
    [PP_INCARNATION_CHANGED] = {"INCARNATION_CHANGED", CODE_ABORTED},
    [PP_STALE_GENERATION] = {"STALE_GENERATION", CODE_ABORTED},
    [PP_APPEND_CONFLICT] = {"APPEND_CONFLICT", CODE_ABORTED},
    [PP_OUT_OF_RANGE] = {"OUT_OF_RANGE", CODE_OUT_OF_RANGE},
    [PP_APPEND_GAP] = {"APPEND_GAP", CODE_OUT_OF_RANGE},
    [PP_RESOURCE_EXHAUSTED] = {"RESOURCE_EXHAUSTED", CODE_RESOURCE_EXHAUSTED},
    [PP_MEMORY] = {"MEMORY", CODE_RESOURCE_EXHAUSTED},
    [PP_QUOTA] = {"QUOTA", CODE_RESOURCE_EXHAUSTED},
    [PP_QUEUE] = {"QUEUE", CODE_RESOURCE_EXHAUSTED},
    [PP_UNAVAILABLE] = {"UNAVAILABLE", CODE_UNAVAILABLE},
    [PP_DRAINING] = {"DRAINING", CODE_UNAVAILABLE},
    [PP_STARTING] = {"STARTING", CODE_UNAVAILABLE},
    [PP_DEADLINE_EXCEEDED] = {"DEADLINE_EXCEEDED", CODE_DEADLINE_EXCEEDED},
    [PP_DATA_LOSS] = {"DATA_LOSS", CODE_DATA_LOSS},
    [PP_CHECKSUM] = {"CHECKSUM", CODE_DATA_LOSS},
    [PP_UNAUTHENTICATED] = {"UNAUTHENTICATED", CODE_UNAUTHENTICATED},
    [PP_PERMISSION_DENIED] = {"PERMISSION_DENIED", CODE_PERMISSION_DENIED},
    [PP_UNIMPLEMENTED] = {"UNIMPLEMENTED", CODE_UNIMPLEMENTED},
    [PP_CANCELLED] = {"CANCELLED", CODE_CANCELLED},
    [PP_INTERNAL] = {"INTERNAL", CODE_INTERNAL},
    [PP_IO] = {"IO", CODE_UNKNOWN},
};

const char *pp_status_name(enum pp_status status)
{
    unsigned index = (unsigned)status;
    return index < PP_STATUS_COUNT ? table[index].name : "INVALID_STATUS";
}

int pp_status_grpc_code(enum pp_status status)
{
    unsigned index = (unsigned)status;
    return index < PP_STATUS_COUNT ? (int)table[index].code : CODE_INTERNAL;
}

enum pp_status pp_status_from_wire(int grpc_code, const char *reason)
{
    enum pp_status plain = PP_STATUS_COUNT;
    for (int status = 0; status < PP_STATUS_COUNT; ++status) {
        if ((int)table[status].code != grpc_code) {
            continue;
        }
        if (reason != NULL && strcmp(table[status].name, reason) == 0) {
            return (enum pp_status)status;
        }
        if (plain == PP_STATUS_COUNT) {
            plain = (enum pp_status)status;
        }
    }
    return plain == PP_STATUS_COUNT ? PP_INTERNAL : plain;
}
