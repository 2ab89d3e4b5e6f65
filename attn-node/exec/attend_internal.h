/*
 * What the files of attend share: the work of one batch, laid out in memory taken at start. See
 * attend.h. A task is a run of q rows of one item; a unit is a task's kv head with some of its
 * (q row, q head) pairs, called lanes: [q row][head of the group] per kv head; a piece is what one
 * thread does at a time. Threads: prepared by the exec thread, pieces run on the team.
 */
#ifndef PIGPEN_ATTN_NODE_EXEC_ATTEND_INTERNAL_H
#define PIGPEN_ATTN_NODE_EXEC_ATTEND_INTERNAL_H

#include <stdatomic.h>
#include <stdbool.h>

#include "attn-node/exec/attend.h"
#include "attn-node/index/split.h"

/* Capacities do not depend on threads or memory: the order of merging must not either. */
#define AN_LANES_MAX       4096u         /* of a batch: at least one row of 1,024 heads */
#define AN_LANE_FLOATS     (512u << 10)  /* q, and error sums, of all lanes */
#define AN_LANE_CODES      (1024u << 10) /* signatures of all lanes */
#define AN_TASKS_MAX       PP_ATTEND_ITEMS_MAX
#define AN_EXACT_LANES     64u   /* that an exact piece attends together */
#define AN_PIECES_MAX      4096u /* of a wave */
#define AN_PIECE_LANES_MAX 16384u
#define AN_PIECE_FLOATS    (1024u << 10) /* o, and for samples error sums, of a wave */
#define AN_BLOCK_TOKENS    1024u
#define AN_TOGETHER_MAX    64u /* samples that the team makes at a time */
/* Rows of fewer bytes than these (some 14 us on one core) are attended by the exec thread alone. */
#define AN_ALONE_BYTES (128u << 10)
/* Words of the bitmaps of a wave's sampled pieces: at least 256 pieces of the longest segment. */
#define AN_SEGMENT_WORDS ((PP_SEGMENT_TOKENS_MAX + 63u) / 64u)
#define AN_BITMAP_WORDS  (256u * AN_SEGMENT_WORDS)
/* What lsh publishes as var and lse_var over what its sample says: it is low by 1.6. */
#define AN_LSH_VAR_FACTOR 2.56f
/* A target error: what its estimate has to be below it, how often a sample is judged, the share of
 * the indexed rows that is read at most when no budget says so, and how many times the first sample
 * a plan expects to be read. */
#define AN_TARGET_MARGIN    1.1f
#define AN_TARGET_STAGES    4u
#define AN_TARGET_SHARE_MAX 0.5f
#define AN_TARGET_GROWTH    2.5f
#define AN_TARGET_ROWS_MIN  128.0f /* of the first sample: fewer say little about its error */

struct an_task {
    struct an_attend_item *item;
    const struct an_layer *layer;
    const struct an_part *part;
    uint64_t held;
    uint32_t row_begin, row_count; /* q rows of the item */
    uint32_t group, q_heads, dim;
    uint32_t lane_begin; /* lane of (kv head, row, g): lane_begin + (kv * rows + row) * group + g */
    bool sampled;        /* indexed views may be sampled */
    uint64_t indexed;    /* held tokens of indexed views */
    float rows_share;    /* sketch: of these; with a target: at first */
    float target;        /* relative error to be within; 0: none */
    float share_max;     /* rows_share grows up to here for it */
    bool failed;
};

struct an_unit {
    uint32_t task;
    uint32_t kv_head;
    uint32_t lane_begin, lane_count; /* of whole groups: a q row's heads are never parted */
    uint64_t sampled_tokens;         /* held tokens of the views that its lanes sample */
    uint32_t piece_begin, piece_end; /* of the wave */
};

enum an_piece_kind {
    AN_PIECE_EXACT,   /* a block of rows, read one by one */
    AN_PIECE_SAMPLED, /* a view, by its index */
    AN_PIECE_UNIFORM, /* a block of a view, by a uniform sample: the index found nothing */
};

struct an_piece {
    const struct an_segment *segment; /* NULL: the tail's rows */
    struct an_index_view view; /* rows and sums; sampled: what the index is told, linked to the next
                                  piece of the sample, rows_read [bitmap_words] */
    uint32_t unit, turn;       /* of the plan */
    uint32_t lane_begin, lane_count;
    enum an_piece_kind kind;
    bool drawn; /* of a view that its lanes sample */
    uint32_t bitmap_words;
    /* The rows of the same q row's heads before this one, NULL for the first: in the plan they come
     * just before; those of the wave before are in `carried`. */
    const uint64_t *rows_before;
};

/* What one thread does at a time: a piece, or the pieces of the views that make one sample. */
struct an_lot {
    uint32_t piece, last; /* of the wave; those between are linked by their views */
    uint64_t rows;        /* of a sample, as the index counts them */
    uint32_t views;
    bool together; /* all threads make it */
};

enum an_lane_next {
    AN_LANE_FIRST,   /* its sample was not judged yet */
    AN_LANE_AGAIN,   /* a larger one, of rows_share */
    AN_LANE_ALL,     /* all rows of the sampled views */
    AN_LANE_READ,    /* nothing: those are read */
    AN_LANE_SETTLED, /* nothing: the sample does */
};

struct an_lane {
    struct an_accumulator sum; /* o points into the item's output */
    uint32_t sampled_rows;
    uint64_t rows_added; /* of sampled_rows, those that no head of the group before this one read */
    bool fall_back;      /* the sample was empty */
    float rows_share;    /* of the sample at hand */
    float sampled_m, sampled_sum; /* of sampled views: sum of e^(score - m) */
    /* With a target: what sampled views gave, apart from the sum, for a larger sample replaces it;
     * and what the lane's group does next. */
    struct an_accumulator drawn;
    enum an_lane_next next;
};

struct an_attend {
    struct pp_limit *limit;
    struct pp_clock clock;
    uint32_t threads;
    const struct pp_numa *numa;     /* where the rows of a kv head lie */
    const struct pp_places *places; /* the same nodes, for the team */
    const struct an_kernels *kernels;
    uint64_t own_bytes;
    uint8_t *query_scratch; /* [threads][query_scratch_bytes] */
    uint64_t query_scratch_bytes;
    uint64_t *bitmaps; /* [AN_BITMAP_WORDS], then carried [AN_SEGMENT_WORDS]; with query_scratch */
    uint64_t *carried; /* the bitmap of the last sampled piece of the wave before */
    float *drawn_floats;     /* [2][AN_LANE_FLOATS]: o and b1 of the lanes' drawn */
    uint64_t sampling_bytes; /* of all four; 0 when there are none */
    /* of a batch */
    struct an_task tasks[AN_TASKS_MAX];
    uint32_t task_count;
    struct an_unit units[AN_LANES_MAX];
    uint32_t unit_count;
    struct an_lane lanes[AN_LANES_MAX];
    uint32_t lane_count;
    uint32_t lane_floats, lane_codes; /* used */
    uint32_t lane_q[AN_LANES_MAX];    /* where a lane's q begins in the float arrays */
    uint32_t lane_code[AN_LANES_MAX]; /* and its codes */
    float *q, *q_scaled, *b1;         /* [AN_LANE_FLOATS] */
    uint16_t *codes;                  /* [AN_LANE_CODES] */
    uint64_t deadline_us;
    _Atomic bool late;
    /* of a wave */
    struct an_piece pieces[AN_PIECES_MAX];
    uint32_t piece_count;
    struct an_lot lots[AN_PIECES_MAX];
    uint32_t lot_count;
    struct an_split_sample together[AN_TOGETHER_MAX];
    struct an_accumulator accumulators[AN_PIECE_LANES_MAX];
    uint32_t accumulator_count;
    float *piece_floats; /* [AN_PIECE_FLOATS] */
    uint32_t piece_floats_used;
    uint32_t bitmap_words_used;
};

enum an_walk {
    AN_WALK_FIRST,
    AN_WALK_AGAIN,     /* sampled views, of lanes that want more rows of them */
    AN_WALK_FALL_BACK, /* sampled views, of lanes whose sample was empty */
};

/* Where the plan is. A unit has turns: 0 is the stretches that are read exactly, for all lanes; the
 * others are its q rows, each over the stretches that are sampled. `lane` is the turn's next lane
 * that the stretch has not had, `row` the next row of a stretch that goes in blocks. Zeroed: before
 * the first piece. */
struct an_cursor {
    uint32_t unit, turn, stretch;
    uint32_t lane, lane_begin, lane_end; /* of the unit's lanes, the turn's */
    uint32_t row;
    bool begun; /* the unit */
    bool row_set;
    bool chosen, sampled; /* whether the unit samples the stretch */
    enum an_walk walk;
};

/* The next piece of the batch, without its place in the wave; false when there is none. The first
 * walk also counts the units' sampled tokens. A copy of the cursor goes on from where it was taken.
 */
bool an_plan_next(struct an_attend *attend, struct an_cursor *cursor, struct an_piece *piece);

/* What a kv head of the task's reads of its indexed rows; with a target: at first. */
static inline float an_task_share(const struct an_task *task, uint32_t kv_head)
{
    bool own = task->item->kv_share_count > 0 && task->target == 0.0f;
    return own ? task->item->kv_shares[kv_head] : task->rows_share;
}

/* Reads and checks q, copies or makes the signatures of the batch's lanes. */
void an_attend_load(struct an_attend *attend, enum pp_dtype q_dtype);

/* Takes a piece that has its place into the wave; goes_on: with the sample of the wave's last one,
 * where that has room for it. */
void an_lots_add(struct an_attend *attend, const struct an_piece *piece, bool goes_on);
/* Runs the lots of the wave. */
void an_lots_run(struct an_attend *attend, uint32_t threads);

/* Runs all pieces of the batch in waves: first what the plan says, then larger samples until
 * targets are met, then, for lanes without a target whose sample came out empty, the sampled views
 * exactly or, when they are long, by a uniform sample (law 2). */
void an_attend_waves(struct an_attend *attend);
/* Which of places a unit's rows lie at. */
uint32_t an_attend_place_of_unit(void *context, uint64_t index);

/* What the asker attends itself of a q row and head: o into o_out [dim], and its lse; zeros and
 * -INFINITY where it did not say, or no target wants it. */
float an_attend_local(const struct an_task *task, uint64_t wire_index, float *o_out);

/* Says of every group of lanes with a target what it does next, and makes room for it; false when
 * all are settled. stage counts the calls of a batch from 0, below AN_TARGET_STAGES. */
bool an_attend_judge(struct an_attend *attend, uint32_t stage);
/* Adds what was drawn to the sums of such lanes. */
void an_attend_settle(struct an_attend *attend);

/* Normalises the lanes into the items' outputs. */
void an_attend_finish(struct an_attend *attend);

/* Whether the deadline has passed; once seen, it stays. Any thread. */
bool an_attend_late(struct an_attend *attend);

#endif
