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
    struct sigaction note = {.sa_handler = interrupt_note, .sa_flags = SA_RESTART};
    sigemptyset(&note.sa_mask);
    note.sa_flags |= (int)SA_RESETHAND;
    (void)sigaction(SIGINT, &note, NULL);
    (void)sigaction(SIGTERM, &note, NULL);
    (void)signal(SIGPIPE, SIG_IGN);
}

int gw_interrupt_signal(void)
{
    return interrupt_noted;
}
