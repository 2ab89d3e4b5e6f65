/*
 * pigpenctl: what its files share. One transport, one channel, one call at a time, all on main.
 */
#ifndef PIGPEN_DEPLOY_CTL_CTL_H
#define PIGPEN_DEPLOY_CTL_CTL_H

#include <jansson.h>
#include <protobuf-c/protobuf-c.h>
#include <stdbool.h>
#include <stdint.h>

#include "common/base/status.h"
#include "common/rpc/codec.h"
#include "common/rpc/transport.h"

/* Exit codes, an interface: shown by --help. */
enum ctl_exit {
    CTL_OK = 0,
    CTL_NOT_HEALTHY = 1, /* the node answered, and the answer is bad */
    CTL_USAGE = 2,
    CTL_UNREACHABLE = 3, /* no answer in time */
    CTL_REFUSED = 4      /* the node answered with an error */
};

struct ctl {
    const char *node;
    const char *service; /* of health */
    const char *part;    /* of tune: a handle in hex; "": the only one */
    double target_error; /* of tune */
    const char *tls_ca_file, *tls_cert_file, *tls_key_file, *tls_server_name;
    uint64_t timeout_us;
    bool json;
    struct pp_transport *transport;
    struct pp_channel *channel;
    struct pp_codec_arena arena; /* the last answer lies here */
};

/* One unary call: sends request, waits for the answer, which lives until the next call. Says on
 * stderr what went wrong. */
enum ctl_exit ctl_call(struct ctl *ctl, const char *path, const ProtobufCMessage *request,
                       const ProtobufCMessageDescriptor *answer,
                       const ProtobufCMessage **answer_out);

/* Prints the object on a line of its own and drops it. */
void ctl_print_json(json_t *object);

enum ctl_exit ctl_health(struct ctl *ctl);
enum ctl_exit ctl_info(struct ctl *ctl);
enum ctl_exit ctl_stats(struct ctl *ctl);
enum ctl_exit ctl_parts(struct ctl *ctl);
enum ctl_exit ctl_selftest(struct ctl *ctl);
enum ctl_exit ctl_tune(struct ctl *ctl);

#endif
