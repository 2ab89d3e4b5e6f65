/*
 * Device memory: blocks of the driver, kept when they are given back and used again for requests of
 * about their size, for taking and freeing them stops the GPU. Work that was queued on a block runs
 * before what its next owner queues on the same stream. It refuses to know what lies in them.
 */
#include <stdlib.h>

#include "common/base/assert.h"
#include "common/base/log.h"
#include "gpu-worker/device/cuda/internal.h"

static struct gw_cuda_block *block_of(struct gw_cuda_device *cuda, gw_cuda_pointer pointer)
{
    for (uint32_t i = 0; i < cuda->block_count; i++) {
        if (cuda->blocks[i].pointer == pointer) {
            return &cuda->blocks[i];
        }
    }
    return NULL;
}

/* The smallest free one that is large enough and not more than a quarter too large. */
static struct gw_cuda_block *block_free(struct gw_cuda_device *cuda, uint64_t bytes)
{
    struct gw_cuda_block *best = NULL;
    for (uint32_t i = 0; i < cuda->block_count; i++) {
        struct gw_cuda_block *block = &cuda->blocks[i];
        bool fits = !block->used && block->bytes >= bytes && block->bytes <= bytes + bytes / 4;
        if (fits && (best == NULL || block->bytes < best->bytes)) {
            best = block;
        }
    }
    return best;
}

static void blocks_drop_free(struct gw_cuda_device *cuda)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < cuda->block_count; i++) {
        if (cuda->blocks[i].used) {
            cuda->blocks[kept++] = cuda->blocks[i];
        } else {
            (void)cuda->driver->free(cuda->blocks[i].pointer);
        }
    }
    cuda->block_count = kept;
}

static enum pp_status blocks_reserve(struct gw_cuda_device *cuda)
{
    if (cuda->block_count < cuda->block_capacity) {
        return PP_OK;
    }
    uint32_t capacity = cuda->block_capacity * 2 + 64;
    struct gw_cuda_block *blocks = realloc(cuda->blocks, capacity * sizeof(*blocks));
    if (blocks == NULL) {
        return PP_MEMORY;
    }
    cuda->blocks = blocks;
    cuda->block_capacity = capacity;
    return PP_OK;
}

enum pp_status gw_cuda_alloc(struct gw_device *device, uint64_t bytes, void **memory_out)
{
    struct gw_cuda_device *cuda = gw_cuda_device(device);
    bytes = bytes == 0 ? 1 : bytes;
    struct gw_cuda_block *block = block_free(cuda, bytes);
    if (block == NULL) {
        gw_cuda_pointer pointer = 0;
        PP_TRY(blocks_reserve(cuda));
        unsigned result = cuda->driver->alloc(&pointer, bytes);
        if (result == GW_CUDA_OUT_OF_MEMORY) {
            blocks_drop_free(cuda);
            result = cuda->driver->alloc(&pointer, bytes);
        }
        enum pp_status status = gw_cuda_status(cuda->driver, result, "alloc");
        if (status != PP_OK) {
            PP_LOG_ERRORF("device", "no memory on the GPU", "bytes=%llu",
                          (unsigned long long)bytes);
            return status;
        }
        block = &cuda->blocks[cuda->block_count++];
        *block = (struct gw_cuda_block){.pointer = pointer, .bytes = bytes};
    }
    block->used = true;
    *memory_out = (void *)(uintptr_t)block->pointer;
    return PP_OK;
}

void gw_cuda_free(struct gw_device *device, void *memory)
{
    if (memory == NULL) {
        return;
    }
    struct gw_cuda_block *block = block_of(gw_cuda_device(device), gw_cuda_pointer_of(memory));
    PP_ASSERT(block != NULL && block->used);
    block->used = false;
}

enum pp_status gw_cuda_import(struct gw_device *device, const void *data, uint64_t bytes,
                              const void **memory_out)
{
    void *memory;
    PP_TRY(gw_cuda_alloc(device, bytes, &memory));
    enum pp_status status = gw_cuda_copy_in(device, NULL, memory, data, bytes);
    if (status != PP_OK) {
        gw_cuda_free(device, memory);
        return status;
    }
    *memory_out = memory;
    return PP_OK;
}

void gw_cuda_release(struct gw_device *device, const void *memory)
{
    gw_cuda_free(device, (void *)(uintptr_t)memory);
}

void gw_cuda_blocks_deinit(struct gw_cuda_device *cuda)
{
    for (uint32_t i = 0; i < cuda->block_count; i++) {
        cuda->blocks[i].used = false;
    }
    blocks_drop_free(cuda);
    free(cuda->blocks);
    cuda->blocks = NULL;
}
