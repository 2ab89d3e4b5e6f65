/*
 * The host device's operations against plain loops in f64, on odd shapes, and the same bits at one
 * and two threads.
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

#include "common/base/half.h"
#include "common/base/rng.h"
#include "gpu-worker/device/device.h"
#include "gpu-worker/ops/rope.h"

#define SEED       1729u
#define TOKENS_MAX 2500u

static struct pp_rng rng;

static int setup(void **state)
{
    (void)state;
    rng = (struct pp_rng){.seed = SEED};
    printf("seed %u\n", SEED);
    return 0;
}

static float *random_floats(uint64_t count, float scale)
{
    float *values = malloc(count * sizeof(float));
    assert_non_null(values);
    for (uint64_t i = 0; i < count; i++) {
        values[i] = (float)pp_rng_normal(&rng) * scale;
    }
    return values;
}

static struct gw_device *device_new(uint32_t threads, const struct gw_heads *heads)
{
    struct gw_device *device;
    struct gw_device_limits limits = {
        .columns_max = 1536, .rows_max = 512, .heads = *heads, .kv_tokens_max = TOKENS_MAX};
    assert_int_equal(gw_host_device_new(threads, &device), PP_OK);
    assert_int_equal(device->ops->prepare(device, &limits), PP_OK);
    return device;
}

static const struct gw_heads small_heads = {3, 1, 64, 0.125f, PP_BF16};

static void check_linear(struct gw_device *device, uint32_t rows, uint32_t outputs,
                         uint32_t columns, bool add)
{
    float *weights = random_floats((uint64_t)outputs * columns, 0.2f);
    float *x = random_floats((uint64_t)rows * columns, 1.0f);
    float *out = random_floats((uint64_t)rows * outputs, 1.0f);
    float *before = malloc((uint64_t)rows * outputs * sizeof(float));
    memcpy(before, out, (uint64_t)rows * outputs * sizeof(float));
    struct gw_matrix matrix = {GW_WEIGHT_F32, outputs, columns, weights};
    assert_int_equal(device->ops->linear(device, NULL, &matrix, x, rows, add, out), PP_OK);
    for (uint64_t i = 0; i < (uint64_t)rows * outputs; i++) {
        double expected = add ? (double)before[i] : 0.0;
        for (uint32_t j = 0; j < columns; j++) {
            expected +=
                (double)weights[i % outputs * columns + j] * (double)x[i / outputs * columns + j];
        }
        assert_true(fabs(expected - (double)out[i]) < 1e-4);
    }
    free(weights);
    free(x);
    free(out);
    free(before);
}

static void linear_is_the_matrix_product_for_few_and_many_rows(void **state)
{
    (void)state;
    static const uint32_t row_counts[] = {1, 2, 6, 7, 33};
    struct gw_device *device = device_new(2, &small_heads);
    for (uint32_t i = 0; i < 5; i++) {
        check_linear(device, row_counts[i], 1, 32, false);
        check_linear(device, row_counts[i], 65, 96, true);
        check_linear(device, row_counts[i], 200, 50, false);
    }
    device->ops->destroy(device);
}

static void quantised_rows_give_the_same_by_dot_and_by_tile(void **state)
{
    (void)state;
    struct gw_device *device = device_new(2, &small_heads);
    uint8_t weights[70 * 60];
    struct gw_matrix matrix = {GW_WEIGHT_Q4_1, 70, 96, weights};
    for (uint32_t i = 0; i < sizeof(weights); i++) {
        weights[i] = (uint8_t)pp_rng_u64(&rng);
    }
    for (uint32_t i = 0; i < sizeof(weights); i += 20) {
        uint16_t scales[2] = {pp_f16_from_f32(0.1f), pp_f16_from_f32(-0.7f)};
        memcpy(weights + i, scales, sizeof(scales));
    }
    float *x = random_floats(10 * 96, 1.0f);
    float one[70], all[10 * 70];
    assert_int_equal(device->ops->linear(device, NULL, &matrix, x, 10, false, all), PP_OK);
    for (uint32_t row = 0; row < 10; row++) {
        assert_int_equal(device->ops->linear(device, NULL, &matrix, x + row * 96, 1, false, one),
                         PP_OK);
        for (uint32_t i = 0; i < 70; i++) {
            assert_true(fabsf(one[i] - all[row * 70 + i]) < 2e-4f);
        }
    }
    free(x);
    device->ops->destroy(device);
}

/* Attention of one q row and head over tokens [0, count), in f64. */
static double plain_attend(const struct gw_heads *heads, const uint16_t *k, const uint16_t *v,
                           uint64_t count, const float *q, uint32_t head, double *o_out)
{
    uint32_t dim = heads->head_dim;
    uint32_t kv_head = head / (heads->q_heads / heads->kv_heads);
    double *weights = malloc(count * sizeof(double));
    double top = -INFINITY, sum = 0.0;
    for (uint64_t i = 0; i < count; i++) {
        const uint16_t *key = k + (i * heads->kv_heads + kv_head) * dim;
        weights[i] = 0.0;
        for (uint32_t j = 0; j < dim; j++) {
            weights[i] += (double)q[head * dim + j] * (double)pp_bf16_to_f32(key[j]);
        }
        weights[i] *= (double)heads->scale;
        top = weights[i] > top ? weights[i] : top;
    }
    memset(o_out, 0, dim * sizeof(double));
    for (uint64_t i = 0; i < count; i++) {
        double weight = exp(weights[i] - top);
        sum += weight;
        for (uint32_t j = 0; j < dim; j++) {
            o_out[j] +=
                weight * (double)pp_bf16_to_f32(v[(i * heads->kv_heads + kv_head) * dim + j]);
        }
    }
    for (uint32_t j = 0; j < dim; j++) {
        o_out[j] /= sum;
    }
    free(weights);
    return top + log(sum);
}

struct attend_case {
    struct gw_heads heads;
    uint64_t count;
    uint16_t *k, *v;
    float *q;
    uint32_t rows;
};

static struct attend_case attend_case_new(uint32_t group, uint32_t kv_heads, uint32_t dim,
                                          uint64_t count, uint32_t rows)
{
    struct attend_case made = {.count = count, .rows = rows};
    made.heads =
        (struct gw_heads){group * kv_heads, kv_heads, dim, 1.0f / sqrtf((float)dim), PP_BF16};
    uint64_t values = count * kv_heads * dim;
    float *floats = random_floats(2 * values, 1.0f);
    made.k = malloc((values + 1) * sizeof(uint16_t));
    made.v = malloc((values + 1) * sizeof(uint16_t));
    pp_dtype_from_f32(PP_BF16, floats, values, made.k);
    pp_dtype_from_f32(PP_BF16, floats + values, values, made.v);
    made.q = random_floats((uint64_t)rows * group * kv_heads * dim, 1.5f);
    free(floats);
    return made;
}

static void attend_case_free(struct attend_case *made)
{
    free(made->k);
    free(made->v);
    free(made->q);
}

static void causal_attention_sees_the_past_and_itself_only(void **state)
{
    (void)state;
    static const uint32_t groups[] = {1, 3, 4, 5, 7, 8, 71}, dims[] = {64, 80, 96, 128, 256};
    static const uint32_t counts[] = {1, 15, 16, 17, 63, 64, 65, 130};
    for (uint32_t i = 0; i < 7 * 8; i++) {
        uint32_t group = groups[i % 7], count = counts[i / 7], dim = dims[i % 5];
        uint32_t rows = count > 20 ? count - 20 : count; /* the rest is the past */
        struct attend_case made = attend_case_new(group, 2, dim, count, rows);
        struct gw_device *device = device_new(2, &made.heads);
        struct gw_kv_rows kv = {made.k, made.v, count};
        uint64_t width = (uint64_t)made.heads.q_heads * dim;
        float *o = malloc(rows * width * sizeof(float));
        assert_int_equal(device->ops->attend_causal(device, NULL, &made.heads, &kv, count - rows,
                                                    made.q, rows, o, NULL),
                         PP_OK);
        for (uint32_t row = 0; row<rows; row += rows> 9 ? 9 : 1) {
            uint32_t head = row % made.heads.q_heads;
            double expected[256];
            plain_attend(&made.heads, made.k, made.v, count - rows + row + 1, made.q + row * width,
                         head, expected);
            for (uint32_t j = 0; j < dim; j++) {
                assert_true(fabs(expected[j] - (double)o[row * width + head * dim + j]) < 2e-5);
            }
        }
        free(o);
        device->ops->destroy(device);
        attend_case_free(&made);
    }
}

static void partials_over_spans_are_attention_over_their_tokens(void **state)
{
    (void)state;
    static const uint64_t counts[] = {1, 2, 63, 64, 65, 1023, 1024, 1025, 2400};
    static const uint32_t groups[] = {1, 3, 4, 5, 7, 8};
    for (uint32_t i = 0; i < 9; i++) {
        uint32_t dim = i % 2 == 0 ? 64 : 80;
        struct attend_case made = attend_case_new(groups[i % 6], 3, dim, counts[i], 2);
        struct gw_device *device = device_new(2, &made.heads);
        uint64_t cut = counts[i] / 3, row_values = 3ull * dim;
        struct gw_kv_rows spans[3] = {
            {made.k, made.v, cut},
            {made.k, made.v, 0},
            {made.k + cut * row_values, made.v + cut * row_values, counts[i] - cut}};
        uint32_t heads = made.heads.q_heads;
        float *o = malloc(2ull * heads * dim * sizeof(float)), lse[2 * 24];
        assert_int_equal(
            device->ops->attend_partial(device, NULL, &made.heads, spans, 3, made.q, 2, o, lse),
            PP_OK);
        for (uint32_t at = 0; at < 2 * heads; at++) {
            double expected[256];
            double expected_lse =
                plain_attend(&made.heads, made.k, made.v, counts[i],
                             made.q + (uint64_t)(at / heads) * heads * dim, at % heads, expected);
            assert_true(fabs(expected_lse - (double)lse[at]) < 1e-5 * (1.0 + fabs(expected_lse)));
            for (uint32_t j = 0; j < dim; j++) {
                assert_true(fabs(expected[j] - (double)o[(uint64_t)at * dim + j]) < 2e-5);
            }
        }
        free(o);
        device->ops->destroy(device);
        attend_case_free(&made);
    }
}

static void spans_that_hold_nothing_give_the_empty_partial(void **state)
{
    (void)state;
    struct gw_device *device = device_new(1, &small_heads);
    float q[3 * 64] = {1.0f}, o[3 * 64], lse[3];
    struct gw_kv_rows span = {NULL, NULL, 0};
    memset(o, 0xff, sizeof(o));
    assert_int_equal(
        device->ops->attend_partial(device, NULL, &small_heads, &span, 1, q, 1, o, lse), PP_OK);
    for (uint32_t i = 0; i < 3 * 64; i++) {
        assert_true(o[i] == 0.0f);
    }
    for (uint32_t i = 0; i < 3; i++) {
        assert_true(lse[i] == -INFINITY);
    }
    device->ops->destroy(device);
}

static void merging_two_halves_is_the_whole(void **state)
{
    (void)state;
    struct attend_case made = attend_case_new(3, 2, 64, 300, 1);
    struct gw_device *device = device_new(2, &made.heads);
    struct gw_kv_rows whole = {made.k, made.v, 300}, first = {made.k, made.v, 111};
    struct gw_kv_rows rest = {made.k + 111 * 128, made.v + 111 * 128, 189};
    float o[3][6 * 64], lse[3][6];
    const struct gw_kv_rows *spans[3] = {&whole, &first, &rest};
    for (uint32_t i = 0; i < 3; i++) {
        assert_int_equal(device->ops->attend_partial(device, NULL, &made.heads, spans[i], 1, made.q,
                                                     1, o[i], lse[i]),
                         PP_OK);
    }
    assert_int_equal(device->ops->merge(device, NULL, 6, 64, o[2], lse[2], o[1], lse[1]), PP_OK);
    for (uint32_t i = 0; i < 6 * 64; i++) {
        assert_true(fabsf(o[0][i] - o[1][i]) < 1e-6f);
    }
    for (uint32_t i = 0; i < 6; i++) {
        assert_true(fabsf(lse[0][i] - lse[1][i]) < 1e-5f);
    }
    device->ops->destroy(device);
    attend_case_free(&made);
}

static void results_are_the_same_bits_at_any_number_of_threads(void **state)
{
    (void)state;
    struct attend_case made = attend_case_new(3, 3, 64, 2400, 100);
    float *weights = random_floats(200 * 576, 0.1f);
    struct gw_matrix matrix = {GW_WEIGHT_F32, 200, 576, weights};
    uint64_t width = 9 * 64;
    float *results[2];
    for (uint32_t i = 0; i < 2; i++) {
        struct gw_device *device = device_new(i + 1, &made.heads);
        struct gw_kv_rows kv = {made.k, made.v, 2400};
        float *result = calloc(100 * width + width + 16 + 100 * 200 + 200, sizeof(float));
        float *partial = result + 100 * width, *lse = partial + width, *product = lse + 16;
        assert_int_equal(device->ops->attend_causal(device, NULL, &made.heads, &kv, 2300, made.q,
                                                    100, result, NULL),
                         PP_OK);
        assert_int_equal(
            device->ops->attend_partial(device, NULL, &made.heads, &kv, 1, made.q, 1, partial, lse),
            PP_OK);
        assert_int_equal(device->ops->linear(device, NULL, &matrix, made.q, 100, false, product),
                         PP_OK);
        assert_int_equal(
            device->ops->linear(device, NULL, &matrix, made.q, 1, false, product + 100 * 200),
            PP_OK);
        results[i] = result;
        device->ops->destroy(device);
    }
    assert_memory_equal(results[0], results[1],
                        (100 * width + width + 16 + 100 * 200 + 200) * sizeof(float));
    free(results[0]);
    free(results[1]);
    free(weights);
    attend_case_free(&made);
}

static void rope_turns_pairs_by_the_angle_of_the_position(void **state)
{
    (void)state;
    struct gw_device *device = device_new(1, &small_heads);
    const float inv_freq[2] = {1.0f, 0.25f};
    for (uint32_t interleaved = 0; interleaved < 2; interleaved++) {
        struct gw_rope_table table;
        assert_int_equal(gw_rope_init(&table, device, inv_freq, 4, interleaved == 1, 10), PP_OK);
        float x[2][4] = {{1.0f, 0.0f, 0.0f, 2.0f}, {1.0f, 2.0f, 3.0f, 4.0f}};
        float before[2][4];
        memcpy(before, x, sizeof(x));
        assert_int_equal(device->ops->rope(device, NULL, &table, 6, 2, 1, 4, &x[0][0]), PP_OK);
        for (uint32_t row = 0; row < 2; row++) {
            for (uint32_t i = 0; i < 2; i++) {
                uint32_t a = interleaved == 1 ? 2 * i : i, b = interleaved == 1 ? a + 1 : i + 2;
                double angle = (6.0 + row) * (double)inv_freq[i];
                double turned =
                    (double)before[row][a] * cos(angle) - (double)before[row][b] * sin(angle);
                double other =
                    (double)before[row][a] * sin(angle) + (double)before[row][b] * cos(angle);
                assert_true(fabs((double)x[row][a] - turned) < 1e-6);
                assert_true(fabs((double)x[row][b] - other) < 1e-6);
            }
        }
        gw_rope_deinit(&table, device);
    }
    device->ops->destroy(device);
}

static void norm_bias_swiglu_and_embedding_follow_their_formulas(void **state)
{
    (void)state;
    struct gw_device *device = device_new(2, &small_heads);
    const float x[3] = {1.0f, 2.0f, 3.0f}, weight[3] = {1.0f, 0.5f, 2.0f};
    float out[3];
    assert_int_equal(device->ops->rms_norm(device, NULL, x, weight, 0.5f, 1, 3, out), PP_OK);
    double factor = 1.0 / sqrt(14.0 / 3.0 + 0.5);
    assert_true(fabs((double)out[2] - 6.0 * factor) < 1e-6);
    assert_int_equal(device->ops->add_bias(device, NULL, weight, 1, 3, out), PP_OK);
    assert_true(fabs((double)out[2] - 6.0 * factor - 2.0) < 1e-6);
    assert_int_equal(device->ops->swiglu(device, NULL, x, weight, 3, out), PP_OK);
    assert_true(fabs((double)out[1] - 2.0 / (1.0 + exp(-2.0)) * 0.5) < 1e-6);
    const uint16_t halves[2][3] = {{0, 0, 0}, {0x3c00, 0x4000, 0xc000}};
    struct gw_matrix table = {GW_WEIGHT_F16, 2, 3, halves};
    const uint32_t ids[1] = {1};
    assert_int_equal(device->ops->embed(device, NULL, &table, ids, 1, out), PP_OK);
    assert_true(out[0] == 1.0f && out[1] == 2.0f && out[2] == -2.0f);
    device->ops->destroy(device);
}

static void squares_are_summed_over_the_rows_and_heads_of_a_group(void **state)
{
    (void)state;
    enum { DIM = 40, COUNT = 150 };
    struct attend_case made = attend_case_new(2, 3, DIM, COUNT, 5);
    struct gw_device *device = device_new(2, &made.heads);
    float centre[3 * DIM];
    double q_sums[3 * DIM];
    double k_sums[3 * DIM];
    for (uint32_t i = 0; i < 3 * DIM; i++) {
        centre[i] = 0.25f;
        q_sums[i] = k_sums[i] = 1.0; /* they are added to */
    }
    assert_int_equal(device->ops->query_squares(device, NULL, &made.heads, made.q, 5, q_sums),
                     PP_OK);
    assert_int_equal(
        device->ops->key_squares(device, NULL, &made.heads, made.k, COUNT, centre, k_sums), PP_OK);
    for (uint32_t i = 0; i < 3 * DIM; i++) {
        double q_expected = 1.0;
        double k_expected = 1.0;
        for (uint32_t row = 0; row < 5 * 2; row++) {
            uint32_t head = i / DIM * 2 + row % 2;
            double q = (double)made.q[(row / 2 * 6 + head) * DIM + i % DIM];
            q_expected += q * q;
        }
        for (uint32_t token = 0; token < COUNT; token++) {
            double x = (double)pp_bf16_to_f32(made.k[token * 3 * DIM + i]) - 0.25;
            k_expected += x * x;
        }
        assert_true(fabs(q_sums[i] / q_expected - 1.0) < 1e-9);
        assert_true(fabs(k_sums[i] / k_expected - 1.0) < 1e-9);
    }
    attend_case_free(&made);
    device->ops->destroy(device);
}

static void centres_and_signatures_are_those_of_each_head_alone(void **state)
{
    (void)state;
    enum { DIM = 80, COUNT = 150, L = 20, STRIDE = 160 };
    static _Alignas(64) uint16_t expected[L * STRIDE];
    struct attend_case made = attend_case_new(1, 3, DIM, COUNT, 1);
    struct gw_device *device = device_new(2, &made.heads);
    struct pp_hash *hash;
    float centre[3 * DIM];
    uint16_t *codes = malloc(COUNT * 3 * L * sizeof(*codes));
    assert_int_equal(pp_hash_new(9, DIM, 8, L, &hash), PP_OK);
    assert_int_equal(device->ops->centre_keys(device, NULL, &made.heads, made.k, COUNT, centre),
                     PP_OK);
    assert_int_equal(
        device->ops->sign_keys(device, NULL, &made.heads, hash, L, made.k, COUNT, centre, codes),
        PP_OK);
    for (uint32_t head = 0; head < 3; head++) {
        for (uint32_t d = 0; d < DIM; d++) {
            double sum = 0.0;
            for (uint32_t i = 0; i < COUNT; i++) {
                sum += (double)pp_bf16_to_f32(made.k[(i * 3 + head) * DIM + d]);
            }
            assert_true(centre[head * DIM + d] == (float)(sum / COUNT));
        }
        pp_hash_keys(hash, made.k + head * DIM, 3 * DIM * sizeof(*made.k), PP_BF16,
                     centre + head * DIM, COUNT, expected, STRIDE);
        for (uint32_t i = 0; i < COUNT * L; i++) {
            assert_int_equal(codes[(i / L * 3 + head) * L + i % L],
                             expected[i % L * STRIDE + i / L]);
        }
    }
    free(codes);
    pp_hash_destroy(hash);
    device->ops->destroy(device);
    attend_case_free(&made);
}

static void rows_of_unfilled_blocks_have_no_size(void **state)
{
    (void)state;
    assert_int_equal(gw_matrix_row_bytes(GW_WEIGHT_Q4_1, 576), 360);
    assert_int_equal(gw_matrix_row_bytes(GW_WEIGHT_Q8_0, 64), 68);
    assert_int_equal(gw_matrix_row_bytes(GW_WEIGHT_Q4_0, 33), 0);
    assert_int_equal(gw_matrix_row_bytes((enum gw_weight_type)12, 64), 0);
    assert_int_equal(gw_matrix_row_bytes(GW_WEIGHT_BF16, 33), 66);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(linear_is_the_matrix_product_for_few_and_many_rows),
        cmocka_unit_test(quantised_rows_give_the_same_by_dot_and_by_tile),
        cmocka_unit_test(causal_attention_sees_the_past_and_itself_only),
        cmocka_unit_test(partials_over_spans_are_attention_over_their_tokens),
        cmocka_unit_test(spans_that_hold_nothing_give_the_empty_partial),
        cmocka_unit_test(merging_two_halves_is_the_whole),
        cmocka_unit_test(results_are_the_same_bits_at_any_number_of_threads),
        cmocka_unit_test(rope_turns_pairs_by_the_angle_of_the_position),
        cmocka_unit_test(norm_bias_swiglu_and_embedding_follow_their_formulas),
        cmocka_unit_test(squares_are_summed_over_the_rows_and_heads_of_a_group),
        cmocka_unit_test(centres_and_signatures_are_those_of_each_head_alone),
        cmocka_unit_test(rows_of_unfilled_blocks_have_no_size),
    };
    return cmocka_run_group_tests(tests, setup, NULL);
}
