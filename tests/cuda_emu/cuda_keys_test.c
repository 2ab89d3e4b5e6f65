/*
 * What the CUDA device says of keys and queries has the bits of the host's: signatures, centres and
 * sums of squares.
 */
#include "tests/cuda_emu/both.h"

#include "common/attn/hash.h"

struct keys_case {
    struct gw_heads heads;
    uint64_t count;
    uint8_t *k; /* [count] rows on the host */
    uint64_t bytes;
    float *q; /* [rows][q heads][dim] */
    uint32_t rows;
};

static struct keys_case keys_case_new(uint32_t kv_heads, uint32_t dim, enum pp_dtype dtype,
                                      uint64_t count)
{
    struct keys_case made = {.heads = {3 * kv_heads, kv_heads, dim, 1.0f, dtype},
                             .count = count,
                             .rows = 5,
                             .bytes = count * kv_heads * pp_vector_bytes(dim, dtype)};
    float *floats = both_floats(count * kv_heads * dim, 1.0f);
    for (uint64_t i = 0; i < count * kv_heads * dim; i++) {
        floats[i] += (float)(i % dim % 5); /* a centre */
    }
    made.k = malloc(made.bytes);
    assert_non_null(made.k);
    pp_vectors_from_f32(dtype, dim, floats, count * kv_heads, made.k);
    made.q = both_floats(5ull * 3 * kv_heads * dim, 2.0f);
    free(floats);
    return made;
}

static void keys_case_free(struct keys_case *made)
{
    free(made->k);
    free(made->q);
}

static void check_signatures(const struct keys_case *made, uint32_t k, uint32_t l)
{
    struct both both = both_new(&made->heads);
    struct pp_hash *hash;
    uint64_t codes = made->count * made->heads.kv_heads * l;
    float *centre = malloc(sizeof(float) * made->heads.kv_heads * made->heads.head_dim);
    uint16_t *out[2];
    assert_int_equal(pp_hash_new(pp_rng_u64(&both_rng), made->heads.head_dim, k, l, &hash), PP_OK);
    for (uint32_t j = 0; j < 2; j++) {
        struct gw_device *device = both.devices[j];
        void *keys = both_put(device, made->k, made->bytes);
        out[j] = malloc(codes * sizeof(uint16_t));
        assert_int_equal(
            device->ops->centre_keys(device, NULL, &made->heads, keys, made->count, centre), PP_OK);
        assert_int_equal(device->ops->sign_keys(device, NULL, &made->heads, hash, l, keys,
                                                made->count, centre, out[j]),
                         PP_OK);
        device->ops->free(device, keys);
    }
    assert_memory_equal(out[0], out[1], codes * sizeof(uint16_t));
    free(out[0]);
    free(out[1]);
    free(centre);
    pp_hash_destroy(hash);
    both_destroy(&both);
}

static void signatures_of_keys_have_the_hosts_bits(void **state)
{
    (void)state;
    static const uint32_t dims[] = {1, 20, 64, 80, 128, 200, 256};
    static const uint32_t shapes[][2] = {{10, 150}, {16, 37}, {1, 3}, {7, 512}};
    for (uint32_t i = 0; i < 14; i++) {
        struct keys_case made = keys_case_new(i % 3 + 1, dims[i % 7],
                                              (enum pp_dtype)(PP_BF16 + i % 4), 11 + 9 * (i % 3));
        check_signatures(&made, shapes[i % 4][0], shapes[i % 4][1]);
        keys_case_free(&made);
    }
}

/* Equal keys, a lone one, tiny and huge ones. */
static void signatures_of_extreme_keys_have_the_hosts_bits(void **state)
{
    (void)state;
    static const float scales[] = {0.0f, 1e-30f, 1e-40f, 1e11f};
    for (uint32_t i = 0; i < 4; i++) {
        struct keys_case made = keys_case_new(1, 128, PP_F32, 10);
        float *keys = (float *)(void *)made.k;
        for (uint32_t j = 0; j < 10 * 128; j++) {
            keys[j] *= j / 128 % 2 == 0 ? scales[i] : 1.0f;
        }
        check_signatures(&made, 10, 150);
        keys_case_free(&made);
    }
}

static void centres_and_squares_have_the_hosts_bits(void **state)
{
    (void)state;
    static const uint32_t dims[] = {1, 33, 64, 80, 128};
    for (uint32_t i = 0; i < 10; i++) {
        struct keys_case made =
            keys_case_new(i % 3 + 1, dims[i % 5], (enum pp_dtype)(PP_BF16 + i % 4), 1 + 37 * i);
        struct both both = both_new(&made.heads);
        uint64_t columns = (uint64_t)made.heads.kv_heads * made.heads.head_dim;
        float *centre[2];
        double *sums[2];
        for (uint32_t j = 0; j < 2; j++) {
            struct gw_device *device = both.devices[j];
            void *keys = both_put(device, made.k, made.bytes);
            float *q = both_put(device, made.q, made.rows * 3 * columns * sizeof(float));
            centre[j] = malloc(columns * sizeof(float));
            sums[j] = calloc(2 * columns, sizeof(double));
            assert_int_equal(
                device->ops->centre_keys(device, NULL, &made.heads, keys, made.count, centre[j]),
                PP_OK);
            for (uint32_t twice = 0; twice < 2; twice++) { /* they add up */
                assert_int_equal(device->ops->key_squares(device, NULL, &made.heads, keys,
                                                          made.count, centre[j], sums[j]),
                                 PP_OK);
                assert_int_equal(device->ops->query_squares(device, NULL, &made.heads, q, made.rows,
                                                            sums[j] + columns),
                                 PP_OK);
            }
            device->ops->free(device, keys);
            device->ops->free(device, q);
        }
        assert_memory_equal(centre[0], centre[1], columns * sizeof(float));
        assert_memory_equal(sums[0], sums[1], 2 * columns * sizeof(double));
        for (uint32_t j = 0; j < 2; j++) {
            free(centre[j]);
            free(sums[j]);
        }
        both_destroy(&both);
        keys_case_free(&made);
    }
}

int main(void)
{
    both_begin();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(signatures_of_keys_have_the_hosts_bits, both_setup),
        cmocka_unit_test_setup(signatures_of_extreme_keys_have_the_hosts_bits, both_setup),
        cmocka_unit_test_setup(centres_and_squares_have_the_hosts_bits, both_setup),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
