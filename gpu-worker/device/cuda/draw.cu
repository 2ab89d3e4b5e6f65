/*
 * The next token from logits by the law of gpu-worker/device/draw.h: a row a block of 512 threads.
 * The best value first; the cuts of top-k and top-p by counting the ranks' digits in shared memory,
 * highest first; then the draw by narrowing: each thread sums a run of neighbouring ids, the one
 * whose run holds what was drawn hands its run to all again, until it is one id. Sums are whole
 * numbers, so atomics may add them in any order. Reads the logits, 4 bytes an id, once for the
 * best, three or four times a cut and once for the draw, from the L2 cache after the first time.
 * Shared: struct gw_cuda_draw_shared.
 */
#include "gpu-worker/device/cuda/kernel.cuh"
#include "gpu-worker/device/draw.h"

#define DRAW_WARPS (GW_CUDA_DRAW_THREADS / GW_WARP)

static __device__ __forceinline__ float value_at(const struct gw_draw &draw, uint32_t id)
{
    uint32_t seen = draw.seen == nullptr ? 0 : draw.seen[id];
    return gw_draw_value(&draw, __ldg(draw.logits + id), seen);
}

static __device__ __forceinline__ uint64_t best_key(const struct gw_draw &draw,
                                                    struct gw_cuda_draw_shared *shared)
{
    uint64_t best = 0;
    for (uint32_t id = threadIdx.x; id < draw.count; id += GW_CUDA_DRAW_THREADS) {
        uint64_t key = gw_draw_key(value_at(draw, id), id);
        best = key > best ? key : best;
    }
    for (int bits = 16; bits > 0; bits /= 2) {
        uint64_t other = __shfl_xor_sync(GW_ALL_LANES, best, bits);
        best = other > best ? other : best;
    }
    if (threadIdx.x % GW_WARP == 0) {
        shared->sums[threadIdx.x / GW_WARP] = best;
    }
    __syncthreads();
    for (uint32_t i = 0; i < DRAW_WARPS; i++) {
        best = shared->sums[i] > best ? shared->sums[i] : best;
    }
    __syncthreads();
    return best;
}

/* The sum of what the threads before this one have, and of all. */
static __device__ __forceinline__ uint64_t sum_before(uint64_t own, uint64_t *sums,
                                                      uint64_t *total_out)
{
    uint32_t lane = threadIdx.x % GW_WARP, warp = threadIdx.x / GW_WARP;
    uint64_t sum = own; /* of the lanes up to this one */
    for (uint32_t step = 1; step < GW_WARP; step *= 2) {
        uint64_t lower = __shfl_up_sync(GW_ALL_LANES, sum, step);
        sum += lane >= step ? lower : 0;
    }
    if (lane == GW_WARP - 1) {
        sums[warp] = sum;
    }
    __syncthreads();
    uint64_t before = sum - own, total = 0;
    for (uint32_t i = 0; i < DRAW_WARPS; i++) {
        before += i < warp ? sums[i] : 0;
        total += sums[i];
    }
    __syncthreads();
    *total_out = total;
    return before;
}

static __device__ __forceinline__ void count_digit(const struct gw_draw &draw, float best,
                                                   bool weighed, uint32_t digit, uint32_t prefix,
                                                   struct gw_cuda_draw_shared *shared)
{
    uint32_t shift = gw_draw_digit_shift(digit), bits = gw_draw_digit_bits(digit);
    for (uint32_t i = threadIdx.x; i < GW_DRAW_BINS; i += GW_CUDA_DRAW_THREADS) {
        shared->bins[i] = 0;
    }
    __syncthreads();
    for (uint32_t id = threadIdx.x; id < draw.count; id += GW_CUDA_DRAW_THREADS) {
        uint32_t rank = gw_draw_rank(best, value_at(draw, id), draw.scale);
        if (rank < GW_DRAW_RANKS && static_cast<uint64_t>(rank) >> (shift + bits) == prefix) {
            uint32_t bin = rank >> shift & ((1u << bits) - 1);
            unsigned long long weight = weighed ? gw_draw_weight(rank) : 1;
            atomicAdd(reinterpret_cast<unsigned long long *>(&shared->bins[bin]), weight);
        }
    }
    __syncthreads();
}

/* The rank and the equals at which the ids in order have counted, or weighed, as much as wanted. */
static __device__ struct gw_draw_cut cut_at(const struct gw_draw &draw, float best, bool weighed,
                                            uint64_t wanted, struct gw_cuda_draw_shared *shared)
{
    const uint32_t own_bins = GW_DRAW_BINS / GW_CUDA_DRAW_THREADS;
    uint32_t prefix = 0;
    for (uint32_t digit = 0; digit < GW_DRAW_DIGITS; digit++) {
        count_digit(draw, best, weighed, digit, prefix, shared);
        const uint64_t *bins = shared->bins + threadIdx.x * own_bins;
        uint64_t own = 0, total;
        for (uint32_t i = 0; i < own_bins; i++) {
            own += bins[i];
        }
        uint64_t before = sum_before(own, shared->sums, &total);
        if (total < wanted) { /* there are not as many */
            return gw_draw_no_cut();
        }
        if (before < wanted && wanted <= before + own) {
            uint32_t bin = 0;
            while (before + bins[bin] < wanted) {
                before += bins[bin++];
            }
            shared->found = threadIdx.x * own_bins + bin;
            shared->before = before;
        }
        __syncthreads();
        prefix = prefix << gw_draw_digit_bits(digit) | shared->found;
        wanted -= shared->before;
        __syncthreads();
    }
    uint64_t each = weighed ? gw_draw_weight(prefix) : 1;
    struct gw_draw_cut cut;
    cut.rank = prefix;
    cut.equal = (wanted + each - 1) / each;
    return cut;
}

/* What ids [begin, end) below the cut's rank weigh, those with weight_min; *equal: how many have
 * that rank. */
static __device__ __forceinline__ uint64_t weigh(const struct gw_draw &draw, float best,
                                                 uint32_t cut_rank, uint64_t weight_min,
                                                 uint32_t begin, uint32_t end, uint32_t step,
                                                 uint64_t *equal)
{
    uint64_t sum = 0;
    for (uint32_t id = begin; id < end; id += step) {
        uint32_t rank = gw_draw_rank(best, value_at(draw, id), draw.scale);
        *equal += rank == cut_rank ? 1 : 0;
        if (rank < cut_rank) {
            uint64_t weight = gw_draw_weight(rank);
            sum += weight >= weight_min ? weight : 0;
        }
    }
    return sum;
}

static __device__ struct gw_draw_cut cut_all(const struct gw_draw &draw, float best,
                                             struct gw_cuda_draw_shared *shared)
{
    struct gw_draw_cut cut = gw_draw_no_cut();
    if (draw.top_k != 0) {
        cut = cut_at(draw, best, false, draw.top_k, shared);
    }
    if (draw.top_p != 0) {
        uint64_t equal = 0, total;
        uint64_t own =
            weigh(draw, best, cut.rank, 0, threadIdx.x, draw.count, GW_CUDA_DRAW_THREADS, &equal);
        (void)sum_before(own, shared->sums, &total);
        total += cut.equal * gw_draw_cut_weight(cut);
        cut = cut_at(draw, best, true, gw_draw_wanted(draw.top_p, total), shared);
    }
    return cut;
}

static __device__ uint32_t draw_by_narrowing(const struct gw_draw &draw, float best,
                                             struct gw_draw_cut cut,
                                             struct gw_cuda_draw_shared *shared)
{
    uint64_t cut_weight = gw_draw_cut_weight(cut);
    cut_weight = cut_weight >= draw.weight_min ? cut_weight : 0;
    uint32_t begin = 0, count = draw.count;
    uint64_t equal_before = 0, left = 0;
    for (bool first = true;; first = false) {
        uint32_t each = (count + GW_CUDA_DRAW_THREADS - 1) / GW_CUDA_DRAW_THREADS;
        uint32_t own_begin = begin + (threadIdx.x * each < count ? threadIdx.x * each : count);
        uint32_t own_end = own_begin + each < begin + count ? own_begin + each : begin + count;
        uint64_t equal = 0, total;
        uint64_t sum = weigh(draw, best, cut.rank, draw.weight_min, own_begin, own_end, 1, &equal);
        uint64_t own_equal_before = equal_before + sum_before(equal, shared->sums, &total);
        uint64_t room = cut.equal > own_equal_before ? cut.equal - own_equal_before : 0;
        sum += (equal < room ? equal : room) * cut_weight;
        uint64_t before = sum_before(sum, shared->sums, &total);
        left = first ? gw_draw_high(draw.random, total) : left;
        if (before <= left && left < before + sum) {
            shared->found = own_begin;
            shared->count = own_end - own_begin;
            shared->before = before;
            shared->equal = own_equal_before;
        }
        __syncthreads();
        begin = shared->found;
        count = shared->count;
        left -= shared->before;
        equal_before = shared->equal;
        __syncthreads();
        if (count == 1) {
            return begin;
        }
    }
}

GW_CUDA_KERNEL(draw, draw, GW_CUDA_DRAW_THREADS, 1)
{
    GW_CUDA_SHARED(struct gw_cuda_draw_shared, shared);
    const struct gw_draw draw = args.draws[blockIdx.x];
    uint64_t key = best_key(draw, shared);
    uint32_t id = gw_draw_key_finite(key) ? gw_draw_key_id(key) : GW_DRAW_NONE;
    if (id != GW_DRAW_NONE && draw.scale != 0.0) {
        float best = gw_draw_key_value(key);
        id = draw_by_narrowing(draw, best, cut_all(draw, best, shared), shared);
    }
    if (threadIdx.x == 0) {
        args.ids[blockIdx.x] = id;
        if (id != GW_DRAW_NONE && draw.seen != nullptr) {
            draw.seen[id] += 1;
        }
    }
}
