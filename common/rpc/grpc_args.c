/*
 * The arguments of channels and servers, each with its reason. Windows and frames: measured on
 * loopback, bdp_probe off helps only together with explicit sizes (alone it costs 25 %).
 */
#include "common/base/assert.h"
#include "common/rpc/grpc_internal.h"

/* Above message_bytes_max, so that our own check can name the limit; gRPC's ends the call bluntly.
 */
#define RECEIVE_SLACK_BYTES (1u << 20)

static void add_int(struct pp_grpc_args *args, const char *key, int value)
{
    PP_ASSERT(args->args.num_args < PP_GRPC_ARGS_MAX);
    args->list[args->args.num_args++] =
        (grpc_arg){.type = GRPC_ARG_INTEGER, .key = (char *)(uintptr_t)key, .value.integer = value};
}

static void add_text(struct pp_grpc_args *args, const char *key, const char *value)
{
    PP_ASSERT(args->args.num_args < PP_GRPC_ARGS_MAX);
    args->list[args->args.num_args++] = (grpc_arg){.type = GRPC_ARG_STRING,
                                                   .key = (char *)(uintptr_t)key,
                                                   .value.string = (char *)(uintptr_t)value};
}

static void add_both(struct pp_grpc_args *args, const struct pp_grpc *grpc, int frame_bytes,
                     int window_bytes)
{
    args->args = (grpc_channel_args){.num_args = 0, .args = args->list};
    args->list[args->args.num_args++] =
        (grpc_arg){.type = GRPC_ARG_POINTER,
                   .key = (char *)(uintptr_t)GRPC_ARG_RESOURCE_QUOTA,
                   .value.pointer = {grpc->quota, grpc_resource_quota_arg_vtable()}};
    add_int(args, GRPC_ARG_HTTP2_BDP_PROBE, 0);
    add_int(args, GRPC_ARG_HTTP2_MAX_FRAME_SIZE, frame_bytes);
    add_int(args, GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, window_bytes);
    add_int(args, GRPC_ARG_TCP_READ_CHUNK_SIZE, PP_GRPC_READ_BUFFER_BYTES);
    add_int(args, GRPC_ARG_TCP_MIN_READ_CHUNK_SIZE, PP_GRPC_READ_BUFFER_BYTES);
    add_int(args, GRPC_ARG_TCP_MAX_READ_CHUNK_SIZE, PP_GRPC_READ_BUFFER_BYTES);
    add_int(args, GRPC_ARG_MAX_RECEIVE_MESSAGE_LENGTH,
            (int)(grpc->message_bytes_max + RECEIVE_SLACK_BYTES));
    add_int(args, GRPC_ARG_MAX_SEND_MESSAGE_LENGTH,
            (int)(grpc->message_bytes_max + RECEIVE_SLACK_BYTES));
    /* A compressed message is inflated before its size is checked: no algorithm but identity. */
    add_int(args, GRPC_ARG_ENABLE_PER_MESSAGE_COMPRESSION, 0);
    add_int(args, GRPC_COMPRESSION_CHANNEL_ENABLED_ALGORITHMS_BITSET, 1);
    /* A peer that vanished without a word is noticed within 13 s, also in mid-stream. */
    add_int(args, GRPC_ARG_KEEPALIVE_TIME_MS, 10000);
    add_int(args, GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 3000);
    add_int(args, GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
}

void pp_grpc_args_channel(struct pp_grpc_args *args, const struct pp_grpc *grpc,
                          enum pp_channel_kind kind, const char *server_name)
{
    if (kind == PP_CHANNEL_BULK) {
        add_both(args, grpc, 4 << 20, 16 << 20);
    } else {
        add_both(args, grpc, 1 << 20, 4 << 20);
    }
    /* An http_proxy variable would capture even 127.0.0.1. */
    add_int(args, GRPC_ARG_ENABLE_HTTP_PROXY, 0);
    add_int(args, GRPC_ARG_ENABLE_RETRIES, 0);
    /* Own connection a channel: else a bulk append sits in front of a step. */
    add_int(args, GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    add_int(args, GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
    /* The time one attempt may take: a handshake on a busy machine has been seen to need 500 ms. */
    add_int(args, GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 2000);
    add_int(args, GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 2000);
    add_int(args, GRPC_ARG_SERVICE_CONFIG_DISABLE_RESOLUTION, 1);
    if (server_name != NULL) {
        add_text(args, GRPC_SSL_TARGET_NAME_OVERRIDE_ARG, server_name);
    }
}

void pp_grpc_args_server(struct pp_grpc_args *args, const struct pp_grpc *grpc)
{
    /* A server has one setting for all connections: that of bulk. */
    add_both(args, grpc, 4 << 20, 16 << 20);
    /* Else a second server on a taken port "succeeds" and gets half of the connections. */
    add_int(args, GRPC_ARG_ALLOW_REUSEPORT, 0);
    add_int(args, GRPC_ARG_MAX_CONCURRENT_STREAMS, PP_GRPC_STREAMS_MAX);
    add_int(args, GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, 5000);
    /* The default is five minutes: our own clients' keepalive would be cut off. */
    add_int(args, GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 5000);
    add_int(args, GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
}
