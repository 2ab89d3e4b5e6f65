/*
 * Ctrl-C, SIGTERM and a reader of stdout that went away: so that a run ends by closing its parts
 * instead of leaving them on the nodes until their lease. For main programs only: signals belong to
 * the process. The second signal ends the process at once.
 */
#ifndef PIGPEN_GPU_WORKER_API_INTERRUPT_H
#define PIGPEN_GPU_WORKER_API_INTERRUPT_H

/* From now on SIGINT and SIGTERM are noted once, and writing to a closed pipe is an error. */
void gw_interrupt_arm(void);
/* The signal that was noted, or 0. Any thread. */
int gw_interrupt_signal(void);

#endif
