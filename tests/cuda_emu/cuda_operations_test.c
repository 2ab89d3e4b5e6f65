/*
 * The CUDA device's operations on activations against the host's, on odd sizes.
 */
#include "tests/cuda_emu/both.h"

static const struct gw_heads small_heads = {3, 1, 64, 0.125f, PP_BF16};

static void rms_norm_is_the_hosts_in_place_and_apart(void **state)
{
    (void)state;
    struct both both = both_new(&small_heads);
    static const uint32_t widths[] = {1, 3, 31, 64, 576, 1027};
    for (uint32_t i = 0; i < 6; i++) {
        uint32_t rows = i % 3 + 1, width = widths[i];
        uint64_t bytes = (uint64_t)rows * width * sizeof(float);
        float *x = both_floats((uint64_t)rows * width, 3.0f), *weight = both_floats(width, 1.0f);
        float *out[2];
        for (uint32_t j = 0; j < 2; j++) {
            struct gw_device *device = both.devices[j];
            float *there = both_put(device, x, bytes);
            float *weights = both_put(device, weight, width * sizeof(float));
            assert_int_equal(
                device->ops->rms_norm(device, NULL, there, weights, 1e-5f, rows, width, there),
                PP_OK);
            out[j] = both_get(device, there, bytes);
            device->ops->free(device, weights);
        }
        both_near(out[0], out[1], (uint64_t)rows * width, 1e-6);
        free(x);
        free(weight);
    }
    both_destroy(&both);
}

static void a_residual_and_its_norm_are_the_hosts(void **state)
{
    (void)state;
    struct both both = both_new(&small_heads);
    static const uint32_t widths[] = {1, 3, 31, 64, 576, 1027};
    for (uint32_t i = 0; i < 12; i++) {
        uint32_t rows = i % 3 + 1, width = widths[i / 2];
        uint64_t count = (uint64_t)rows * width, bytes = count * sizeof(float);
        float *x = both_floats(count, 3.0f), *y = both_floats(count, 5.0f);
        float *weight = both_floats(width, 1.0f), *out[2], *sum[2];
        for (uint32_t j = 0; j < 2; j++) {
            struct gw_device *device = both.devices[j];
            float *there = both_put(device, x, bytes), *other = both_put(device, y, bytes);
            float *weights = both_put(device, weight, width * sizeof(float));
            void *apart;
            assert_int_equal(device->ops->alloc(device, bytes, &apart), PP_OK);
            assert_int_equal(device->ops->add_rms_norm(device, NULL, other, weights, 1e-5f, rows,
                                                       width, there, i % 2 == 0 ? other : apart),
                             PP_OK);
            out[j] = both_get(device, i % 2 == 0 ? other : apart, bytes);
            sum[j] = both_get(device, there, bytes);
            device->ops->free(device, i % 2 == 0 ? apart : other);
            device->ops->free(device, weights);
        }
        assert_memory_equal(sum[0], sum[1], bytes);
        for (uint64_t k = 0; k < count; k++) {
            assert_true(sum[0][k] == x[k] + y[k]);
        }
        both_near(out[0], out[1], count, 1e-6);
        free(sum[0]);
        free(sum[1]);
        free(x);
        free(y);
        free(weight);
    }
    both_destroy(&both);
}

/* Every third row out of many, last first; more than the limit of a call. */
static void rows_of_a_batch_are_gathered(void **state)
{
    (void)state;
    struct both both = both_new(&small_heads);
    static const uint32_t widths[] = {1, 3, 64, 129};
    static const uint32_t counts[] = {1, 7, BOTH_ROWS_MAX, BOTH_ROWS_MAX + 5};
    for (uint32_t i = 0; i < 8; i++) {
        uint32_t width = widths[i / 2], count = counts[(i + i / 4) % 4], rows = 3 * count;
        uint64_t bytes = (uint64_t)rows * width * sizeof(float);
        uint64_t moved = (uint64_t)count * width * sizeof(float);
        uint32_t *at = malloc(count * sizeof(*at));
        assert_non_null(at);
        for (uint32_t j = 0; j < count; j++) {
            at[j] = rows - 1 - 3 * j;
        }
        float *x = both_floats((uint64_t)rows * width, 1.0f);
        for (uint32_t j = 0; j < 2; j++) {
            struct gw_device *device = both.devices[j];
            float *there = both_put(device, x, bytes);
            void *some;
            assert_int_equal(device->ops->alloc(device, moved, &some), PP_OK);
            assert_int_equal(device->ops->gather_rows(device, NULL, there, at, count, width, some),
                             PP_OK);
            float *gathered = both_get(device, some, moved);
            for (uint32_t k = 0; k < count; k++) {
                assert_memory_equal(gathered + (uint64_t)k * width, x + (uint64_t)at[k] * width,
                                    width * sizeof(float));
            }
            free(gathered);
            device->ops->free(device, there);
        }
        free(at);
        free(x);
    }
    both_destroy(&both);
}

#define SCATTERED 35u /* rows: more than two launches take */

/* Each to every other place, last first, but every fourth to none: what lies between stays. */
static void check_scattered(struct gw_device *device, enum pp_dtype dtype, uint32_t dim,
                            const float *x, uint32_t rows)
{
    enum { COUNT = 3 };
    uint64_t row_bytes = COUNT * pp_vector_bytes(dim, dtype), bytes = 2 * rows * row_bytes;
    uint8_t *expected = malloc(bytes);
    assert_non_null(expected);
    memset(expected, 0x5a, bytes);
    uint8_t *area = both_put(device, expected, bytes);
    float *values = both_put(device, x, (uint64_t)rows * COUNT * dim * sizeof(float));
    void *outs[SCATTERED];
    for (uint32_t row = 0; row < rows; row++) {
        uint64_t at = 2 * (rows - 1 - row) * row_bytes;
        outs[row] = row % 4 == 3 ? NULL : area + at;
        if (outs[row] != NULL) {
            pp_vectors_from_f32(dtype, dim, x + (uint64_t)row * COUNT * dim, COUNT, expected + at);
        }
    }
    assert_int_equal(device->ops->scatter_rows(device, NULL, dtype, dim, values, rows, COUNT, outs),
                     PP_OK);
    uint8_t *scattered = both_get(device, area, bytes);
    assert_memory_equal(scattered, expected, bytes);
    device->ops->free(device, values);
    free(scattered);
    free(expected);
}

static void rows_of_a_batch_are_scattered_in_every_dtype(void **state)
{
    (void)state;
    struct both both = both_new(&small_heads);
    static const uint32_t dims[] = {5, 64, 80}, counts[] = {1, 16, SCATTERED};
    for (uint32_t i = 0; i < 9 * 4; i++) {
        uint32_t dim = dims[i / 4 % 3], rows = counts[i / 12];
        float *x = both_floats((uint64_t)rows * 3 * dim, 100.0f);
        for (uint32_t j = 0; j < 2; j++) {
            check_scattered(both.devices[j], (enum pp_dtype)(PP_BF16 + i % 4), dim, x, rows);
        }
        free(x);
    }
    both_destroy(&both);
}

static void rope_turns_as_on_the_host(void **state)
{
    (void)state;
    struct both both = both_new(&small_heads);
    static const uint32_t dims[] = {2, 6, 64, 80, 128};
    for (uint32_t i = 0; i < 10; i++) {
        uint32_t dim = dims[i / 2], rows = 3, heads = i % 4 + 1, positions = 9;
        uint64_t count = (uint64_t)rows * heads * dim;
        float *angles = both_floats((uint64_t)positions * dim, 0.7f), *x = both_floats(count, 1.0f);
        float *out[2];
        for (uint32_t j = 0; j < 2; j++) {
            struct gw_device *device = both.devices[j];
            float *turned = both_put(device, x, count * sizeof(float));
            float *table = both_put(device, angles, (uint64_t)positions * dim * sizeof(float));
            const struct gw_rope_table rope = {table, table + positions * dim / 2, positions,
                                               i % 2 == 1};
            assert_int_equal(device->ops->rope(device, NULL, &rope, 5, rows, heads, dim, turned),
                             PP_OK);
            out[j] = both_get(device, turned, count * sizeof(float));
            device->ops->free(device, table);
        }
        both_near(out[0], out[1], count, 1e-6);
        free(angles);
        free(x);
    }
    both_destroy(&both);
}

static void biases_and_gates_are_the_hosts(void **state)
{
    (void)state;
    struct both both = both_new(&small_heads);
    static const uint32_t widths[] = {1, 3, 33, 1536, 6001};
    for (uint32_t i = 0; i < 5; i++) {
        uint32_t rows = i + 1, width = widths[i];
        uint64_t count = (uint64_t)rows * width, bytes = count * sizeof(float);
        float *x = both_floats(count, 20.0f), *up = both_floats(count, 1.0f);
        float *out[2];
        for (uint32_t j = 0; j < 2; j++) {
            struct gw_device *device = both.devices[j];
            float *gate = both_put(device, x, bytes), *other = both_put(device, up, bytes);
            assert_int_equal(device->ops->add_bias(device, NULL, other, rows, width, gate), PP_OK);
            assert_int_equal(device->ops->swiglu(device, NULL, gate, other, count, gate), PP_OK);
            out[j] = both_get(device, gate, bytes);
            device->ops->free(device, other);
        }
        both_near(out[0], out[1], count, 1e-6);
        free(x);
        free(up);
    }
    both_destroy(&both);
}

static void values_become_the_same_bits_of_every_dtype(void **state)
{
    (void)state;
    struct both both = both_new(&small_heads);
    static const uint32_t dims[] = {1, 5, 33, 64, 80, 128, 256};
    for (uint32_t i = 0; i < 7 * 4; i++) {
        enum pp_dtype dtype = (enum pp_dtype)(PP_BF16 + i % 4);
        uint32_t dim = dims[i / 4], vectors = 19;
        uint64_t bytes = vectors * pp_vector_bytes(dim, dtype);
        float *x = both_floats((uint64_t)vectors * dim, 100.0f);
        memset(x + 3 * dim, 0, dim * sizeof(float)); /* a vector of zeros */
        x[4 * dim] = 7e4f;                           /* above f16 */
        void *out[2];
        for (uint32_t j = 0; j < 2; j++) {
            struct gw_device *device = both.devices[j];
            float *values = both_put(device, x, (uint64_t)vectors * dim * sizeof(float));
            void *halves;
            assert_int_equal(device->ops->alloc(device, bytes, &halves), PP_OK);
            assert_int_equal(
                device->ops->to_dtype(device, NULL, dtype, dim, values, vectors, halves), PP_OK);
            out[j] = both_get(device, halves, bytes);
            device->ops->free(device, values);
        }
        assert_memory_equal(out[0], out[1], bytes);
        free(out[0]);
        free(out[1]);
        free(x);
    }
    both_destroy(&both);
}

static void merging_keeps_the_law_on_empty_partials_too(void **state)
{
    (void)state;
    struct both both = both_new(&small_heads);
    static const uint32_t dims[] = {1, 64, 80, 256};
    for (uint32_t i = 0; i < 4; i++) {
        uint32_t count = 7, dim = dims[i];
        uint64_t bytes = (uint64_t)count * dim * sizeof(float);
        float *o = both_floats((uint64_t)count * dim, 1.0f);
        float *other = both_floats((uint64_t)count * dim, 1.0f);
        float lse[7] = {1.0f, -INFINITY, 3.0f, -INFINITY, 80.0f, -90.0f, 0.5f};
        float other_lse[7] = {2.0f, 4.0f, -INFINITY, -INFINITY, -80.0f, 0.0f, 0.5f};
        float *out[2], *out_lse[2];
        for (uint32_t j = 0; j < 2; j++) {
            struct gw_device *device = both.devices[j];
            float *own = both_put(device, o, bytes), *theirs = both_put(device, other, bytes);
            float *own_lse = both_put(device, lse, sizeof(lse));
            float *their_lse = both_put(device, other_lse, sizeof(other_lse));
            assert_int_equal(
                device->ops->merge(device, NULL, count, dim, theirs, their_lse, own, own_lse),
                PP_OK);
            out[j] = both_get(device, own, bytes);
            out_lse[j] = both_get(device, own_lse, sizeof(lse));
            device->ops->free(device, theirs);
            device->ops->free(device, their_lse);
        }
        assert_memory_equal(out[1] + dim, other + dim, dim * sizeof(float));
        assert_memory_equal(out[1] + 2 * dim, o + 2 * dim, dim * sizeof(float));
        assert_true(out_lse[1][3] == -INFINITY);
        out_lse[0][3] = out_lse[1][3] = 0.0f;
        both_near(out[0], out[1], 3ull * dim, 1e-6);
        both_near(out_lse[0], out_lse[1], count, 1e-6);
        free(o);
        free(other);
    }
    both_destroy(&both);
}

/* Weights of a type with scales that are numbers: any bits for the quants. */
static uint8_t *random_weights(enum gw_weight_type type, uint32_t rows, uint32_t columns)
{
    uint64_t row_bytes = gw_matrix_row_bytes(type, columns), bytes = rows * row_bytes;
    uint8_t *weights = malloc(bytes);
    float *values = both_floats((uint64_t)rows * columns, 0.2f);
    assert_non_null(weights);
    if (type == GW_WEIGHT_F32) {
        memcpy(weights, values, bytes);
    } else if (type == GW_WEIGHT_F16 || type == GW_WEIGHT_BF16) {
        pp_dtype_from_f32(type == GW_WEIGHT_F16 ? PP_F16 : PP_BF16, values,
                          (uint64_t)rows * columns, weights);
    } else {
        uint64_t block_bytes = gw_matrix_row_bytes(type, 32);
        for (uint64_t i = 0; i < bytes; i++) {
            weights[i] = (uint8_t)pp_rng_u64(&both_rng);
        }
        for (uint64_t i = 0; i < bytes; i += block_bytes) {
            uint16_t scales[2] = {pp_f16_from_f32(values[i / block_bytes] * 0.2f),
                                  pp_f16_from_f32(values[i / block_bytes] * -1.3f)};
            memcpy(weights + i, scales, type == GW_WEIGHT_Q4_1 ? 4 : 2);
        }
    }
    free(values);
    return weights;
}

static void check_linear(struct both *both, enum gw_weight_type type, uint32_t rows,
                         uint32_t outputs, uint32_t columns, bool add)
{
    uint64_t weight_bytes = outputs * gw_matrix_row_bytes(type, columns);
    uint64_t x_bytes = (uint64_t)rows * columns * sizeof(float);
    uint64_t out_bytes = (uint64_t)rows * outputs * sizeof(float);
    uint8_t *weights = random_weights(type, outputs, columns);
    float *x = both_floats((uint64_t)rows * columns, 1.0f);
    float *before = both_floats((uint64_t)rows * outputs, 1.0f), *out[2];
    for (uint32_t j = 0; j < 2; j++) {
        struct gw_device *device = both->devices[j];
        struct gw_matrix matrix = {.type = type, .rows = outputs, .columns = columns};
        assert_int_equal(device->ops->import(device, weights, weight_bytes, &matrix.data), PP_OK);
        float *from = both_put(device, x, x_bytes), *to = both_put(device, before, out_bytes);
        assert_int_equal(device->ops->linear(device, NULL, &matrix, from, rows, add, to), PP_OK);
        out[j] = both_get(device, to, out_bytes);
        device->ops->free(device, from);
        device->ops->release(device, matrix.data);
    }
    /* Of more rows activations and weights are rounded to 11 bits; of two halves of bf16 remain 16
     * bits at least. */
    bool halves = type != GW_WEIGHT_F32 && type != GW_WEIGHT_BF16 && rows > 64;
    both_near(out[0], out[1], (uint64_t)rows * outputs, halves ? 5e-4 : 1e-5);
    free(weights);
    free(x);
    free(before);
}

static const enum gw_weight_type weight_types[] = {GW_WEIGHT_F32,  GW_WEIGHT_F16,  GW_WEIGHT_BF16,
                                                   GW_WEIGHT_Q4_0, GW_WEIGHT_Q4_1, GW_WEIGHT_Q8_0};

static void few_rows_times_weights_of_every_type_are_the_hosts(void **state)
{
    (void)state;
    struct both both = both_new(&small_heads);
    for (uint32_t i = 0; i < 6; i++) {
        check_linear(&both, weight_types[i], 1, 1, 32, false);
        check_linear(&both, weight_types[i], 1, 577, 96, true); /* four outputs a warp */
        check_linear(&both, weight_types[i], 2, 33, 608, true);
        check_linear(&both, weight_types[i], 3, 65, 256, false);
        check_linear(&both, weight_types[i], 4, 16, 1536, false);
    }
    for (uint32_t i = 0; i < 3; i++) {
        check_linear(&both, weight_types[i], 3, 21, 50, true); /* no whole groups */
    }
    both_destroy(&both);
}

static void many_rows_times_weights_of_every_type_are_the_hosts(void **state)
{
    (void)state;
    struct both both = both_new(&small_heads);
    for (uint32_t i = 0; i < 6; i++) {
        check_linear(&both, weight_types[i], 5, 17, 32, false);
        check_linear(&both, weight_types[i], 7, 65, 96, true);
        check_linear(&both, weight_types[i], 200, 1, 160, false);
        check_linear(&both, weight_types[i], 33, 130, 576, false);
        check_linear(&both, weight_types[i], 64, 20, 64, true);
        check_linear(&both, weight_types[i], 65, 20, 64, true);
    }
    for (uint32_t i = 0; i < 3; i++) {
        check_linear(&both, weight_types[i], 9, 21, 50, true); /* columns are padded */
    }
    both_destroy(&both);
}

static void activations_beyond_f16_are_multiplied_all_the_same(void **state)
{
    (void)state;
    struct both both = both_new(&small_heads);
    const uint32_t rows = 8, outputs = 40, columns = 64;
    uint8_t *weights = random_weights(GW_WEIGHT_Q8_0, outputs, columns);
    float *x = both_floats((uint64_t)rows * columns, 1e6f), *out[2];
    for (uint32_t j = 0; j < 2; j++) {
        struct gw_device *device = both.devices[j];
        struct gw_matrix matrix = {.type = GW_WEIGHT_Q8_0, .rows = outputs, .columns = columns};
        assert_int_equal(device->ops->import(device, weights, outputs * 68ull, &matrix.data),
                         PP_OK);
        float *from = both_put(device, x, rows * columns * sizeof(float)), *to;
        void *memory;
        assert_int_equal(device->ops->alloc(device, rows * outputs * sizeof(float), &memory),
                         PP_OK);
        to = memory;
        assert_int_equal(device->ops->linear(device, NULL, &matrix, from, rows, false, to), PP_OK);
        out[j] = both_get(device, to, rows * outputs * sizeof(float));
        device->ops->free(device, from);
        device->ops->release(device, matrix.data);
    }
    both_near(out[0], out[1], rows * outputs, 1e-3);
    free(weights);
    free(x);
    both_destroy(&both);
}

static void rows_of_a_table_are_embedded_in_chunks(void **state)
{
    (void)state;
    struct both both = both_new(&small_heads);
    uint32_t ids[BOTH_ROWS_MAX + 20];
    const uint32_t count = BOTH_ROWS_MAX + 20, table_rows = 11;
    for (uint32_t i = 0; i < count; i++) {
        ids[i] = (uint32_t)(pp_rng_u64(&both_rng) % table_rows);
    }
    for (uint32_t i = 0; i < 6; i++) {
        uint32_t columns = i < 3 ? 35 : 64;
        uint8_t *weights = random_weights(weight_types[i], table_rows, columns);
        uint64_t bytes = (uint64_t)count * columns * sizeof(float);
        float *out[2];
        for (uint32_t j = 0; j < 2; j++) {
            struct gw_device *device = both.devices[j];
            struct gw_matrix table = {
                .type = weight_types[i], .rows = table_rows, .columns = columns};
            void *to;
            assert_int_equal(
                device->ops->import(device, weights,
                                    table_rows * gw_matrix_row_bytes(table.type, columns),
                                    &table.data),
                PP_OK);
            assert_int_equal(device->ops->alloc(device, bytes, &to), PP_OK);
            assert_int_equal(device->ops->embed(device, NULL, &table, ids, count, to), PP_OK);
            out[j] = both_get(device, to, bytes);
            device->ops->release(device, table.data);
        }
        both_near(out[0], out[1], (uint64_t)count * columns, 1e-7);
        free(weights);
    }
    both_destroy(&both);
}

int main(void)
{
    both_begin();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(rms_norm_is_the_hosts_in_place_and_apart, both_setup),
        cmocka_unit_test_setup(a_residual_and_its_norm_are_the_hosts, both_setup),
        cmocka_unit_test_setup(rows_of_a_batch_are_gathered, both_setup),
        cmocka_unit_test_setup(rows_of_a_batch_are_scattered_in_every_dtype, both_setup),
        cmocka_unit_test_setup(rope_turns_as_on_the_host, both_setup),
        cmocka_unit_test_setup(biases_and_gates_are_the_hosts, both_setup),
        cmocka_unit_test_setup(values_become_the_same_bits_of_every_dtype, both_setup),
        cmocka_unit_test_setup(merging_keeps_the_law_on_empty_partials_too, both_setup),
        cmocka_unit_test_setup(few_rows_times_weights_of_every_type_are_the_hosts, both_setup),
        cmocka_unit_test_setup(many_rows_times_weights_of_every_type_are_the_hosts, both_setup),
        cmocka_unit_test_setup(activations_beyond_f16_are_multiplied_all_the_same, both_setup),
        cmocka_unit_test_setup(rows_of_a_table_are_embedded_in_chunks, both_setup),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
