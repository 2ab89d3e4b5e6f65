/*
 * Arenas of sanitizer builds: every block from the sanitizer's allocator, which sees each byte past
 * an end and each use after a give. NUMA nodes and huge pages mean nothing here.
 */
#include "common/mem/arena.h"

#include <stdatomic.h>
#include <stdlib.h>

#include "common/base/assert.h"

#define ALIGNMENT_BYTES 64u
#define BYTES_MAX       (UINT64_C(1) << 38) /* the sanitizers end the process above 2^40 */

struct pp_arena {
    _Atomic uint64_t allocated;
};

enum pp_status pp_arena_new(int numa_node, enum pp_hugepages hugepages, struct pp_arena **arena_out)
{
    (void)numa_node;
    (void)hugepages;
    struct pp_arena *arena = calloc(1, sizeof(*arena));
    if (arena == NULL) {
        return PP_MEMORY;
    }
    *arena_out = arena;
    return PP_OK;
}

void pp_arena_destroy(struct pp_arena *arena)
{
    if (arena == NULL) {
        return;
    }
    PP_ASSERT(atomic_load(&arena->allocated) == 0);
    free(arena);
}

enum pp_status pp_arena_take(struct pp_arena *arena, uint64_t bytes, void **memory_out)
{
    void *memory;
    if (bytes > BYTES_MAX || posix_memalign(&memory, ALIGNMENT_BYTES, bytes > 0 ? bytes : 1) != 0) {
        return PP_MEMORY;
    }
    atomic_fetch_add(&arena->allocated, bytes);
    *memory_out = memory;
    return PP_OK;
}

void pp_arena_give(struct pp_arena *arena, void *memory, uint64_t bytes)
{
    if (memory == NULL) {
        return;
    }
    uint64_t before = atomic_fetch_sub(&arena->allocated, bytes);
    PP_ASSERT(before >= bytes);
    free(memory);
}

void pp_arena_purge(struct pp_arena *arena)
{
    (void)arena;
}

void pp_arena_usage(const struct pp_arena *arena, uint64_t *allocated_out, uint64_t *mapped_out)
{
    *allocated_out = atomic_load(&arena->allocated);
    *mapped_out = *allocated_out;
}
