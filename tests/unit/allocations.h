/*
 * Counts what the program takes from the heap, on every thread, while counting is on: by functions
 * of malloc's names in the test program itself, which come before those of any library, or, where a
 * sanitizer owns them, by its hooks. For one test program each: it defines malloc.
 */
#ifndef PIGPEN_TESTS_UNIT_ALLOCATIONS_H
#define PIGPEN_TESTS_UNIT_ALLOCATIONS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define ALLOCATIONS_BY_HOOKS 1
#else
#define ALLOCATIONS_BY_HOOKS 0
#endif

static _Atomic uint64_t allocations;
static _Atomic bool allocations_counted;

static void allocations_note(void)
{
    if (atomic_load_explicit(&allocations_counted, memory_order_relaxed)) {
        atomic_fetch_add_explicit(&allocations, 1, memory_order_relaxed);
    }
}

#if ALLOCATIONS_BY_HOOKS

int __sanitizer_install_malloc_and_free_hooks(void (*on_malloc)(const volatile void *, size_t),
                                              void (*on_free)(const volatile void *));

static void allocations_on_malloc(const volatile void *memory, size_t bytes)
{
    (void)memory;
    (void)bytes;
    allocations_note();
}

static void allocations_on_free(const volatile void *memory)
{
    (void)memory;
}

static void allocations_init(void)
{
    if (__sanitizer_install_malloc_and_free_hooks(allocations_on_malloc, allocations_on_free) ==
        0) {
        abort();
    }
}

#else

#include <dlfcn.h>

void *mallocx(size_t bytes, int flags); /* jemalloc's, of the node's arenas */

/* The function of this name that would have been called: of jemalloc, or of the C library. */
static void *allocations_next(const char *name)
{
    void *found = dlsym(RTLD_NEXT, name);
    if (found == NULL) {
        abort();
    }
    return found;
}

void *malloc(size_t bytes)
{
    static void *(*next)(size_t);
    if (next == NULL) {
        *(void **)&next = allocations_next("malloc");
    }
    allocations_note();
    return next(bytes);
}

void *calloc(size_t count, size_t bytes)
{
    static void *(*next)(size_t, size_t);
    if (next == NULL) {
        *(void **)&next = allocations_next("calloc");
    }
    allocations_note();
    return next(count, bytes);
}

void *realloc(void *memory, size_t bytes)
{
    static void *(*next)(void *, size_t);
    if (next == NULL) {
        *(void **)&next = allocations_next("realloc");
    }
    allocations_note();
    return next(memory, bytes);
}

void *aligned_alloc(size_t alignment, size_t bytes)
{
    static void *(*next)(size_t, size_t);
    if (next == NULL) {
        *(void **)&next = allocations_next("aligned_alloc");
    }
    allocations_note();
    return next(alignment, bytes);
}

int posix_memalign(void **memory, size_t alignment, size_t bytes)
{
    static int (*next)(void **, size_t, size_t);
    if (next == NULL) {
        *(void **)&next = allocations_next("posix_memalign");
    }
    allocations_note();
    return next(memory, alignment, bytes);
}

void *mallocx(size_t bytes, int flags)
{
    static void *(*next)(size_t, int);
    if (next == NULL) {
        *(void **)&next = allocations_next("mallocx");
    }
    allocations_note();
    return next(bytes, flags);
}

static void allocations_init(void)
{
}

#endif

static void allocations_count(bool on)
{
    atomic_store_explicit(&allocations_counted, on, memory_order_relaxed);
}

/* The counter works: something is taken through each name that the product calls. */
static bool allocations_are_seen(void)
{
    void *volatile kept[3];
    uint64_t before = atomic_load(&allocations);
    allocations_count(true);
    kept[0] = malloc(10);
    kept[1] = calloc(1, 10);
    kept[2] = aligned_alloc(64, 64);
    allocations_count(false);
    for (int i = 0; i < 3; i++) {
        free(kept[i]);
    }
    return atomic_load(&allocations) == before + 3;
}

#endif
