/* The key index: from the output of dispatch to the entries of an index file. pure_index.py defines the behaviour. */
#include "inline.h"

void index_apply(uint8_t *slots, size_t slot_count, struct span pending, size_t position, int32_t count, int32_t capacity,
                 int64_t begin_ms, uint8_t *entries, struct indexed *indexed)
{
    int32_t fresh = 0;
    for (; position < pending.size && count < capacity; position += INDEX_PENDING_BYTES, count++) {
        const uint8_t *from = pending.at + position;
        uint32_t key = getu32(from);
        int64_t store_ms = get64(from + 12), seconds = 0;
        uint8_t *slot = slots + key % slot_count * 4;
        int32_t previous = get32(slot);
        if (previous <= 0 || previous > count) {
            previous = 0;
            fresh++;
        }
        if (begin_ms <= 0)
            begin_ms = store_ms;
        if (begin_ms > 0 && store_ms > begin_ms)
            seconds = (store_ms - begin_ms) / 1000;
        entries = put32(entries, key);
        entries = put_bytes(entries, from + 4, 8);
        entries = put32(entries, (uint32_t)(seconds < INT32_MAX ? seconds : INT32_MAX));
        entries = put32(entries, (uint32_t)previous);
        put32(slot, (uint32_t)count);
    }
    *indexed = (struct indexed){position, count, fresh};
}

void index_link(uint8_t *slots, size_t slot_count, struct span entries, int32_t number, int64_t last, struct linked *linked)
{
    int32_t fresh = 0;
    for (size_t at = 0; at < entries.size; at += INDEX_ENTRY_BYTES, number++) {
        const uint8_t *entry = entries.at + at;
        int32_t key = get32(entry), previous = get32(entry + 16);
        int64_t log_offset = get64(entry + 4);
        if (log_offset < last || key < 0 || previous < 0 || previous >= number || (!log_offset && !key))
            break;
        uint8_t *slot = slots + (size_t)key % slot_count * 4;
        fresh += get32(slot) == 0;
        put32(slot, (uint32_t)number);
        last = log_offset;
    }
    *linked = (struct linked){number, fresh, last};
}
