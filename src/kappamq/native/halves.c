/* Open halves whose records are those that their producers sent, and how they end. pure_waiting.py defines the behaviour. */
#include "answers.h"

/* -- the table ------------------------------------------------------------------------------------------------------- */

static inline size_t place_of(const struct waiting *waiting, int64_t log_offset)
{
    return (size_t)(((uint64_t)log_offset * 0x9E3779B97F4A7C15u) >> 32) & (waiting->half_room - 1);
}

/* The slot of a half, or the one where it can be put. The table is never full. */
static size_t find_place(const struct waiting *waiting, int64_t log_offset)
{
    size_t place = place_of(waiting, log_offset);
    while (waiting->halves[place].size && waiting->halves[place].log_offset != log_offset)
        place = (place + 1) & (waiting->half_room - 1);
    return place;
}

int halves_reserve(struct waiting *waiting)
{
    if (waiting->half_count * 2 < waiting->half_room || waiting->half_count >= HALVES_MAX)
        return 0;
    struct waiting larger = {.half_room = waiting->half_room ? waiting->half_room * 2 : 64};
    larger.halves = calloc(larger.half_room, sizeof *larger.halves);
    if (!larger.halves)
        return NO_MEMORY;
    for (size_t n = 0; n < waiting->half_room; n++)
        if (waiting->halves[n].size)
            larger.halves[find_place(&larger, waiting->halves[n].log_offset)] = waiting->halves[n];
    free(waiting->halves);
    waiting->halves = larger.halves;
    waiting->half_room = larger.half_room;
    return 0;
}

void halves_put(struct waiting *waiting, struct half half)
{
    if (waiting->half_count >= HALVES_MAX)
        return;
    waiting->halves[find_place(waiting, half.log_offset)] = half;
    waiting->half_count++;
}

const struct half *halves_find(const struct waiting *waiting, int64_t log_offset)
{
    if (!waiting->half_count)
        return NULL;
    const struct half *half = &waiting->halves[find_place(waiting, log_offset)];
    return half->size ? half : NULL;
}

void halves_remove(struct waiting *waiting, int64_t log_offset)
{
    if (!halves_find(waiting, log_offset))
        return;
    size_t mask = waiting->half_room - 1, hole = find_place(waiting, log_offset);
    waiting->half_count--;
    /* An entry behind the hole that can be moved into it, without coming before its own slot, is moved. */
    for (size_t place = (hole + 1) & mask; waiting->halves[place].size; place = (place + 1) & mask) {
        size_t own = place_of(waiting, waiting->halves[place].log_offset);
        if (((place - own) & mask) >= ((place - hole) & mask)) {
            waiting->halves[hole] = waiting->halves[place];
            hole = place;
        }
    }
    waiting->halves[hole].size = 0;
}

void halves_clear(struct waiting *waiting)
{
    free(waiting->halves);
    waiting->halves = NULL;
    waiting->half_room = waiting->half_count = 0;
}

/* -- ends ------------------------------------------------------------------------------------------------------------ */

/* What the properties of a half say about the message. */
struct origin {
    struct span group, unique_key, topic, queue_id;
};

static struct origin origin_of(struct span properties)
{
    struct origin origin = {0};
    struct span name;
    for (size_t at = 0; at < properties.size;) {
        struct span pair = next_pair(properties, &at, &name);
        struct span *to = SPAN_IS(name, "PGROUP")       ? &origin.group
                          : SPAN_IS(name, "UNIQ_KEY")   ? &origin.unique_key
                          : SPAN_IS(name, "REAL_TOPIC") ? &origin.topic
                          : SPAN_IS(name, "REAL_QID")   ? &origin.queue_id
                                                        : NULL;
        if (to && pair.size > name.size)
            *to = (struct span){pair.at + name.size + 1, pair.size - name.size - 1};
    }
    return origin;
}

/* The queue that a half is for; NULL if Python must decide, or if `memory` is false. */
static struct queue *target_of(struct kernel *kernel, const struct origin *origin, bool *memory)
{
    int64_t queue_id = 0;
    *memory = true;
    struct topic *topic = kernel_find_topic(kernel, origin->topic);
    if (origin->queue_id.size > 10)
        return NULL;
    for (size_t n = 0; n < origin->queue_id.size; n++) {
        uint8_t digit = (uint8_t)(origin->queue_id.at[n] - '0');
        if (digit > 9)
            return NULL;
        queue_id = queue_id * 10 + digit;
    }
    if (!topic || !(topic->flags & TOPIC_SEND) || queue_id >= topic->write_queues)
        return NULL;
    struct queue *queue = topic_queue(topic, (int32_t)queue_id);
    *memory = queue != NULL;
    return queue;
}

/* Where the record of a half can be read; NULL if it must be left to Python. */
static const uint8_t *read_half(struct kernel *kernel, const struct half *half, struct record *record)
{
    struct topic *topic = kernel_find_topic(kernel, (struct span){(const uint8_t *)HALF_TOPIC, sizeof HALF_TOPIC - 1});
    struct queue *queue = topic ? topic_find_queue(topic, 0) : NULL;
    if (!queue || half->log_offset < kernel->hot_from || half->log_offset < kernel->log_min || half->log_offset + half->size > kernel->written)
        return NULL;
    const uint8_t *at = kernel_record_at(kernel, half->log_offset, half->size, queue, half->queue_offset);
    if (!at || record_parse(at, (size_t)half->size, record) != SCAN_RECORD || !record_intact(&kernel->crc, at, record))
        return NULL;
    return at;
}

/* The op record that settles a half. */
static struct message op_message(const struct kernel *kernel, const struct half *half, bool commits, int64_t now_ms, uint8_t body[24])
{
    static const uint8_t committed[] = "TAGS\x01" "d\x02__END#\x01" "c\x02", rolled_back[] = "TAGS\x01" "d\x02__END#\x01" "r\x02";
    uint8_t *end = put_number(body, half->queue_offset);
    *end++ = ',';
    return (struct message){
        .body = {body, (size_t)(end - body)},
        .properties = {commits ? committed : rolled_back, sizeof committed - 1},
        .born = {kernel->store_host, kernel->store_host_size},
        .born_ms = now_ms,
        .prepared = half->log_offset,
    };
}

/* The message that consumers get: the half, with the bytes it was sent with. */
static struct message committed_message(const uint8_t *at, const struct record *record)
{
    size_t born = record->sys_flag & SYS_BORN_V6 ? 20 : 8, host = record->sys_flag & SYS_STORE_V6 ? 20 : 8;
    return (struct message){
        .body = record->body,
        .properties = without_tail_crc(record->properties),
        .born = {at + 48, born},
        .flag = get32(at + 16),
        .sys_flag = (record->sys_flag & ~SYS_TRANSACTION) | SYS_COMMIT,
        .reconsume_times = get32(at + 56 + born + host),
        .born_ms = get64(at + 40),
        .prepared = record->log_offset,
    };
}

int plain_end(struct kernel *kernel, const struct plain *plain, bool binary, int64_t now_ms)
{
    struct waiting *waiting = &kernel->waiting;
    const struct plain_end *end = &plain->end;
    const struct half *found = kernel->accepting && waiting->halves_allowed ? halves_find(waiting, end->log_offset) : NULL;
    struct record record;
    if (!found || found->queue_offset != end->queue_offset)
        return LEFT;
    const struct half half = *found;
    const uint8_t *at = read_half(kernel, &half, &record);
    if (!at)
        return LEFT;
    struct origin origin = origin_of(record.properties);
    if (!same_span(origin.group, end->group) ||
        !(same_span(origin.unique_key, end->transaction_id) || same_span(origin.unique_key, end->message_id)))
        return LEFT;
    bool commits = end->decision == SYS_COMMIT, answer = !(plain->flag & 2), memory = true;
    struct queue *target = commits ? target_of(kernel, &origin, &memory) : NULL;
    if (commits && !target)
        return memory ? LEFT : NO_MEMORY;
    struct topic *op_topic = kernel_topic(kernel, (struct span){(const uint8_t *)HALF_OP_TOPIC, sizeof HALF_OP_TOPIC - 1});
    struct queue *op_queue = op_topic ? topic_queue(op_topic, 0) : NULL;
    if (!op_queue || ARRAY_RESERVE(waiting->notes, waiting->note_count, waiting->note_room) || (answer && reserve_ended(kernel)))
        return NO_MEMORY;
    uint8_t body[24];
    /* The op record first: it has the mark of the group, and the message stays as its producer made it. */
    struct placed placed[2] = {{.queue = op_queue, .message = op_message(kernel, &half, commits, now_ms, body)}};
    if (commits)
        placed[1] = (struct placed){.queue = target, .message = committed_message(at, &record)};
    int verdict = kernel_append_group(kernel, placed, commits ? 2 : 1, now_ms);
    if (verdict != DONE)
        return verdict;
    const struct placed *last = &placed[commits];
    waiting->notes[waiting->note_count++] = (struct note){
        .kind = NOTE_ENDED,
        .log_offset = half.log_offset,
        .queue_offset = placed[0].queue_offset,
        .number = end->decision,
        .end = last->log_offset + last->size,
    };
    halves_remove(waiting, half.log_offset);
    if (answer)
        put_ended(kernel, plain->opaque, binary);
    return DONE;
}
