/* The loops over queues: dispatch, select, gather. pure_queues.py is the meaning. */
#include "inline.h"

/* -- dispatch -------------------------------------------------------------------------------------------------------- */

struct values {
    struct span tags, keys, unique_key, delay;
};

/* The properties that dispatch looks at. A pair with an empty half does not count, a later pair wins. */
static inline void read_values(struct span properties, const uint8_t *readable, struct values *values)
{
    const uint8_t *start = properties.at, *end = start + properties.size, *middle = NULL;
    struct marks marks = marks_of(start, end, readable);
    memset(values, 0, sizeof *values);
    while (start < end) {
        const uint8_t *mark = next_mark(&marks);
        if (mark < end && *mark == 1) {
            if (!middle)
                middle = mark;
            continue;
        }
        if (middle && mark > middle + 1) {
            struct span name = {start, (size_t)(middle - start)}, value = {middle + 1, (size_t)(mark - middle - 1)};
            if (name.size == 4 && raw32(name.at) == raw32((const uint8_t *)"TAGS"))
                values->tags = value;
            else if (name.size == 4 && raw32(name.at) == raw32((const uint8_t *)"KEYS"))
                values->keys = value;
            else if (SPAN_IS(name, "UNIQ_KEY"))
                values->unique_key = value;
            else if (SPAN_IS(name, "DELAY"))
                values->delay = value;
        }
        start = mark + 1;
        middle = NULL;
    }
}

static int64_t delay_ms(const struct kernel *kernel, struct span text)
{
    size_t level = 0;
    if (text.size > 9)
        return 1000;
    for (size_t at = 0; at < text.size; at++) {
        if (text.at[at] < '0' || text.at[at] > '9')
            return 1000;
        level = level * 10 + (size_t)(text.at[at] - '0');
    }
    if (!kernel->delay_count || !level)
        return 1000;
    return kernel->delays_ms[(level < kernel->delay_count ? level : kernel->delay_count) - 1];
}

static void drop_tail(struct kernel *kernel, struct queue *queue)
{
    kernel->tail_bytes -= (int64_t)queue->tail.size;
    bytes_free(&queue->tail);
}

static void enter_entry(struct kernel *kernel, struct queue *queue, const struct record *record, int64_t log_offset, int64_t code)
{
    int64_t offset = record->queue_offset;
    uint8_t *to = queue->tail.data + queue->tail.size;
    to = put64(to, (uint64_t)log_offset);
    to = put32(to, (uint32_t)record->size);
    put64(to, (uint64_t)code);
    queue->tail.size += ENTRY_BYTES;
    kernel->tail_bytes += ENTRY_BYTES;
    queue->end = offset + 1;
    if (queue->next < queue->end)
        queue->next = queue->end;
    if (!queue->dirty) {
        queue->dirty = true;
        kernel->dirty_count++;
        link_remove(&queue->place);
        link_append(&kernel->dirty, &queue->place);
    }
}

/* The index keeps the magnitude of a hash, and 0 for the one that has none. */
static inline uint32_t index_hash(uint32_t hash) { return hash <= 0x80000000u ? hash & 0x7FFFFFFFu : 0u - hash; }

static void enter_key(struct bytes *index, uint32_t hash, int64_t log_offset, int64_t store_ms)
{
    uint8_t *to = index->data + index->size;
    to = put32(to, index_hash(hash));
    to = put64(to, (uint64_t)log_offset);
    put64(to, (uint64_t)store_ms);
    index->size += INDEX_PENDING_BYTES;
}

/* What one record adds at most to the index: a key takes at least two bytes of KEYS, its blank included. */
static inline size_t key_room(const struct values *values) { return (2 + values->keys.size / 2) * INDEX_PENDING_BYTES; }

static void enter_keys(struct kernel *kernel, const struct topic *topic, const struct record *record, const struct values *values, int64_t log_offset)
{
    if (values->unique_key.size)
        enter_key(&kernel->index, hash_on(topic->key_hash, values->unique_key.at, values->unique_key.size), log_offset, record->store_ms);
    if (!values->keys.size)
        return;
    const uint8_t *at = values->keys.at, *end = at + values->keys.size;
    while (at < end) {
        const uint8_t *stop = memchr(at, ' ', (size_t)(end - at));
        if (!stop)
            stop = end;
        if (stop > at)
            enter_key(&kernel->index, hash_on(topic->key_hash, at, (size_t)(stop - at)), log_offset, record->store_ms);
        at = stop + 1;
    }
}

/* One record; whatever needs memory comes first. */
static int enter(struct kernel *kernel, const struct record *record, const uint8_t *readable, size_t at, int64_t log_offset)
{
    struct topic *topic = kernel_topic(kernel, record->topic);
    if (!topic)
        return NO_MEMORY;
    int transaction = record->sys_flag & SYS_TRANSACTION;
    struct queue *queue = NULL;
    struct values values;
    if (transaction != SYS_ROLLBACK) {
        read_values(record->properties, readable, &values);
        if (kernel->index_enabled && bytes_reserve(&kernel->index, key_room(&values)))
            return NO_MEMORY;
        if (transaction != SYS_PREPARED) {
            queue = topic_queue(topic, record->queue_id);
            if (!queue || bytes_reserve(&queue->tail, ENTRY_BYTES) || ARRAY_RESERVE(kernel->woken, kernel->woken_count, kernel->woken_room))
                return NO_MEMORY;
        }
    }
    if (topic->flags & TOPIC_FOLD) {
        if (ARRAY_RESERVE(kernel->folds, kernel->fold_count, kernel->fold_room))
            return NO_MEMORY;
        kernel->folds[kernel->fold_count++] = (struct fold){topic, at, record->size};
    }
    if (transaction == SYS_ROLLBACK)
        return 0;
    if (queue && record->queue_offset >= queue->end) { /* else it was entered before */
        if (unlikely(record->queue_offset > queue->end)) {
            int64_t gap = record->queue_offset - queue->end;
            if (queue->min < queue->end && gap <= GAP_ENTRIES_MAX) {
                /* The log is damaged in between: what came before stays readable, filler keeps the numbering. */
                if (bytes_reserve(&queue->tail, (size_t)(gap + 1) * ENTRY_BYTES))
                    return NO_MEMORY;
                for (int64_t n = 0; n < gap; n++) {
                    uint8_t *entry = queue->tail.data + queue->tail.size;
                    put64(entry, log_offset);
                    put32(entry + 8, FILLER_BYTES);
                    put64(entry + 12, 0);
                    queue->tail.size += ENTRY_BYTES;
                }
                kernel->tail_bytes += gap * ENTRY_BYTES;
            } else {
                /* A store whose beginning is gone, or a foreign log: numbering jumps, what lies between was never here. */
                kernel->tail_bytes -= (int64_t)queue->tail.size;
                queue->tail.size = 0;
                queue->tail_first = queue->stored = queue->min = record->queue_offset;
            }
        }
        int64_t code = (int32_t)hash_on(0, values.tags.at, values.tags.size);
        if (unlikely(values.delay.size && SPAN_IS(record->topic, SCHEDULE_TOPIC)))
            if (__builtin_add_overflow(record->store_ms, delay_ms(kernel, values.delay), &code)) /* there: the time it is due */
                code = INT64_MAX;
        enter_entry(kernel, queue, record, log_offset, code);
        if (unlikely(queue->watched)) {
            queue->watched = false;
            kernel->woken[kernel->woken_count++] = (struct woken){topic, queue->id};
        }
    }
    if (kernel->index_enabled)
        enter_keys(kernel, topic, record, &values, log_offset);
    return 0;
}

int kernel_dispatch(struct kernel *kernel, const uint8_t *data, size_t size, int64_t log_offset, size_t *eaten)
{
    struct record record;
    size_t at = 0;
    int result = 0;
    if (!kernel->woken_untold)
        kernel->woken_count = 0;
    kernel->fold_count = 0;
    while (at < size && record_parse(data + at, size - at, &record) == SCAN_RECORD) {
        result = enter(kernel, &record, data + size, at, log_offset + (int64_t)at);
        if (result)
            break;
        at += (size_t)record.size;
    }
    kernel->woken_untold = result != 0; /* a caller who only hears of the failure is told when it comes again */
    *eaten = at;
    return result;
}

/* -- entries on their way to files ----------------------------------------------------------------------------------- */

struct queue *kernel_dirty_queue(struct kernel *kernel)
{
    return kernel->dirty.next == &kernel->dirty ? NULL : QUEUE_AT(kernel->dirty.next, place);
}

struct span queue_unstored(const struct queue *queue)
{
    size_t stored = (size_t)(queue->stored - queue->tail_first) * ENTRY_BYTES;
    return (struct span){queue->tail.data + stored, queue->tail.size - stored};
}

void kernel_stored(struct kernel *kernel, struct queue *queue)
{
    queue->stored = queue->end;
    kernel->dirty_count -= queue->dirty;
    queue->dirty = false;
    link_remove(&queue->place);
    link_append(&kernel->settled, &queue->place);
}

void kernel_trim_tails(struct kernel *kernel)
{
    while (kernel->tail_bytes > kernel->tail_bytes_max && kernel->settled.next != &kernel->settled) {
        struct queue *queue = QUEUE_AT(kernel->settled.next, place);
        link_remove(&queue->place);
        if (queue->tail.size > TAIL_KEEP_BYTES) {
            size_t excess = queue->tail.size - TAIL_KEEP_BYTES;
            memmove(queue->tail.data, queue->tail.data + excess, TAIL_KEEP_BYTES);
            uint8_t *smaller = realloc(queue->tail.data, TAIL_KEEP_BYTES);
            if (smaller) {
                queue->tail.data = smaller;
                queue->tail.room = TAIL_KEEP_BYTES;
            }
            queue->tail.size = TAIL_KEEP_BYTES;
            queue->tail_first += (int64_t)(excess / ENTRY_BYTES);
            kernel->tail_bytes -= (int64_t)excess;
            link_append(&kernel->settled, &queue->place);
        } else {
            drop_tail(kernel, queue);
            queue->tail_first = queue->end;
        }
    }
}

struct span kernel_tail_entries(const struct queue *queue, int64_t offset, int64_t count)
{
    if (offset < queue->tail_first || offset >= queue->end || count <= 0)
        return (struct span){0};
    if (count > queue->end - offset)
        count = queue->end - offset;
    return (struct span){queue->tail.data + (offset - queue->tail_first) * ENTRY_BYTES, (size_t)count * ENTRY_BYTES};
}

/* -- gather ---------------------------------------------------------------------------------------------------------- */

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
        if (last->at && last->at + last->size == at) { /* neighbours in the log go in one piece */
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

/* Where a record of the log can be read, NULL if it is not mapped or does not lie where it should. */
static const uint8_t *record_at(const struct kernel *kernel, int64_t log_offset, int32_t size)
{
    if (log_offset < 0 || size < RECORD_BYTES_MIN)
        return NULL;
    int64_t number = log_offset / kernel->segment_bytes, at = log_offset % kernel->segment_bytes;
    size_t low = 0, high = kernel->segment_count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (kernel->segments[middle].number < number)
            low = middle + 1;
        else
            high = middle;
    }
    if (low == kernel->segment_count || kernel->segments[low].number != number)
        return NULL;
    const struct segment *segment = &kernel->segments[low];
    if ((uint64_t)at > segment->size || segment->size - (size_t)at < (size_t)size || get32(segment->data + at) != size)
        return NULL;
    return segment->data + at;
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

/* Head of the answer to a pull that found something; at most 256 + 4 * 20 bytes. */
static size_t pull_head(uint8_t *start, bool binary, int32_t opaque, int64_t next, int64_t min_offset, int64_t end, size_t body)
{
    uint8_t *to = start + 8;
    if (binary) {
        to = put_text(to, "\0\0\3\1\337"); /* success, Python, version 479 */
        to = put32(to, (uint32_t)opaque);
        to = put_text(to, "\0\0\0\1\0\0\0\5FOUND");
        uint8_t *length = to;
        to = put_ext(to + 4, "suggestWhichBrokerId", 0);
        to = put_ext(to, "nextBeginOffset", next);
        to = put_ext(to, "minOffset", min_offset);
        to = put_ext(to, "maxOffset", end);
        put32(length, (uint32_t)(to - length - 4));
    } else {
        to = put_text(to, "{\"code\":0,\"extFields\":{\"suggestWhichBrokerId\":\"0\",\"nextBeginOffset\":\"");
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
                struct codes codes, int32_t opaque, bool binary, bool warm, struct gather *replies, int64_t payload[3])
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

    /* Pass one: what fits. */
    const uint8_t *start = entries->data + (offset - first) * ENTRY_BYTES, *at = start, *stop = start + look * ENTRY_BYTES;
    int64_t count = 0, total = 0, first_byte = 0, last_end = 0;
    bool gone = false;
    for (; at < stop; at += ENTRY_BYTES) {
        int64_t log_offset = get64(at);
        int32_t size = get32(at + 8);
        if (log_offset < kernel->log_min || size == FILLER_BYTES) {
            gone = true; /* the file behind it has been deleted, or it is filler */
        } else if (wanted(codes, get32(at + 16))) {
            if (count && (count >= count_max || total + size > kernel->transfer_bytes_max))
                break;
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
    if (!warm && first_byte < kernel->hot_from) {
        verdict = COLD;
    } else {
        uint8_t head[384];
        size_t size = pull_head(head, binary, opaque, payload[0], queue->min, queue->end, (size_t)total);
        if (gather_text(replies, head, size))
            verdict = NO_MEMORY;
        for (const uint8_t *entry = start; entry < at && verdict == FOUND; entry += ENTRY_BYTES) {
            int64_t log_offset = get64(entry);
            if (log_offset < kernel->log_min || get32(entry + 8) == FILLER_BYTES || !wanted(codes, get32(entry + 16)))
                continue;
            const uint8_t *record = record_at(kernel, log_offset, get32(entry + 8));
            if (!record)
                verdict = COLD;
            else if (gather_log(replies, record, (size_t)get32(entry + 8)))
                verdict = NO_MEMORY;
        }
    }
    if (verdict == FOUND) {
        kernel->get_count += count;
        kernel->get_bytes += total;
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
