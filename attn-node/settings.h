/*
 * The options of attn-node. Texts live as long as the struct pp_options. Threads: main.
 */
#ifndef PIGPEN_ATTN_NODE_SETTINGS_H
#define PIGPEN_ATTN_NODE_SETTINGS_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/options.h"

/* What the options say. */
struct an_settings {
    const char *listen, *admin_listen, *port_file, *admin_port_file, *node_name;
    const char *registration, *advertise; /* "": none, and the listening address */
    const char *tls_cert_file, *tls_key_file, *tls_ca_file;
    bool tls_client_auth, insecure;
    uint64_t memory_limit, threads, seal_tokens, index_tokens_min, shadow_every;
    uint64_t connections_max; /* 0: by descriptors and memory */
    uint64_t lease_us, drain_timeout_us, spin_us, registration_lease_us;
    int build, hugepages, log_level, log_format;
};

/* As pp_options_parse, with the rules that take more than one option. */
PP_MUST_USE enum pp_status an_settings_parse(int argc, char *const *argv,
                                             struct an_settings *settings_out,
                                             enum pp_options_outcome *outcome_out,
                                             struct pp_options **options_out);

#endif
