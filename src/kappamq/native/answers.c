/* Answers to sends and ends of transactions, in both wire forms. pure_replies.py defines the behaviour. */
#include "answers.h"

static inline uint8_t *put_ids(const struct kernel *kernel, uint8_t *to, const int64_t *offsets, size_t count)
{
    for (size_t n = 0; n < count; n++) {
        if (n)
            *to++ = ',';
        to = put_bytes(to, kernel->host_hex, kernel->store_host_size * 2);
        to = put_hex64(to, (uint64_t)offsets[n]);
    }
    return to;
}

int reserve_sent(struct kernel *kernel, size_t ids, size_t texts)
{
    return bytes_reserve(&kernel->acks, 384 + ids * 57 + texts + kernel->sent_json.size + kernel->sent_binary.size);
}

static uint8_t *put_ext_number(uint8_t *to, int64_t value)
{
    uint8_t *end = put_number(to + 4, value);
    put32(to, (uint32_t)(end - to - 4));
    return end;
}

static uint8_t *put_ext_text(uint8_t *to, struct span text) { return put_span(put32(to, (uint32_t)text.size), text); }

/* Writes the lengths and the kind of a frame that consists of the header from `start` + 8 to `to`. */
static void close_frame(struct kernel *kernel, uint8_t *start, const uint8_t *to, bool binary)
{
    uint32_t header = (uint32_t)(to - start - 8);
    put32(start, header + 4);
    put32(start + 4, header | (binary ? 1u << 24 : 0));
    kernel->acks.size += 8 + header;
}

void put_sent(struct kernel *kernel, int32_t opaque, bool binary, const struct sent *sent)
{
    uint8_t *start = kernel->acks.data + kernel->acks.size, *to = start + 8;
    if (binary) {
        to = put_text(to, "\0\0\3\1\337"); /* success, Python, version 479 */
        to = put32(to, (uint32_t)opaque);
        to = put_text(to, "\0\0\0\1\0\0\0\0");
        uint8_t *length = to;
        to = put_text(to + 4, "\0\5msgId");
        uint8_t *ids = to;
        to = put_ids(kernel, to + 4, sent->offsets, sent->count);
        put32(ids, (uint32_t)(to - ids - 4));
        to = put_ext_number(put_text(to, "\0\7queueId"), sent->queue_id);
        to = put_ext_number(put_text(to, "\0\13queueOffset"), sent->queue_offset);
        if (sent->unique_key.size)
            to = put_ext_text(put_text(to, "\0\15transactionId"), sent->unique_key);
        if (sent->recall_handle.size)
            to = put_ext_text(put_text(to, "\0\14recallHandle"), sent->recall_handle);
        to = put_bytes(to, kernel->sent_binary.data, kernel->sent_binary.size);
        put32(length, (uint32_t)(to - length - 4));
    } else {
        to = put_text(to, "{\"code\":0,\"extFields\":{\"msgId\":\"");
        to = put_ids(kernel, to, sent->offsets, sent->count);
        to = put_text(to, "\",\"queueId\":\"");
        to = put_number(to, sent->queue_id);
        to = put_text(to, "\",\"queueOffset\":\"");
        to = put_number(to, sent->queue_offset);
        to = put_text(to, "\",");
        if (sent->unique_key.size)
            to = put_text(put_span(put_text(to, "\"transactionId\":\""), sent->unique_key), "\",");
        if (sent->recall_handle.size)
            to = put_text(put_span(put_text(to, "\"recallHandle\":\""), sent->recall_handle), "\",");
        to = put_bytes(to, kernel->sent_json.data, kernel->sent_json.size);
        to = put_number(to, opaque);
        to = put_text(to, ",\"serializeTypeCurrentRPC\":\"JSON\",\"version\":479}");
    }
    close_frame(kernel, start, to, binary);
}

int reserve_ended(struct kernel *kernel) { return bytes_reserve(&kernel->acks, 160); }

void put_ended(struct kernel *kernel, int32_t opaque, bool binary)
{
    uint8_t *start = kernel->acks.data + kernel->acks.size, *to = start + 8;
    if (binary) {
        to = put_text(to, "\0\0\3\1\337"); /* success, Python, version 479 */
        to = put32(to, (uint32_t)opaque);
        to = put_text(to, "\0\0\0\1\0\0\0\0\0\0\0\0"); /* a response; no remark, no fields */
    } else {
        to = put_text(to, "{\"code\":0,\"flag\":1,\"language\":\"PYTHON\",\"opaque\":");
        to = put_number(to, opaque);
        to = put_text(to, ",\"serializeTypeCurrentRPC\":\"JSON\",\"version\":479}");
    }
    close_frame(kernel, start, to, binary);
}
