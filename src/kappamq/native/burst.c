/* A socket read: frames in, records and answers out. pure.Kernel defines the behaviour. */
#include "answers.h"
#include "property_names.h"
#include "waiting.h"

/* -- append ---------------------------------------------------------------------------------------------------------- */

static bool has_room(const struct kernel *kernel, int64_t size)
{
    int64_t pending = (int64_t)kernel->pending.size;
    if (pending && pending + size > kernel->pending_bytes_max)
        return false;
    return kernel->written + pending + size + BLANK_BYTES <= kernel->segment_end;
}

/* The next record, measured and with its memory reserved: appending it can no longer fail. */
static void write_record(struct kernel *kernel, const struct message *message, int64_t size, int64_t queue_offset, int64_t now_ms)
{
    int64_t log_offset = kernel->written + (int64_t)kernel->pending.size;
    record_write(&kernel->crc, message, size, queue_offset, log_offset, now_ms, kernel->pending.data + kernel->pending.size);
    kernel->pending.size += (size_t)size;
    kernel->put_count++;
    kernel->put_bytes += size;
}

/* Fills in the fields of a record that follow from its queue. */
static void address(const struct kernel *kernel, const struct queue *queue, struct message *message)
{
    message->topic = (struct span){queue->topic->name, queue->topic->name_size};
    message->store_host = (struct span){kernel->store_host, kernel->store_host_size};
    message->queue_id = queue->id;
    message->tail_crc = kernel->tail_crc;
}

/* The property in which the first record of a batch or group gives the length of the whole. */
static struct span put_length(uint8_t *mark, int64_t total)
{
    uint8_t *digit = mark + BATCH_PROPERTY_BYTES - 1;
    memcpy(mark, BATCH_BYTES_PROPERTY "\x01", 9);
    *digit = 2;
    for (int64_t n = 0; n < 10; n++, total /= 10)
        *--digit = (uint8_t)('0' + total % 10);
    return (struct span){mark, BATCH_PROPERTY_BYTES};
}

int kernel_append(struct kernel *kernel, struct queue *queue, struct message *message, int64_t now_ms, bool counted, int64_t *size)
{
    address(kernel, queue, message);
    *size = record_measure(message);
    if (*size < 0 || queue->next > QUEUE_OFFSET_MAX)
        return LEFT;
    if (!has_room(kernel, *size))
        return FULL;
    if (bytes_reserve(&kernel->pending, (size_t)*size))
        return NO_MEMORY;
    write_record(kernel, message, *size, counted ? queue->next : 0, now_ms);
    queue->next += counted;
    return DONE;
}

/* What a member inherits from its batch: everything that it does not set itself. Valid until the next call. */
static struct span inherited_by(struct kernel *kernel, struct span properties)
{
    struct span all = {kernel->inherited.data, kernel->inherited.size}, name;
    uint8_t *to = kernel->some.data;
    for (size_t at = 0; at < all.size;) {
        struct span pair = next_pair(all, &at, &name);
        if (!has_property(properties, name)) {
            to = put_span(to, pair);
            *to++ = 2;
        }
    }
    return (struct span){kernel->some.data, (size_t)(to - kernel->some.data)};
}

int kernel_append_members(struct kernel *kernel, struct queue *queue, int32_t sys_flag, int64_t born_ms, struct span born,
                          int32_t reconsume_times, int64_t now_ms, int64_t *offsets)
{
    uint8_t mark[BATCH_PROPERTY_BYTES];
    const struct member *members = kernel->members;
    const size_t count = kernel->member_count;
    const struct span length = count > 1 ? put_length(mark, 0) : (struct span){mark, 0};
    struct message message = {
        .born = born,
        .added = {kernel->added.data, kernel->added.size},
        .mark = length,
        .sys_flag = sys_flag,
        .reconsume_times = reconsume_times,
        .born_ms = born_ms,
    };
    address(kernel, queue, &message);
    if (bytes_reserve(&kernel->some, kernel->inherited.size))
        return NO_MEMORY;
    int64_t total = 0;
    for (size_t n = 0; n < count; n++) {
        message.body = members[n].body;
        message.properties = members[n].properties;
        message.inherited = inherited_by(kernel, members[n].properties);
        int64_t size = record_measure(&message);
        if (size < 0)
            return LEFT;
        total += size;
        message.mark.size = 0; /* only the first member gives the length of the batch */
    }
    if (queue->next > QUEUE_OFFSET_MAX - (int64_t)count)
        return LEFT;
    if (!has_room(kernel, total))
        return FULL;
    if (bytes_reserve(&kernel->pending, (size_t)total))
        return NO_MEMORY;
    put_length(mark, total);
    message.mark = length;
    for (size_t n = 0; n < count; n++) {
        message.flag = members[n].flag;
        message.body = members[n].body;
        message.properties = members[n].properties;
        message.inherited = inherited_by(kernel, members[n].properties);
        offsets[n] = kernel->written + (int64_t)kernel->pending.size;
        write_record(kernel, &message, record_measure(&message), queue->next++, now_ms);
        message.mark.size = 0;
    }
    return DONE;
}

int kernel_append_group(struct kernel *kernel, struct placed *members, size_t count, int64_t now_ms)
{
    uint8_t mark[BATCH_PROPERTY_BYTES];
    int64_t total = 0;
    for (size_t n = 0; n < count; n++) {
        struct placed *member = &members[n];
        address(kernel, member->queue, &member->message);
        if (n == 0 && count > 1)
            member->message.mark = put_length(mark, 0);
        member->size = record_measure(&member->message);
        if (member->size < 0 || member->queue->next > QUEUE_OFFSET_MAX - (int64_t)count)
            return LEFT;
        total += member->size;
    }
    if (!has_room(kernel, total))
        return FULL;
    if (bytes_reserve(&kernel->pending, (size_t)total))
        return NO_MEMORY;
    put_length(mark, total);
    for (size_t n = 0; n < count; n++) {
        struct placed *member = &members[n];
        int transaction = member->message.sys_flag & SYS_TRANSACTION;
        bool counted = transaction != SYS_PREPARED && transaction != SYS_ROLLBACK;
        member->log_offset = kernel->written + (int64_t)kernel->pending.size;
        member->queue_offset = counted ? member->queue->next : 0;
        write_record(kernel, &member->message, member->size, member->queue_offset, now_ms);
        member->queue->next += counted;
    }
    return DONE;
}

void kernel_taken(struct kernel *kernel)
{
    enum { SPARE_BYTES = 1 << 20 };
    kernel->written += (int64_t)kernel->pending.size;
    kernel->pending.size = 0;
    /* One huge message should not hold its memory for ever. */
    if (kernel->pending.room > SPARE_BYTES && (int64_t)kernel->pending.room > 2 * kernel->pending_bytes_max)
        bytes_free(&kernel->pending);
}

/* -- frames ---------------------------------------------------------------------------------------------------------- */

/* Keep what the members of a batch will inherit: its own properties, without the key. */
static int keep_inherited(struct kernel *kernel, struct span properties)
{
    struct bytes *kept = &kernel->inherited;
    struct span name;
    size_t count = 0;
    kept->size = 0;
    if (bytes_reserve(kept, properties.size + 1))
        return NO_MEMORY;
    for (size_t at = 0; at < properties.size;) {
        struct span pair = next_pair(properties, &at, &name);
        if (SPAN_IS(name, "UNIQ_KEY"))
            continue;
        if (++count > BATCH_PAIRS_MAX || has_property((struct span){kept->data, kept->size}, name))
            return LEFT;
        put_span(kept->data + kept->size, pair);
        kept->size += pair.size;
        kept->data[kept->size++] = 2;
    }
    return DONE;
}

/* The members of a batch, in kernel.members; LEFT if one of them is not plain. */
static int split_plain(struct kernel *kernel, struct span body)
{
    struct span ignored;
    size_t at = 0;
    kernel->member_count = 0;
    while (at < body.size) {
        if (kernel->member_count == BATCH_MEMBERS_MAX)
            return LEFT;
        if (ARRAY_RESERVE(kernel->members, kernel->member_count, kernel->member_room))
            return NO_MEMORY;
        struct member *member = &kernel->members[kernel->member_count++];
        if (!batch_next(body, &at, member) || !utf8_valid(member->properties.at, member->properties.size) ||
            !plain_properties(member->properties, body.at + body.size, &ignored))
            return LEFT;
    }
    return DONE;
}

int kernel_append_batch(struct kernel *kernel, struct placed *note, struct queue *queue, const struct message *common, struct span body,
                        int64_t now_ms, int64_t *end)
{
    int verdict = split_plain(kernel, body);
    if (verdict != DONE)
        return verdict;
    size_t count = kernel->member_count + 1;
    if (bytes_reserve(&kernel->some, count * sizeof(struct placed)))
        return NO_MEMORY;
    struct placed *placed = (struct placed *)(void *)kernel->some.data;
    placed[0] = *note; /* first: it has the mark of the group, and the messages stay as their senders made them */
    for (size_t n = 1; n < count; n++) {
        const struct member *member = &kernel->members[n - 1];
        placed[n] = (struct placed){.queue = queue, .message = *common};
        placed[n].message.flag = member->flag;
        placed[n].message.body = member->body;
        placed[n].message.properties = member->properties;
        placed[n].message.added = (struct span){kernel->added.data, kernel->added.size};
    }
    verdict = kernel_append_group(kernel, placed, count, now_ms);
    note->size = 0; /* of the whole group: a full segment has no room for this many bytes */
    for (size_t n = 0; n < count; n++)
        note->size += placed[n].size;
    *end = verdict == DONE ? placed[count - 1].log_offset + placed[count - 1].size : 0;
    return verdict;
}

static int plain_batch(struct kernel *kernel, const struct plain *plain, struct queue *queue, bool binary, struct span body,
                       struct span born, int64_t now_ms)
{
    const struct plain_send *send = &plain->send;
    int split = split_plain(kernel, body);
    if (split != DONE)
        return split;
    size_t count = kernel->member_count;
    int64_t first = queue->next;
    bool answer = !(plain->flag & 2);
    int verdict = keep_inherited(kernel, send->properties);
    if (verdict != DONE)
        return verdict;
    if ((int64_t)(body.size + count * kernel->inherited.size) > kernel->message_bytes_max)
        return LEFT;
    /* The header is no longer needed: its scratch buffer takes the offsets of the members. */
    if (bytes_reserve(&kernel->scratch, count * sizeof(int64_t)) || (answer && reserve_sent(kernel, count, 0)))
        return NO_MEMORY;
    int64_t *offsets = (int64_t *)(void *)kernel->scratch.data;
    verdict = kernel_append_members(kernel, queue, send->sys_flag, send->born_ms, born, send->reconsume_times, now_ms, offsets);
    if (verdict == DONE && answer)
        put_sent(kernel, plain->opaque, binary, &(struct sent){offsets, count, queue->id, first, {0}, {0}});
    return verdict;
}

static int plain_single(struct kernel *kernel, const struct plain *plain, struct queue *queue, bool binary, struct span body,
                        struct span born, int64_t now_ms)
{
    const struct plain_send *send = &plain->send;
    struct message message = {
        .body = body,
        .properties = send->properties,
        .added = {kernel->added.data, kernel->added.size},
        .born = born,
        .flag = send->flag,
        .sys_flag = send->sys_flag,
        .reconsume_times = send->reconsume_times,
        .born_ms = send->born_ms,
    };
    bool answer = !(plain->flag & 2);
    int64_t log_offset = kernel->written + (int64_t)kernel->pending.size, offset = queue->next, size;
    if (answer && reserve_sent(kernel, 1, send->unique_key.size))
        return NO_MEMORY;
    int verdict = kernel_append(kernel, queue, &message, now_ms, true, &size);
    if (verdict == DONE && answer)
        put_sent(kernel, plain->opaque, binary, &(struct sent){&log_offset, 1, queue->id, offset, send->unique_key, {0}});
    return verdict;
}

static int plain_send(struct kernel *kernel, const struct plain *plain, bool binary, struct span body, struct span born, int64_t now_ms)
{
    const struct plain_send *send = &plain->send;
    if (!kernel->accepting)
        return LEFT;
    struct topic *topic = kernel_find_topic(kernel, send->topic);
    if (!topic || !(topic->flags & TOPIC_SEND) || send->queue_id >= topic->write_queues)
        return LEFT;
    struct queue *queue = topic_queue(topic, send->queue_id);
    if (!queue)
        return NO_MEMORY;
    if (!body.size || (int64_t)body.size > kernel->message_bytes_max)
        return LEFT;
    if (unlikely(send->waiting.kind != WAITS_NOT))
        return waiting_send(kernel, plain, queue, binary, body, born, now_ms);
    return plain->code == CODE_SEND_BATCH ? plain_batch(kernel, plain, queue, binary, body, born, now_ms)
                                          : plain_single(kernel, plain, queue, binary, body, born, now_ms);
}

static int plain_pull(struct kernel *kernel, const struct plain *plain, bool binary, bool bodiless)
{
    const struct plain_pull *pull = &plain->pull;
    if (!bodiless)
        return LEFT;
    struct row *row = kernel_find_row(kernel, pull->group, pull->topic, pull->explicit_);
    const struct topic *topic = kernel_find_topic(kernel, pull->topic);
    if (!row || !topic || !(topic->flags & TOPIC_PULL) || pull->queue_id >= topic->read_queues)
        return LEFT;
    if (!pull->explicit_ && pull->version > row->version)
        return LEFT;
    if (ARRAY_RESERVE(kernel->commits, kernel->commit_count, kernel->commit_room) || ARRAY_RESERVE(kernel->pulls, kernel->pull_count, kernel->pull_room))
        return NO_MEMORY;
    struct pull *result = &kernel->pulls[kernel->pull_count];
    int64_t count = pull->count_max < kernel->transfer_count_max ? pull->count_max : kernel->transfer_count_max;
    int verdict = kernel_pull(kernel, topic, pull->queue_id, pull->offset, count, (struct codes){row->codes, row->code_count, row->all},
                              &(struct asker){plain->opaque, binary}, false, &kernel->replies, result->payload);
    if (verdict == NO_MEMORY)
        return NO_MEMORY;
    row_asked(row, pull->queue_id, pull->offset);
    if (pull->sys_flag & PULL_COMMIT && pull->sys_flag & PULL_SUSPEND)
        kernel->commits[kernel->commit_count++] = (struct commit){row->number, pull->queue_id, pull->commit_offset};
    if (verdict != FOUND) {
        result->verdict = verdict;
        result->row = row->number;
        result->queue_id = pull->queue_id;
        result->offset = pull->offset;
        result->count = count;
        result->sys_flag = pull->sys_flag;
        result->suspend_ms = pull->suspend_ms;
        result->opaque = plain->opaque;
        result->binary = binary;
        kernel->pull_count++;
    }
    return DONE;
}

static int plain_frame(struct kernel *kernel, const uint8_t *header, size_t header_size, struct span body, const uint8_t *readable,
                       bool binary, struct span born, int64_t now_ms)
{
    struct plain plain;
    kernel->scratch.size = 0;
    if (bytes_reserve(&kernel->scratch, header_size + 16))
        return NO_MEMORY;
    if (!scan_header(header, header_size, readable, binary, kernel->scratch.data, &plain))
        return LEFT;
    if (plain.code == CODE_PULL || plain.code == CODE_LITE_PULL)
        return plain_pull(kernel, &plain, binary, body.size == 0);
    if (plain.code == CODE_END_TRANSACTION)
        return body.size ? LEFT : plain_end(kernel, &plain, binary, now_ms);
    return plain_send(kernel, &plain, binary, body, born, now_ms);
}

int kernel_burst(struct kernel *kernel, const uint8_t *data, size_t size, size_t position, struct span born, int64_t now_ms,
                 struct burst *burst)
{
    enum { KEEP_BYTES = 1 << 20 };
    size_t first = position;
    int verdict = DONE;
    if (kernel->acks.room > KEEP_BYTES)
        bytes_free(&kernel->acks);
    if (kernel->scratch.room > KEEP_BYTES)
        bytes_free(&kernel->scratch);
    kernel->acks.size = kernel->pull_count = kernel->commit_count = 0;
    kernel->waiting.note_count = kernel->waiting.groups.size = 0;
    kernel->waiting.parked = 0;
    gather_clear(&kernel->replies);
    while (position < size && size - position >= 4) {
        const uint8_t *frame = data + position;
        int64_t total = get32(frame);
        if (total < 4 || total > kernel->frame_bytes_max) {
            verdict = BAD;
            break;
        }
        if (size - position < 8)
            break;
        int64_t header = (int64_t)(getu32(frame + 4) & 0xFFFFFF);
        if (frame[4] > 1 || header > total - 4 || header > kernel->header_bytes_max) {
            verdict = BAD;
            break;
        }
        if ((int64_t)(size - position) < 4 + total)
            break;
        if (kernel->force_slow) {
            verdict = LEFT;
            break;
        }
        struct span body = {frame + 8 + header, (size_t)(total - 4 - header)};
        verdict = plain_frame(kernel, frame + 8, (size_t)header, body, data + size, frame[4] == 1, born, now_ms);
        if (verdict != DONE)
            break;
        kernel->fast_frames++;
        position += (size_t)(4 + total);
        if (unlikely(kernel->replies.total >= REPLIES_BYTES_MAX)) {
            verdict = PAUSE;
            break;
        }
    }
    if (verdict == NO_MEMORY) {
        if (position == first)
            return NO_MEMORY;
        verdict = FULL; /* what was done so far stays: the caller makes room and calls again */
    }
    if (verdict == LEFT)
        kernel->left_frames++;
    *burst = (struct burst){position, verdict};
    return 0;
}
