/*
 * A list of nodes in a file, read again when its time, size or identity changed: whoever writes it
 * in place and whoever renames a new one over it are both seen. A file with a fault is not used at
 * all. It refuses to know who writes it.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "gpu-worker/membership/internal.h"

#define FILE_BYTES_MAX 65536u
#define SETTLED_S      2

/* Time stamps have the grain of a timer's tick: a file that was changed just now may change again
 * under the same stamp, so it is read again until its stamp is old. */
static bool settled(const struct stat *about)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_REALTIME, &now);
    return about->st_mtim.tv_sec + SETTLED_S < now.tv_sec;
}

static bool same_file(const struct stat *a, const struct stat *b)
{
    return a->st_ino == b->st_ino && a->st_dev == b->st_dev && a->st_size == b->st_size &&
           a->st_mtim.tv_sec == b->st_mtim.tv_sec && a->st_mtim.tv_nsec == b->st_mtim.tv_nsec;
}

static void say(struct gw_membership *membership, const char *what)
{
    char problem[GW_PROBLEM_BYTES];
    snprintf(problem, sizeof(problem), "%.200s: %.180s", membership->text, what);
    gw_membership_fail(membership, problem);
}

static void use(struct gw_membership *membership, const char *text)
{
    struct gw_members members;
    char fault[200];
    if (gw_members_parse(text, "\n", true, &members, fault, sizeof(fault)) == PP_OK) {
        gw_membership_publish(membership, &members);
    } else {
        say(membership, fault);
    }
}

void gw_membership_file_look(struct gw_membership *membership)
{
    static const char too_large[] = "it is larger than 64 KiB";
    struct stat now;
    if (stat(membership->text, &now) != 0) {
        membership->read_once = false;
        say(membership, strerror(errno));
        return;
    }
    if (membership->read_once && same_file(&now, &membership->seen)) {
        return;
    }
    FILE *file = fopen(membership->text, "rbe");
    char *text = malloc(FILE_BYTES_MAX + 1);
    if (file == NULL || text == NULL) {
        say(membership, strerror(errno));
    } else {
        size_t bytes = fread(text, 1, FILE_BYTES_MAX + 1, file);
        const char *cause = ferror(file) == 0 ? NULL : strerror(errno);
        membership->read_once = cause == NULL && settled(&now);
        membership->seen = now;
        if (cause != NULL) {
            say(membership, cause);
        } else if (bytes > FILE_BYTES_MAX) {
            say(membership, too_large);
        } else if (memchr(text, 0, bytes) != NULL) {
            say(membership, "it is no text");
        } else {
            text[bytes] = '\0';
            use(membership, text);
        }
    }
    free(text);
    if (file != NULL) {
        fclose(file);
    }
}
