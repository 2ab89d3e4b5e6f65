/*
 * Address space in whole pages: reserved first, committed as it fills, so that rows never move.
 * Reserved but uncommitted pages take no memory. Huge pages are asked for (madvise) only on 2 MiB
 * blocks that a commit fills whole, so that a short part is not rounded up to 2 MiB.
 * Threads: any, on different ranges.
 */
#ifndef PIGPEN_COMMON_MEM_PAGES_H
#define PIGPEN_COMMON_MEM_PAGES_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/status.h"

enum pp_hugepages { PP_HUGEPAGES_OFF, PP_HUGEPAGES_TRY, PP_HUGEPAGES_REQUIRE };

#define PP_PAGE_BYTES      4096ull
#define PP_HUGE_PAGE_BYTES (2ull << 20)

/* Reserves bytes (rounded up to a page; aligned to 2 MiB when that large). Reads as zero once
 * committed. PP_MEMORY. */
PP_MUST_USE enum pp_status pp_pages_reserve(uint64_t bytes, void **base_out);
/* Makes [begin, end) of the range usable: page-aligned offsets; the caller has them in a limit.
 * PP_MEMORY, also when huge pages are required and the kernel gives none. */
PP_MUST_USE enum pp_status pp_pages_commit(void *base, uint64_t begin, uint64_t end,
                                           enum pp_hugepages hugepages);
/* Gives the memory of [begin, end) back, keeping the addresses. */
void pp_pages_decommit(void *base, uint64_t begin, uint64_t end);
void pp_pages_free(void *base, uint64_t bytes);

/* Whether this kernel gives transparent huge pages to who asks. */
bool pp_pages_huge_supported(void);

#endif
