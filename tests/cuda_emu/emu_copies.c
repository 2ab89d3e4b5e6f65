/*
 * Asynchronous copies from global to shared memory, 16 bytes each, in groups of a thread. A copy is
 * done when its thread waits for its group and not before, so that who reads too early reads what
 * was there. A copy that nobody waited for when the thread ends was for nothing.
 */
#include <string.h>

#include "tests/cuda_emu/emu.h"

#define COPIES_MAX 512u
#define COPY_BYTES 16u

struct copies {
    uint64_t block;        /* emu_block_serial of those below */
    uint32_t count, group; /* group: the one that is being gathered */
    struct {
        void *to;
        const void *from; /* NULL: zeros */
        uint32_t group;
    } each[COPIES_MAX];
};

static struct copies of_threads[EMU_THREADS_MAX];

void emu_copy_begin(void *shared, const void *global, bool valid);
void emu_copy_commit(void);
void emu_copy_wait(uint32_t groups_left);

static struct copies *own_copies(void)
{
    struct copies *copies = &of_threads[emu_here.thread.x];
    if (copies->block != emu_block_serial) {
        copies->count = copies->group = 0;
        copies->block = emu_block_serial;
    }
    return copies;
}

void emu_copy_begin(void *shared, const void *global, bool valid)
{
    struct copies *copies = own_copies();
    if (copies->count == COPIES_MAX) {
        emu_fail("more copies than anybody waits for");
    }
    if ((uintptr_t)shared % COPY_BYTES != 0 || (valid && (uintptr_t)global % COPY_BYTES != 0)) {
        emu_fail("a copy that is not aligned");
    }
    copies->each[copies->count].to = shared;
    copies->each[copies->count].from = valid ? global : NULL;
    copies->each[copies->count++].group = copies->group;
}

void emu_copy_commit(void)
{
    own_copies()->group++;
}

void emu_copy_wait(uint32_t groups_left)
{
    struct copies *copies = own_copies();
    uint32_t kept = 0;
    for (uint32_t i = 0; i < copies->count; i++) {
        if (copies->each[i].group + groups_left >= copies->group) {
            copies->each[kept++] = copies->each[i];
        } else if (copies->each[i].from == NULL) {
            memset(copies->each[i].to, 0, COPY_BYTES);
        } else {
            memcpy(copies->each[i].to, copies->each[i].from, COPY_BYTES);
        }
    }
    copies->count = kept;
}
