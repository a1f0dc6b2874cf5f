/* Topics, queues, subscriptions and mapped log files: tables that Python fills by explicit calls. pure_queues.py defines the behaviour. */
#include "inline.h"

/* -- life ------------------------------------------------------------------------------------------------------------ */

struct kernel *kernel_new(void)
{
    struct kernel *kernel = calloc(1, sizeof *kernel);
    if (!kernel)
        return NULL;
    link_alone(&kernel->dirty);
    link_alone(&kernel->settled);
    link_alone(&kernel->lent);
    kernel->index_enabled = true;
    kernel->tail_bytes_max = 4 << 20;
    crc_init(&kernel->crc, false);
    return kernel;
}

static void free_row(struct row *row)
{
    free(row->names);
    free(row->codes);
    free(row->asked);
    free(row);
}

void kernel_free(struct kernel *kernel)
{
    if (!kernel)
        return;
    for (size_t n = 0; n < kernel->topic_room; n++) {
        struct topic *topic = kernel->topics[n];
        if (!topic)
            continue;
        for (size_t m = 0; m < topic->queue_room; m++)
            if (topic->queues[m]) {
                bytes_free(&topic->queues[m]->tail);
                bytes_free(&topic->queues[m]->lent);
                free(topic->queues[m]);
            }
        free(topic->queues);
        free(topic->name);
        free(topic);
    }
    free(kernel->topics);
    for (size_t n = 0; n < kernel->row_room; n++)
        if (kernel->rows[n])
            free_row(kernel->rows[n]);
    free(kernel->rows);
    free(kernel->segments);
    free(kernel->delays_ms);
    free(kernel->pulls);
    free(kernel->commits);
    free(kernel->woken);
    free(kernel->members);
    free(kernel->replies.pieces);
    bytes_free(&kernel->replies.text);
    bytes_free(&kernel->added);
    bytes_free(&kernel->inherited);
    bytes_free(&kernel->some);
    waiting_free(&kernel->waiting);
    bytes_free(&kernel->sent_json);
    bytes_free(&kernel->sent_binary);
    bytes_free(&kernel->pending);
    bytes_free(&kernel->index);
    bytes_free(&kernel->acks);
    bytes_free(&kernel->scratch);
    free(kernel);
}

static int add_span(struct bytes *bytes, struct span span)
{
    if (bytes_reserve(bytes, span.size))
        return NO_MEMORY;
    put_span(bytes->data + bytes->size, span);
    bytes->size += span.size;
    return 0;
}
#define ADD_TEXT(bytes, text) add_span((bytes), (struct span){(const uint8_t *)(text), sizeof(text) - 1})

int kernel_identity(struct kernel *kernel, struct span added, struct span region_json, struct span region, bool trace_on)
{
    uint8_t length[4];
    kernel->added.size = kernel->sent_json.size = kernel->sent_binary.size = 0;
    if (add_span(&kernel->added, added) || ADD_TEXT(&kernel->sent_json, "\"MSG_REGION\":") || add_span(&kernel->sent_json, region_json))
        return NO_MEMORY;
    if (trace_on ? ADD_TEXT(&kernel->sent_json, ",\"TRACE_ON\":\"true\"") : ADD_TEXT(&kernel->sent_json, ",\"TRACE_ON\":\"false\""))
        return NO_MEMORY;
    if (ADD_TEXT(&kernel->sent_json, "},\"flag\":1,\"language\":\"PYTHON\",\"opaque\":"))
        return NO_MEMORY;
    put32(length, (uint32_t)region.size);
    if (ADD_TEXT(&kernel->sent_binary, "\0\12MSG_REGION") || add_span(&kernel->sent_binary, (struct span){length, 4}) || add_span(&kernel->sent_binary, region))
        return NO_MEMORY;
    return trace_on ? ADD_TEXT(&kernel->sent_binary, "\0\10TRACE_ON\0\0\0\4true") : ADD_TEXT(&kernel->sent_binary, "\0\10TRACE_ON\0\0\0\5false");
}

void kernel_set_host(struct kernel *kernel, struct span host)
{
    static const char digits[] = "0123456789ABCDEF";
    kernel->store_host_size = host.size;
    for (size_t n = 0; n < host.size; n++) {
        kernel->store_host[n] = host.at[n];
        kernel->host_hex[2 * n] = (uint8_t)digits[host.at[n] >> 4];
        kernel->host_hex[2 * n + 1] = (uint8_t)digits[host.at[n] & 15];
    }
}

int kernel_delays(struct kernel *kernel, const int64_t *delays_ms, size_t count)
{
    int64_t *copy = malloc((count ? count : 1) * sizeof *copy);
    if (!copy)
        return NO_MEMORY;
    put_bytes((uint8_t *)copy, delays_ms, count * sizeof *copy);
    free(kernel->delays_ms);
    kernel->delays_ms = copy;
    kernel->delay_count = count;
    return 0;
}

/* -- topics ---------------------------------------------------------------------------------------------------------- */

/* Tables are at most half full and a power of two long. */

static inline uint64_t hash_bytes(uint64_t hash, const uint8_t *data, size_t size)
{
    hash ^= size * 0x9E3779B97F4A7C15u;
    for (; size >= 8; size -= 8, data += 8) {
        hash = (hash ^ raw64(data)) * 0xFF51AFD7ED558CCDu;
        hash ^= hash >> 32;
    }
    uint64_t rest = 0;
    for (; size; size--, data++)
        rest = rest << 8 | *data;
    hash = (hash ^ rest) * 0xC4CEB9FE1A85EC53u;
    return hash ^ hash >> 29;
}

static inline bool topic_is(const struct topic *topic, struct span name)
{
    return topic->name_size == name.size && memcmp(topic->name, name.at, name.size) == 0;
}

static int grow_topics(struct kernel *kernel)
{
    if (kernel->topic_count * 2 < kernel->topic_room)
        return 0;
    size_t room = kernel->topic_room ? kernel->topic_room * 2 : 64;
    struct topic **larger = calloc(room, sizeof *larger);
    if (!larger)
        return NO_MEMORY;
    for (size_t n = 0; n < kernel->topic_room; n++) {
        struct topic *topic = kernel->topics[n];
        if (!topic)
            continue;
        size_t place = topic->hash & (room - 1);
        while (larger[place])
            place = (place + 1) & (room - 1);
        larger[place] = topic;
    }
    free(kernel->topics);
    kernel->topics = larger;
    kernel->topic_room = room;
    return 0;
}

struct topic *kernel_find_topic(struct kernel *kernel, struct span name)
{
    if (likely(kernel->last_topic && topic_is(kernel->last_topic, name)))
        return kernel->last_topic;
    if (!kernel->topic_room)
        return NULL;
    uint64_t hash = hash_bytes(0, name.at, name.size);
    for (size_t place = hash & (kernel->topic_room - 1); kernel->topics[place]; place = (place + 1) & (kernel->topic_room - 1))
        if (kernel->topics[place]->hash == hash && topic_is(kernel->topics[place], name))
            return kernel->last_topic = kernel->topics[place];
    return NULL;
}

struct topic *kernel_topic(struct kernel *kernel, struct span name)
{
    struct topic *topic = kernel_find_topic(kernel, name);
    if (topic)
        return topic;
    if (grow_topics(kernel))
        return NULL;
    topic = calloc(1, sizeof *topic);
    uint8_t *copy = malloc(name.size + 1);
    if (!topic || !copy) {
        free(topic);
        free(copy);
        return NULL;
    }
    put_span(copy, name);
    topic->name = copy;
    topic->name_size = name.size;
    topic->hash = hash_bytes(0, name.at, name.size);
    topic->key_hash = hash_on(hash_on(0, name.at, name.size), (const uint8_t *)"#", 1);
    size_t place = topic->hash & (kernel->topic_room - 1);
    while (kernel->topics[place])
        place = (place + 1) & (kernel->topic_room - 1);
    kernel->topics[place] = topic;
    kernel->topic_count++;
    return kernel->last_topic = topic;
}

/* -- queues ---------------------------------------------------------------------------------------------------------- */

/* Ids are mostly 0, 1, 2...: used as hashes they do not collide. */
struct queue *topic_find_queue(const struct topic *topic, int32_t id)
{
    if (!topic->queue_room)
        return NULL;
    for (size_t place = (uint32_t)id & (topic->queue_room - 1); topic->queues[place]; place = (place + 1) & (topic->queue_room - 1))
        if (topic->queues[place]->id == id)
            return topic->queues[place];
    return NULL;
}

struct queue *topic_queue(struct topic *topic, int32_t id)
{
    struct queue *queue = topic_find_queue(topic, id);
    if (likely(queue != NULL))
        return queue;
    if (topic->queue_count * 2 >= topic->queue_room) {
        size_t room = topic->queue_room ? topic->queue_room * 2 : 4;
        struct queue **larger = calloc(room, sizeof *larger);
        if (!larger)
            return NULL;
        for (size_t n = 0; n < topic->queue_room; n++) {
            if (!topic->queues[n])
                continue;
            size_t place = (uint32_t)topic->queues[n]->id & (room - 1);
            while (larger[place])
                place = (place + 1) & (room - 1);
            larger[place] = topic->queues[n];
        }
        free(topic->queues);
        topic->queues = larger;
        topic->queue_room = room;
    }
    queue = calloc(1, sizeof *queue);
    if (!queue)
        return NULL;
    queue->topic = topic;
    queue->id = id;
    link_alone(&queue->place);
    link_alone(&queue->loan);
    size_t place = (uint32_t)id & (topic->queue_room - 1);
    while (topic->queues[place])
        place = (place + 1) & (topic->queue_room - 1);
    topic->queues[place] = queue;
    topic->queue_count++;
    return queue;
}

void kernel_drop_lent(struct kernel *kernel, struct queue *queue)
{
    kernel->lent_bytes -= (int64_t)queue->lent.size;
    bytes_free(&queue->lent);
    queue->lent_first = 0;
    link_remove(&queue->loan);
}

void kernel_set_queue(struct kernel *kernel, struct queue *queue, int64_t min_offset, int64_t end)
{
    kernel->tail_bytes -= (int64_t)queue->tail.size;
    bytes_free(&queue->tail);
    kernel_drop_lent(kernel, queue);
    queue->min = min_offset;
    queue->end = queue->next = queue->stored = queue->tail_first = end;
    queue->begun = 0;
    kernel->dirty_count -= queue->dirty;
    queue->dirty = false;
    link_remove(&queue->place);
}

int kernel_lend(struct kernel *kernel, struct queue *queue, int64_t first, struct span entries)
{
    struct bytes copy = {0};
    if (add_span(&copy, entries))
        return NO_MEMORY;
    kernel_drop_lent(kernel, queue);
    if (!entries.size)
        return 0;
    queue->lent = copy;
    queue->lent_first = first;
    kernel->lent_bytes += (int64_t)copy.size;
    link_append(&kernel->lent, &queue->loan);
    while (kernel->lent_bytes > LENT_BYTES_MAX && kernel->lent.next != kernel->lent.previous)
        kernel_drop_lent(kernel, QUEUE_AT(kernel->lent.next, loan));
    return 0;
}

bool kernel_forget_topic(struct kernel *kernel, struct span name)
{
    struct topic *topic = kernel_find_topic(kernel, name);
    if (!topic)
        return true;
    if (topic->flags || topic->write_queues || topic->read_queues || kernel->woken_untold)
        return false;
    for (size_t n = 0; n < topic->queue_room; n++) {
        const struct queue *queue = topic->queues[n];
        if (queue && (queue->dirty || queue->watched || queue->begun || queue->next != queue->end || queue->min < queue->end))
            return false;
    }
    for (size_t n = 0; n < topic->queue_room; n++) {
        struct queue *queue = topic->queues[n];
        if (!queue)
            continue;
        kernel->tail_bytes -= (int64_t)queue->tail.size;
        bytes_free(&queue->tail);
        kernel_drop_lent(kernel, queue);
        link_remove(&queue->place);
        free(queue);
    }
    size_t mask = kernel->topic_room - 1, hole = topic->hash & mask;
    while (kernel->topics[hole] != topic)
        hole = (hole + 1) & mask;
    free(topic->queues);
    free(topic->name);
    free(topic);
    kernel->last_topic = NULL;
    kernel->topic_count--;
    /* Later topics that were displaced by the removed one move up. */
    for (size_t next = (hole + 1) & mask; kernel->topics[next]; next = (next + 1) & mask) {
        size_t wanted = kernel->topics[next]->hash & mask;
        if (((next - wanted) & mask) >= ((next - hole) & mask)) {
            kernel->topics[hole] = kernel->topics[next];
            hole = next;
        }
    }
    kernel->topics[hole] = NULL;
    return true;
}

/* -- subscriptions --------------------------------------------------------------------------------------------------- */

static inline uint64_t row_hash(struct span group, struct span topic, bool explicit_)
{
    return hash_bytes(hash_bytes(explicit_ ? 1 : 2, group.at, group.size), topic.at, topic.size);
}

static inline bool row_is(const struct row *row, uint64_t hash, struct span group, struct span topic, bool explicit_)
{
    return row->hash == hash && row->explicit_ == explicit_ && row->group_size == group.size && row->topic_size == topic.size &&
           memcmp(row->names, group.at, group.size) == 0 && memcmp(row->names + group.size, topic.at, topic.size) == 0;
}

/* The slot of the row, or the empty slot where it would be. */
static size_t row_place(const struct kernel *kernel, uint64_t hash, struct span group, struct span topic, bool explicit_)
{
    size_t place = hash & (kernel->row_room - 1);
    while (kernel->rows[place] && !row_is(kernel->rows[place], hash, group, topic, explicit_))
        place = (place + 1) & (kernel->row_room - 1);
    return place;
}

struct row *kernel_find_row(const struct kernel *kernel, struct span group, struct span topic, bool explicit_)
{
    if (!kernel->row_room)
        return NULL;
    return kernel->rows[row_place(kernel, row_hash(group, topic, explicit_), group, topic, explicit_)];
}

static int grow_rows(struct kernel *kernel)
{
    if (kernel->row_count * 2 < kernel->row_room)
        return 0;
    size_t room = kernel->row_room ? kernel->row_room * 2 : 64;
    struct row **larger = calloc(room, sizeof *larger);
    if (!larger)
        return NO_MEMORY;
    for (size_t n = 0; n < kernel->row_room; n++) {
        if (!kernel->rows[n])
            continue;
        size_t place = kernel->rows[n]->hash & (room - 1);
        while (larger[place])
            place = (place + 1) & (room - 1);
        larger[place] = kernel->rows[n];
    }
    free(kernel->rows);
    kernel->rows = larger;
    kernel->row_room = room;
    return 0;
}

int kernel_set_row(struct kernel *kernel, struct span group, struct span topic, bool explicit_, int64_t number, int64_t version,
                   const int32_t *codes, size_t code_count, bool all)
{
    struct row *row = calloc(1, sizeof *row);
    if (!row || grow_rows(kernel)) {
        free(row);
        return NO_MEMORY;
    }
    *row = (struct row){.group_size = group.size, .topic_size = topic.size, .explicit_ = explicit_, .number = number,
                        .version = version, .all = all, .code_count = code_count, .hash = row_hash(group, topic, explicit_)};
    row->names = malloc(group.size + topic.size + 1);
    row->codes = malloc((code_count ? code_count : 1) * sizeof *row->codes);
    if (!row->names || !row->codes) {
        free_row(row);
        return NO_MEMORY;
    }
    put_span(put_span(row->names, group), topic);
    put_bytes((uint8_t *)row->codes, codes, code_count * sizeof *codes);
    size_t place = row_place(kernel, row->hash, group, topic, explicit_);
    if (kernel->rows[place])
        free_row(kernel->rows[place]);
    else
        kernel->row_count++;
    kernel->rows[place] = row;
    return 0;
}

void kernel_drop_row(struct kernel *kernel, struct span group, struct span topic, bool explicit_)
{
    if (!kernel->row_room)
        return;
    size_t mask = kernel->row_room - 1, hole = row_place(kernel, row_hash(group, topic, explicit_), group, topic, explicit_);
    if (!kernel->rows[hole])
        return;
    free_row(kernel->rows[hole]);
    kernel->row_count--;
    /* Later rows that were displaced by the removed one move up. */
    for (size_t next = (hole + 1) & mask; kernel->rows[next]; next = (next + 1) & mask) {
        size_t wanted = kernel->rows[next]->hash & mask;
        if (((next - wanted) & mask) >= ((next - hole) & mask)) {
            kernel->rows[hole] = kernel->rows[next];
            hole = next;
        }
    }
    kernel->rows[hole] = NULL;
}

/* Only figures for operators: if there is no memory for them, they are left out. */
void row_asked(struct row *row, int32_t queue_id, int64_t offset)
{
    size_t place = (size_t)queue_id;
    if (unlikely(place >= row->asked_room)) {
        size_t room = row->asked_room ? row->asked_room : 8;
        while (room <= place)
            room *= 2;
        int64_t *larger = realloc(row->asked, room * sizeof *larger);
        if (!larger)
            return;
        for (size_t n = row->asked_room; n < room; n++)
            larger[n] = -1;
        row->asked = larger;
        row->asked_room = room;
    }
    row->asked[place] = offset;
}

int64_t kernel_asked(const struct kernel *kernel, struct span group, struct span topic, int32_t queue_id)
{
    int64_t asked = -1;
    for (int explicit_ = 0; explicit_ < 2; explicit_++) {
        const struct row *row = kernel_find_row(kernel, group, topic, explicit_);
        if (row && queue_id >= 0 && (size_t)queue_id < row->asked_room && row->asked[queue_id] > asked)
            asked = row->asked[queue_id];
    }
    return asked;
}

/* -- mapped log files ------------------------------------------------------------------------------------------------ */

int kernel_map(struct kernel *kernel, int64_t number, struct span data, const struct mapping *mapping)
{
    size_t place = 0;
    while (place < kernel->segment_count && kernel->segments[place].number < number)
        place++;
    bool there = place < kernel->segment_count && kernel->segments[place].number == number;
    if (!data.at) {
        if (there) {
            kernel->segment_count--;
            memmove(kernel->segments + place, kernel->segments + place + 1, (kernel->segment_count - place) * sizeof *kernel->segments);
        }
        return 0;
    }
    if (!there) {
        if (ARRAY_RESERVE(kernel->segments, kernel->segment_count, kernel->segment_room))
            return NO_MEMORY;
        memmove(kernel->segments + place + 1, kernel->segments + place, (kernel->segment_count - place) * sizeof *kernel->segments);
        kernel->segment_count++;
    }
    kernel->segments[place] = (struct segment){number, data.at, data.size, mapping};
    return 0;
}
