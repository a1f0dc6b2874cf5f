/* The loops that run once per message: buffers in, numbers out.
 *
 * Plain C, no Python types, no I/O, no clock, no mutable globals. pure*.py defines the behaviour of every function here; tests/native
 * compares the two. The caller of a `struct kernel` ensures that only one thread at a time uses it.
 *
 * Rules: every length that comes from outside is checked against the bytes that exist before it is used; offsets are int64_t and
 * bounded so that sums cannot overflow; functions that need memory reserve it before they change anything.
 */
#ifndef KAPPAMQ_KERNEL_H
#define KAPPAMQ_KERNEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "basics.h"
#include "mapping.h"
#include "waiting.h"

/* -- the numbers of layout.py ------------------------------------------------------------------------------------- */

#define MAGIC_V1 0xDAA320A7u
#define MAGIC_V2 0xDAA320ABu
#define MAGIC_BLANK 0xCBD43194u
#define SCHEDULE_TOPIC "SCHEDULE_TOPIC_XXXX"
#define TIMER_TOPIC "rmq_sys_wheel_timer"
#define HALF_TOPIC "RMQ_SYS_TRANS_HALF_TOPIC"
#define HALF_OP_TOPIC "RMQ_SYS_TRANS_OP_HALF_TOPIC"

enum {
    BLANK_BYTES = 8,
    RECORD_BYTES_MIN = 91,
    ENTRY_BYTES = 20,
    INDEX_PENDING_BYTES = 20,
    INDEX_ENTRY_BYTES = 20,
    TAIL_CRC_BYTES = 20,
    BATCH_PROPERTY_BYTES = 20,
    PROPERTIES_BYTES_MAX = 32767,
    TOPIC_BYTES_MAX = 127,
    TOPIC_BYTES_LIMIT = 32767,
    BATCH_MEMBERS_MAX = 8192,
    BATCH_PAIRS_MAX = 16, /* properties of its own that a batch may pass on to its members here */
    WAITING_PAIRS_MAX = 32, /* properties of a send that waits: each is compared with each */
    WAITING_BYTES_MAX = 8191, /* and their bytes: added ones must fit in, too */
    HALVES_MAX = 65536,
    SCAN_ENTRIES_MAX = 800,
    WARM_BLOCKS = 256,
    WARM_BLOCK_BYTES = 4 << 20,
    FILLER_BYTES = 0x7FFFFFFF, /* record size in entries that are filler */
    GAP_ENTRIES_MAX = 65536,
    TAIL_KEEP_BYTES = 1024 * 20,
    LENT_BYTES_MAX = 16 << 20,
};
#define QUEUE_OFFSET_MAX ((int64_t)1 << 58)
#define LOG_OFFSET_MAX ((int64_t)1 << 62)

enum { SYS_TRANSACTION = 0xC, SYS_PREPARED = 0x4, SYS_COMMIT = 0x8, SYS_ROLLBACK = 0xC, SYS_BORN_V6 = 0x10, SYS_STORE_V6 = 0x20, SYS_PLAIN = 0x701, SYS_COMPRESSED = 0x1, SYS_INNER_BATCH = 0x80 };
enum { TOPIC_SEND = 1, TOPIC_PULL = 2 };
enum { DONE = 0, LEFT = 1, FULL = 2, BAD = 3, PAUSE = 4 };
enum { REPLIES_BYTES_MAX = 1 << 20 }; /* of one burst, and at most one reply more than that */
enum { FOUND = 0, NO_MATCH = 1, EMPTY = 2, TOO_SMALL = 3, TOO_LARGE = 4, NO_MESSAGES = 5, NEED_ENTRIES = 6, COLD = 7, GONE = 8, BROKEN = 9 };
enum { PULL_COMMIT = 1, PULL_SUSPEND = 2, PULL_SUBSCRIPTION = 4, PULL_LITE = 16 };
enum { SCAN_MORE = 0, SCAN_BLANK = 1, SCAN_EMPTY = 2, SCAN_DAMAGED = 3, SCAN_RECORD = -1 };

/* -- headers (scan.c, json.c, properties.c) ------------------------------------------------------------------------ */

enum { CODE_SEND = 10, CODE_PULL = 11, CODE_END_TRANSACTION = 37, CODE_SEND_V2 = 310, CODE_SEND_BATCH = 320, CODE_LITE_PULL = 361 };

struct plain_send {
    struct span topic, properties, unique_key;
    int32_t queue_id, sys_flag, flag, reconsume_times;
    int64_t born_ms;
    struct wish waiting;
};

struct plain_pull {
    struct span group, topic;
    int32_t queue_id, sys_flag;
    int64_t offset, count_max, commit_offset, suspend_ms, version;
    bool explicit_;
};

struct plain {
    int32_t code, flag, opaque;
    struct plain_send send;
    struct plain_pull pull;
    struct plain_end end;
};

/* The fields of a plain header; false if the frame must be left to Python. `readable` is one past the last byte that may be loaded,
 * `scratch` has room for the header and 16 bytes more and must outlive `plain`. */
bool scan_header(const uint8_t *header, size_t size, const uint8_t *readable, bool binary, uint8_t *scratch, struct plain *plain);
/* Whether pairs are well-formed, none special, and WAIT absent or true; sets `unique_key` to the last UNIQ_KEY. */
bool plain_properties(struct span text, const uint8_t *readable, struct span *unique_key);
/* The same for a send that waits: exactly one property says for what, and no name comes twice. */
bool waiting_properties(struct span text, const uint8_t *readable, struct span *unique_key, struct wish *wish);

/* -- records (record.c) -------------------------------------------------------------------------------------------- */

struct record {
    int32_t size, queue_id, sys_flag;
    int64_t queue_offset, log_offset, store_ms;
    struct span body, topic, properties;
};

/* The input of `record_write`. Properties get a final 0x02 if they lack it; then come those that a member inherits from its batch,
 * those that the broker adds, and the length of a batch or group. */
struct message {
    struct span topic, body, properties, inherited, added, mark, born, store_host;
    int32_t queue_id, flag, sys_flag, reconsume_times;
    int64_t born_ms, prepared;
    bool tail_crc;
};

struct member {
    int32_t flag;
    struct span body, properties;
};

/* SCAN_RECORD and the fields, or why there is no record. */
int record_parse(const uint8_t *at, size_t left, struct record *record);
bool record_intact(const struct crc *crc, const uint8_t *at, const struct record *record);
/* Properties of a record before its tail CRC was added. */
struct span without_tail_crc(struct span properties);
/* Bytes of the whole record, -1 if they do not fit into a record. */
int64_t record_measure(const struct message *message);
void record_write(const struct crc *crc, const struct message *message, int64_t size, int64_t queue_offset, int64_t log_offset, int64_t now_ms, uint8_t *to);

struct scanned {
    int64_t bytes, records, store_ms;
    int why;
};
void log_scan(const struct crc *crc, const uint8_t *data, size_t size, int64_t log_offset, bool check, struct scanned *scanned);

/* For well-formed properties: whether one has this name, and the pair at `*at` without its 0x02; moves `*at` behind it. */
bool has_property(struct span properties, struct span name);
struct span next_pair(struct span properties, size_t *at, struct span *name);

/* Parses the member at `*at` and moves `*at` behind it. False unless every length fits. */
bool batch_next(struct span body, size_t *at, struct member *member);

/* -- columns (columns.c) ------------------------------------------------------------------------------------------- */

/* Where a record is in a buffer, and its fixed fields; layout.py has the same fields in the same order. */
struct place {
    int64_t at, size, queue_id, queue_offset, log_offset, sys_flag, born_ms, store_ms;
    int64_t body_at, body_bytes, topic_at, topic_bytes, properties_at, properties_bytes, host_at, damaged;
};
enum { PLACE_BYTES = 128 };
_Static_assert(sizeof(struct place) == PLACE_BYTES, "a place is sixteen numbers");

struct located {
    size_t bytes, count;
    int why; /* also SCAN_MORE if `room` ended it */
};
/* Notes the records that follow each other in `data`, at most `room`. With a `log_offset` that is not negative each must contain its own
 * offset. A record with wrong checksums counts as `damaged`, one with impossible lengths ends the walk. */
void records_locate(const struct crc *crc, const uint8_t *data, size_t size, int64_t log_offset, bool check, struct place *places, size_t room, struct located *located);
/* Whether all are intact, neither compressed nor batches, and their queue offsets ascend within [offset, next_offset). */
bool records_plain(const struct place *places, size_t count, int64_t offset, int64_t next_offset);

enum { VALUES_MAX = 8 };
/* The values of the named properties of a record, empty if missing; of equal names the last one with a value. */
struct valued {
    size_t size;
    int64_t queue_offset;
    struct span properties, values[VALUES_MAX];
};
/* SCAN_RECORD, or why there is no record at `data` that can be read in this simple way. Names are not empty and differ. */
int record_values(const uint8_t *data, size_t size, const struct span *names, size_t count, struct valued *valued);

enum { COLUMN_TOPIC = 1, COLUMN_BODY = 2, COLUMN_ID = 4, COLUMN_KEYS = 8, COLUMN_TAGS = 16, COLUMN_PROPERTIES = 32 };
/* A place points outside of the data; a column does not fit Arrow's 32-bit offsets. */
enum { BAD_PLACE = -101, COLUMN_TOO_LARGE = -102 };

struct sources {
    struct span data, extra;
};
struct texts {
    struct bytes offsets, data, valid;
    size_t nulls;
};
struct maps {
    struct bytes offsets;
    struct texts names, values;
    int32_t count;
};
struct property_columns {
    struct texts ids, keys, tags;
    struct maps maps;
};
/* Bytes of the bodies or topics of all places; BAD_PLACE or COLUMN_TOO_LARGE. */
int64_t column_measure(const struct sources *sources, const struct place *places, size_t count, bool topics);
/* Writes `count` + 1 offsets and the measured number of bytes. */
int column_write(const struct sources *sources, const struct place *places, size_t count, bool topics, int32_t *offsets, uint8_t *to);
/* The columns made from properties. `to` must be zeroed before, and freed after, even if this fails. */
int columns_from_properties(const struct sources *sources, const struct place *places, size_t count, int wanted, struct property_columns *to);
void columns_free(struct property_columns *columns);

/* -- batches of columns (batches.c) -------------------------------------------------------------------------------- */

/* A text or binary column in Arrow's layout; without `valid` bits nothing is null. Offsets are checked when they are used. */
struct column {
    struct span valid, data;
    const int32_t *offsets; /* one more than there are rows */
};
struct named_column {
    struct span name;
    struct column column;
};
/* The properties of each row: columns of one property each, then the pairs of a map. */
struct text_job {
    const struct named_column *named;
    size_t named_count, count;
    const int32_t *map_offsets; /* NULL: there is no map */
    struct span map_valid;
    struct column map_names, map_values;
    size_t map_count;
    const struct span *left_out; /* names of the map that are skipped */
    size_t left_out_count;
};
/* Why a row cannot be a message: its properties are too long; a separator in a name or value; an empty name or value. */
enum { ROW_TOO_LONG = -103, ROW_SEPARATOR = -104, ROW_EMPTY = -105 };
/* Appends `count` + 1 offsets and the texts; `row` is the one that failed. */
int texts_build(const struct text_job *job, struct bytes *offsets, struct bytes *data, size_t *row);

struct batch_job {
    struct column bodies, texts;
    size_t count; /* of rows in the columns */
    const int32_t *rows; /* those for this queue, in order */
    size_t row_count;
    size_t bytes_max, count_max;
    struct span id_prefix; /* 10 bytes; empty: no ids are assigned */
    uint64_t first_id;     /* of row 0; 48 bits */
};
/* Appends members to `to`, from rows[first] on, as many as fit (at least one). Returns where to continue in `rows`;
 * `failed` is the row that cannot become a member. */
int64_t batch_build(const struct batch_job *job, size_t first, struct bytes *to, size_t *failed);
/* The sum of the CRC-32s of the bodies of a batch; -1 unless every length fits and there is a member. */
int64_t batch_sum(const struct crc *crc, struct span body);

/* -- the kernel ---------------------------------------------------------------------------------------------------- */

struct topic;

struct queue {
    struct topic *topic;
    int32_t id;
    bool watched, dirty;
    int64_t min, end, next, stored;
    int64_t begun; /* 1 + the number at which received records begin it anew once dispatched; 0: none do */
    int64_t tail_first, lent_first;
    struct bytes tail, lent;
    struct link place; /* in kernel.dirty or kernel.settled */
    struct link loan;  /* in kernel.lent */
};

struct topic {
    uint8_t *name;
    size_t name_size;
    uint64_t hash;
    uint32_t key_hash; /* of "name#": every index key of the topic begins with it */
    int32_t flags;
    int64_t write_queues, read_queues;
    struct queue **queues; /* open addressing by id */
    size_t queue_room, queue_count;
};

struct row {
    uint8_t *names; /* group, then topic */
    size_t group_size, topic_size;
    uint64_t hash;
    bool explicit_;
    int64_t number, version;
    bool all;
    int32_t *codes; /* ascending */
    size_t code_count;
    int64_t *asked; /* by queue id: the offset of its last pull, -1 for none */
    size_t asked_room;
};

struct segment {
    int64_t number;
    const uint8_t *data;
    size_t size;
    const struct mapping *mapping; /* knows which pages could not be read; NULL: plain memory */
};

/* A reply in progress: own bytes and bytes of the log, in order. */
struct piece {
    const uint8_t *at; /* NULL: the next `size` bytes of gather.text */
    size_t size;
};
struct gather {
    struct bytes text;
    struct piece *pieces;
    size_t count, room, total;
};

struct pull {
    int verdict;
    int64_t row;
    int32_t queue_id;
    int64_t offset, count;
    int32_t sys_flag;
    int64_t suspend_ms;
    int32_t opaque;
    bool binary;
    int64_t payload[3]; /* COLD: first log byte, one past the last; else next, min, end */
};

struct commit {
    int64_t row;
    int32_t queue_id;
    int64_t offset;
};

struct woken {
    const struct topic *topic;
    int32_t queue_id;
};

struct kernel {
    /* settings */
    int64_t segment_bytes, message_bytes_max, frame_bytes_max, header_bytes_max, pending_bytes_max, transfer_bytes_max,
        transfer_count_max, tail_bytes_max;
    uint8_t store_host[20], host_hex[40]; /* the address, and as ids show it */
    size_t store_host_size;
    bool tail_crc, accepting, force_slow, index_enabled;
    bool mins_raised; /* no queue begins with entries of deleted log files */
    int64_t hot_from, log_min;
    int64_t suggested, suggested_below; /* broker id to suggest for pulls of messages below that log offset */
    int64_t warm[WARM_BLOCKS]; /* number of the block plus one: 0 for none */
    int64_t *delays_ms;
    size_t delay_count;
    struct bytes added, sent_json, sent_binary;
    struct crc crc;

    /* tables */
    struct topic **topics;
    size_t topic_room, topic_count;
    struct topic *last_topic; /* the one looked up last: often the same is needed again */
    struct row **rows;
    size_t row_room, row_count;
    struct segment *segments; /* ascending */
    size_t segment_count, segment_room;
    struct link dirty, settled, lent;
    size_t dirty_count;
    int64_t tail_bytes, lent_bytes;

    /* appended and not yet taken */
    struct bytes pending;
    int64_t written, segment_end;
    struct bytes index;

    /* results of the last call */
    struct bytes acks, scratch;
    struct gather replies;
    struct pull *pulls;
    size_t pull_count, pull_room;
    struct commit *commits;
    size_t commit_count, commit_room;
    struct woken *woken;
    size_t woken_count, woken_room;
    bool woken_untold;
    struct member *members;
    size_t member_count, member_room;
    struct bytes inherited; /* properties that the members of a batch inherit, each closed with 0x02 */
    struct bytes some;      /* those of them that the present member does not set itself */
    struct waiting waiting;

    /* counters */
    uint64_t fast_frames, left_frames;
    int64_t put_count, put_bytes, get_count, get_bytes;
};

/* Tables (tables.c). Functions that return int return 0 or NO_MEMORY unless said otherwise. */
struct kernel *kernel_new(void);
void kernel_free(struct kernel *kernel);
/* What every stored message and every answer to a send contain: properties as text; the region as JSON string and plain. */
int kernel_identity(struct kernel *kernel, struct span added, struct span region_json, struct span region, bool trace_on);
void kernel_set_host(struct kernel *kernel, struct span host); /* 8 or 20 bytes */
int kernel_delays(struct kernel *kernel, const int64_t *delays_ms, size_t count);

struct topic *kernel_topic(struct kernel *kernel, struct span name); /* created if missing; NULL: no memory */
struct topic *kernel_find_topic(struct kernel *kernel, struct span name);
/* Frees a topic that has no entries and that clients may not use; false if it was kept. */
bool kernel_forget_topic(struct kernel *kernel, struct span name);
struct queue *topic_queue(struct topic *topic, int32_t id); /* created if missing; NULL: no memory */
struct queue *topic_find_queue(const struct topic *topic, int32_t id);
void kernel_set_queue(struct kernel *kernel, struct queue *queue, int64_t min_offset, int64_t end);
void kernel_drop_lent(struct kernel *kernel, struct queue *queue);
int kernel_lend(struct kernel *kernel, struct queue *queue, int64_t first, struct span entries);
struct span kernel_tail_entries(const struct queue *queue, int64_t offset, int64_t count);
int kernel_set_row(struct kernel *kernel, struct span group, struct span topic, bool explicit_, int64_t number, int64_t version,
                   const int32_t *codes, size_t code_count, bool all);
void kernel_drop_row(struct kernel *kernel, struct span group, struct span topic, bool explicit_);
struct row *kernel_find_row(const struct kernel *kernel, struct span group, struct span topic, bool explicit_);
void row_asked(struct row *row, int32_t queue_id, int64_t offset);
int64_t kernel_asked(const struct kernel *kernel, struct span group, struct span topic, int32_t queue_id);
int kernel_map(struct kernel *kernel, int64_t number, struct span data, const struct mapping *mapping); /* data.at NULL: unmap */

/* Dispatch (dispatch.c, queues.c): enters records; `*eaten` says how far. kernel.woken lists watched queues that grew. */
int kernel_dispatch(struct kernel *kernel, const uint8_t *data, size_t size, int64_t log_offset, size_t *eaten);
/* kernel_number returns this if a record is not the next one of its queue; else DONE, and `*at` says how far it came. */
enum { MISNUMBERED = -106 };
struct misnumbered {
    struct span topic;
    int32_t queue_id;
    int64_t number, expected;
};
int kernel_number(struct kernel *kernel, const uint8_t *data, size_t size, size_t *at, struct misnumbered *wrong);
void kernel_rewind(struct kernel *kernel);
struct queue *kernel_dirty_queue(struct kernel *kernel);                  /* the first, NULL if there is none */
struct span queue_unstored(const struct queue *queue);                    /* its entries that are not in a file */
void kernel_stored(struct kernel *kernel, struct queue *queue);           /* they now count as stored */
void kernel_trim_tails(struct kernel *kernel);

/* Where message `number` of a queue can be read, NULL if it is not at its offset: not mapped, not readable, or other bytes. */
const uint8_t *kernel_record_at(const struct kernel *kernel, int64_t log_offset, int32_t size, const struct queue *queue, int64_t number);

/* Pulls (gather.c) */
struct codes {
    const int32_t *at; /* ascending */
    size_t count;
    bool all;
};
/* Who gets the answer to a pull. */
struct asker {
    int32_t opaque;
    bool binary;
};
/* A verdict, with payload as in struct pull; FOUND adds the whole reply to `replies`, or only the records if there is no asker: then the
 * caller decides which of them it passes on, and counts these. */
int kernel_pull(struct kernel *kernel, const struct topic *topic, int32_t queue_id, int64_t offset, int64_t count_max,
                struct codes codes, const struct asker *asker, bool warm, struct gather *replies, int64_t payload[3]);
void gather_clear(struct gather *gather);
void gather_copy(const struct gather *gather, uint8_t *to);

/* Bursts (burst.c) */
struct burst {
    size_t consumed;
    int verdict;
};
int kernel_burst(struct kernel *kernel, const uint8_t *data, size_t size, size_t position, struct span born, int64_t now_ms,
                 struct burst *burst);
/* DONE, FULL (no room here), LEFT (does not fit into a record) or NO_MEMORY. */
int kernel_append(struct kernel *kernel, struct queue *queue, struct message *message, int64_t now_ms, bool counted, int64_t *size);
/* Appends kernel.members, with the properties they inherit. */
int kernel_append_members(struct kernel *kernel, struct queue *queue, int32_t sys_flag, int64_t born_ms, struct span born,
                          int32_t reconsume_times, int64_t now_ms, int64_t *offsets);
/* One record of a group, for its own queue: the message is input, its offsets are output. */
struct placed {
    struct queue *queue;
    struct message message;
    int64_t log_offset, queue_offset, size;
};
int kernel_append_group(struct kernel *kernel, struct placed *members, size_t count, int64_t now_ms);
/* Appends a note and the members of a batch as one group; LEFT if a member is not plain. */
int kernel_append_batch(struct kernel *kernel, struct placed *note, struct queue *queue, const struct message *common, struct span body,
                        int64_t now_ms, int64_t *end);
void kernel_taken(struct kernel *kernel);

/* Key index (index.c) */
struct indexed {
    size_t position;
    int32_t count, fresh;
};
void index_apply(uint8_t *slots, size_t slot_count, struct span pending, size_t position, int32_t count, int32_t capacity,
                 int64_t begin_ms, uint8_t *entries, struct indexed *indexed);
struct linked {
    int32_t number, fresh;
    int64_t last;
};
void index_link(uint8_t *slots, size_t slot_count, struct span entries, int32_t number, int64_t last, struct linked *linked);

#endif
