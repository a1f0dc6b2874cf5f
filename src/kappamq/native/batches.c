/* Columns in, batches out: properties of many messages as text, and many messages as the body of one send.
 * pure_batches.py defines the behaviour. */
#include "inline.h"

/* The text of a row, false if the column's offsets are outside of its data. A null is an empty text. */
static inline bool text_of(const struct column *column, size_t row, struct span *text)
{
    *text = (struct span){0};
    if (column->valid.size && !(column->valid.at[row / 8] >> row % 8 & 1))
        return true;
    int64_t start = column->offsets[row], end = column->offsets[row + 1];
    if (start < 0 || end < start || (uint64_t)end > column->data.size)
        return false;
    *text = (struct span){column->data.at + start, (size_t)(end - start)};
    return true;
}

static int add_pair(struct bytes *to, size_t begin, struct span name, struct span value)
{
    if (to->size - begin + name.size + value.size + 2 > PROPERTIES_BYTES_MAX)
        return ROW_TOO_LONG;
    if (memchr(value.at, 2, value.size))
        return ROW_SEPARATOR;
    if (bytes_reserve(to, name.size + value.size + 2))
        return NO_MEMORY;
    uint8_t *at = put_span(to->data + to->size, name);
    *at++ = 1;
    at = put_span(at, value);
    *at++ = 2;
    to->size = (size_t)(at - to->data);
    return 0;
}

static bool is_among(struct span name, const struct span *names, size_t count)
{
    for (size_t n = 0; n < count; n++)
        if (same_span(name, names[n]))
            return true;
    return false;
}

static int add_map(const struct text_job *job, size_t row, struct bytes *to, size_t begin)
{
    int64_t start = job->map_offsets[row], end = job->map_offsets[row + 1];
    if (start < 0 || end < start || (size_t)end > job->map_count)
        return BAD_PLACE;
    for (int64_t n = start; n < end; n++) {
        struct span name, value;
        if (!text_of(&job->map_names, (size_t)n, &name) || !text_of(&job->map_values, (size_t)n, &value))
            return BAD_PLACE;
        if (is_among(name, job->left_out, job->left_out_count))
            continue;
        if (!name.size || !value.size)
            return ROW_EMPTY;
        if (memchr(name.at, 1, name.size) || memchr(name.at, 2, name.size))
            return ROW_SEPARATOR;
        int result = add_pair(to, begin, name, value);
        if (result)
            return result;
    }
    return 0;
}

int texts_build(const struct text_job *job, struct bytes *offsets, struct bytes *data, size_t *row)
{
    if (bytes_reserve(offsets, (job->count + 1) * sizeof(int32_t)))
        return NO_MEMORY;
    for (*row = 0; *row < job->count; (*row)++) {
        int32_t begin = (int32_t)data->size;
        memcpy(offsets->data + offsets->size, &begin, sizeof begin);
        offsets->size += sizeof begin;
        for (size_t n = 0; n < job->named_count; n++) {
            struct span value;
            if (!text_of(&job->named[n].column, *row, &value))
                return BAD_PLACE;
            if (!value.size)
                continue;
            int result = add_pair(data, (size_t)begin, job->named[n].name, value);
            if (result)
                return result;
        }
        if (job->map_offsets && (!job->map_valid.size || job->map_valid.at[*row / 8] >> *row % 8 & 1)) {
            int result = add_map(job, *row, data, (size_t)begin);
            if (result)
                return result;
        }
        if (data->size > INT32_MAX)
            return COLUMN_TOO_LARGE;
    }
    int32_t end = (int32_t)data->size;
    memcpy(offsets->data + offsets->size, &end, sizeof end);
    offsets->size += sizeof end;
    return 0;
}

enum { ID_PROPERTY_BYTES = 9 + 32 + 1 };

int64_t batch_build(const struct batch_job *job, size_t first, struct bytes *to, size_t *failed)
{
    size_t taken = first;
    for (; taken < job->row_count && taken - first < job->count_max; taken++) {
        struct span body, text;
        int64_t row = job->rows[taken];
        if (row < 0 || (size_t)row >= job->count || !text_of(&job->bodies, (size_t)row, &body) || !text_of(&job->texts, (size_t)row, &text))
            return BAD_PLACE;
        size_t properties = text.size + (job->id_prefix.size ? ID_PROPERTY_BYTES : 0);
        size_t size = 22 + body.size + properties;
        if (properties > PROPERTIES_BYTES_MAX) {
            *failed = (size_t)row;
            return ROW_TOO_LONG;
        }
        if (taken > first && to->size + size > job->bytes_max)
            break;
        if (size > INT32_MAX || to->size > INT32_MAX - size)
            return COLUMN_TOO_LARGE;
        if (bytes_reserve(to, size))
            return NO_MEMORY;
        uint8_t *at = to->data + to->size;
        at = put32(at, (uint32_t)size);
        at = put32(at, 0);
        at = put32(at, 0);
        at = put32(at, 0); /* flag */
        at = put32(at, (uint32_t)body.size);
        at = put_span(at, body);
        at = put16(at, (uint16_t)properties);
        if (job->id_prefix.size) {
            uint8_t id[16];
            at = put_text(at, "UNIQ_KEY\x01");
            memcpy(id, job->id_prefix.at, 10);
            uint64_t number = job->first_id + (uint64_t)row;
            id[10] = (uint8_t)(number >> 40);
            id[11] = (uint8_t)(number >> 32);
            put32(id + 12, (uint32_t)number);
            at = put_hex64(at, (uint64_t)get64(id));
            at = put_hex64(at, (uint64_t)get64(id + 8));
            *at++ = 2;
        }
        put_span(at, text);
        to->size += size;
    }
    return (int64_t)taken;
}

int64_t batch_sum(const struct crc *crc, struct span body)
{
    struct member member;
    int64_t sum = 0;
    size_t at = 0;
    while (at < body.size) {
        if (!batch_next(body, &at, &member))
            return -1;
        sum += crc32_of(crc, member.body.at, member.body.size);
    }
    return body.size ? sum : -1;
}
