/*
 * The back of a GGUF file: every tensor's type, shape, bytes and place are checked, then its data
 * pointer is set. All sizes are products checked for overflow before anything uses them; data may
 * neither pass the end of the file nor overlap. Knows nothing of which tensors a model needs
 * (weights.c).
 */
#include "gpu-worker/model/gguf_internal.h"

#include <stdlib.h>
#include <string.h>

/* A dimension above this is no model's, and products of two stay below 2^62. */
#define DIM_MAX (1ull << 31)

struct type_facts {
    const char *name; /* NULL: no such type */
    uint32_t block_elements;
    uint32_t block_bytes; /* 0: known by name, but cannot be loaded */
};

static const struct type_facts TYPES[] = {
    [0] = {"F32", 1, 4},       [1] = {"F16", 1, 2},        [2] = {"Q4_0", 32, 18},
    [3] = {"Q4_1", 32, 20},    [6] = {"Q5_0", 32, 0},      [7] = {"Q5_1", 32, 0},
    [8] = {"Q8_0", 32, 34},    [9] = {"Q8_1", 32, 0},      [10] = {"Q2_K", 256, 0},
    [11] = {"Q3_K", 256, 0},   [12] = {"Q4_K", 256, 0},    [13] = {"Q5_K", 256, 0},
    [14] = {"Q6_K", 256, 0},   [15] = {"Q8_K", 256, 0},    [16] = {"IQ2_XXS", 256, 0},
    [17] = {"IQ2_XS", 256, 0}, [18] = {"IQ3_XXS", 256, 0}, [19] = {"IQ1_S", 256, 0},
    [20] = {"IQ4_NL", 32, 0},  [21] = {"IQ3_S", 256, 0},   [22] = {"IQ2_S", 256, 0},
    [23] = {"IQ4_XS", 256, 0}, [24] = {"I8", 1, 0},        [25] = {"I16", 1, 0},
    [26] = {"I32", 1, 0},      [27] = {"I64", 1, 0},       [28] = {"F64", 1, 0},
    [29] = {"IQ1_M", 256, 0},  [30] = {"BF16", 1, 2},      [34] = {"TQ1_0", 256, 0},
    [35] = {"TQ2_0", 256, 0},  [39] = {"MXFP4", 32, 0},
};

static enum pp_status find_type(struct gw_gguf_reader *reader, const struct gw_tensor *tensor,
                                const struct type_facts **facts_out)
{
    const uint32_t type = (uint32_t)tensor->type;
    const struct gw_gguf_printable name = gw_gguf_printable(tensor->name, strlen(tensor->name));
    if (type >= sizeof(TYPES) / sizeof(TYPES[0]) || TYPES[type].name == NULL) {
        return gw_gguf_fail(reader, "tensor '%s' has the unknown type %u", name.text, type);
    }
    if (TYPES[type].block_bytes == 0) {
        return gw_gguf_fail(reader,
                            "tensor '%s' is %s, which cannot be loaded (F32, F16, BF16, Q4_0, Q4_1 "
                            "and Q8_0 can)",
                            name.text, TYPES[type].name);
    }
    *facts_out = &TYPES[type];
    return PP_OK;
}

/* Fills bytes. */
static enum pp_status measure(struct gw_gguf_reader *reader, struct gw_tensor *tensor)
{
    const struct gw_gguf_printable name = gw_gguf_printable(tensor->name, strlen(tensor->name));
    const struct type_facts *facts = NULL;
    PP_TRY(find_type(reader, tensor, &facts));
    uint64_t elements = 1;
    for (uint32_t dim = 0; dim < tensor->dim_count; dim++) {
        const uint64_t count = tensor->dims[dim];
        if (count < 1 || count > DIM_MAX || __builtin_mul_overflow(elements, count, &elements) ||
            elements > INT64_MAX) {
            return gw_gguf_fail(reader,
                                "tensor '%s': dimension %u of %llu makes an impossible size",
                                name.text, dim, (unsigned long long)count);
        }
    }
    if (tensor->dims[0] % facts->block_elements != 0) {
        return gw_gguf_fail(reader, "tensor '%s': rows of %llu are no multiple of %s's block of %u",
                            name.text, (unsigned long long)tensor->dims[0], facts->name,
                            facts->block_elements);
    }
    if (__builtin_mul_overflow(elements / facts->block_elements, (uint64_t)facts->block_bytes,
                               &tensor->bytes)) {
        return gw_gguf_fail(reader, "tensor '%s' is of an impossible size", name.text);
    }
    return PP_OK;
}

static enum pp_status place(struct gw_gguf_reader *reader, const struct gw_gguf *gguf,
                            uint64_t data_start, struct gw_gguf_tensor_entry *entry)
{
    struct gw_tensor *tensor = &entry->tensor;
    const struct gw_gguf_printable name = gw_gguf_printable(tensor->name, strlen(tensor->name));
    if (entry->offset % gguf->alignment != 0) {
        return gw_gguf_fail(reader, "tensor '%s' lies at offset %llu, not a multiple of %llu",
                            name.text, (unsigned long long)entry->offset,
                            (unsigned long long)gguf->alignment);
    }
    const uint64_t room = gguf->bytes > data_start ? gguf->bytes - data_start : 0;
    if (tensor->bytes > room || entry->offset > room - tensor->bytes) {
        return gw_gguf_fail(reader,
                            "tensor '%s' needs %llu bytes at offset %llu, past the end of the file "
                            "(is the download complete?)",
                            name.text, (unsigned long long)tensor->bytes,
                            (unsigned long long)entry->offset);
    }
    tensor->data = gguf->data + data_start + entry->offset;
    return PP_OK;
}

static int offset_compare(const void *left, const void *right)
{
    const struct gw_gguf_tensor_entry *a = *(struct gw_gguf_tensor_entry *const *)left;
    const struct gw_gguf_tensor_entry *b = *(struct gw_gguf_tensor_entry *const *)right;
    return (a->offset > b->offset) - (a->offset < b->offset);
}

static int name_compare(const void *left, const void *right)
{
    const struct gw_gguf_tensor_entry *a = *(struct gw_gguf_tensor_entry *const *)left;
    const struct gw_gguf_tensor_entry *b = *(struct gw_gguf_tensor_entry *const *)right;
    return strcmp(a->name, b->name);
}

/* Leaves tensors_by_name sorted by name. */
static enum pp_status check_pairs(struct gw_gguf_reader *reader, struct gw_gguf *gguf)
{
    struct gw_gguf_tensor_entry **sorted = gguf->tensors_by_name;
    qsort(sorted, gguf->tensor_count, sizeof(struct gw_gguf_tensor_entry *), offset_compare);
    for (uint64_t index = 1; index < gguf->tensor_count; index++) {
        const struct gw_gguf_tensor_entry *before = sorted[index - 1];
        if (before->offset + before->tensor.bytes > sorted[index]->offset) {
            return gw_gguf_fail(
                reader, "tensors '%s' and '%s' overlap",
                gw_gguf_printable(before->name, strlen(before->name)).text,
                gw_gguf_printable(sorted[index]->name, strlen(sorted[index]->name)).text);
        }
    }
    qsort(sorted, gguf->tensor_count, sizeof(struct gw_gguf_tensor_entry *), name_compare);
    for (uint64_t index = 1; index < gguf->tensor_count; index++) {
        if (strcmp(sorted[index - 1]->name, sorted[index]->name) == 0) {
            return gw_gguf_fail(
                reader, "tensor '%s' stands there twice",
                gw_gguf_printable(sorted[index]->name, strlen(sorted[index]->name)).text);
        }
    }
    return PP_OK;
}

static enum pp_status read_alignment(struct gw_gguf_reader *reader, struct gw_gguf *gguf)
{
    gguf->alignment = GGUF_ALIGNMENT_DEFAULT;
    const struct gw_gguf_value *value = gw_gguf_find(gguf, "general.alignment");
    if (value == NULL) {
        return PP_OK;
    }
    if (value->type != GGUF_U32 || value->array) {
        return gw_gguf_fail(reader, "general.alignment is no 32-bit unsigned number");
    }
    uint32_t alignment = 0;
    memcpy(&alignment, value->data, sizeof(alignment));
    if (alignment < 8 || alignment > GGUF_ALIGNMENT_MAX || (alignment & (alignment - 1)) != 0) {
        return gw_gguf_fail(reader,
                            "general.alignment is %u (a power of two from 8 to %d is needed)",
                            alignment, GGUF_ALIGNMENT_MAX);
    }
    gguf->alignment = alignment;
    return PP_OK;
}

enum pp_status gw_gguf_check_tensors(struct gw_gguf_reader *reader, struct gw_gguf *gguf)
{
    PP_TRY(read_alignment(reader, gguf));
    const uint64_t data_start =
        (reader->position + gguf->alignment - 1) / gguf->alignment * gguf->alignment;
    for (uint64_t index = 0; index < gguf->tensor_count; index++) {
        PP_TRY(measure(reader, &gguf->tensors[index].tensor));
        PP_TRY(place(reader, gguf, data_start, &gguf->tensors[index]));
    }
    return check_pairs(reader, gguf);
}
