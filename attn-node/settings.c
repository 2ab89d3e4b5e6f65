/*
 * The table of attn-node's options, and the rules between them.
 */
#include "attn-node/settings.h"

#include <string.h>

#include "attn-node/registration.h"
#include "common/base/limits.h"
#include "common/mem/limit.h"
#include "common/obs/listen.h"

extern char **environ;

static const char *const build_choices[] = {"background", "sync", NULL};
static const char *const hugepages_choices[] = {"off", "try", "require", NULL};
static const char *const level_choices[] = {"debug", "info", "warn", "error", "off", NULL};
static const char *const format_choices[] = {"text", "json", NULL};

#define MEMORY  "Memory"
#define INDEX   "Index"
#define NETWORK "Network"
#define SAFETY  "Security"
#define LOGS    "Logs"

/* The table's targets are addresses: options are parsed here, once, on main. */
static struct an_settings parsed;

static struct pp_option options[] = {
    {.name = "listen",
     .kind = PP_OPTION_TEXT,
     .target = &parsed.listen,
     .default_text = "127.0.0.1:7450",
     .value_name = "ADDRESS",
     .group = NETWORK,
     .help = "gRPC address: host:port, [::]:port or unix:/path. Port 0 takes a free one."},
    {.name = "admin-listen",
     .kind = PP_OPTION_TEXT,
     .target = &parsed.admin_listen,
     .default_text = "127.0.0.1:7451",
     .value_name = "ADDRESS",
     .group = NETWORK,
     .help = "HTTP address of /livez, /readyz, /metrics and /config. Empty: none."},
    {.name = "port-file",
     .kind = PP_OPTION_TEXT,
     .target = &parsed.port_file,
     .default_text = "",
     .value_name = "PATH",
     .group = NETWORK,
     .help = "Write the real gRPC port here once the node listens."},
    {.name = "admin-port-file",
     .kind = PP_OPTION_TEXT,
     .target = &parsed.admin_port_file,
     .default_text = "",
     .value_name = "PATH",
     .group = NETWORK,
     .help = "Write the real HTTP port here."},
    {.name = "node-name",
     .kind = PP_OPTION_TEXT,
     .target = &parsed.node_name,
     .default_text = "",
     .value_name = "NAME",
     .group = NETWORK,
     .help = "Name of this node for operators and in --register. Empty: the host's name."},
    {.name = "register",
     .kind = PP_OPTION_TEXT,
     .target = &parsed.registration,
     .default_text = "",
     .value_name = "etcd:HOST:PORT/PREFIX",
     .group = NETWORK,
     .help = "Keep this node's name and address in a list that workers follow (their "
             "--nodes=etcd:HOST:PORT/PREFIX). Empty: none."},
    {.name = "register-lease",
     .kind = PP_OPTION_DURATION,
     .target = &parsed.registration_lease_us,
     .default_text = "10s",
     .value_name = "TIME",
     .group = NETWORK,
     .min = 1000000,
     .max = 3600000000,
     .help = "The entry of --register ends so long after this node's last word."},
    {.name = "advertise",
     .kind = PP_OPTION_TEXT,
     .target = &parsed.advertise,
     .default_text = "",
     .value_name = "HOST:PORT",
     .group = NETWORK,
     .help = "The address in --register, where workers reach this node by another one. Empty: that "
             "of --listen with its real port."},
    {.name = "spin",
     .kind = PP_OPTION_DURATION,
     .target = &parsed.spin_us,
     .default_text = "200us",
     .value_name = "TIME",
     .group = NETWORK,
     .max = 1000000,
     .help = "How long the network thread spins after the last event before it blocks. Turns "
             "itself off where cores are short. 0: never spin."},
    {.name = "connections-max",
     .kind = PP_OPTION_U64,
     .target = &parsed.connections_max,
     .default_text = "0",
     .value_name = "N",
     .group = NETWORK,
     .max = 65536,
     .help = "Connections that may be open; more are refused, and one host may hold as many as are "
             "free. A worker takes two. 0: what file descriptors and memory allow, up to 1024."},
    {.name = "drain-timeout",
     .kind = PP_OPTION_DURATION,
     .target = &parsed.drain_timeout_us,
     .default_text = "30s",
     .value_name = "TIME",
     .group = NETWORK,
     .help = "How long parts are still served after SIGTERM."},
    {.name = "memory-limit",
     .kind = PP_OPTION_SIZE,
     .target = &parsed.memory_limit,
     .default_text = "80%",
     .value_name = "BYTES",
     .group = MEMORY,
     .help = "Bytes this node may use: K/V, indexes and network buffers. Per cent are of the "
             "control group's limit, or of the machine; 80% of 64GiB names the whole itself."},
    {.name = "hugepages",
     .kind = PP_OPTION_CHOICE,
     .target = &parsed.hugepages,
     .default_text = "try",
     .group = MEMORY,
     .choices = hugepages_choices,
     .help = "Whether K/V lies on huge pages."},
    {.name = "lease",
     .kind = PP_OPTION_DURATION,
     .target = &parsed.lease_us,
     .default_text = "10m",
     .value_name = "TIME",
     .group = MEMORY,
     .min = 1000,
     .help = "A part that no call touched for this long is freed; clients may ask for less."},
    {.name = "threads",
     .kind = PP_OPTION_U64,
     .target = &parsed.threads,
     .default_text = "0",
     .value_name = "N",
     .group = INDEX,
     .max = 1024,
     .help = "Threads that compute. 0: what affinity and control group give."},
    {.name = "seal-tokens",
     .kind = PP_OPTION_U64,
     .target = &parsed.seal_tokens,
     .default_text = "1024",
     .value_name = "N",
     .group = INDEX,
     .min = 1,
     .max = PP_SEGMENT_TOKENS_MAX,
     .help = "A tail closes at this many tokens and is indexed."},
    {.name = "index-tokens-min",
     .kind = PP_OPTION_U64,
     .target = &parsed.index_tokens_min,
     .default_text = "1024",
     .value_name = "N",
     .group = INDEX,
     .min = 1,
     .max = PP_SEGMENT_TOKENS_MAX,
     .help = "Shorter segments get no index: they are attended exactly. At most --seal-tokens."},
    {.name = "shadow-every",
     .kind = PP_OPTION_U64,
     .target = &parsed.shadow_every,
     .default_text = "256",
     .value_name = "N",
     .group = INDEX,
     .max = 1ull << 32,
     .help = "One of N sampled queries is attended once more, exactly, when nothing else waits: "
             "true over estimated error is a metric. 0: none."},
    {.name = "build",
     .kind = PP_OPTION_CHOICE,
     .target = &parsed.build,
     .default_text = "background",
     .group = INDEX,
     .choices = build_choices,
     .help = "When indexes are built. sync: within the call that seals (for tests)."},
    {.name = "insecure",
     .kind = PP_OPTION_BOOL,
     .target = &parsed.insecure,
     .default_text = "false",
     .group = SAFETY,
     .help = "Allow other machines to connect without TLS."},
    {.name = "tls-cert-file",
     .kind = PP_OPTION_TEXT,
     .target = &parsed.tls_cert_file,
     .default_text = "",
     .value_name = "PATH",
     .group = SAFETY,
     .help = "PEM certificate chain of this node. Turns TLS on. SIGHUP reads it, the key and the "
             "authorities again, for new connections."},
    {.name = "tls-key-file",
     .kind = PP_OPTION_TEXT,
     .target = &parsed.tls_key_file,
     .default_text = "",
     .value_name = "PATH",
     .group = SAFETY,
     .help = "PEM key of the certificate."},
    {.name = "tls-ca-file",
     .kind = PP_OPTION_TEXT,
     .target = &parsed.tls_ca_file,
     .default_text = "",
     .value_name = "PATH",
     .group = SAFETY,
     .help = "PEM authorities that clients' certificates must come from."},
    {.name = "tls-client-auth",
     .kind = PP_OPTION_BOOL,
     .target = &parsed.tls_client_auth,
     .default_text = "true",
     .group = SAFETY,
     .help = "Refuse clients without a certificate of --tls-ca-file."},
    {.name = "log-level",
     .kind = PP_OPTION_CHOICE,
     .target = &parsed.log_level,
     .default_text = "info",
     .group = LOGS,
     .choices = level_choices,
     .help = "Least level that is written to stderr. SIGHUP reads it again from --config."},
    {.name = "log-format",
     .kind = PP_OPTION_CHOICE,
     .target = &parsed.log_format,
     .default_text = "text",
     .group = LOGS,
     .choices = format_choices,
     .help = "Form of a log line."},
};
#define OPTION_COUNT (sizeof(options) / sizeof(options[0]))

/* Rules that take more than one option, or more than a kind. */
static enum pp_status settings_check(void *context)
{
    const struct an_settings *settings = context;
    bool tls = settings->tls_cert_file[0] != '\0';
    bool path = strncmp(settings->listen, "unix:", 5) == 0;
    bool local = path || pp_listen_is_loopback(settings->listen);
    if (!path && !pp_listen_is_address(settings->listen)) {
        fprintf(stderr,
                "attn-node: --listen=%s is no address: give host:port, [::1]:port or unix:/path\n",
                settings->listen);
        return PP_INVALID_ARGUMENT;
    }
    const char *fault =
        settings->registration[0] == '\0' ? NULL : an_registration_fault(settings->registration);
    if (fault != NULL) {
        fprintf(stderr, "attn-node: --register=%s: %s\n", settings->registration, fault);
        return PP_INVALID_ARGUMENT;
    }
    if (path && settings->registration[0] != '\0' && settings->advertise[0] == '\0') {
        fprintf(stderr,
                "attn-node: --register needs --advertise: workers do not reach unix:/path\n");
        return PP_INVALID_ARGUMENT;
    }
    if (tls != (settings->tls_key_file[0] != '\0')) {
        fprintf(stderr, "attn-node: --tls-cert-file and --tls-key-file go together\n");
        return PP_INVALID_ARGUMENT;
    }
    if (tls && settings->tls_client_auth && settings->tls_ca_file[0] == '\0') {
        fprintf(stderr, "attn-node: give --tls-ca-file, or --tls-client-auth=false to accept "
                        "clients without a certificate\n");
        return PP_INVALID_ARGUMENT;
    }
    if (settings->index_tokens_min > settings->seal_tokens) {
        fprintf(stderr,
                "attn-node: --index-tokens-min=%llu is above --seal-tokens=%llu, so that no closed "
                "tail would ever be indexed: lower the one or raise the other\n",
                (unsigned long long)settings->index_tokens_min,
                (unsigned long long)settings->seal_tokens);
        return PP_INVALID_ARGUMENT;
    }
    if (!local && !tls && !settings->insecure) {
        fprintf(stderr,
                "attn-node: --listen=%s is reachable from other machines: give --tls-cert-file, "
                "--tls-key-file and --tls-ca-file, or --insecure to go without\n",
                settings->listen);
        return PP_INVALID_ARGUMENT;
    }
    return PP_OK;
}

enum pp_status an_settings_parse(int argc, char *const *argv, struct an_settings *settings_out,
                                 enum pp_options_outcome *outcome_out,
                                 struct pp_options **options_out)
{
    for (size_t index = 0; index < OPTION_COUNT; ++index) {
        if (options[index].target == &parsed.memory_limit) {
            options[index].whole = pp_memory_available_bytes();
        }
    }
    const struct pp_options_spec spec = {
        .program = "attn-node",
        .summary = "Holds keys and values of long sequences in memory and attends over them.",
        .examples = "  attn-node --memory-limit=64GiB\n"
                    "  attn-node --listen=127.0.0.1:0 --port-file=/tmp/node.port\n",
        .version = PP_VERSION " (" PP_COMMIT ")",
        .options = options,
        .option_count = OPTION_COUNT,
        .tolerate_foreign_environment = true,
        .check = settings_check,
        .check_context = &parsed,
    };
    PP_TRY(pp_options_parse(&spec, argc, argv, environ, stdout, stderr, outcome_out, options_out));
    *settings_out = parsed;
    return PP_OK;
}
