/*
 * Opens the device that a worker computes on. On the walk: beside worker. It refuses to know what
 * is computed.
 */
#include "gpu-worker/api/worker_device.h"

#include <stdlib.h>
#include <string.h>

#include "gpu-worker/device/cuda/device_cuda.h"

size_t gw_worker_device_options(struct gw_worker_options *options, struct pp_option *table_out)
{
    const struct pp_option table[] = {
        {.name = "device",
         .kind = PP_OPTION_TEXT,
         .target = &options->device,
         .group = "Model",
         .default_text = "host",
         .value_name = "DEVICE",
         .help = "What computes: host (this machine's processors), or cuda or cuda:N (GPU number "
                 "N, the first without one), in builds that have it."},
        {.name = "no-device-graphs",
         .kind = PP_OPTION_BOOL,
         .target = &options->no_device_graphs,
         .group = "Model",
         .default_text = "false",
         .help = "Start every operation of a step by itself. Without it a GPU starts those between "
                 "two answers of nodes at once. The results are the same."},
        {.name = "threads",
         .kind = PP_OPTION_U64,
         .target = &options->threads,
         .group = "Model",
         .default_text = "0",
         .value_name = "N",
         .max = 1024,
         .help = "Threads that compute. 0: as many as this process may use."},
    };
    memcpy(table_out, table, sizeof(table));
    return sizeof(table) / sizeof(table[0]);
}

/* Whether the text (NULL: host) names a device; of a GPU its number. */
static bool device_parse(const char *text, bool *cuda_out, uint32_t *ordinal_out)
{
    *cuda_out = text != NULL && strncmp(text, "cuda", 4) == 0;
    *ordinal_out = 0;
    if (!*cuda_out) {
        return text == NULL || strcmp(text, "host") == 0;
    }
    if (text[4] == '\0') {
        return true;
    }
    const char *digits = text + 5;
    size_t length = strlen(digits);
    if (text[4] != ':' || length == 0 || length > 4 || strspn(digits, "0123456789") != length) {
        return false;
    }
    *ordinal_out = (uint32_t)strtoul(digits, NULL, 10);
    return true;
}

enum pp_status gw_worker_device_check(const struct gw_worker_options *options, FILE *errors)
{
    bool cuda;
    uint32_t ordinal;
    if (!device_parse(options->device, &cuda, &ordinal)) {
        fprintf(errors, "--device: '%s' is none; there are host, cuda and cuda:N\n",
                options->device);
        return PP_INVALID_ARGUMENT;
    }
    return PP_OK;
}

enum pp_status gw_worker_device_open(const struct gw_worker_options *options, FILE *errors,
                                     struct gw_device **device_out)
{
    bool cuda;
    uint32_t ordinal;
    char error[512] = "";
    PP_TRY(gw_worker_device_check(options, errors));
    (void)device_parse(options->device, &cuda, &ordinal);
    if (!cuda) {
        return gw_host_device_new((uint32_t)options->threads, device_out);
    }
    enum pp_status status = gw_cuda_device_new(ordinal, error, sizeof(error), device_out);
    if (status != PP_OK) {
        fprintf(errors, "cannot use the device %s: %s\n", options->device,
                error[0] == '\0' ? pp_status_name(status) : error);
    }
    return status;
}
