/*
 * Buffers between the network and whoever works on them. The one given back last is the next to be
 * taken, since it is warm; the rest stay untouched and cost nothing.
 */
#include "common/mem/pool.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>

#include "common/base/assert.h"

enum buffer_state { BUFFER_BARE, BUFFER_IDLE, BUFFER_TAKEN };

struct pp_pool {
    pthread_mutex_t lock;
    char *base;
    uint64_t buffer_bytes;
    uint32_t capacity;
    enum pp_hugepages hugepages;
    uint32_t taken;     /* under the lock, like all below */
    uint32_t committed; /* idle and taken */
    uint32_t free_count;
    uint32_t *free_list;   /* the last is the next; bare ones lie at the bottom */
    unsigned char *states; /* enum buffer_state by buffer */
};

enum pp_status pp_pool_new(uint64_t buffer_bytes, uint32_t capacity, enum pp_hugepages hugepages,
                           struct pp_pool **pool_out)
{
    if (buffer_bytes == 0 || buffer_bytes > UINT64_C(1) << 40 || capacity == 0) {
        return PP_MEMORY;
    }
    buffer_bytes = (buffer_bytes + PP_PAGE_BYTES - 1) / PP_PAGE_BYTES * PP_PAGE_BYTES;
    if (capacity > (UINT64_C(1) << 46) / buffer_bytes) {
        return PP_MEMORY;
    }
    struct pp_pool *pool = calloc(1, sizeof(*pool));
    if (pool == NULL) {
        return PP_MEMORY;
    }
    pool->buffer_bytes = buffer_bytes;
    pool->capacity = capacity;
    pool->hugepages = hugepages;
    pool->free_count = capacity;
    pool->free_list = calloc(capacity, sizeof(*pool->free_list));
    pool->states = calloc(capacity, sizeof(*pool->states));
    void *base = NULL;
    if (pool->free_list == NULL || pool->states == NULL ||
        pp_pages_reserve(buffer_bytes * capacity, &base) != PP_OK) {
        goto err_pool;
    }
    pool->base = base;
    for (uint32_t index = 0; index < capacity; ++index) {
        pool->free_list[index] = capacity - 1 - index;
    }
    pthread_mutex_init(&pool->lock, NULL);
    *pool_out = pool;
    return PP_OK;

err_pool:
    free(pool->free_list);
    free(pool->states);
    free(pool);
    return PP_MEMORY;
}

void pp_pool_destroy(struct pp_pool *pool)
{
    if (pool == NULL) {
        return;
    }
    PP_ASSERT(pool->taken == 0);
    pthread_mutex_destroy(&pool->lock);
    pp_pages_free(pool->base, pool->buffer_bytes * pool->capacity);
    free(pool->states);
    free(pool->free_list);
    free(pool);
}

/* Under the lock. */
static enum pp_status take_one(struct pp_pool *pool, void **buffer_out)
{
    if (pool->free_count == 0) {
        return PP_QUEUE;
    }
    uint32_t index = pool->free_list[pool->free_count - 1];
    uint64_t begin = index * pool->buffer_bytes;
    if (pool->states[index] == BUFFER_BARE) {
        PP_TRY(pp_pages_commit(pool->base, begin, begin + pool->buffer_bytes, pool->hugepages));
        ++pool->committed;
    }
    pool->states[index] = BUFFER_TAKEN;
    --pool->free_count;
    ++pool->taken;
    *buffer_out = pool->base + begin;
    return PP_OK;
}

enum pp_status pp_pool_take(struct pp_pool *pool, void **buffer_out)
{
    pthread_mutex_lock(&pool->lock);
    enum pp_status status = take_one(pool, buffer_out);
    pthread_mutex_unlock(&pool->lock);
    return status;
}

void pp_pool_give(struct pp_pool *pool, void *buffer)
{
    if (buffer == NULL) {
        return;
    }
    uint64_t offset = (uint64_t)((char *)buffer - pool->base);
    uint64_t index = offset / pool->buffer_bytes;
    PP_ASSERT(offset % pool->buffer_bytes == 0 && index < pool->capacity);
    pthread_mutex_lock(&pool->lock);
    PP_ASSERT(pool->states[index] == BUFFER_TAKEN);
    pool->states[index] = BUFFER_IDLE;
    pool->free_list[pool->free_count++] = (uint32_t)index;
    --pool->taken;
    pthread_mutex_unlock(&pool->lock);
}

void pp_pool_trim(struct pp_pool *pool)
{
    pthread_mutex_lock(&pool->lock);
    for (uint32_t at = 0; at < pool->free_count; ++at) {
        uint32_t index = pool->free_list[at];
        if (pool->states[index] == BUFFER_IDLE) {
            uint64_t begin = index * pool->buffer_bytes;
            pp_pages_decommit(pool->base, begin, begin + pool->buffer_bytes);
            pool->states[index] = BUFFER_BARE;
            --pool->committed;
        }
    }
    pthread_mutex_unlock(&pool->lock);
}

uint64_t pp_pool_buffer_bytes(const struct pp_pool *pool)
{
    return pool->buffer_bytes;
}

uint32_t pp_pool_taken(struct pp_pool *pool)
{
    pthread_mutex_lock(&pool->lock);
    uint32_t taken = pool->taken;
    pthread_mutex_unlock(&pool->lock);
    return taken;
}

uint64_t pp_pool_committed_bytes(struct pp_pool *pool)
{
    pthread_mutex_lock(&pool->lock);
    uint64_t bytes = pool->committed * pool->buffer_bytes;
    pthread_mutex_unlock(&pool->lock);
    return bytes;
}
