/*
 * Tokens drawn by the CUDA device are the host's, whatever the order of threads.
 */
#include "tests/cuda_emu/both.h"

#include "tests/unit/draw_build.h"

#define COUNT_MAX 2100u
#define ROWS_MAX  19u

static const struct gw_heads small_heads = {3, 1, 64, 0.125f, PP_BF16};

struct row {
    struct gw_draw draw;
    float logits[COUNT_MAX];
    uint32_t seen[COUNT_MAX];
};

/* The rows' draws on one device; seen_out [rows][COUNT_MAX] is what it counted. */
static void draw_on(struct gw_device *device, const struct row *rows, uint32_t count,
                    uint32_t *ids_out, uint32_t *seen_out)
{
    struct gw_draw draws[ROWS_MAX];
    void *logits[ROWS_MAX], *seen[ROWS_MAX];
    for (uint32_t i = 0; i < count; i++) {
        logits[i] = both_put(device, rows[i].logits, sizeof(rows[i].logits));
        seen[i] = both_put(device, rows[i].seen, sizeof(rows[i].seen));
        draws[i] = rows[i].draw;
        draws[i].logits = logits[i];
        draws[i].seen = rows[i].draw.seen != NULL ? seen[i] : NULL;
    }
    assert_int_equal(device->ops->draw(device, NULL, draws, count, ids_out), PP_OK);
    for (uint32_t i = 0; i < count; i++) {
        void *counted = both_get(device, seen[i], sizeof(rows[i].seen));
        memcpy(seen_out + (uint64_t)i * COUNT_MAX, counted, sizeof(rows[i].seen));
        free(counted);
        device->ops->free(device, logits[i]);
    }
}

static void compare(struct both *both, const struct row *rows, uint32_t count)
{
    static uint32_t seen[2][ROWS_MAX * COUNT_MAX];
    uint32_t ids[2][ROWS_MAX];
    for (uint32_t i = 0; i < 2; i++) {
        draw_on(both->devices[i], rows, count, ids[i], seen[i]);
    }
    assert_memory_equal(ids[0], ids[1], count * sizeof(ids[0][0]));
    assert_memory_equal(seen[0], seen[1], count * sizeof(rows[0].seen));
}

static void tokens_are_the_hosts_in_batches_of_any_size(void **state)
{
    (void)state;
    struct both both = both_new(&small_heads);
    struct row *rows = calloc(ROWS_MAX, sizeof(*rows));
    assert_non_null(rows);
    for (uint32_t i = 0; i < 24; i++) {
        uint32_t count = i % ROWS_MAX + 1;
        for (uint32_t j = 0; j < count; j++) {
            rows[j].draw = draw_build(&both_rng, COUNT_MAX, rows[j].logits, rows[j].seen);
        }
        compare(&both, rows, count);
    }
    free(rows);
    both_destroy(&both);
}

/* The neighbours of a row without an answer have theirs. */
static void rows_without_numbers_are_said_and_spoil_no_others(void **state)
{
    (void)state;
    struct both both = both_new(&small_heads);
    struct row *rows = calloc(ROWS_MAX, sizeof(*rows));
    assert_non_null(rows);
    for (uint32_t i = 0; i < ROWS_MAX; i++) {
        struct gw_draw *draw = &rows[i].draw;
        *draw = draw_build(&both_rng, COUNT_MAX, rows[i].logits, rows[i].seen);
        uint32_t at = draw_build_below(&both_rng, draw->count);
        rows[i].logits[at] = i % 3 == 1 ? NAN : i % 3 == 2 ? INFINITY : rows[i].logits[at];
        draw->scale = i < 6 ? ldexp(1.5, 26) : 0.0;
    }
    for (uint32_t i = 0; i < COUNT_MAX; i++) {
        rows[0].logits[i] = -INFINITY;
    }
    uint32_t ids[ROWS_MAX], seen[ROWS_MAX * COUNT_MAX];
    draw_on(both.devices[1], rows, ROWS_MAX, ids, seen);
    for (uint32_t i = 0; i < ROWS_MAX; i++) {
        bool none = i == 0 || i % 3 != 0;
        assert_true((ids[i] == GW_DRAW_NONE) == none);
    }
    compare(&both, rows, ROWS_MAX);
    free(rows);
    both_destroy(&both);
}

int main(void)
{
    both_begin();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(tokens_are_the_hosts_in_batches_of_any_size, both_setup),
        cmocka_unit_test_setup(rows_without_numbers_are_said_and_spoil_no_others, both_setup),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
