/* Sends that consumers must not see yet: stored in a system queue, with their real topic. pure_waiting.py defines the behaviour. */
#include "waiting.h"

#include "answers.h"

/* Digits of a positive number that is written back unchanged: no sign, no leading zero, and a thousand times its value fits 64 bits. */
static bool read_positive(struct span text, int64_t *number)
{
    enum { DIGITS_MAX = 15 };
    if (!text.size || text.size > DIGITS_MAX || text.at[0] == '0')
        return false;
    int64_t value = 0;
    for (size_t n = 0; n < text.size; n++) {
        uint8_t digit = (uint8_t)(text.at[n] - '0');
        if (digit > 9)
            return false;
        value = value * 10 + digit;
    }
    *number = value;
    return true;
}

static uint8_t *put_pair(uint8_t *to, const char *name, size_t name_size, struct span value)
{
    to = put_bytes(to, name, name_size);
    to = put_span(to, value);
    *to++ = 2;
    return to;
}
static uint8_t *put_number_pair(uint8_t *to, const char *name, size_t name_size, int64_t value)
{
    to = put_number(put_bytes(to, name, name_size), value);
    *to++ = 2;
    return to;
}
#define PUT_PAIR(to, name, value) put_pair((to), name "\x01", sizeof(name), (value))
#define PUT_NUMBER_PAIR(to, name, value) put_number_pair((to), name "\x01", sizeof(name), (value))

/* URL-safe Base64. */
static uint8_t *put_base64(uint8_t *to, const uint8_t *data, size_t size)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    for (; size >= 3; size -= 3, data += 3) {
        uint32_t word = (uint32_t)data[0] << 16 | (uint32_t)data[1] << 8 | data[2];
        for (int shift = 18; shift >= 0; shift -= 6)
            *to++ = (uint8_t)digits[word >> shift & 63];
    }
    if (size) {
        uint32_t word = (uint32_t)data[0] << 16 | (size == 2 ? (uint32_t)data[1] << 8 : 0);
        *to++ = (uint8_t)digits[word >> 18];
        *to++ = (uint8_t)digits[word >> 12 & 63];
        *to++ = size == 2 ? (uint8_t)digits[word >> 6 & 63] : '=';
        *to++ = '=';
    }
    return to;
}

/* The delivery time of a message that asks for one; 0 if Python must decide. */
static int64_t due_ms(const struct waiting *waiting, const struct wish *wish, int64_t now_ms)
{
    int64_t number, delay;
    if (!read_positive(wish->value, &number))
        return 0;
    delay = wish->kind == WAITS_SECONDS ? number * 1000 : wish->kind == WAITS_MS ? number : number - now_ms;
    return delay > 0 && delay <= waiting->timer_ms_max ? now_ms + delay : 0;
}

/* The system queue in which a message waits. */
struct parking {
    struct span topic;
    int64_t queue_id, due_ms;
};

static bool find_parking(const struct waiting *waiting, const struct wish *wish, int64_t now_ms, struct parking *parking)
{
    int64_t level;
    switch (wish->kind) {
    case WAITS_FOR_DECISION:
        *parking = (struct parking){{(const uint8_t *)HALF_TOPIC, sizeof HALF_TOPIC - 1}, 0, 0};
        return waiting->halves_allowed && SPAN_IS(wish->value, "true") && wish->group.size;
    case WAITS_LEVEL:
        if (!read_positive(wish->value, &level) || level > waiting->levels)
            return false;
        *parking = (struct parking){{(const uint8_t *)SCHEDULE_TOPIC, sizeof SCHEDULE_TOPIC - 1}, level - 1, 0};
        return true;
    default:
        *parking = (struct parking){{(const uint8_t *)TIMER_TOPIC, sizeof TIMER_TOPIC - 1}, 0, due_ms(waiting, wish, now_ms)};
        return parking->due_ms != 0;
    }
}

static uint8_t *put_address(uint8_t *to, const struct queue *target)
{
    to = PUT_PAIR(to, "REAL_TOPIC", ((struct span){target->topic->name, target->topic->name_size}));
    return PUT_NUMBER_PAIR(to, "REAL_QID", target->id);
}

/* What the broker adds to the properties, in the order of the slow path. */
static uint8_t *put_noted(uint8_t *to, const struct plain_send *send, const struct queue *target, int64_t due)
{
    enum { PRECISION_MS = 1000 };
    if (send->waiting.kind == WAITS_FOR_DECISION)
        return PUT_PAIR(put_address(to, target), "__transactionId__", send->unique_key);
    if (send->waiting.kind != WAITS_LEVEL)
        to = PUT_NUMBER_PAIR(to, "TIMER_OUT_MS", (due - 1) / PRECISION_MS * PRECISION_MS);
    if (send->waiting.kind == WAITS_SECONDS || send->waiting.kind == WAITS_MS)
        to = PUT_NUMBER_PAIR(to, "TIMER_DELIVER_MS", due);
    return put_address(to, target);
}

/* The handle for recalling a timer. `text` is the buffer in which it is built. */
static uint8_t *put_handle(uint8_t *to, uint8_t *text, const struct kernel *kernel, const struct plain_send *send,
                           const struct queue *target, int64_t due)
{
    const struct bytes *broker = &kernel->waiting.broker;
    uint8_t *end = put_bytes(put_text(text, "v1 "), target->topic->name, target->topic->name_size);
    end = put_bytes(put_text(end, " "), broker->data, broker->size);
    end = put_number(put_text(end, " "), due);
    end = put_span(put_text(end, " "), send->unique_key);
    return put_base64(to, text, (size_t)(end - text));
}

static int reserve_note(struct kernel *kernel, const struct plain_send *send)
{
    struct waiting *waiting = &kernel->waiting;
    if (send->waiting.kind != WAITS_FOR_DECISION)
        return 0;
    return ARRAY_RESERVE(waiting->notes, waiting->note_count, waiting->note_room) || bytes_reserve(&waiting->groups, send->waiting.group.size) ||
                   halves_reserve(waiting)
               ? NO_MEMORY
               : 0;
}

static void note_stored(struct kernel *kernel, const struct plain_send *send, const struct queue *target, struct half stored, int64_t level)
{
    struct waiting *waiting = &kernel->waiting;
    if (send->waiting.kind != WAITS_FOR_DECISION) {
        waiting->parked |= (uint64_t)1 << level;
        return;
    }
    waiting->notes[waiting->note_count++] = (struct note){
        .kind = NOTE_OPENED,
        .log_offset = stored.log_offset,
        .queue_offset = stored.queue_offset,
        .number = stored.size,
        .group_at = waiting->groups.size,
        .group_size = send->waiting.group.size,
        .topic = target->topic,
    };
    put_span(waiting->groups.data + waiting->groups.size, send->waiting.group);
    waiting->groups.size += send->waiting.group.size;
    halves_put(waiting, stored);
}

int waiting_send(struct kernel *kernel, const struct plain *plain, const struct queue *target, bool binary, struct span body,
                 struct span born, int64_t now_ms)
{
    const struct plain_send *send = &plain->send;
    struct parking parking;
    if (!find_parking(&kernel->waiting, &send->waiting, now_ms, &parking))
        return LEFT;
    struct topic *topic = kernel_topic(kernel, parking.topic);
    struct queue *queue = topic ? topic_queue(topic, (int32_t)parking.queue_id) : NULL;
    if (!queue)
        return NO_MEMORY;
    /* `some`: the added properties, then a recall handle as it is sent, then as it is built. */
    bool answer = !(plain->flag & 2), is_timer = parking.due_ms != 0;
    size_t noted_max = 192 + target->topic->name_size + send->unique_key.size;
    size_t text_max = 32 + target->topic->name_size + kernel->waiting.broker.size + send->unique_key.size, handle_max = text_max * 4 / 3 + 4;
    if (bytes_reserve(&kernel->some, noted_max + handle_max + text_max) || reserve_note(kernel, send) ||
        (answer && reserve_sent(kernel, 1, send->unique_key.size + handle_max)))
        return NO_MEMORY;
    uint8_t *noted = kernel->some.data, *noted_end = put_noted(noted, send, target, parking.due_ms);
    uint8_t *handle = noted + noted_max, *handle_end = handle;
    if (answer && is_timer)
        handle_end = put_handle(handle, handle + handle_max, kernel, send, target, parking.due_ms);
    struct message message = {
        .body = body,
        .properties = send->properties,
        .added = {kernel->added.data, kernel->added.size},
        .mark = {noted, (size_t)(noted_end - noted)},
        .born = born,
        .flag = send->flag,
        .sys_flag = send->sys_flag & ~SYS_TRANSACTION,
        .reconsume_times = send->reconsume_times,
        .born_ms = send->born_ms,
    };
    int64_t log_offset = kernel->written + (int64_t)kernel->pending.size, queue_offset = queue->next, size;
    int verdict = kernel_append(kernel, queue, &message, now_ms, true, &size);
    if (verdict != DONE)
        return verdict;
    note_stored(kernel, send, target, (struct half){log_offset, queue_offset, (int32_t)size}, is_timer ? 0 : parking.queue_id + 1);
    struct span sent_handle = {handle, (size_t)(handle_end - handle)};
    if (answer)
        put_sent(kernel, plain->opaque, binary,
                 &(struct sent){&log_offset, 1, target->id, queue_offset, send->unique_key, sent_handle});
    return DONE;
}

int waiting_allow(struct waiting *waiting, bool halves, int64_t timer_ms_max, int64_t levels, struct span broker)
{
    struct bytes name = {0};
    if (bytes_reserve(&name, broker.size))
        return NO_MEMORY;
    put_span(name.data, broker);
    name.size = broker.size;
    bytes_free(&waiting->broker);
    waiting->broker = name;
    waiting->halves_allowed = halves;
    waiting->timer_ms_max = timer_ms_max;
    waiting->levels = levels;
    halves_clear(waiting);
    return 0;
}

void waiting_free(struct waiting *waiting)
{
    free(waiting->halves);
    free(waiting->notes);
    bytes_free(&waiting->groups);
    bytes_free(&waiting->broker);
}
