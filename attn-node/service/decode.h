/*
 * From an unpacked request to a job of exec: everything a peer can say is checked here for size and
 * range before exec sees it (law 5); what needs a part's shape (the exact size of a section) is
 * checked by exec against the sizes found here. On the walk: rpc > service > exec.
 * Each function fills job->kind and its arguments; on an error job->detail says what is wrong in
 * words. Pointers of the result lie in the message, its payload or the arena: they live as long as
 * these. Pure, any thread; no job is touched beyond its arguments and detail.
 */
#ifndef PIGPEN_ATTN_NODE_SERVICE_DECODE_H
#define PIGPEN_ATTN_NODE_SERVICE_DECODE_H

#include <stdint.h>

#include "attn-node/exec/exec.h"
#include "common/base/status.h"
#include "common/rpc/codec.h"
#include "pigpen/v1/admin.pb-c.h"
#include "pigpen/v1/attention.pb-c.h"

#define AN_HANDLES_MAX   4096u /* of one Renew or Evict: 32 KiB of handles */
#define AN_LIST_PAGE_MAX 1000u
#define AN_LIST_PAGE     100u
#define AN_DENSE_MAX     PP_LAYERS_MAX

/* What an Attend needs beside its job: items that were refused here never reach exec, so that one
 * bad item does not spoil the others. */
struct an_attend_plan {
    uint64_t request_id;
    uint32_t item_count;   /* of the request */
    enum pp_dtype o_dtype; /* PP_F32 or PP_BF16 */
    bool want_errors, want_sampled;
    enum pp_status *status; /* [item_count]: PP_OK or why it was refused here */
    const char **why;       /* [item_count]: static text, "" for PP_OK */
    uint32_t *job_item;     /* [item_count]: index in job->attend.items where PP_OK */
    uint64_t output_bytes;  /* bound of what the job takes from its arena */
};

/* incarnation: this node's. A request made for another one is PP_INCARNATION_CHANGED, whatever else
 * is wrong with it. */
PP_MUST_USE enum pp_status an_decode_open(const Pigpen__V1__OpenPartRequest *request,
                                          uint64_t incarnation, struct pp_codec_arena *arena,
                                          struct an_job *job);
PP_MUST_USE enum pp_status an_decode_append(const Pigpen__V1__AppendKvRequest *request,
                                            uint64_t incarnation, const struct pp_span *payload,
                                            struct an_job *job);
/* deadline: job->received_us + timeout_us. An error is of the whole message; errors of items are in
 * plan_out. */
PP_MUST_USE enum pp_status an_decode_attend(const Pigpen__V1__AttendRequest *request,
                                            uint64_t incarnation,
                                            const struct pp_payload_view *payload,
                                            struct pp_codec_arena *arena, struct an_job *job,
                                            struct an_attend_plan *plan_out);
PP_MUST_USE enum pp_status an_decode_seal(const Pigpen__V1__SealPartRequest *request,
                                          uint64_t incarnation, struct an_job *job);
PP_MUST_USE enum pp_status an_decode_fork(const Pigpen__V1__ForkPartRequest *request,
                                          uint64_t incarnation, struct an_job *job);
PP_MUST_USE enum pp_status an_decode_truncate(const Pigpen__V1__TruncatePartRequest *request,
                                              uint64_t incarnation, struct an_job *job);
PP_MUST_USE enum pp_status an_decode_renew(const Pigpen__V1__RenewPartsRequest *request,
                                           uint64_t incarnation, struct pp_codec_arena *arena,
                                           struct an_job *job);
PP_MUST_USE enum pp_status an_decode_close(const Pigpen__V1__ClosePartRequest *request,
                                           uint64_t incarnation, struct an_job *job);
PP_MUST_USE enum pp_status an_decode_get(const Pigpen__V1__GetPartRequest *request,
                                         uint64_t incarnation, struct pp_codec_arena *arena,
                                         struct an_job *job);
PP_MUST_USE enum pp_status an_decode_tune(const Pigpen__V1__TunePartRequest *request,
                                          uint64_t incarnation, struct pp_codec_arena *arena,
                                          struct an_job *job);
PP_MUST_USE enum pp_status an_decode_list(const Pigpen__V1__ListPartsRequest *request,
                                          struct pp_codec_arena *arena, struct an_job *job);
PP_MUST_USE enum pp_status an_decode_evict(const Pigpen__V1__EvictPartsRequest *request,
                                           struct an_job *job);

/* ReadKv is answered in pieces: this fills the job that asks for the size of the first row; end_out
 * is start + count, checked. */
PP_MUST_USE enum pp_status an_decode_read(const Pigpen__V1__ReadKvRequest *request,
                                          uint64_t incarnation, struct an_job *job,
                                          uint64_t *end_out);

/* Helpers of the files of decode. */
PP_MUST_USE enum pp_status an_decode_refuse(struct an_job *job, enum pp_status status,
                                            const char *format, ...)
    __attribute__((format(printf, 3, 4)));
PP_MUST_USE enum pp_status an_decode_part(const Pigpen__V1__PartRef *ref, uint64_t incarnation,
                                          struct an_job *job, struct an_part_ref *part_out);
PP_MUST_USE enum pp_status an_decode_incarnation(uint64_t said, uint64_t incarnation,
                                                 struct an_job *job);
/* Checked, but zeros stay zeros: defaults are for open, and for an attend those of the part. */
PP_MUST_USE enum pp_status an_decode_estimator(const Pigpen__V1__Estimator *said,
                                               struct pp_estimator *estimator_out);
/* Memory of the message's arena, zeroed; PP_MESSAGE_TOO_LARGE when it is used up. */
PP_MUST_USE enum pp_status an_decode_take(struct pp_codec_arena *arena, uint64_t count,
                                          uint64_t bytes_each, void *memory_out);
/* The bytes of a section, or NULL when they do not lie inside the payload. */
const uint8_t *an_decode_section(const Pigpen__V1__Section *section,
                                 const struct pp_payload_view *payload);

#endif
