/*
 * Arenas over jemalloc: indexes and scratch. One jemalloc arena each, whose extents are mapped here
 * so that they are bound to a NUMA node and asked to be huge. No thread caches: what is given back
 * counts as free at once. Addresses are kept until the arena ends: memory goes back by madvise.
 * What the blocks hold, it does not know.
 */
#include "common/mem/arena.h"

#include <jemalloc/jemalloc.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "common/base/assert.h"
#include "common/base/log.h"
#include "common/mem/numa.h"

#define ALIGNMENT_BYTES 64u
#define DECAY_MS        1000 /* scratch of one build is reused by the next, and gone soon after */

struct pp_arena {
    extent_hooks_t hooks; /* first: jemalloc hands it back to the hooks */
    unsigned index;
    int numa_node;
    enum pp_hugepages hugepages;
    bool ending; /* nothing of it is in use, and all memory went back */
    _Atomic uint64_t allocated;
};

static const struct pp_arena *arena_of(const extent_hooks_t *hooks)
{
    return (const struct pp_arena *)hooks;
}

static void *extent_alloc(extent_hooks_t *hooks, void *wanted, size_t bytes, size_t alignment,
                          bool *zero, bool *commit, unsigned index)
{
    (void)index;
    if (wanted != NULL) {
        return NULL; /* Never at a given place. */
    }
    const struct pp_arena *arena = arena_of(hooks);
    size_t unit = arena->hugepages != PP_HUGEPAGES_OFF && bytes >= PP_HUGE_PAGE_BYTES &&
                          alignment < PP_HUGE_PAGE_BYTES
                      ? PP_HUGE_PAGE_BYTES
                      : alignment;
    if (bytes + unit < bytes) {
        return NULL;
    }
    char *raw = mmap(NULL, bytes + unit, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (raw == MAP_FAILED) {
        return NULL;
    }
    size_t before = (unit - (uintptr_t)raw % unit) % unit;
    char *memory = raw + before;
    if (before > 0) {
        munmap(raw, before);
    }
    munmap(memory + bytes, unit - before);
    (void)pp_numa_bind(memory, bytes, arena->numa_node);
    if (unit >= PP_HUGE_PAGE_BYTES) {
        madvise(memory, bytes, MADV_HUGEPAGE);
    }
    *zero = true;
    *commit = true;
    return memory;
}

/* Not while it lives: extent_purge is asked then instead. jemalloc 5.3 tells arenas apart at the
 * head of a mapping only: were its middle unmapped, another arena's mapping could fill the hole,
 * and its tail would be merged with what follows here, under the lock of one of the two. */
static bool extent_dalloc(extent_hooks_t *hooks, void *memory, size_t bytes, bool committed,
                          unsigned index)
{
    (void)committed;
    (void)index;
    return !arena_of(hooks)->ending || munmap(memory, bytes) != 0;
}

static void extent_destroy(extent_hooks_t *hooks, void *memory, size_t bytes, bool committed,
                           unsigned index)
{
    (void)extent_dalloc(hooks, memory, bytes, committed, index);
}

static bool extent_purge(extent_hooks_t *hooks, void *memory, size_t bytes, size_t offset,
                         size_t length, unsigned index)
{
    (void)hooks;
    (void)bytes;
    (void)index;
    return madvise((char *)memory + offset, length, MADV_DONTNEED) != 0;
}

static bool extent_split(extent_hooks_t *hooks, void *memory, size_t bytes, size_t first,
                         size_t second, bool committed, unsigned index)
{
    (void)hooks;
    (void)memory;
    (void)bytes;
    (void)first;
    (void)second;
    (void)committed;
    (void)index;
    return false; /* Mappings can be cut anywhere. */
}

static bool extent_merge(extent_hooks_t *hooks, void *first, size_t first_bytes, void *second,
                         size_t second_bytes, bool committed, unsigned index)
{
    (void)hooks;
    (void)first;
    (void)first_bytes;
    (void)second;
    (void)second_bytes;
    (void)committed;
    (void)index;
    return false; /* So can neighbours of one mapping be joined. */
}

static enum pp_status set_decay(unsigned index, const char *name)
{
    char path[64];
    ssize_t decay_ms = DECAY_MS;
    snprintf(path, sizeof(path), "arena.%u.%s", index, name);
    return mallctl(path, NULL, NULL, &decay_ms, sizeof(decay_ms)) == 0 ? PP_OK : PP_INTERNAL;
}

/* Where false, jemalloc still knows the arena and its hooks. */
static bool end(struct pp_arena *arena)
{
    pp_arena_purge(arena);
    arena->ending = true;
    char path[64];
    snprintf(path, sizeof(path), "arena.%u.destroy", arena->index);
    return mallctl(path, NULL, NULL, NULL, 0) == 0;
}

enum pp_status pp_arena_new(int numa_node, enum pp_hugepages hugepages, struct pp_arena **arena_out)
{
    if (hugepages == PP_HUGEPAGES_REQUIRE && !pp_pages_huge_supported()) {
        PP_LOG_ERRORF("arena", "huge pages are required and not available", "");
        return PP_MEMORY;
    }
    struct pp_arena *arena = calloc(1, sizeof(*arena));
    if (arena == NULL) {
        return PP_MEMORY;
    }
    arena->hooks = (extent_hooks_t){.alloc = extent_alloc,
                                    .dalloc = extent_dalloc,
                                    .destroy = extent_destroy,
                                    .purge_forced = extent_purge,
                                    .split = extent_split,
                                    .merge = extent_merge};
    arena->numa_node = numa_node;
    arena->hugepages = hugepages;
    extent_hooks_t *hooks = &arena->hooks;
    size_t index_bytes = sizeof(arena->index);
    int failed = mallctl("arenas.create", &arena->index, &index_bytes, &hooks, sizeof(hooks));
    if (failed != 0) {
        PP_LOG_ERRORF("arena", "jemalloc makes no arena", "errno=%d", failed);
        goto err_arena;
    }
    if (set_decay(arena->index, "dirty_decay_ms") != PP_OK ||
        set_decay(arena->index, "muzzy_decay_ms") != PP_OK) {
        PP_LOG_ERRORF("arena", "jemalloc takes no decay time", "arena=%u", arena->index);
        goto err_arena_index;
    }
    *arena_out = arena;
    return PP_OK;

err_arena_index:
    (void)end(arena);
err_arena:
    free(arena);
    return PP_MEMORY;
}

void pp_arena_destroy(struct pp_arena *arena)
{
    if (arena == NULL) {
        return;
    }
    PP_ASSERT(atomic_load(&arena->allocated) == 0);
    if (!end(arena)) {
        PP_LOG_WARNF("arena", "jemalloc keeps the arena", "arena=%u", arena->index);
        return; /* Its hooks must outlive it. */
    }
    free(arena);
}

static int flags_of(const struct pp_arena *arena)
{
    return (int)(MALLOCX_ARENA(arena->index) | MALLOCX_TCACHE_NONE) |
           MALLOCX_ALIGN(ALIGNMENT_BYTES);
}

enum pp_status pp_arena_take(struct pp_arena *arena, uint64_t bytes, void **memory_out)
{
    if (bytes > UINT64_C(1) << 46) {
        return PP_MEMORY;
    }
    void *memory = mallocx(bytes > 0 ? bytes : 1, flags_of(arena));
    if (memory == NULL) {
        return PP_MEMORY;
    }
    atomic_fetch_add_explicit(&arena->allocated, bytes, memory_order_relaxed);
    *memory_out = memory;
    return PP_OK;
}

void pp_arena_give(struct pp_arena *arena, void *memory, uint64_t bytes)
{
    if (memory == NULL) {
        return;
    }
    uint64_t before = atomic_fetch_sub_explicit(&arena->allocated, bytes, memory_order_relaxed);
    PP_ASSERT(before >= bytes);
    dallocx(memory, flags_of(arena));
}

void pp_arena_purge(struct pp_arena *arena)
{
    char path[64];
    snprintf(path, sizeof(path), "arena.%u.purge", arena->index);
    (void)mallctl(path, NULL, NULL, NULL, 0);
}

static uint64_t read_stat(unsigned index, const char *name)
{
    char path[64];
    size_t value = 0;
    size_t value_bytes = sizeof(value);
    snprintf(path, sizeof(path), "stats.arenas.%u.%s", index, name);
    return mallctl(path, &value, &value_bytes, NULL, 0) == 0 ? value : 0;
}

void pp_arena_usage(const struct pp_arena *arena, uint64_t *allocated_out, uint64_t *mapped_out)
{
    uint64_t epoch = 1;
    size_t epoch_bytes = sizeof(epoch);
    (void)mallctl("epoch", &epoch, &epoch_bytes, &epoch, sizeof(epoch));
    *allocated_out =
        read_stat(arena->index, "small.allocated") + read_stat(arena->index, "large.allocated");
    *mapped_out = read_stat(arena->index, "resident");
}
