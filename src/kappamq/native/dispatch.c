/* Log bytes in, queue entries and index rows out. pure_queues.py defines the behaviour. */
#include "inline.h"

struct values {
    struct span tags, keys, unique_key, delay;
};

/* The properties that dispatch needs. A pair with an empty half is ignored, a later pair wins. */
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

/* The index stores the magnitude of a hash, and 0 for the one that has none. */
static inline uint32_t index_hash(uint32_t hash) { return hash <= 0x80000000u ? hash & 0x7FFFFFFFu : 0u - hash; }

static void enter_key(struct bytes *index, uint32_t hash, int64_t log_offset, int64_t store_ms)
{
    uint8_t *to = index->data + index->size;
    to = put32(to, index_hash(hash));
    to = put64(to, (uint64_t)log_offset);
    put64(to, (uint64_t)store_ms);
    index->size += INDEX_PENDING_BYTES;
}

/* The most that one record adds to the index: a key takes at least two bytes of KEYS, including its blank. */
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

/* Another broker's log begins this empty queue at `offset`, which may be below its former offsets. */
static void begin_anew(struct kernel *kernel, struct queue *queue, int64_t offset)
{
    kernel->tail_bytes -= (int64_t)queue->tail.size;
    queue->tail.size = 0;
    kernel_drop_lent(kernel, queue);
    queue->tail_first = queue->stored = queue->min = queue->end = offset;
    queue->begun = 0;
}

/* Enters one record; reserves all memory first. */
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
    if (transaction == SYS_ROLLBACK)
        return 0;
    if (queue && unlikely(queue->begun == record->queue_offset + 1))
        begin_anew(kernel, queue, record->queue_offset);
    if (queue && record->queue_offset >= queue->end) { /* else it was entered before */
        if (unlikely(record->queue_offset > queue->end)) {
            int64_t gap = record->queue_offset - queue->end;
            if (queue->min < queue->end && gap <= GAP_ENTRIES_MAX) {
                /* The log is damaged in between: earlier messages stay readable, filler keeps the numbering. */
                if (bytes_reserve(&queue->tail, (size_t)(gap + 1) * ENTRY_BYTES))
                    return NO_MEMORY;
                for (int64_t n = 0; n < gap; n++) {
                    uint8_t *entry = queue->tail.data + queue->tail.size;
                    put64(entry, (uint64_t)log_offset);
                    put32(entry + 8, FILLER_BYTES);
                    put64(entry + 12, 0);
                    queue->tail.size += ENTRY_BYTES;
                }
                kernel->tail_bytes += gap * ENTRY_BYTES;
            } else {
                /* A store without its beginning, or a foreign log: the numbering jumps, and the messages in between were never here. */
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
    while (at < size && record_parse(data + at, size - at, &record) == SCAN_RECORD) {
        result = enter(kernel, &record, data + size, at, log_offset + (int64_t)at);
        if (result)
            break;
        at += (size_t)record.size;
    }
    kernel->woken_untold = result != 0; /* a failed call does not return them: the next one does */
    *eaten = at;
    return result;
}

/* -- bytes of another broker's log ----------------------------------------------------------------------------------- */

static bool has_number(const struct record *record)
{
    int transaction = record->sys_flag & SYS_TRANSACTION;
    return transaction != SYS_PREPARED && transaction != SYS_ROLLBACK;
}

static void take_numbers_back(struct kernel *kernel, const uint8_t *data, size_t end)
{
    struct record record;
    for (size_t at = 0; at < end && record_parse(data + at, end - at, &record) == SCAN_RECORD; at += (size_t)record.size) {
        struct topic *topic = has_number(&record) ? kernel_find_topic(kernel, record.topic) : NULL;
        struct queue *queue = topic ? topic_find_queue(topic, record.queue_id) : NULL;
        if (!queue)
            continue;
        if (queue->begun == record.queue_offset + 1) {
            queue->next = queue->end;
            queue->begun = 0;
        } else if (record.queue_offset < queue->next && (queue->begun || record.queue_offset >= queue->end)) {
            queue->next = record.queue_offset; /* undo: its first record in this call had the former next number */
        }
    }
}

int kernel_number(struct kernel *kernel, const uint8_t *data, size_t size, size_t *at, struct misnumbered *wrong)
{
    struct record record;
    for (*at = 0; *at < size && record_parse(data + *at, size - *at, &record) == SCAN_RECORD; *at += (size_t)record.size) {
        if (!has_number(&record))
            continue;
        struct topic *topic = kernel_topic(kernel, record.topic);
        struct queue *queue = topic ? topic_queue(topic, record.queue_id) : NULL;
        if (!queue) {
            take_numbers_back(kernel, data, *at);
            return NO_MEMORY;
        }
        if (unlikely(record.queue_offset != queue->next)) {
            if (queue->next != queue->end || queue->min < queue->end || queue->begun) {
                *wrong = (struct misnumbered){record.topic, record.queue_id, record.queue_offset, queue->next};
                take_numbers_back(kernel, data, *at);
                return MISNUMBERED;
            }
            queue->begun = record.queue_offset + 1;
        }
        queue->next = record.queue_offset + 1;
    }
    return DONE;
}

void kernel_rewind(struct kernel *kernel)
{
    halves_clear(&kernel->waiting);
    for (size_t n = 0; n < kernel->topic_room; n++) {
        const struct topic *topic = kernel->topics[n];
        for (size_t place = 0; topic && place < topic->queue_room; place++) {
            struct queue *queue = topic->queues[place];
            if (queue) {
                queue->next = queue->end;
                queue->begun = 0;
            }
        }
    }
}
