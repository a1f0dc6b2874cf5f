/* Pulls: which records of a queue, and their bytes in one reply. pure_queues.py defines the behaviour. */
#include "inline.h"

void gather_clear(struct gather *gather)
{
    enum { KEEP_BYTES = 1 << 20 };
    gather->count = gather->total = gather->text.size = 0;
    if (gather->text.room > KEEP_BYTES)
        bytes_free(&gather->text);
}

static int gather_log(struct gather *gather, const uint8_t *at, size_t size)
{
    gather->total += size;
    if (gather->count) {
        struct piece *last = &gather->pieces[gather->count - 1];
        if (last->at && last->at + last->size == at) { /* records that are adjacent in the log become one piece */
            last->size += size;
            return 0;
        }
    }
    if (ARRAY_RESERVE(gather->pieces, gather->count, gather->room)) {
        gather->total -= size;
        return NO_MEMORY;
    }
    gather->pieces[gather->count++] = (struct piece){at, size};
    return 0;
}

static int gather_text(struct gather *gather, const uint8_t *at, size_t size)
{
    if (bytes_reserve(&gather->text, size) || ARRAY_RESERVE(gather->pieces, gather->count, gather->room))
        return NO_MEMORY;
    put_bytes(gather->text.data + gather->text.size, at, size);
    gather->text.size += size;
    gather->pieces[gather->count++] = (struct piece){NULL, size};
    gather->total += size;
    return 0;
}

void gather_copy(const struct gather *gather, uint8_t *to)
{
    const uint8_t *text = gather->text.data;
    for (size_t n = 0; n < gather->count; n++) {
        const struct piece *piece = &gather->pieces[n];
        if (piece->at) {
            to = put_bytes(to, piece->at, piece->size);
        } else {
            to = put_bytes(to, text, piece->size);
            text += piece->size;
        }
    }
}

static inline bool is_warm(const struct kernel *kernel, int64_t log_offset)
{
    int64_t block = log_offset / WARM_BLOCK_BYTES;
    return kernel->warm[block % WARM_BLOCKS] == block + 1;
}

/* Whether it is in memory, as far as known: reading it will not make the loop wait for the disk. */
static inline bool resident(const struct kernel *kernel, int64_t log_offset, int32_t size)
{
    if (log_offset >= kernel->hot_from)
        return true;
    return size > 0 && log_offset <= INT64_MAX - size && is_warm(kernel, log_offset) && is_warm(kernel, log_offset + size - 1);
}

/* Whether the bytes at `at` claim to be message `number` of this queue, at this log offset. An LMQ queue lists messages of
 * other topics, which have numbers of their own. */
static bool is_message(const uint8_t *at, int32_t size, int64_t log_offset, const struct queue *queue, int64_t number)
{
    static const char lmq[] = "%LMQ%";
    const struct topic *topic = queue->topic;
    uint32_t magic = getu32(at + 4);
    if ((magic != MAGIC_V1 && magic != MAGIC_V2) || get64(at + 28) != log_offset)
        return false;
    if (topic->name_size >= sizeof lmq - 1 && memcmp(topic->name, lmq, sizeof lmq - 1) == 0)
        return true;
    if (get32(at + 12) != queue->id || get64(at + 20) != number)
        return false;
    int32_t sys_flag = get32(at + 36);
    int64_t head = 72 + (sys_flag & SYS_BORN_V6 ? 20 : 8) + (sys_flag & SYS_STORE_V6 ? 20 : 8), rest = size - head;
    if (rest < 3)
        return false;
    int64_t body = get32(at + head - 4), name = magic == MAGIC_V1 ? 1 : 2;
    if (body < 0 || body > rest - 3)
        return false;
    at += head + body;
    int64_t name_size = magic == MAGIC_V1 ? *at : get16(at);
    return name_size == (int64_t)topic->name_size && name_size <= rest - body - name && memcmp(at + name, topic->name, topic->name_size) == 0;
}

const uint8_t *kernel_record_at(const struct kernel *kernel, int64_t log_offset, int32_t size, const struct queue *queue, int64_t number)
{
    if (log_offset < 0 || size < RECORD_BYTES_MIN)
        return NULL;
    int64_t file = log_offset / kernel->segment_bytes, at = log_offset % kernel->segment_bytes;
    size_t low = 0, high = kernel->segment_count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (kernel->segments[middle].number < file)
            low = middle + 1;
        else
            high = middle;
    }
    if (low == kernel->segment_count || kernel->segments[low].number != file)
        return NULL;
    const struct segment *segment = &kernel->segments[low];
    if ((uint64_t)at > segment->size || segment->size - (size_t)at < (size_t)size || get32(segment->data + at) != size)
        return NULL;
    if (segment->mapping && mapping_is_lost(segment->mapping, (size_t)at, (size_t)size))
        return NULL;
    return is_message(segment->data + at, size, log_offset, queue, number) ? segment->data + at : NULL;
}

static inline bool wanted(struct codes codes, int32_t code)
{
    if (codes.all)
        return true;
    size_t low = 0, high = codes.count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (codes.at[middle] == code)
            return true;
        if (codes.at[middle] < code)
            low = middle + 1;
        else
            high = middle;
    }
    return false;
}

static uint8_t *put_ext(uint8_t *to, const char *name, int64_t value)
{
    size_t size = strlen(name);
    to = put16(to, (uint16_t)size);
    to = put_bytes(to, name, size);
    uint8_t *end = put_number(to + 4, value);
    put32(to, (uint32_t)(end - to - 4));
    return end;
}

/* The header of the reply to a pull that found messages; at most 256 + 5 * 20 bytes. */
static size_t pull_head(uint8_t *start, bool binary, int32_t opaque, int64_t next, int64_t min_offset, int64_t end, int64_t suggested,
                        size_t body)
{
    uint8_t *to = start + 8;
    if (binary) {
        to = put_text(to, "\0\0\3\1\337"); /* success, Python, version 479 */
        to = put32(to, (uint32_t)opaque);
        to = put_text(to, "\0\0\0\1\0\0\0\5FOUND");
        uint8_t *length = to;
        to = put_ext(to + 4, "suggestWhichBrokerId", suggested);
        to = put_ext(to, "nextBeginOffset", next);
        to = put_ext(to, "minOffset", min_offset);
        to = put_ext(to, "maxOffset", end);
        put32(length, (uint32_t)(to - length - 4));
    } else {
        to = put_text(to, "{\"code\":0,\"extFields\":{\"suggestWhichBrokerId\":\"");
        to = put_number(to, suggested);
        to = put_text(to, "\",\"nextBeginOffset\":\"");
        to = put_number(to, next);
        to = put_text(to, "\",\"minOffset\":\"");
        to = put_number(to, min_offset);
        to = put_text(to, "\",\"maxOffset\":\"");
        to = put_number(to, end);
        to = put_text(to, "\"},\"flag\":1,\"language\":\"PYTHON\",\"opaque\":");
        to = put_number(to, opaque);
        to = put_text(to, ",\"remark\":\"FOUND\",\"serializeTypeCurrentRPC\":\"JSON\",\"version\":479}");
    }
    size_t head = (size_t)(to - start) - 8;
    put32(start, (uint32_t)(4 + head + body));
    put32(start + 4, (uint32_t)((binary ? 1u << 24 : 0) | head));
    return head + 8;
}

int kernel_pull(struct kernel *kernel, const struct topic *topic, int32_t queue_id, int64_t offset, int64_t count_max,
                struct codes codes, const struct asker *asker, bool warm, struct gather *replies, int64_t payload[3])
{
    const struct queue *queue = topic ? topic_find_queue(topic, queue_id) : NULL;
    payload[0] = payload[1] = payload[2] = 0;
    if (!queue || queue->end == 0)
        return NO_MESSAGES;
    payload[0] = offset;
    payload[1] = queue->min;
    payload[2] = queue->end;
    if (offset < queue->min) {
        payload[0] = queue->min;
        return TOO_SMALL;
    }
    if (offset == queue->end)
        return EMPTY;
    if (offset > queue->end) {
        payload[0] = queue->end;
        return TOO_LARGE;
    }
    const struct bytes *entries = &queue->tail;
    int64_t first = queue->tail_first;
    if (offset < first) {
        entries = &queue->lent;
        first = queue->lent_first;
        if (offset < first || offset - first >= (int64_t)(entries->size / ENTRY_BYTES))
            return NEED_ENTRIES;
    }
    int64_t look = (int64_t)(entries->size / ENTRY_BYTES) - (offset - first), limit = count_max > SCAN_ENTRIES_MAX ? count_max : SCAN_ENTRIES_MAX;
    if (look > queue->end - offset)
        look = queue->end - offset;
    if (look > limit)
        look = limit;

    /* Pass one: choose what fits. */
    const uint8_t *start = entries->data + (offset - first) * ENTRY_BYTES, *at = start, *stop = start + look * ENTRY_BYTES;
    int64_t count = 0, total = 0, first_byte = 0, last_end = 0;
    bool gone = false, readable = warm;
    for (; at < stop; at += ENTRY_BYTES) {
        int64_t log_offset = get64(at);
        int32_t size = get32(at + 8);
        int64_t number = offset + (at - start) / ENTRY_BYTES;
        if (size == FILLER_BYTES && !log_offset) {
            if (count) /* filler without a log offset is only valid before a queue's first message; elsewhere it hides a message */
                break;
            payload[0] = number;
            return BROKEN;
        }
        if (size == FILLER_BYTES || (log_offset < kernel->log_min && !kernel->mins_raised)) {
            gone = true; /* the log file was deleted, or it is filler */
        } else if (wanted(codes, get32(at + 16))) {
            if (count && (count >= count_max || total + size > kernel->transfer_bytes_max))
                break;
            /* The first record decides whether the answer is COLD; a cold one later ends an answer from memory. */
            bool here = warm || log_offset < kernel->log_min || resident(kernel, log_offset, size);
            if (!count)
                readable = here;
            else if (readable && !here)
                break;
            /* A record that is not at its offset ends the answer, but the good ones before it are returned. */
            if (readable && (log_offset < kernel->log_min || !kernel_record_at(kernel, log_offset, size, queue, number))) {
                if (count)
                    break;
                payload[0] = number;
                return BROKEN;
            }
            if (!count)
                first_byte = log_offset;
            last_end = (int64_t)((uint64_t)log_offset + (uint64_t)(int64_t)size);
            count++;
            total += size;
        }
    }
    payload[0] = offset + (at - start) / ENTRY_BYTES;
    if (!count)
        return gone ? GONE : NO_MATCH;

    /* Pass two: gather them. */
    int verdict = FOUND;
    size_t pieces = replies->count, text = replies->text.size, bytes = replies->total;
    if (!readable) {
        verdict = COLD;
    } else {
        if (asker) {
            uint8_t head[384];
            int64_t suggested = last_end <= kernel->suggested_below ? kernel->suggested : 0;
            size_t size = pull_head(head, asker->binary, asker->opaque, payload[0], queue->min, queue->end, suggested, (size_t)total);
            if (gather_text(replies, head, size))
                verdict = NO_MEMORY;
        }
        for (const uint8_t *entry = start; entry < at && verdict == FOUND; entry += ENTRY_BYTES) {
            int64_t log_offset = get64(entry);
            if (get32(entry + 8) == FILLER_BYTES || log_offset < kernel->log_min || !wanted(codes, get32(entry + 16)))
                continue;
            const uint8_t *record = kernel_record_at(kernel, log_offset, get32(entry + 8), queue, offset + (entry - start) / ENTRY_BYTES);
            if (record && gather_log(replies, record, (size_t)get32(entry + 8)))
                verdict = NO_MEMORY;
        }
    }
    if (verdict == FOUND) {
        if (asker) {
            kernel->get_count += count;
            kernel->get_bytes += total;
        }
        return FOUND;
    }
    replies->count = pieces;
    replies->text.size = text;
    replies->total = bytes;
    if (verdict == COLD) {
        payload[0] = first_byte;
        payload[1] = last_end;
    }
    return verdict;
}
