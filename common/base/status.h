/*
 * The outcome of a fallible call. One enum for the whole project: a value is a gRPC code plus a
 * reason, so that what a node found travels to the worker unchanged (wire: gRPC status and the
 * trailer pigpen-reason). Zero is success. Outputs are written only on success.
 * Threads: everything here is pure.
 */
#ifndef PIGPEN_COMMON_BASE_STATUS_H
#define PIGPEN_COMMON_BASE_STATUS_H

enum pp_status {
    PP_OK = 0,
    PP_INVALID_ARGUMENT,
    PP_BAD_SHAPE,
    PP_BAD_DTYPE,
    PP_NON_FINITE,
    PP_MESSAGE_TOO_LARGE,
    PP_NOT_FOUND,
    PP_PART_NOT_FOUND,
    PP_PART_EXPIRED,
    PP_PART_EXISTS,
    PP_FAILED_PRECONDITION,
    PP_MODEL_MISMATCH,
    PP_PROTOCOL,
    PP_SHORT_PART,
    PP_ABORTED,
    PP_INCARNATION_CHANGED,
    PP_STALE_GENERATION,
    PP_APPEND_CONFLICT,
    PP_OUT_OF_RANGE,
    PP_APPEND_GAP,
    PP_RESOURCE_EXHAUSTED,
    PP_MEMORY, /* the memory_limit, or an allocation that failed */
    PP_QUOTA,
    PP_QUEUE,
    PP_UNAVAILABLE,
    PP_DRAINING,
    PP_STARTING,
    PP_DEADLINE_EXCEEDED,
    PP_DATA_LOSS,
    PP_CHECKSUM,
    PP_UNAUTHENTICATED,
    PP_PERMISSION_DENIED,
    PP_UNIMPLEMENTED,
    PP_CANCELLED,
    PP_INTERNAL,
    PP_IO, /* a file or socket of this machine */
    PP_STATUS_COUNT
};

#define PP_MUST_USE __attribute__((warn_unused_result))

/* The reason as it stands on the wire and in logs: "APPEND_GAP", "OK", ... Static text. */
const char *pp_status_name(enum pp_status status);

/* The gRPC status code (0 to 16) that carries this status. */
int pp_status_grpc_code(enum pp_status status);

/* The status of a peer's answer; an unknown reason takes the plain status of its code. reason may
 * be NULL or empty. A code that is no gRPC code is PP_INTERNAL. */
enum pp_status pp_status_from_wire(int grpc_code, const char *reason);

/* Returns the status of expr when it is not PP_OK. For functions that own nothing yet. */
#define PP_TRY(expr)                                                                               \
    do {                                                                                           \
        enum pp_status pp_try_status_ = (expr);                                                    \
        if (pp_try_status_ != PP_OK) {                                                             \
            return pp_try_status_;                                                                 \
        }                                                                                          \
    } while (0)

#endif
