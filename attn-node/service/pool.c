/*
 * Free lists over buffers taken once. Replies come back from any thread: they are pushed to a stack
 * that the rpc thread takes whole, so that no element is popped while another thread pushes.
 */
#include "attn-node/service/pool.h"

#include <stdlib.h>
#include <string.h>

#include "common/base/assert.h"

struct an_pool {
    struct an_pool_counts counts;
    struct an_request *requests; /* all of them, smallest first */
    uint32_t request_count;
    struct an_request *free_requests[AN_SIZES];
    _Atomic uint32_t requests_taken;
    struct an_reply *replies;
    uint64_t tickets;
    uint32_t reply_count;
    struct an_reply *free_replies[AN_SIZES];
    struct an_reply *_Atomic returned[AN_SIZES];
};

static const uint64_t message_bytes_max[AN_SIZES] = {
    AN_SMALL_MESSAGE_BYTES, AN_MEDIUM_MESSAGE_BYTES, AN_LARGE_MESSAGE_BYTES};
static const uint64_t reply_bytes_max[AN_SIZES] = {AN_SMALL_REPLY_BYTES, AN_MEDIUM_REPLY_BYTES,
                                                   AN_LARGE_REPLY_BYTES};

struct an_pool_counts an_pool_counts(uint64_t memory_limit_bytes)
{
    if (memory_limit_bytes >= (4ull << 30)) {
        return (struct an_pool_counts){.requests = {96, 24, 4}, .replies = {64, 24, 4}};
    }
    if (memory_limit_bytes >= (1ull << 30)) {
        return (struct an_pool_counts){.requests = {48, 12, 2}, .replies = {32, 12, 2}};
    }
    return (struct an_pool_counts){.requests = {16, 4, 1}, .replies = {16, 4, 1}};
}

uint64_t an_pool_bytes(const struct an_pool_counts *counts)
{
    uint64_t bytes = 0;
    for (int size = 0; size < AN_SIZES; ++size) {
        bytes += counts->requests[size] * (message_bytes_max[size] + AN_HEADER_ARENA_BYTES);
        bytes += counts->replies[size] * reply_bytes_max[size];
    }
    return bytes;
}

static enum pp_status make_requests(struct an_pool *pool)
{
    for (int size = 0; size < AN_SIZES; ++size) {
        for (uint32_t index = 0; index < pool->counts.requests[size]; ++index) {
            struct an_request *request = &pool->requests[pool->request_count];
            PP_TRY(pp_codec_arena_init(&request->arena,
                                       message_bytes_max[size] + AN_HEADER_ARENA_BYTES));
            ++pool->request_count;
            request->size = (enum an_size)size;
            request->next_queued = pool->free_requests[size];
            pool->free_requests[size] = request;
        }
    }
    return PP_OK;
}

static enum pp_status make_replies(struct an_pool *pool)
{
    for (int size = 0; size < AN_SIZES; ++size) {
        for (uint32_t index = 0; index < pool->counts.replies[size]; ++index) {
            struct an_reply *reply = &pool->replies[pool->reply_count];
            reply->data = aligned_alloc(64, reply_bytes_max[size]);
            if (reply->data == NULL) {
                return PP_MEMORY;
            }
            ++pool->reply_count;
            reply->pool = pool;
            reply->bytes_max = reply_bytes_max[size];
            reply->size = (enum an_size)size;
            reply->next = pool->free_replies[size];
            pool->free_replies[size] = reply;
        }
    }
    return PP_OK;
}

enum pp_status an_pool_new(const struct an_pool_counts *counts, struct an_pool **pool_out)
{
    struct an_pool *pool = calloc(1, sizeof(*pool));
    if (pool == NULL) {
        return PP_MEMORY;
    }
    uint32_t request_count = 0;
    uint32_t reply_count = 0;
    for (int size = 0; size < AN_SIZES; ++size) {
        request_count += counts->requests[size];
        reply_count += counts->replies[size];
    }
    pool->counts = *counts;
    pool->requests = calloc(request_count, sizeof(*pool->requests));
    pool->replies = calloc(reply_count, sizeof(*pool->replies));
    if (pool->requests == NULL || pool->replies == NULL || make_requests(pool) != PP_OK ||
        make_replies(pool) != PP_OK) {
        an_pool_destroy(pool);
        return PP_MEMORY;
    }
    *pool_out = pool;
    return PP_OK;
}

void an_pool_destroy(struct an_pool *pool)
{
    if (pool == NULL) {
        return;
    }
    for (uint32_t index = 0; index < pool->reply_count; ++index) {
        free(pool->replies[index].data);
    }
    for (uint32_t index = 0; index < pool->request_count; ++index) {
        pp_codec_arena_deinit(&pool->requests[index].arena);
    }
    free(pool->replies);
    free(pool->requests);
    free(pool);
}

struct an_request *an_pool_take_request(struct an_pool *pool, uint64_t message_bytes)
{
    for (int size = 0; size < AN_SIZES; ++size) {
        struct an_request *request = pool->free_requests[size];
        if (message_bytes > message_bytes_max[size] || request == NULL) {
            continue;
        }
        pool->free_requests[size] = request->next_queued;
        atomic_fetch_add(&pool->requests_taken, 1);
        struct pp_codec_arena arena = request->arena;
        memset(request, 0, sizeof(*request));
        request->arena = arena;
        request->size = (enum an_size)size;
        request->job.context = request;
        pp_codec_arena_reset(&request->arena);
        return request;
    }
    return NULL;
}

void an_pool_give_request(struct an_pool *pool, struct an_request *request)
{
    if (request->message != NULL) {
        pp_message_release(request->message);
        request->message = NULL;
    }
    if (request->reply != NULL) {
        an_reply_release(request->reply);
        request->reply = NULL;
    }
    request->next_queued = pool->free_requests[request->size];
    pool->free_requests[request->size] = request;
    atomic_fetch_sub(&pool->requests_taken, 1);
}

uint32_t an_pool_requests_taken(const struct an_pool *pool)
{
    return atomic_load(&pool->requests_taken);
}

struct an_reply *an_pool_take_reply(struct an_pool *pool, uint64_t bytes)
{
    for (int size = 0; size < AN_SIZES; ++size) {
        if (bytes > reply_bytes_max[size]) {
            continue;
        }
        if (pool->free_replies[size] == NULL) {
            pool->free_replies[size] = atomic_exchange(&pool->returned[size], NULL);
        }
        struct an_reply *reply = pool->free_replies[size];
        if (reply == NULL) {
            continue;
        }
        pool->free_replies[size] = reply->next;
        reply->ticket = ++pool->tickets;
        atomic_store(&reply->taken, true);
        return reply;
    }
    return NULL;
}

void an_reply_release(void *context)
{
    struct an_reply *reply = context;
    if (!atomic_exchange(&reply->taken, false)) {
        return;
    }
    struct an_reply *_Atomic *stack = &reply->pool->returned[reply->size];
    struct an_reply *top = atomic_load(stack);
    do {
        reply->next = top;
    } while (!atomic_compare_exchange_weak(stack, &top, reply));
}
