/*
 * The host device's matrix products while signals arrive: the kernels of oneDNN use their workspace
 * on the heap as the stack, so a handler that ran meanwhile would write its frame over the heap.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>

#include "common/base/rng.h"
#include "gpu-worker/device/device.h"

#define ROWS    512u
#define OUTPUTS 576u
#define COLUMNS 576u
#define SIGNALS 50u

static uintptr_t stack_begin, stack_end; /* of the thread that computes */
static _Atomic uint32_t handled, off_the_stack;

static void note_the_stack(int number)
{
    (void)number;
    uintptr_t at = (uintptr_t)__builtin_frame_address(0);
    if (at < stack_begin || at >= stack_end) {
        atomic_fetch_add(&off_the_stack, 1);
    }
    atomic_fetch_add(&handled, 1);
}

/* A signal after each millisecond that the process computes: most come while it multiplies. */
static void set_timer(suseconds_t microseconds)
{
    const struct itimerval timer = {.it_interval.tv_usec = microseconds,
                                    .it_value.tv_usec = microseconds};
    assert_int_equal(setitimer(ITIMER_VIRTUAL, &timer, NULL), 0);
}

static void find_own_stack(void)
{
    pthread_attr_t attributes;
    void *begin;
    size_t bytes;
    assert_int_equal(pthread_getattr_np(pthread_self(), &attributes), 0);
    assert_int_equal(pthread_attr_getstack(&attributes, &begin, &bytes), 0);
    pthread_attr_destroy(&attributes);
    stack_begin = (uintptr_t)begin;
    stack_end = stack_begin + bytes;
}

static float *random_floats(uint64_t count)
{
    struct pp_rng rng = {.seed = 1729};
    float *values = malloc(count * sizeof(float));
    assert_non_null(values);
    for (uint64_t i = 0; i < count; i++) {
        values[i] = (float)pp_rng_normal(&rng);
    }
    return values;
}

static struct gw_device *device_new(uint32_t threads)
{
    struct gw_device *device;
    const struct gw_device_limits limits = {.columns_max = COLUMNS,
                                            .rows_max = ROWS,
                                            .heads = {3, 1, 64, 0.125f, PP_BF16},
                                            .kv_tokens_max = ROWS};
    assert_int_equal(gw_host_device_new(threads, &device), PP_OK);
    assert_int_equal(device->ops->prepare(device, &limits), PP_OK);
    return device;
}

static void multiply_under_signals(uint32_t threads)
{
    struct gw_device *device = device_new(threads);
    float *weights = random_floats((uint64_t)OUTPUTS * COLUMNS);
    float *x = random_floats((uint64_t)ROWS * COLUMNS);
    size_t bytes = (size_t)ROWS * OUTPUTS * sizeof(float);
    float *expected = malloc(bytes), *out = malloc(bytes);
    assert_true(expected != NULL && out != NULL);
    const struct gw_matrix matrix = {GW_WEIGHT_F32, OUTPUTS, COLUMNS, weights};
    assert_int_equal(device->ops->linear(device, NULL, &matrix, x, ROWS, false, expected), PP_OK);

    find_own_stack();
    atomic_store(&handled, 0);
    struct sigaction note = {.sa_handler = note_the_stack}, before;
    sigemptyset(&note.sa_mask);
    assert_int_equal(sigaction(SIGVTALRM, &note, &before), 0);
    set_timer(1000);
    bool same = true;
    while (atomic_load(&handled) < SIGNALS) {
        enum pp_status status = device->ops->linear(device, NULL, &matrix, x, ROWS, false, out);
        same = same && status == PP_OK && memcmp(out, expected, bytes) == 0;
    }
    set_timer(0);
    assert_int_equal(sigaction(SIGVTALRM, &before, NULL), 0);

    assert_int_equal(atomic_load(&off_the_stack), 0);
    assert_true(same);
    free(out);
    free(expected);
    free(x);
    free(weights);
    device->ops->destroy(device);
}

static void no_signal_is_handled_on_the_heap_during_a_matrix_product(void **state)
{
    (void)state;
    multiply_under_signals(1);
    multiply_under_signals(2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_signal_is_handled_on_the_heap_during_a_matrix_product),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
