/*
 * Statuses on the wire: the gRPC code, the reason in trailer pigpen-reason, the wait in
 * pigpen-retry-after-ms. The one file where gRPC's codes meet pp_status.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/rpc/grpc_internal.h"

#define REASON_KEY "pigpen-reason"
#define RETRY_KEY  "pigpen-retry-after-ms"

void pp_grpc_status_write(struct pp_call *call, enum pp_status status, uint64_t retry_after_ms)
{
    call->trailer_count = 0;
    if (status == PP_OK) {
        return;
    }
    grpc_metadata *reason = &call->trailers[call->trailer_count++];
    reason->key = grpc_slice_from_static_string(REASON_KEY);
    reason->value = grpc_slice_from_static_string(pp_status_name(status));
    if (retry_after_ms == 0) {
        return;
    }
    char text[24];
    snprintf(text, sizeof(text), "%" PRIu64, retry_after_ms);
    grpc_metadata *retry = &call->trailers[call->trailer_count++];
    retry->key = grpc_slice_from_static_string(RETRY_KEY);
    retry->value = grpc_slice_from_copied_string(text);
}

/* The text of a slice, cut to fit, with a NUL. */
static void copy_text(const grpc_slice *slice, char *out, size_t out_bytes)
{
    size_t bytes = GRPC_SLICE_LENGTH(*slice);
    bytes = bytes < out_bytes - 1 ? bytes : out_bytes - 1;
    memcpy(out, GRPC_SLICE_START_PTR(*slice), bytes);
    out[bytes] = '\0';
}

static bool find_trailer(const struct pp_call *call, const char *key, char *out, size_t out_bytes)
{
    for (size_t i = 0; i < call->trailing_metadata.count; ++i) {
        const grpc_metadata *entry = &call->trailing_metadata.metadata[i];
        if (grpc_slice_str_cmp(entry->key, key) == 0) {
            copy_text(&entry->value, out, out_bytes);
            return true;
        }
    }
    return false;
}

/* Digits only; anything else from a peer counts as not said. */
static uint64_t parse_ms(const char *text)
{
    uint64_t value = 0;
    for (const char *at = text; *at != '\0'; ++at) {
        if (*at < '0' || *at > '9' || value > UINT64_MAX / 20) {
            return 0;
        }
        value = value * 10 + (uint64_t)(*at - '0');
    }
    return value;
}

void pp_grpc_status_read(const struct pp_call *call, struct pp_call_end *end_out, char *message,
                         size_t message_bytes)
{
    *end_out = (struct pp_call_end){.status = call->local_status, .message = message};
    if (call->local_status != PP_OK) {
        snprintf(message, message_bytes, "%s", call->local_message);
        return;
    }
    if (call->channel == NULL) {
        end_out->status = call->cancelled != 0 ? PP_CANCELLED : PP_OK;
        snprintf(message, message_bytes, "%s",
                 call->cancelled != 0 ? "cancelled by the client, or its connection ended" : "");
        return;
    }
    char text[64] = "";
    find_trailer(call, REASON_KEY, text, sizeof(text));
    end_out->status = pp_status_from_wire((int)call->code, text);
    copy_text(&call->details, message, message_bytes);
    if (find_trailer(call, RETRY_KEY, text, sizeof(text))) {
        end_out->retry_after_ms = parse_ms(text);
    }
}
