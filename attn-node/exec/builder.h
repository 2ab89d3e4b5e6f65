/*
 * Builds the indexes of sealed and of merged segments: on a thread of its own at low priority, or
 * inline (build_sync), which makes the layout a function of what was appended. Segments travel to
 * the thread and back through rings; between, exec only drops references. Publishing is exec's. On
 * the walk: exec (append, seal) > builder > index > exec (publish). It refuses to know parts.
 * Threads: new, pump and destroy on the exec thread.
 */
#ifndef PIGPEN_ATTN_NODE_EXEC_BUILDER_H
#define PIGPEN_ATTN_NODE_EXEC_BUILDER_H

#include <stdbool.h>
#include <stdint.h>

#include "attn-node/kv/segment.h"
#include "common/base/clock.h"
#include "common/base/stat.h"

struct an_builder;

struct an_builder_config {
    struct an_store *store;
    struct pp_clock clock;
    bool sync;
    struct pp_stat *build_seconds; /* histogram, or NULL */
    struct pp_stat *merges;        /* counter, or NULL */
    /* Called on the builder's thread when a build has ended; not when sync. */
    void (*wake)(void *context);
    void *wake_context;
};

PP_MUST_USE enum pp_status an_builder_new(const struct an_builder_config *config,
                                          struct an_builder **builder_out);
/* Ends the build in progress, drops what waits, stops the thread. */
void an_builder_destroy(struct an_builder *builder);

/* Publishes finished builds and hands over waiting ones (sync: builds them here and now). Returns
 * the number of indexes published. */
uint32_t an_builder_pump(struct an_builder *builder);

/* Whether a build waits or runs. */
bool an_builder_busy(const struct an_builder *builder);

/* Builds one waiting segment here and now, out of turn: the self test's. Scratch for it beside the
 * thread's must be reserved by the caller. Nothing happens when it does not wait. */
void an_builder_build_now(struct an_builder *builder, struct an_segment *segment);

/* Other work at low priority, one at a time: run(context) on the builder's thread when no build
 * waits there, then wake; sync: here and now. */
void an_builder_task_start(struct an_builder *builder, void (*run)(void *context), void *context);
/* Whether the task has ended; true once. */
bool an_builder_task_take(struct an_builder *builder);

#endif
