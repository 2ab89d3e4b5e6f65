/*
 * A thread whose body is a poll function: called again and again until stop. The simulator calls
 * the same function itself. Names show in ps and perf. Signals are blocked in all threads made here
 * (main takes them).
 */
#ifndef PIGPEN_COMMON_RUN_THREAD_H
#define PIGPEN_COMMON_RUN_THREAD_H

#include <stdint.h>

#include "common/base/status.h"

struct pp_thread;

/* poll(context) is called until stop; it should return within some 100 ms. name: up to 15 bytes;
 * nice_level is added to the process's own.
 * PP_RESOURCE_EXHAUSTED when the system gives no thread, PP_MEMORY. */
PP_MUST_USE enum pp_status pp_thread_start(const char *name, void (*poll)(void *context),
                                           void *context, int nice_level,
                                           struct pp_thread **thread_out);
/* Asks, then joins. kick (may be NULL) is called once after asking, to end a wait in poll. */
void pp_thread_stop(struct pp_thread *thread, void (*kick)(void *context), void *context);

#endif
