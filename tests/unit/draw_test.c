/*
 * The law of drawing against a plain reading of it: ids sorted, cut and walked over.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/unit/draw_build.h"

#define COUNT_MAX 3000u

struct ranked {
    uint32_t rank, id;
    uint64_t weight;
};

static int by_rank(const void *left, const void *right)
{
    const struct ranked *a = left, *b = right;
    if (a->rank != b->rank) {
        return a->rank < b->rank ? -1 : 1;
    }
    return a->id < b->id ? -1 : 1;
}

static int by_id(const void *left, const void *right)
{
    const struct ranked *a = left, *b = right;
    return a->id < b->id ? -1 : 1;
}

static uint64_t sum_of(const struct ranked *all, uint32_t count)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < count; i++) {
        sum += all[i].weight;
    }
    return sum;
}

static float value_of(const struct gw_draw *draw, uint32_t id)
{
    float logit = draw->logits[id];
    uint32_t seen = draw->seen != NULL ? draw->seen[id] : 0, drawn = seen & 0x7fffffffu;
    if (seen != 0) {
        logit = logit > 0.0f ? logit / draw->repetition : logit * draw->repetition;
    }
    if (drawn != 0) {
        logit -= draw->presence;
        float penalty = draw->frequency * (float)drawn;
        logit -= penalty;
    }
    return logit;
}

static uint32_t best_of(const struct gw_draw *draw)
{
    uint32_t best = 0;
    for (uint32_t id = 1; id < draw->count; id++) {
        best = value_of(draw, id) > value_of(draw, best) ? id : best;
    }
    return best;
}

static uint32_t expected_of(const struct gw_draw *draw)
{
    static struct ranked all[COUNT_MAX];
    uint32_t best = best_of(draw), count = 0, kept = 0;
    for (uint32_t id = 0; id < draw->count && draw->scale != 0.0; id++) {
        double less = (double)value_of(draw, best) - (double)value_of(draw, id);
        double rank = less > 0.0 ? less * draw->scale : 0.0;
        if (rank < ldexp(44.0, 26)) {
            all[count++] = (struct ranked){(uint32_t)rank, id, gw_draw_weight((uint32_t)rank)};
        }
    }
    if (draw->scale == 0.0) {
        return best;
    }
    qsort(all, count, sizeof(*all), by_rank);
    count = draw->top_k != 0 && draw->top_k < count ? draw->top_k : count;
    if (draw->top_p != 0) {
        unsigned __int128 wanted = (unsigned __int128)sum_of(all, count) * draw->top_p >> 64;
        uint64_t sum = 0;
        while (kept < count && sum <= (uint64_t)wanted) {
            sum += all[kept++].weight;
        }
        count = kept;
    }
    while (all[count - 1].weight < draw->weight_min) {
        count--;
    }
    qsort(all, count, sizeof(*all), by_id);
    uint64_t left = (uint64_t)((unsigned __int128)sum_of(all, count) * draw->random >> 64);
    uint32_t at = 0;
    for (; left >= all[at].weight; at++) {
        left -= all[at].weight;
    }
    return all[at].id;
}

static void draws_are_those_of_the_law(void **state)
{
    (void)state;
    struct gw_device *device;
    struct pp_rng rng = {.seed = 1729};
    static float logits[COUNT_MAX];
    static uint32_t seen[COUNT_MAX];
    uint32_t different = 0;
    printf("seed 1729\n");
    assert_int_equal(gw_host_device_new(1, &device), PP_OK);
    for (uint32_t i = 0; i < 3000; i++) {
        struct gw_draw draw = draw_build(&rng, COUNT_MAX, logits, seen);
        uint32_t id, expected = expected_of(&draw);
        uint32_t before = draw.seen != NULL ? draw.seen[expected] : 0;
        assert_int_equal(device->ops->draw(device, NULL, &draw, 1, &id), PP_OK);
        assert_int_equal(id, expected);
        assert_true(draw.seen == NULL || draw.seen[id] == before + 1);
        different += id != best_of(&draw) ? 1 : 0;
    }
    assert_true(different > 1000);
    device->ops->destroy(device);
}

static void weights_are_powers_of_two_within_their_bits(void **state)
{
    (void)state;
    struct pp_rng rng = {.seed = 1729};
    assert_true(gw_draw_weight(0) == 1ull << 44);
    assert_true(gw_draw_weight(GW_DRAW_RANKS - 1) >= 1);
    for (uint32_t i = 0; i < 200000; i++) {
        uint32_t rank = (uint32_t)(pp_rng_u64(&rng) % (30ull << 26));
        double exact = ldexp(exp2(-(double)rank / 67108864.0), 44);
        assert_true(fabs((double)gw_draw_weight(rank) - exact) <= 5e-9 * exact + 1.0);
        assert_true(gw_draw_weight(rank + 1) <= gw_draw_weight(rank));
    }
}

static void products_are_their_upper_halves(void **state)
{
    (void)state;
    struct pp_rng rng = {.seed = 1729};
    for (uint32_t i = 0; i < 10000; i++) {
        uint64_t a = pp_rng_u64(&rng) >> i % 64, b = pp_rng_u64(&rng) >> i / 64 % 64;
        assert_true(gw_draw_high(a, b) == (uint64_t)((unsigned __int128)a * b >> 64));
    }
    assert_true(gw_draw_high(UINT64_MAX, UINT64_MAX) == UINT64_MAX - 1);
}

static void keys_are_in_order_of_values_and_ids(void **state)
{
    (void)state;
    const float values[] = {-INFINITY, -3e38f, -1.0f, -1e-45f, 0.0f, 1e-45f, 1.0f, 3e38f, INFINITY};
    for (uint32_t i = 0; i < 9; i++) {
        uint64_t key = gw_draw_key(values[i], 5);
        assert_true(i == 0 || key > gw_draw_key(values[i - 1], 0));
        assert_true(key < gw_draw_key(values[i], 4));
        assert_true(gw_draw_key_value(key) == values[i]);
        assert_int_equal(gw_draw_key_id(key), 5);
        assert_true(gw_draw_key_finite(key) == (i > 0 && i < 8));
    }
    assert_true(gw_draw_key(-0.0f, 1) == gw_draw_key(0.0f, 1));
    assert_true(gw_draw_key(NAN, 1) == GW_DRAW_NOT_A_NUMBER);
    assert_false(gw_draw_key_finite(GW_DRAW_NOT_A_NUMBER));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(draws_are_those_of_the_law),
        cmocka_unit_test(weights_are_powers_of_two_within_their_bits),
        cmocka_unit_test(products_are_their_upper_halves),
        cmocka_unit_test(keys_are_in_order_of_values_and_ids),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
