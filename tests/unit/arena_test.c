/*
 * Arenas: alignment, accounts, threads, and memory that goes back.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "common/base/rng.h"
#include "common/mem/arena.h"

#define BLOCKS 64
#define PAGE   4096u

static void blocks_are_aligned_apart_and_usable(void **state)
{
    (void)state;
    struct pp_arena *arena;
    unsigned char *blocks[BLOCKS];
    uint64_t bytes[BLOCKS];
    assert_int_equal(pp_arena_new(-1, PP_HUGEPAGES_TRY, &arena), PP_OK);
    for (int index = 0; index < BLOCKS; ++index) {
        void *memory;
        bytes[index] =
            index == 0 ? 0 : pp_rng_at(1, (uint64_t)index) % (index % 8 == 0 ? 4u << 20 : 5000);
        assert_int_equal(pp_arena_take(arena, bytes[index], &memory), PP_OK);
        assert_int_equal((uintptr_t)memory % 64, 0);
        memset(memory, index, bytes[index]);
        blocks[index] = memory;
    }
    for (int index = 0; index < BLOCKS; ++index) {
        for (uint64_t at = 0; at < bytes[index]; at += 97) {
            assert_int_equal(blocks[index][at], index);
        }
        pp_arena_give(arena, blocks[index], bytes[index]);
    }
    pp_arena_give(arena, NULL, 0);
    pp_arena_destroy(arena);
    pp_arena_destroy(NULL);
}

static void usage_follows_what_is_taken(void **state)
{
    (void)state;
    struct pp_arena *arena;
    void *memory;
    uint64_t allocated = 1;
    uint64_t mapped;
    uint64_t bytes = 32u << 20;
    assert_int_equal(pp_arena_new(-1, PP_HUGEPAGES_OFF, &arena), PP_OK);
    pp_arena_usage(arena, &allocated, &mapped);
    assert_int_equal(allocated, 0);
    assert_int_equal(pp_arena_take(arena, bytes, &memory), PP_OK);
    memset(memory, 1, bytes);
    pp_arena_usage(arena, &allocated, &mapped);
    assert_true(allocated >= bytes && allocated < bytes + bytes / 4);
    assert_true(mapped >= allocated);
    pp_arena_give(arena, memory, bytes);
    pp_arena_usage(arena, &allocated, &mapped);
    assert_int_equal(allocated, 0);
    pp_arena_purge(arena);
    pp_arena_usage(arena, &allocated, &mapped);
    assert_true(mapped < 1u << 20);
    pp_arena_destroy(arena);
}

static void arenas_are_separate_and_bound_where_they_can_be(void **state)
{
    (void)state;
    struct pp_arena *arenas[2];
    void *memory[2];
    uint64_t allocated;
    uint64_t mapped;
    for (int index = 0; index < 2; ++index) {
        assert_int_equal(pp_arena_new(0, PP_HUGEPAGES_TRY, &arenas[index]), PP_OK);
    }
    assert_int_equal(pp_arena_take(arenas[0], 3u << 20, &memory[0]), PP_OK);
    assert_int_equal(pp_arena_take(arenas[1], 100, &memory[1]), PP_OK);
    pp_arena_usage(arenas[1], &allocated, &mapped);
    assert_true(allocated >= 100 && allocated < 1000);
    pp_arena_give(arenas[0], memory[0], 3u << 20);
    pp_arena_give(arenas[1], memory[1], 100);
    for (int index = 0; index < 2; ++index) {
        pp_arena_destroy(arenas[index]);
    }
}

static void impossible_sizes_are_refused(void **state)
{
    (void)state;
    struct pp_arena *arena;
    void *memory = NULL;
    assert_int_equal(pp_arena_new(-1, PP_HUGEPAGES_OFF, &arena), PP_OK);
    assert_int_equal(pp_arena_take(arena, UINT64_MAX, &memory), PP_MEMORY);
    assert_int_equal(pp_arena_take(arena, UINT64_MAX - 63, &memory), PP_MEMORY);
    assert_int_equal(pp_arena_take(arena, UINT64_C(1) << 60, &memory), PP_MEMORY);
    assert_null(memory);
    pp_arena_destroy(arena);
}

static void *take_and_give(void *argument)
{
    struct pp_arena *arena = argument;
    for (uint64_t round = 0; round < 2000; ++round) {
        void *memory;
        uint64_t bytes = 1 + pp_rng_at(5, round) % 20000;
        if (pp_arena_take(arena, bytes, &memory) != PP_OK) {
            return arena;
        }
        memset(memory, 1, bytes);
        pp_arena_give(arena, memory, bytes);
    }
    return NULL;
}

static void threads_may_share_an_arena(void **state)
{
    (void)state;
    struct pp_arena *arena;
    pthread_t threads[4];
    assert_int_equal(pp_arena_new(-1, PP_HUGEPAGES_TRY, &arena), PP_OK);
    for (int index = 0; index < 4; ++index) {
        assert_int_equal(pthread_create(&threads[index], NULL, take_and_give, arena), 0);
    }
    for (int index = 0; index < 4; ++index) {
        void *failed;
        assert_int_equal(pthread_join(threads[index], &failed), 0);
        assert_null(failed);
    }
    pp_arena_destroy(arena);
}

static void skip_where_a_sanitizer_allocates(void)
{
    if (dlsym(RTLD_DEFAULT, "mallocx") == NULL) {
        print_message("skipped: a sanitizer's allocator is used here, which no arena shares\n");
        skip();
    }
}

/* Where the process's own allocator could map between an arena's blocks, it would take some of them
 * for its own. */
static void what_is_purged_keeps_its_addresses(void **state)
{
    (void)state;
    skip_where_a_sanitizer_allocates();
    struct pp_arena *arena;
    void *blocks[3];
    unsigned char resident[1];
    assert_int_equal(pp_arena_new(-1, PP_HUGEPAGES_OFF, &arena), PP_OK);
    for (int index = 0; index < 3; ++index) {
        assert_int_equal(pp_arena_take(arena, 4u << 20, &blocks[index]), PP_OK);
        memset(blocks[index], 1, 4u << 20);
    }
    pp_arena_give(arena, blocks[1], 4u << 20);
    pp_arena_purge(arena);
    char *page = (char *)blocks[1] - (uintptr_t)blocks[1] % PAGE;
    assert_int_equal(mincore(page, PAGE, resident), 0); /* ENOMEM where nothing is mapped */
    assert_int_equal(resident[0] & 1, 0);
    pp_arena_give(arena, blocks[0], 4u << 20);
    pp_arena_give(arena, blocks[2], 4u << 20);
    pp_arena_destroy(arena);
}

static uint64_t pages_mapped(void)
{
    FILE *file = fopen("/proc/self/statm", "r");
    unsigned long pages = 0;
    assert_non_null(file);
    assert_int_equal(fscanf(file, "%lu", &pages), 1);
    fclose(file);
    return pages;
}

static void an_arena_that_ended_leaves_no_addresses(void **state)
{
    (void)state;
    skip_where_a_sanitizer_allocates();
    uint64_t before = 0;
    for (int round = 0; round < 200; ++round) {
        struct pp_arena *arena;
        void *memory;
        assert_int_equal(pp_arena_new(-1, PP_HUGEPAGES_TRY, &arena), PP_OK);
        assert_int_equal(pp_arena_take(arena, 1u << 20, &memory), PP_OK);
        pp_arena_give(arena, memory, 1u << 20);
        pp_arena_destroy(arena);
        before = round == 20 ? pages_mapped() : before;
    }
    assert_true(pages_mapped() < before + (100u << 20) / PAGE);
}

/* Blocks of malloc, each full of its number, come and go. Of a new thread, so that a new arena of
 * the process's own maps. */
static void *fill_and_free(void *argument)
{
    uint64_t seed = *(const uint64_t *)argument;
    unsigned char *blocks[BLOCKS] = {NULL};
    uint64_t bytes[BLOCKS];
    void *failed = NULL;
    for (uint64_t round = 0; round < 2000 && failed == NULL; ++round) {
        uint64_t draw = pp_rng_at(seed, round);
        uint64_t at = draw % BLOCKS;
        if (blocks[at] == NULL) {
            bytes[at] = 1 + (draw >> 20) % 300000;
            blocks[at] = malloc(bytes[at]);
            memset(blocks[at], (int)at, bytes[at]);
            continue;
        }
        failed = blocks[at][(draw >> 20) % bytes[at]] == at ? NULL : argument;
        free(blocks[at]);
        blocks[at] = NULL;
    }
    for (int index = 0; index < BLOCKS; ++index) {
        free(blocks[index]);
    }
    return failed;
}

static void give_about_half(struct pp_arena *arena, unsigned char **blocks, const uint64_t *bytes,
                            uint64_t seed)
{
    for (uint64_t at = 0; at < BLOCKS; ++at) {
        if (blocks[at] != NULL && pp_rng_at(seed, at) % 2 == 0) {
            assert_int_equal(blocks[at][bytes[at] / 2], at);
            pp_arena_give(arena, blocks[at], bytes[at]);
            blocks[at] = NULL;
        }
    }
}

static void the_allocator_of_the_process_goes_on_beside_arenas(void **state)
{
    (void)state;
    skip_where_a_sanitizer_allocates();
    struct pp_arena *arena;
    unsigned char *blocks[BLOCKS] = {NULL};
    uint64_t bytes[BLOCKS];
    assert_int_equal(pp_arena_new(-1, PP_HUGEPAGES_TRY, &arena), PP_OK);
    for (uint64_t round = 0; round < 20; ++round) {
        for (uint64_t at = 0; at < BLOCKS; ++at) {
            void *memory = blocks[at];
            if (memory == NULL) {
                bytes[at] = 1 + pp_rng_at(round, at) % (3u << 20);
                assert_int_equal(pp_arena_take(arena, bytes[at], &memory), PP_OK);
                memset(memory, (int)at, bytes[at]);
                blocks[at] = memory;
            }
        }
        give_about_half(arena, blocks, bytes, 100 + round);
        pp_arena_purge(arena);
        pthread_t threads[4];
        uint64_t seeds[4];
        for (int index = 0; index < 4; ++index) {
            seeds[index] = 4 * round + (uint64_t)index;
            assert_int_equal(pthread_create(&threads[index], NULL, fill_and_free, &seeds[index]),
                             0);
        }
        give_about_half(arena, blocks, bytes, 200 + round);
        for (int index = 0; index < 4; ++index) {
            void *failed;
            assert_int_equal(pthread_join(threads[index], &failed), 0);
            assert_null(failed);
        }
    }
    for (int index = 0; index < BLOCKS; ++index) {
        pp_arena_give(arena, blocks[index], bytes[index]);
    }
    pp_arena_destroy(arena);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(blocks_are_aligned_apart_and_usable),
        cmocka_unit_test(usage_follows_what_is_taken),
        cmocka_unit_test(arenas_are_separate_and_bound_where_they_can_be),
        cmocka_unit_test(impossible_sizes_are_refused),
        cmocka_unit_test(threads_may_share_an_arena),
        cmocka_unit_test(what_is_purged_keeps_its_addresses),
        cmocka_unit_test(an_arena_that_ended_leaves_no_addresses),
        cmocka_unit_test(the_allocator_of_the_process_goes_on_beside_arenas),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
