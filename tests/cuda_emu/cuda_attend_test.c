/*
 * Attention of the CUDA device against the host's: groups, dimensions, dtypes and lengths that fit
 * no tile.
 */
#include "tests/cuda_emu/both.h"

/* K/V of a layer and queries, on the host. */
struct attend_case {
    struct gw_heads heads;
    uint64_t count, row_bytes;
    uint8_t *k, *v;
    float *q;
    uint32_t rows;
};

static uint8_t *random_vectors(enum pp_dtype dtype, uint32_t dim, uint64_t count)
{
    float *floats = both_floats(count * dim, 1.0f);
    uint8_t *vectors = malloc(count * pp_vector_bytes(dim, dtype) + 1);
    assert_non_null(vectors);
    pp_vectors_from_f32(dtype, dim, floats, count, vectors);
    free(floats);
    return vectors;
}

static struct attend_case attend_case_new(uint32_t group, uint32_t kv_heads, uint32_t dim,
                                          enum pp_dtype dtype, uint64_t count, uint32_t rows)
{
    struct attend_case made = {.count = count, .rows = rows};
    made.heads =
        (struct gw_heads){group * kv_heads, kv_heads, dim, 1.0f / sqrtf((float)dim), dtype};
    made.row_bytes = kv_heads * pp_vector_bytes(dim, dtype);
    made.k = random_vectors(dtype, dim, count * kv_heads);
    made.v = random_vectors(dtype, dim, count * kv_heads);
    made.q = both_floats((uint64_t)rows * group * kv_heads * dim, 1.5f);
    return made;
}

static void attend_case_free(struct attend_case *made)
{
    free(made->k);
    free(made->v);
    free(made->q);
}

static void check_causal(const struct attend_case *made, double share)
{
    struct both both = both_new(&made->heads);
    uint64_t heads = (uint64_t)made->rows * made->heads.q_heads;
    uint64_t bytes = heads * made->heads.head_dim * sizeof(float);
    float *out[2], *out_lse[2];
    for (uint32_t j = 0; j < 2; j++) {
        struct gw_device *device = both.devices[j];
        struct gw_kv_rows kv = {both_put(device, made->k, made->count * made->row_bytes),
                                both_put(device, made->v, made->count * made->row_bytes),
                                made->count};
        float *q = both_put(device, made->q, bytes);
        void *o, *lse;
        assert_int_equal(device->ops->alloc(device, bytes, &o), PP_OK);
        assert_int_equal(device->ops->alloc(device, heads * sizeof(float), &lse), PP_OK);
        assert_int_equal(device->ops->attend_causal(device, NULL, &made->heads, &kv,
                                                    made->count - made->rows, q, made->rows, o,
                                                    lse),
                         PP_OK);
        out[j] = both_get(device, o, bytes);
        out_lse[j] = both_get(device, lse, heads * sizeof(float));
        device->ops->free(device, q);
        device->ops->free(device, (void *)(uintptr_t)kv.k);
        device->ops->free(device, (void *)(uintptr_t)kv.v);
    }
    both_near(out[0], out[1], heads * made->heads.head_dim, share);
    both_near(out_lse[0], out_lse[1], heads, share < 1e-4 ? 1e-5 : 1e-4);
    both_destroy(&both);
}

static void causal_attention_by_tensor_cores_is_the_hosts(void **state)
{
    (void)state;
    static const uint32_t groups[] = {1, 3, 4, 7, 71}, dims[] = {64, 80, 96, 128, 256, 40};
    static const uint32_t counts[] = {1, 15, 17, 63, 65, 130};
    for (uint32_t i = 0; i < 12; i++) {
        uint32_t count = counts[i % 6], rows = count > 40 ? count - 25 : count;
        rows = groups[i % 5] > 8 && rows > 5 ? 5 : rows;
        struct attend_case made = attend_case_new(groups[i % 5], i % 2 + 1, dims[(i + i / 6) % 6],
                                                  i % 2 == 0 ? PP_BF16 : PP_F16, count, rows);
        check_causal(&made, 1e-5);
        attend_case_free(&made);
    }
}

static void causal_attention_over_other_rows_is_the_hosts(void **state)
{
    (void)state;
    static const uint32_t groups[] = {1, 3, 8, 11}, dims[] = {64, 1, 33, 128, 256, 20};
    static const enum pp_dtype dtypes[] = {PP_F32, PP_I8, PP_BF16};
    for (uint32_t i = 0; i < 9; i++) {
        enum pp_dtype dtype = dtypes[i % 3];
        uint32_t dim = dtype == PP_BF16 ? 20 + i : dims[i % 6], count = 30 + 13 * i;
        struct attend_case made =
            attend_case_new(groups[i % 4], i % 2 + 1, dim, dtype, count, 3 + i);
        check_causal(&made, 1e-5);
        attend_case_free(&made);
    }
}

/* Queries whose scores in f16 would overflow, and keys that make the softmax sharp. */
static void large_queries_do_not_overflow(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < 2; i++) {
        struct attend_case made = attend_case_new(2, 1, 64, i == 0 ? PP_F16 : PP_BF16, 70, 9);
        for (uint32_t j = 0; j < 9 * 2 * 64; j++) {
            made.q[j] *= j % 3 == 0 ? 1e6f : 1e-3f;
        }
        check_causal(&made, 1e-5);
        attend_case_free(&made);
    }
}

static void check_partial(const struct attend_case *made)
{
    struct both both = both_new(&made->heads);
    uint64_t heads = (uint64_t)made->rows * made->heads.q_heads, cut = made->count / 3;
    uint64_t bytes = heads * made->heads.head_dim * sizeof(float);
    float *out[2], *out_lse[2];
    for (uint32_t j = 0; j < 2; j++) {
        struct gw_device *device = both.devices[j];
        uint8_t *k = both_put(device, made->k, made->count * made->row_bytes);
        uint8_t *v = both_put(device, made->v, made->count * made->row_bytes);
        const struct gw_kv_rows spans[3] = {
            {k, v, cut},
            {k, v, 0},
            {k + cut * made->row_bytes, v + cut * made->row_bytes, made->count - cut}};
        float *q = both_put(device, made->q, bytes);
        void *o, *lse;
        assert_int_equal(device->ops->alloc(device, bytes, &o), PP_OK);
        assert_int_equal(device->ops->alloc(device, heads * sizeof(float), &lse), PP_OK);
        assert_int_equal(device->ops->attend_partial(device, NULL, &made->heads, spans, 3, q,
                                                     made->rows, o, lse),
                         PP_OK);
        out[j] = both_get(device, o, bytes);
        out_lse[j] = both_get(device, lse, heads * sizeof(float));
        device->ops->free(device, q);
        device->ops->free(device, k);
        device->ops->free(device, v);
    }
    both_near(out[0], out[1], heads * made->heads.head_dim, 1e-5);
    both_near(out_lse[0], out_lse[1], heads, 1e-5);
    both_destroy(&both);
}

static void partials_over_spans_are_the_hosts_for_every_dtype(void **state)
{
    (void)state;
    static const uint64_t counts[] = {1, 2, 31, 33, 255, 256, 257, 700, 1100};
    static const uint32_t groups[] = {1, 3, 4, 5, 7, 9}, dims[] = {64, 80, 128, 256, 17};
    for (uint32_t i = 0; i < 12; i++) {
        struct attend_case made =
            attend_case_new(groups[i % 6], i % 3 + 1, dims[i % 5], (enum pp_dtype)(PP_BF16 + i % 4),
                            counts[i % 9], i % 2 + 1);
        check_partial(&made);
        attend_case_free(&made);
    }
}

static void spans_that_hold_nothing_give_the_empty_partial(void **state)
{
    (void)state;
    const struct gw_heads heads = {3, 1, 64, 0.125f, PP_BF16};
    struct both both = both_new(&heads);
    struct gw_device *device = both.devices[1];
    const struct gw_kv_rows span = {NULL, NULL, 0};
    float *q = both_floats(3 * 64, 1.0f);
    float *there = both_put(device, q, 3 * 64 * sizeof(float));
    float *o = both_put(device, q, 3 * 64 * sizeof(float));
    float *lse = both_put(device, q, 3 * sizeof(float));
    assert_int_equal(device->ops->attend_partial(device, NULL, &heads, &span, 1, there, 1, o, lse),
                     PP_OK);
    o = both_get(device, o, 3 * 64 * sizeof(float));
    lse = both_get(device, lse, 3 * sizeof(float));
    for (uint32_t i = 0; i < 3 * 64; i++) {
        assert_true(o[i] == 0.0f && lse[i / 64] == -INFINITY);
    }
    free(q);
    free(o);
    free(lse);
    both_destroy(&both);
}

int main(void)
{
    both_begin();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(causal_attention_by_tensor_cores_is_the_hosts, both_setup),
        cmocka_unit_test_setup(causal_attention_over_other_rows_is_the_hosts, both_setup),
        cmocka_unit_test_setup(large_queries_do_not_overflow, both_setup),
        cmocka_unit_test_setup(partials_over_spans_are_the_hosts_for_every_dtype, both_setup),
        cmocka_unit_test_setup(spans_that_hold_nothing_give_the_empty_partial, both_setup),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
