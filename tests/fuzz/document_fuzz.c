/*
 * The manifest of a saved document from hostile bytes: refused with a cause, or of bounds that hold
 * and, rendered again, the same.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/assert.h"
#include "gpu-worker/api/document_manifest.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static struct gw_document_manifest first, second;

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char error[256] = "", *text;
    if (gw_document_manifest_parse((const char *)data, size, &first, error, sizeof(error)) !=
        PP_OK) {
        PP_ASSERT(error[0] != '\0');
        return 0;
    }
    PP_ASSERT(first.tokens > 0 && first.tokens <= PP_TOKENS_PER_PART_MAX);
    PP_ASSERT(pp_shape_check(&first.shape) == PP_OK);
    PP_ASSERT(gw_document_manifest_render(&first, &text) == PP_OK);
    PP_ASSERT(gw_document_manifest_parse(text, strlen(text), &second, error, sizeof(error)) ==
              PP_OK);
    PP_ASSERT(memcmp(&first, &second, sizeof(first)) == 0);
    free(text);
    return 0;
}
