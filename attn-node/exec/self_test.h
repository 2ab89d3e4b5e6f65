/*
 * The built-in fixture of a node: a small part is opened, filled, attended exactly (against a plain
 * f64 reference) and by lsh, and closed; then the memory account must be what it was. Runs as a job
 * like any other, so it also shows that exec still turns. A node whose memory is full passes
 * without the checks that need room. Threads: the exec thread.
 */
#ifndef PIGPEN_ATTN_NODE_EXEC_SELF_TEST_H
#define PIGPEN_ATTN_NODE_EXEC_SELF_TEST_H

#include "attn-node/exec/exec_internal.h"

/* Attention of one head in f64, straight from its definition: q [dim], K and V [tokens][stride] f32
 * with the head's values first; o_out [dim], returns lse. Also the reference of the unit tests. */
double an_self_test_reference(const float *q, const float *k, const float *v, uint64_t stride,
                              uint32_t tokens, uint32_t dim, double scale, double *o_out);

#endif
