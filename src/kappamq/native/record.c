/* One stored record: its bytes and its checks. pure_record.py defines the behaviour. */
#include "inline.h"
#include "property_names.h"

static const char TAIL_CRC_NAME[] = TAIL_CRC_PROPERTY "\x01";
static const char BATCH_NAME[] = BATCH_BYTES_PROPERTY "\x01";
enum { PRIVATE_NAME_BYTES = 9, DIGITS = 10, PRIVATE_BYTES = PRIVATE_NAME_BYTES + DIGITS + 1 };
enum { JOINED_BYTES_MIN = 32 << 10 }; /* reading a smaller body twice is faster than joining CRCs */

/* CRC of a record's first `size` bytes, given that of the body in it: a large body is read only once. */
static uint32_t crc_around(const struct crc *crc, const uint8_t *start, size_t size, struct span body, uint32_t body_crc)
{
    if (body.size < JOINED_BYTES_MIN)
        return crc32_of(crc, start, size);
    const uint8_t *behind = body.at + body.size;
    size_t left = size - (size_t)(behind - start);
    uint32_t value = crc32_joined(crc, crc32_of(crc, start, (size_t)(body.at - start)), body_crc, body.size);
    return crc32_joined(crc, value, crc32_of(crc, behind, left), left);
}

/* -- making ---------------------------------------------------------------------------------------------------------- */

static inline bool needs_closing(const struct message *message)
{
    return message->properties.size && message->properties.at[message->properties.size - 1] != 2;
}

static inline int64_t properties_bytes(const struct message *message)
{
    return (int64_t)message->properties.size + needs_closing(message) + (int64_t)message->inherited.size +
           (int64_t)message->added.size + (int64_t)message->mark.size + (message->tail_crc ? TAIL_CRC_BYTES : 0);
}

int64_t record_measure(const struct message *message)
{
    /* The spans are real memory, so that their sums stay far below 2^63. */
    int64_t properties = properties_bytes(message);
    if (properties > PROPERTIES_BYTES_MAX)
        return -1;
    int64_t topic = (int64_t)message->topic.size + (message->topic.size <= TOPIC_BYTES_MAX ? 1 : 2);
    int64_t size = 72 + (int64_t)message->born.size + (int64_t)message->store_host.size + (int64_t)message->body.size + topic + 2 + properties;
    return size <= INT32_MAX ? size : -1;
}

void record_write(const struct crc *crc, const struct message *message, int64_t size, int64_t queue_offset, int64_t log_offset, int64_t now_ms, uint8_t *to)
{
    uint8_t *start = to;
    uint32_t body_crc = crc32_of(crc, message->body.at, message->body.size);
    bool short_topic = message->topic.size <= TOPIC_BYTES_MAX;
    uint32_t sys_flag = (uint32_t)message->sys_flag & ~(uint32_t)(SYS_BORN_V6 | SYS_STORE_V6);
    sys_flag |= (message->born.size == 20 ? SYS_BORN_V6 : 0) | (message->store_host.size == 20 ? SYS_STORE_V6 : 0);
    to = put32(to, (uint32_t)size);
    to = put32(to, short_topic ? MAGIC_V1 : MAGIC_V2);
    to = put32(to, body_crc & 0x7FFFFFFF);
    to = put32(to, (uint32_t)message->queue_id);
    to = put32(to, (uint32_t)message->flag);
    to = put64(to, (uint64_t)queue_offset);
    to = put64(to, (uint64_t)log_offset);
    to = put32(to, sys_flag);
    to = put64(to, (uint64_t)message->born_ms);
    to = put_host(to, message->born);
    to = put64(to, (uint64_t)now_ms);
    to = put_host(to, message->store_host);
    to = put32(to, (uint32_t)message->reconsume_times);
    to = put64(to, (uint64_t)message->prepared);
    to = put32(to, (uint32_t)message->body.size);
    struct span body = {to, message->body.size};
    to = put_span(to, message->body);
    if (short_topic)
        *to++ = (uint8_t)message->topic.size;
    else
        to = put16(to, (uint16_t)message->topic.size);
    to = put_span(to, message->topic);
    to = put16(to, (uint16_t)properties_bytes(message));
    to = put_span(to, message->properties);
    if (needs_closing(message))
        *to++ = 2;
    to = put_span(to, message->inherited);
    to = put_span(to, message->added);
    to = put_span(to, message->mark);
    if (message->tail_crc) {
        uint32_t value = crc_around(crc, start, (size_t)(to - start), body, body_crc) & 0x7FFFFFFF;
        to = put_bytes(to, TAIL_CRC_NAME, PRIVATE_NAME_BYTES);
        for (int digit = 0; digit < DIGITS; digit++, value /= 10) /* least significant first */
            *to++ = (uint8_t)('0' + value % 10);
        *to = 2;
    }
}

/* -- reading --------------------------------------------------------------------------------------------------------- */

int record_parse(const uint8_t *at, size_t left, struct record *record)
{
    if (left < 8)
        return SCAN_MORE;
    int32_t size = get32(at);
    uint32_t magic = getu32(at + 4);
    if (unlikely(magic != MAGIC_V1 && magic != MAGIC_V2)) {
        if (magic == MAGIC_BLANK && size >= BLANK_BYTES)
            return SCAN_BLANK;
        return size == 0 && magic == 0 ? SCAN_EMPTY : SCAN_DAMAGED;
    }
    if (size < RECORD_BYTES_MIN)
        return SCAN_DAMAGED;
    if ((size_t)size > left)
        return SCAN_MORE;
    record->size = size;
    record->queue_id = get32(at + 12);
    record->queue_offset = get64(at + 20);
    record->log_offset = get64(at + 28);
    record->sys_flag = get32(at + 36);
    /* From here on `rest` is how much of the record is left behind `at`. */
    int64_t born = record->sys_flag & SYS_BORN_V6 ? 20 : 8, host = record->sys_flag & SYS_STORE_V6 ? 20 : 8;
    int64_t head = 72 + born + host, rest = size - head;
    if (rest < 3)
        return SCAN_DAMAGED;
    record->store_ms = get64(at + 48 + born);
    int32_t body_bytes = get32(at + head - 4);
    at += head;
    if (body_bytes < 0 || record->queue_id < 0 || record->queue_offset < 0 || record->queue_offset > QUEUE_OFFSET_MAX || rest - 3 < body_bytes)
        return SCAN_DAMAGED;
    record->body = (struct span){at, (size_t)body_bytes};
    at += body_bytes;
    rest -= body_bytes;
    int64_t topic_bytes;
    if (magic == MAGIC_V1) {
        topic_bytes = *at;
        at += 1;
        rest -= 1;
    } else {
        topic_bytes = get16(at);
        at += 2;
        rest -= 2;
        if (topic_bytes > TOPIC_BYTES_LIMIT)
            return SCAN_DAMAGED;
    }
    if (rest < topic_bytes + 2)
        return SCAN_DAMAGED;
    record->topic = (struct span){at, (size_t)topic_bytes};
    at += topic_bytes;
    rest -= topic_bytes + 2;
    if (get16(at) != rest || !utf8_valid(record->topic.at, record->topic.size) || memchr(record->topic.at, 0, record->topic.size))
        return SCAN_DAMAGED;
    record->properties = (struct span){at + 2, (size_t)rest};
    return SCAN_RECORD;
}

/* Whether `properties`, up to `size`, end with the private property `name`. It must be a property of its own: the name of a
   producer's property may end with the same letters. */
static inline bool ends_with_private(struct span properties, size_t size, const char *name)
{
    if (size < PRIVATE_BYTES || (size > PRIVATE_BYTES && properties.at[size - PRIVATE_BYTES - 1] != 2))
        return false;
    return memcmp(properties.at + size - PRIVATE_BYTES, name, PRIVATE_NAME_BYTES) == 0;
}

/* A tail CRC covers the byte before it, and if that separator is damaged, the CRC does not look like a property of its own: is the
   name part of the last property's value, and does the CRC match once the separator is restored? */
static bool lost_its_separator(const struct crc *crc, const uint8_t *at, const struct record *record, const uint8_t *tail)
{
    const uint8_t *pair = tail;
    while (pair > record->properties.at && pair[-1] != 2)
        pair--;
    if (!memchr(pair, 1, (size_t)(tail - pair)))
        return false; /* the letters end the name of a producer's property */
    uint32_t value = ~crc32_of(crc, at, (size_t)record->size - TAIL_CRC_BYTES - 1);
    value = ~(value >> 8 ^ crc->table[0][(value ^ 2) & 0xFF]) & 0x7FFFFFFF;
    for (int digit = 0; digit < DIGITS; digit++, value /= 10)
        if (tail[PRIVATE_NAME_BYTES + digit] != '0' + value % 10)
            return false;
    return true;
}

bool record_intact(const struct crc *crc, const uint8_t *at, const struct record *record)
{
    uint32_t body_crc = crc32_of(crc, record->body.at, record->body.size);
    if (getu32(at + 8) != (body_crc & 0x7FFFFFFF))
        return false;
    /* A tail that never reached the disk reads as zeros, including the CRC that would have detected it. */
    if (record->properties.size && record->properties.at[record->properties.size - 1] == 0)
        return false;
    if (record->properties.size < TAIL_CRC_BYTES)
        return true;
    const uint8_t *tail = record->properties.at + record->properties.size - TAIL_CRC_BYTES;
    if (memcmp(tail, TAIL_CRC_NAME, PRIVATE_NAME_BYTES) != 0)
        return true;
    if (unlikely(tail > record->properties.at && tail[-1] != 2))
        return !lost_its_separator(crc, at, record, tail);
    uint32_t value = crc_around(crc, at, (size_t)record->size - TAIL_CRC_BYTES, record->body, body_crc) & 0x7FFFFFFF;
    tail += PRIVATE_NAME_BYTES;
    for (int digit = 0; digit < DIGITS; digit++, value /= 10)
        if (tail[digit] != '0' + value % 10)
            return false;
    return tail[DIGITS] == 2;
}

struct span without_tail_crc(struct span properties)
{
    if (ends_with_private(properties, properties.size, TAIL_CRC_NAME))
        properties.size -= TAIL_CRC_BYTES;
    return properties;
}

/* Log bytes of the batch that a record with these properties opens, 0 if it opens none. Only a property written by a broker counts: the
   last one but for the tail CRC. */
static int64_t batch_bytes(struct span properties)
{
    size_t size = properties.size;
    if (ends_with_private(properties, size, TAIL_CRC_NAME))
        size -= TAIL_CRC_BYTES;
    if (!ends_with_private(properties, size, BATCH_NAME) || properties.at[size - 1] != 2)
        return 0;
    const uint8_t *at = properties.at + size - 1 - DIGITS;
    int64_t value = 0;
    for (int digit = 0; digit < DIGITS; digit++) {
        if (at[digit] < '0' || at[digit] > '9')
            return 0;
        value = value * 10 + (at[digit] - '0');
    }
    return value;
}

void log_scan(const struct crc *crc, const uint8_t *data, size_t size, int64_t log_offset, bool check, struct scanned *scanned)
{
    struct record record;
    size_t at = 0;
    int64_t batch_end = 0, batch_ms = 0, records = 0;
    *scanned = (struct scanned){.why = SCAN_MORE};
    while (at < size) {
        int why = record_parse(data + at, size - at, &record);
        if (why != SCAN_RECORD) {
            scanned->why = why == SCAN_MORE || (int64_t)at == scanned->bytes ? why : SCAN_DAMAGED;
            return;
        }
        if ((uint64_t)record.log_offset != (uint64_t)log_offset + at || (check && !record_intact(crc, data + at, &record))) {
            scanned->why = SCAN_DAMAGED;
            return;
        }
        if ((int64_t)at >= batch_end || record.store_ms != batch_ms) {
            if ((int64_t)at < batch_end) { /* not a member: the announced length was not that of a batch */
                scanned->bytes = (int64_t)at;
                scanned->records = records;
                scanned->store_ms = batch_ms;
            }
            int64_t length = batch_bytes(record.properties);
            batch_end = length ? (int64_t)at + length : 0;
            batch_ms = record.store_ms;
        }
        at += (size_t)record.size;
        records++;
        if ((int64_t)at >= batch_end) {
            scanned->bytes = (int64_t)at;
            scanned->records = records;
            scanned->store_ms = record.store_ms;
        }
    }
}

struct span next_pair(struct span properties, size_t *at, struct span *name)
{
    const uint8_t *start = properties.at + *at;
    size_t left = properties.size - *at;
    const uint8_t *end = memchr(start, 2, left);
    size_t size = end ? (size_t)(end - start) : left;
    const uint8_t *middle = memchr(start, 1, size);
    *name = (struct span){start, middle ? (size_t)(middle - start) : size};
    *at += size + (end != NULL);
    return (struct span){start, size};
}

bool has_property(struct span properties, struct span name)
{
    struct span known;
    for (size_t at = 0; at < properties.size;) {
        next_pair(properties, &at, &known);
        if (same_span(known, name))
            return true;
    }
    return false;
}

bool batch_next(struct span body, size_t *at, struct member *member)
{
    const uint8_t *start = body.at + *at;
    int64_t left = (int64_t)(body.size - *at);
    if (left < 22)
        return false;
    int64_t size = get32(start), body_bytes = get32(start + 16);
    if (body_bytes < 1 || left - 22 < body_bytes)
        return false;
    int64_t properties = get16(start + 20 + body_bytes);
    if (size != 22 + body_bytes + properties || size > left || properties > PROPERTIES_BYTES_MAX)
        return false;
    member->flag = get32(start + 12);
    member->body = (struct span){start + 20, (size_t)body_bytes};
    member->properties = (struct span){start + 22 + body_bytes, (size_t)properties};
    *at += (size_t)size;
    return true;
}
