/*
 * Opens the CUDA driver and turns its results into statuses: the one place that knows their
 * numbers. It refuses to know what is computed.
 */
#include "gpu-worker/device/cuda/driver.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "common/base/log.h"

#define DRIVER_LIBRARY "libcuda.so.1"

enum pp_status gw_cuda_symbols(void *library, const struct gw_cuda_symbol *symbols, size_t count,
                               void *table_out, const char **missing_out)
{
    for (size_t i = 0; i < count; i++) {
        void *function = dlsym(library, symbols[i].name);
        if (function == NULL) {
            *missing_out = symbols[i].name;
            return PP_UNAVAILABLE;
        }
        memcpy((char *)table_out + symbols[i].offset, &function, sizeof(function));
    }
    return PP_OK;
}

enum pp_status gw_cuda_driver_open(char *error_out, size_t error_bytes,
                                   const struct gw_cuda_driver **driver_out)
{
    static struct gw_cuda_driver driver;
    static const struct gw_cuda_symbol symbols[] = {
#define DRIVER_SYMBOL(member, symbol, arguments) {#symbol, offsetof(struct gw_cuda_driver, member)},
        GW_CUDA_DRIVER_FUNCTIONS(DRIVER_SYMBOL)
#undef DRIVER_SYMBOL
    };
    if (driver.init != NULL) {
        *driver_out = &driver;
        return PP_OK;
    }
    void *library = dlopen(DRIVER_LIBRARY, RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) {
        snprintf(error_out, error_bytes, "the CUDA driver %s cannot be opened: %s", DRIVER_LIBRARY,
                 dlerror());
        return PP_UNAVAILABLE;
    }
    const char *missing;
    struct gw_cuda_driver found;
    if (gw_cuda_symbols(library, symbols, sizeof(symbols) / sizeof(symbols[0]), &found, &missing) !=
        PP_OK) {
        snprintf(error_out, error_bytes, "the CUDA driver %s lacks %s: it is too old",
                 DRIVER_LIBRARY, missing);
        dlclose(library);
        return PP_UNAVAILABLE;
    }
    driver = found; /* kept: what it gave out refers to it */
    *driver_out = &driver;
    return PP_OK;
}

void gw_cuda_describe(const struct gw_cuda_driver *driver, unsigned result, char *text_out,
                      size_t text_bytes)
{
    const char *name = NULL, *text = NULL;
    if (driver->error_name(result, &name) != GW_CUDA_SUCCESS || name == NULL ||
        driver->error_text(result, &text) != GW_CUDA_SUCCESS || text == NULL) {
        snprintf(text_out, text_bytes, "CUDA error %u", result);
        return;
    }
    snprintf(text_out, text_bytes, "%s (%s)", name, text);
}

enum pp_status gw_cuda_status(const struct gw_cuda_driver *driver, unsigned result,
                              const char *what)
{
    if (result == GW_CUDA_SUCCESS) {
        return PP_OK;
    }
    char text[256];
    gw_cuda_describe(driver, result, text, sizeof(text));
    PP_LOG_ERRORF("device", "CUDA call failed", "what=%s error=\"%s\"", what, text);
    if (result == GW_CUDA_OUT_OF_MEMORY) {
        return PP_MEMORY;
    }
    return result == GW_CUDA_NO_DEVICE ? PP_UNAVAILABLE : PP_INTERNAL;
}
