/* Messages that consumers must not see yet: half messages, and messages with a delivery time. waiting.c, halves.c. */
#ifndef KAPPAMQ_WAITING_H
#define KAPPAMQ_WAITING_H

#include "basics.h"

struct kernel;
struct plain;
struct queue;
struct topic;

/* What a send waits for, according to its properties. */
enum { WAITS_NOT, WAITS_FOR_DECISION, WAITS_LEVEL, WAITS_SECONDS, WAITS_MS, WAITS_UNTIL };
struct wish {
    int kind;
    struct span value, group; /* of the property that says so; PGROUP, empty if missing */
};

/* The end of a transaction, as its producer requests it. */
struct plain_end {
    struct span group, message_id, transaction_id;
    int64_t queue_offset, log_offset;
    int32_t decision; /* SYS_COMMIT or SYS_ROLLBACK */
};

/* An open half whose record is the one that its producer sent, not a later copy. */
struct half {
    int64_t log_offset, queue_offset;
    int32_t size; /* 0: an empty slot */
};

/* What Python must be told. */
enum { NOTE_OPENED, NOTE_ENDED };
struct note {
    int kind;
    int64_t log_offset, queue_offset, number, end; /* of a half: its size; of an end: the decision */
    size_t group_at, group_size;                   /* in `groups` */
    const struct topic *topic;
};

struct waiting {
    /* settings */
    bool halves_allowed;
    int64_t timer_ms_max; /* 0: timers are not supported */
    int64_t levels;
    struct bytes broker; /* its name, for recall handles */

    struct half *halves; /* open addressing by log offset, at most half full */
    size_t half_room, half_count;

    /* results of the last call */
    struct note *notes;
    size_t note_count, note_room;
    struct bytes groups;
    uint64_t parked; /* bit 0: there are new timers; bit n: new messages of delay level n */
};

/* What sends may wait for without Python; halves opened so far are left to Python. 0 or NO_MEMORY. */
int waiting_allow(struct waiting *waiting, bool halves, int64_t timer_ms_max, int64_t levels, struct span broker);
void waiting_free(struct waiting *waiting);

/* These two return verdicts of a frame. */
int waiting_send(struct kernel *kernel, const struct plain *plain, const struct queue *target, bool binary, struct span body,
                 struct span born, int64_t now_ms);
int plain_end(struct kernel *kernel, const struct plain *plain, bool binary, int64_t now_ms);

/* Halves. After halves_reserve, halves_put needs no memory; beyond HALVES_MAX, halves are left to Python. */
int halves_reserve(struct waiting *waiting);
void halves_put(struct waiting *waiting, struct half half);
const struct half *halves_find(const struct waiting *waiting, int64_t log_offset);
void halves_remove(struct waiting *waiting, int64_t log_offset);
void halves_clear(struct waiting *waiting);

#endif
