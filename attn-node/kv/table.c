/*
 * The parts of a node. See table.h. Chains hang in the parts themselves, so adding one takes memory
 * only when the buckets double.
 */
#include "attn-node/kv/table.h"

#include <stdlib.h>
#include <string.h>

#include "common/base/assert.h"
#include "common/base/rng.h"

#define BUCKETS_FIRST 256u

static uint32_t bucket_of_handle(const struct an_table *table, uint64_t handle)
{
    return (uint32_t)pp_rng_at(handle, 0) & (table->buckets - 1);
}

static uint32_t bucket_of_id(const struct an_table *table, const uint8_t *part_id)
{
    uint64_t words[2];
    memcpy(words, part_id, sizeof(words));
    return (uint32_t)pp_rng_at(words[0], words[1]) & (table->buckets - 1);
}

enum pp_status an_table_init(struct an_table *table, uint64_t lease_us)
{
    memset(table, 0, sizeof(*table));
    table->by_handle = calloc(BUCKETS_FIRST, sizeof(*table->by_handle));
    table->by_id = calloc(BUCKETS_FIRST, sizeof(*table->by_id));
    if (table->by_handle == NULL || table->by_id == NULL) {
        free(table->by_handle);
        free(table->by_id);
        return PP_MEMORY;
    }
    table->buckets = BUCKETS_FIRST;
    table->lease_us = lease_us;
    return PP_OK;
}

void an_table_deinit(struct an_table *table)
{
    while (table->oldest != NULL) {
        struct an_part *part = table->oldest;
        an_table_remove(table, part);
        an_part_destroy(part);
    }
    free(table->by_handle);
    free(table->by_id);
    memset(table, 0, sizeof(*table));
}

static void link_part(struct an_table *table, struct an_part *part)
{
    struct an_part **handle_chain = &table->by_handle[bucket_of_handle(table, part->handle)];
    part->next_by_handle = *handle_chain;
    *handle_chain = part;
    struct an_part **id_chain = &table->by_id[bucket_of_id(table, part->spec.part_id)];
    part->next_by_id = *id_chain;
    *id_chain = part;
}

/* Doubles the buckets; without memory for that the chains just get longer. */
static void grow(struct an_table *table)
{
    uint32_t buckets = table->buckets * 2;
    struct an_part **by_handle = calloc(buckets, sizeof(*by_handle));
    struct an_part **by_id = calloc(buckets, sizeof(*by_id));
    if (by_handle == NULL || by_id == NULL) {
        free(by_handle);
        free(by_id);
        return;
    }
    free(table->by_handle);
    free(table->by_id);
    table->by_handle = by_handle;
    table->by_id = by_id;
    table->buckets = buckets;
    for (struct an_part *part = table->oldest; part != NULL; part = part->lease_newer) {
        link_part(table, part);
    }
}

static void lease_unlink(struct an_table *table, struct an_part *part)
{
    *(part->lease_older != NULL ? &part->lease_older->lease_newer : &table->oldest) =
        part->lease_newer;
    *(part->lease_newer != NULL ? &part->lease_newer->lease_older : &table->newest) =
        part->lease_older;
    part->lease_older = NULL;
    part->lease_newer = NULL;
}

static void lease_push(struct an_table *table, struct an_part *part, uint64_t now_us)
{
    part->lease_end_us = now_us + part->lease_us;
    struct an_part *older = table->newest;
    while (older != NULL && older->lease_end_us > part->lease_end_us) {
        older = older->lease_older; /* past parts with longer leases */
    }
    part->lease_older = older;
    part->lease_newer = older != NULL ? older->lease_newer : table->oldest;
    *(older != NULL ? &older->lease_newer : &table->oldest) = part;
    *(part->lease_newer != NULL ? &part->lease_newer->lease_older : &table->newest) = part;
}

static struct an_part *look_up(const struct an_table *table, uint64_t handle)
{
    struct an_part *part = table->by_handle[bucket_of_handle(table, handle)];
    while (part != NULL && part->handle != handle) {
        part = part->next_by_handle;
    }
    return part;
}

enum pp_status an_table_add(struct an_table *table, struct an_part *part, uint64_t now_us)
{
    uint64_t handle;
    do {
        PP_TRY(pp_rng_system(&handle, sizeof(handle)));
    } while (handle == 0 || look_up(table, handle) != NULL);
    part->handle = handle;
    if (part->lease_us == 0 || part->lease_us > table->lease_us) {
        part->lease_us = table->lease_us;
    }
    if (table->count >= table->buckets && table->buckets < (1u << 30)) {
        grow(table);
    }
    link_part(table, part);
    lease_push(table, part, now_us);
    table->count++;
    return PP_OK;
}

struct an_part *an_table_peek(const struct an_table *table, uint64_t handle)
{
    return look_up(table, handle);
}

enum pp_status an_table_find(struct an_table *table, uint64_t handle, uint64_t now_us,
                             struct an_part **part_out)
{
    struct an_part *part = look_up(table, handle);
    if (part == NULL) {
        uint64_t known = table->expired_count < AN_EXPIRED_REMEMBERED ? table->expired_count
                                                                      : AN_EXPIRED_REMEMBERED;
        for (uint64_t i = 0; i < known; i++) {
            if (table->expired[i] == handle) {
                return PP_PART_EXPIRED;
            }
        }
        return PP_PART_NOT_FOUND;
    }
    lease_unlink(table, part);
    lease_push(table, part, now_us);
    *part_out = part;
    return PP_OK;
}

struct an_part *an_table_find_id(const struct an_table *table, const uint8_t *part_id)
{
    struct an_part *part = table->by_id[bucket_of_id(table, part_id)];
    while (part != NULL && memcmp(part->spec.part_id, part_id, PP_ID_BYTES) != 0) {
        part = part->next_by_id;
    }
    return part;
}

struct an_part *an_table_find_sequence(const struct an_table *table, const uint8_t *sequence_id)
{
    struct an_part *part = table->oldest;
    while (part != NULL && memcmp(part->spec.sequence_id, sequence_id, PP_ID_BYTES) != 0) {
        part = part->lease_newer;
    }
    return part;
}

void an_table_remove(struct an_table *table, struct an_part *part)
{
    struct an_part **at = &table->by_handle[bucket_of_handle(table, part->handle)];
    while (*at != part) {
        at = &(*at)->next_by_handle;
    }
    *at = part->next_by_handle;
    at = &table->by_id[bucket_of_id(table, part->spec.part_id)];
    while (*at != part) {
        at = &(*at)->next_by_id;
    }
    *at = part->next_by_id;
    lease_unlink(table, part);
    table->count--;
}

void an_table_evict(struct an_table *table, struct an_part *part)
{
    table->expired[table->expired_count % AN_EXPIRED_REMEMBERED] = part->handle;
    table->expired_count++;
    an_table_remove(table, part);
}

struct an_part *an_table_expire(struct an_table *table, uint64_t now_us)
{
    struct an_part *part = table->oldest;
    if (part == NULL || part->lease_end_us > now_us) {
        return NULL;
    }
    an_table_evict(table, part);
    return part;
}
