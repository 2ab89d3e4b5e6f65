/*
 * Pages: nothing usable before a commit, nothing resident before a touch, zero after a decommit.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdbool.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "common/base/log.h"
#include "common/mem/pages.h"

/* Whether a byte can be read: a write(2) from it into a pipe fails instead of killing. */
static bool readable(const char *at)
{
    int ends[2];
    assert_int_equal(pipe(ends), 0);
    bool read = write(ends[1], at, 1) == 1;
    close(ends[0]);
    close(ends[1]);
    return read;
}

static uint64_t resident_pages(char *base, uint64_t bytes)
{
    static unsigned char flags[16384];
    uint64_t pages = bytes / PP_PAGE_BYTES;
    uint64_t resident = 0;
    assert_true(pages <= sizeof(flags));
    assert_int_equal(mincore(base, bytes, flags), 0);
    for (uint64_t page = 0; page < pages; ++page) {
        resident += flags[page] & 1;
    }
    return resident;
}

static void only_what_was_committed_is_usable(void **state)
{
    (void)state;
    void *base;
    assert_int_equal(pp_pages_reserve(10 * PP_PAGE_BYTES, &base), PP_OK);
    char *bytes = base;
    assert_false(readable(bytes));
    assert_int_equal(pp_pages_commit(base, 2 * PP_PAGE_BYTES, 4 * PP_PAGE_BYTES, PP_HUGEPAGES_OFF),
                     PP_OK);
    assert_false(readable(bytes + 2 * PP_PAGE_BYTES - 1));
    assert_false(readable(bytes + 4 * PP_PAGE_BYTES));
    for (uint64_t at = 2 * PP_PAGE_BYTES; at < 4 * PP_PAGE_BYTES; ++at) {
        assert_int_equal(bytes[at], 0);
    }
    memset(bytes + 2 * PP_PAGE_BYTES, 7, 2 * PP_PAGE_BYTES);
    pp_pages_decommit(base, 2 * PP_PAGE_BYTES, 4 * PP_PAGE_BYTES);
    assert_false(readable(bytes + 2 * PP_PAGE_BYTES));
    assert_int_equal(pp_pages_commit(base, 2 * PP_PAGE_BYTES, 4 * PP_PAGE_BYTES, PP_HUGEPAGES_OFF),
                     PP_OK);
    assert_int_equal(bytes[2 * PP_PAGE_BYTES], 0);
    pp_pages_free(base, 10 * PP_PAGE_BYTES);
}

static void committed_pages_take_memory_when_they_are_touched(void **state)
{
    (void)state;
    void *base;
    uint64_t bytes = 64 * PP_PAGE_BYTES;
    assert_int_equal(pp_pages_reserve(bytes, &base), PP_OK);
    assert_int_equal(pp_pages_commit(base, 0, bytes, PP_HUGEPAGES_TRY), PP_OK);
    assert_int_equal(resident_pages(base, bytes), 0);
    *(volatile char *)base = 1;
    assert_int_equal(resident_pages(base, bytes), 1);
    pp_pages_free(base, bytes);
}

static void large_ranges_are_aligned_and_cost_no_memory(void **state)
{
    (void)state;
    void *base;
    uint64_t bytes = UINT64_C(64) << 30;
    assert_int_equal(pp_pages_reserve(bytes, &base), PP_OK);
    assert_int_equal((uintptr_t)base % PP_HUGE_PAGE_BYTES, 0);
    /* Past 4 GiB, in the middle of nowhere. */
    uint64_t at = (UINT64_C(5) << 30) + PP_PAGE_BYTES;
    assert_int_equal(pp_pages_commit(base, at, at + PP_PAGE_BYTES, PP_HUGEPAGES_TRY), PP_OK);
    memset((char *)base + at, 3, PP_PAGE_BYTES);
    assert_int_equal(((char *)base)[at + PP_PAGE_BYTES - 1], 3);
    pp_pages_free(base, bytes);
}

static void a_short_part_is_not_rounded_up_to_a_huge_page(void **state)
{
    (void)state;
    void *base;
    assert_int_equal(pp_pages_reserve(4 * PP_HUGE_PAGE_BYTES, &base), PP_OK);
    uint64_t end = PP_HUGE_PAGE_BYTES + 16 * PP_PAGE_BYTES;
    assert_int_equal(pp_pages_commit(base, PP_PAGE_BYTES, end, PP_HUGEPAGES_TRY), PP_OK);
    ((volatile char *)base)[PP_PAGE_BYTES] = 1;
    assert_int_equal(resident_pages((char *)base, PP_HUGE_PAGE_BYTES), 1);
    pp_pages_free(base, 4 * PP_HUGE_PAGE_BYTES);
}

static void required_huge_pages_are_given_or_refused(void **state)
{
    (void)state;
    void *base;
    assert_int_equal(pp_pages_reserve(2 * PP_HUGE_PAGE_BYTES, &base), PP_OK);
    pp_log_configure(PP_LOG_OFF, PP_LOG_TEXT);
    enum pp_status status = pp_pages_commit(base, 0, 2 * PP_HUGE_PAGE_BYTES, PP_HUGEPAGES_REQUIRE);
    pp_log_configure(PP_LOG_INFO, PP_LOG_TEXT);
    assert_int_equal(status, pp_pages_huge_supported() ? PP_OK : PP_MEMORY);
    pp_pages_free(base, 2 * PP_HUGE_PAGE_BYTES);
}

static void impossible_sizes_are_refused(void **state)
{
    (void)state;
    void *base = &base;
    pp_log_configure(PP_LOG_OFF, PP_LOG_TEXT);
    assert_int_equal(pp_pages_reserve(0, &base), PP_MEMORY);
    assert_int_equal(pp_pages_reserve(UINT64_MAX, &base), PP_MEMORY);
    assert_int_equal(pp_pages_reserve(UINT64_C(1) << 62, &base), PP_MEMORY);
    pp_log_configure(PP_LOG_INFO, PP_LOG_TEXT);
    assert_ptr_equal(base, &base);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(only_what_was_committed_is_usable),
        cmocka_unit_test(committed_pages_take_memory_when_they_are_touched),
        cmocka_unit_test(large_ranges_are_aligned_and_cost_no_memory),
        cmocka_unit_test(a_short_part_is_not_rounded_up_to_a_huge_page),
        cmocka_unit_test(required_huge_pages_are_given_or_refused),
        cmocka_unit_test(impossible_sizes_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
