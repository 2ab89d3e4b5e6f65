/*
 * The kernels of the CUDA device by name, and those of tests, for the emulator, and the twin of the
 * library's matrix product: a thread an output, for all rows.
 */
#include "gpu-worker/device/cuda/kernels.h"

#include "gpu-worker/device/cuda/gemm.h"
#include "gpu-worker/device/cuda/kernel.cuh"
#include "tests/cuda_emu/delay.h"

#define CALL(name, kind, threads)                                                                  \
    extern "C" void gw_gpu_##name(const struct gw_cuda_##kind##_args args);                        \
    static void call_##name(const void *args)                                                      \
    {                                                                                              \
        gw_gpu_##name(*static_cast<const struct gw_cuda_##kind##_args *>(args));                   \
    }
GW_CUDA_KERNELS(CALL)
CALL(delay, delay, DELAY_THREADS)
#undef CALL

static float number_at(enum gw_cuda_number type, const void *numbers, uint64_t i)
{
    uint16_t half = type == GW_CUDA_F32 ? 0 : static_cast<const uint16_t *>(numbers)[i];
    return type == GW_CUDA_F32   ? static_cast<const float *>(numbers)[i]
           : type == GW_CUDA_F16 ? gw_f16_to_f32(half)
                                 : gw_bf16_to_f32(half);
}

static float dot(const struct gw_cuda_product *product, uint64_t row, uint64_t output)
{
    const void *x = reinterpret_cast<const void *>(product->x);
    const void *weights = reinterpret_cast<const void *>(product->weights);
    float sum = 0.0f;
    for (uint64_t i = 0; i < product->stride; i++) {
        sum += number_at(product->type, x, row * product->stride + i) *
               number_at(product->type, weights, output * product->stride + i);
    }
    return sum;
}

/* Nothing is read of out where it is not kept. */
static void call_multiply(const void *args)
{
    const struct gw_cuda_product *product = static_cast<const struct gw_cuda_product *>(args);
    uint64_t output = blockIdx.x * blockDim.x + threadIdx.x;
    if (output >= product->outputs) {
        return;
    }
    float factor = *reinterpret_cast<const float *>(product->factor);
    float kept = *reinterpret_cast<const float *>(product->kept);
    for (uint64_t row = 0; row < product->rows; row++) {
        float *out = reinterpret_cast<float *>(product->out) + row * product->out_stride + output;
        float sum = factor * dot(product, row, output);
        *out = kept == 0.0f ? sum : sum + kept * *out;
    }
}

static const struct emu_kernel all_kernels[] = {
#define ENTRY(name, kind, threads)                                                                 \
    {"gw_gpu_" #name, call_##name, threads, sizeof(struct gw_cuda_##kind##_args)},
    GW_CUDA_KERNELS(ENTRY) ENTRY(delay, delay, DELAY_THREADS)
#undef ENTRY
        {"emu_multiply_matrices", call_multiply, 32, sizeof(struct gw_cuda_product)},
};

extern "C" const struct emu_kernel *emu_kernel_find(const char *name)
{
    for (const struct emu_kernel &kernel : all_kernels) {
        if (strcmp(kernel.name, name) == 0) {
            return &kernel;
        }
    }
    return NULL;
}
