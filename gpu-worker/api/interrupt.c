/*
 * Notes the first signal that asks the program to end. It refuses to know what is to be closed: the
 * programs ask between their steps.
 */
#include "gpu-worker/api/interrupt.h"

#include <signal.h>
#include <stddef.h>

static volatile sig_atomic_t interrupt_noted;

static void interrupt_note(int number)
{
    interrupt_noted = number;
}

void gw_interrupt_arm(void)
{
    /* No SA_RESTART: a read of a prompt that nobody types ends too. */
    struct sigaction note = {.sa_handler = interrupt_note, .sa_flags = (int)SA_RESETHAND};
    sigemptyset(&note.sa_mask);
    (void)sigaction(SIGINT, &note, NULL);
    (void)sigaction(SIGTERM, &note, NULL);
    (void)signal(SIGPIPE, SIG_IGN);
}

int gw_interrupt_signal(void)
{
    return interrupt_noted;
}
