/*
 * pigpenctl: the operator's tool. Options, one channel to one node, one command.
 */
#include <stdio.h>
#include <stdlib.h>

#include "common/base/log.h"
#include "common/base/options.h"
#include "common/rpc/grpc_transport.h"
#include "common/rpc/security.h"
#include "deploy/ctl/ctl.h"

#define ANSWER_BYTES_MAX (16u << 20)

extern char **environ;

static const char *const command_names[] = {"health",   "info", "stats", "parts",
                                            "selftest", "tune", NULL};
static enum ctl_exit (*const commands[])(struct ctl *ctl) = {ctl_health, ctl_info,     ctl_stats,
                                                             ctl_parts,  ctl_selftest, ctl_tune};

static struct ctl ctl;
static int command;

static const struct pp_option options[] = {
    {.name = "command",
     .kind = PP_OPTION_CHOICE,
     .target = &command,
     .choices = command_names,
     .positional = true,
     .group = "Command",
     .help =
         "health: is the node serving? info: what runs there. stats: its counters (table: "
         "those that are not 0). parts: what it holds. selftest: let it attend a fixture now. "
         "tune: what a part's layers need for a target error, by its own late queries (waits 10 "
         "minutes at least)."},
    {.name = "node",
     .kind = PP_OPTION_TEXT,
     .target = &ctl.node,
     .default_text = "127.0.0.1:7450",
     .value_name = "ADDRESS",
     .group = "Node",
     .help = "gRPC address of the node: host:port or unix:/path.",
     .short_name = 'n'},
    {.name = "timeout",
     .kind = PP_OPTION_DURATION,
     .target = &ctl.timeout_us,
     .default_text = "5s",
     .value_name = "TIME",
     .group = "Node",
     .min = 1000,
     .help = "How long to wait for an answer."},
    {.name = "service",
     .kind = PP_OPTION_TEXT,
     .target = &ctl.service,
     .default_text = "",
     .value_name = "NAME",
     .group = "Node",
     .help = "health: the service asked after. Empty: the whole node."},
    {.name = "part",
     .kind = PP_OPTION_TEXT,
     .target = &ctl.part,
     .default_text = "",
     .value_name = "HANDLE",
     .group = "Tuning",
     .help = "tune: the part, as parts shows it. Empty: the only one there."},
    {.name = "target-error",
     .kind = PP_OPTION_DOUBLE,
     .target = &ctl.target_error,
     .default_text = "0.1",
     .value_name = "E",
     .group = "Tuning",
     .number_max = 1.0,
     .help = "tune: how far an answer may be off, relative to its size."},
    {.name = "json",
     .kind = PP_OPTION_BOOL,
     .target = &ctl.json,
     .default_text = "false",
     .group = "Output",
     .help = "One JSON object instead of a table."},
    {.name = "tls-ca-file",
     .kind = PP_OPTION_TEXT,
     .target = &ctl.tls_ca_file,
     .default_text = "",
     .value_name = "PATH",
     .group = "Security",
     .help = "PEM authorities that the node's certificate must come from. Turns TLS on."},
    {.name = "tls-cert-file",
     .kind = PP_OPTION_TEXT,
     .target = &ctl.tls_cert_file,
     .default_text = "",
     .value_name = "PATH",
     .group = "Security",
     .help = "PEM certificate of this client."},
    {.name = "tls-key-file",
     .kind = PP_OPTION_TEXT,
     .target = &ctl.tls_key_file,
     .default_text = "",
     .value_name = "PATH",
     .group = "Security",
     .help = "PEM key of the certificate."},
    {.name = "tls-server-name",
     .kind = PP_OPTION_TEXT,
     .target = &ctl.tls_server_name,
     .default_text = "",
     .value_name = "NAME",
     .group = "Security",
     .help = "Name that the node's certificate carries, where the address is not in it."},
};

/* Without an authority there is no TLS, and a certificate given would go unused without a word. */
static enum pp_status check(void *context)
{
    (void)context;
    bool given = ctl.tls_cert_file[0] != '\0' || ctl.tls_key_file[0] != '\0' ||
                 ctl.tls_server_name[0] != '\0';
    if (given && ctl.tls_ca_file[0] == '\0') {
        fprintf(stderr, "pigpenctl: --tls-cert-file, --tls-key-file and --tls-server-name need "
                        "--tls-ca-file, the authority of the node's certificate\n");
        return PP_INVALID_ARGUMENT;
    }
    return PP_OK;
}

static const struct pp_options_spec spec = {
    .program = "pigpenctl",
    .summary = "Asks an attention node how it is.",
    .examples = "  pigpenctl health\n"
                "  pigpenctl info --node=10.0.0.7:7450 --json\n"
                "  pigpenctl tune --node=10.0.0.7:7450 --target-error=0.1\n"
                "\n"
                "Exit code: 0 good, 1 the node says it is not, 2 wrong usage, 3 no answer,\n"
                "4 the node refused.\n",
    .version = PP_VERSION " (" PP_COMMIT ")",
    .options = options,
    .option_count = sizeof(options) / sizeof(options[0]),
    .tolerate_foreign_environment = true,
    .check = check,
};

static const char *or_null(const char *text)
{
    return text[0] != '\0' ? text : NULL;
}

static enum pp_status connect_node(struct pp_tls **tls_out)
{
    if (ctl.tls_ca_file[0] != '\0') {
        const struct pp_tls_config config = {
            .ca_file = ctl.tls_ca_file,
            .cert_file = or_null(ctl.tls_cert_file),
            .key_file = or_null(ctl.tls_key_file),
            .server_name = or_null(ctl.tls_server_name),
        };
        PP_TRY(pp_tls_new(&config, tls_out));
    }
    const struct pp_grpc_config grpc = {.clock = pp_clock_system()};
    PP_TRY(pp_grpc_transport_new(&grpc, &ctl.transport));
    PP_TRY(pp_codec_arena_init(&ctl.arena, ANSWER_BYTES_MAX));
    return ctl.transport->ops->channel_open(ctl.transport, ctl.node, PP_CHANNEL_LATENCY, *tls_out,
                                            &ctl.channel);
}

static void disconnect(struct pp_tls *tls)
{
    if (ctl.channel != NULL) {
        ctl.transport->ops->channel_close(ctl.channel);
    }
    if (ctl.transport != NULL) {
        ctl.transport->ops->destroy(ctl.transport);
    }
    pp_codec_arena_deinit(&ctl.arena);
    if (tls != NULL) {
        pp_tls_destroy(tls);
    }
}

int main(int argc, char **argv)
{
    enum pp_options_outcome outcome;
    struct pp_options *parsed = NULL;
    if (pp_options_parse(&spec, argc, argv, environ, stdout, stderr, &outcome, &parsed) != PP_OK) {
        return CTL_USAGE;
    }
    if (outcome == PP_OPTIONS_EXIT_0) {
        return EXIT_SUCCESS;
    }
    pp_log_configure(PP_LOG_ERROR, PP_LOG_TEXT);
    struct pp_tls *tls = NULL;
    enum pp_status status = connect_node(&tls);
    enum ctl_exit code = CTL_USAGE;
    if (status == PP_OK) {
        code = commands[command](&ctl);
    } else {
        fprintf(stderr, "pigpenctl: cannot set up a connection to %s: %s\n", ctl.node,
                pp_status_name(status));
    }
    disconnect(tls);
    pp_options_destroy(parsed);
    return (int)code;
}
