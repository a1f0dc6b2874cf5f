/* Records in, columns out: where each record of a buffer lies, and the fields of many records in the layout of Arrow.
 * pure_columns.py defines the behaviour.
 *
 * First `records_locate` walks over the records once and notes a `struct place` for each. A caller that wants only some records, or
 * has to unpack a body, edits the places; then the columns are gathered from them. A position beyond the data points into
 * `extra`, which contains unpacked bodies, as if the two were one buffer. */
#include "inline.h"
#include "property_names.h"

/* -- locating -------------------------------------------------------------------------------------------------------- */

void records_locate(const struct crc *crc, const uint8_t *data, size_t size, int64_t log_offset, bool check, struct place *places, size_t room, struct located *located)
{
    struct record record;
    *located = (struct located){.why = SCAN_MORE};
    while (located->bytes < size && located->count < room) {
        const uint8_t *at = data + located->bytes;
        int why = record_parse(at, size - located->bytes, &record);
        if (why == SCAN_RECORD && log_offset >= 0 && (uint64_t)record.log_offset != (uint64_t)log_offset + located->bytes)
            why = SCAN_DAMAGED;
        if (why != SCAN_RECORD) {
            located->why = why;
            return;
        }
        int64_t born = record.sys_flag & SYS_BORN_V6 ? 20 : 8;
        int64_t start = (int64_t)located->bytes;
        places[located->count++] = (struct place){
            .at = start,
            .size = record.size,
            .queue_id = record.queue_id,
            .queue_offset = record.queue_offset,
            .log_offset = record.log_offset,
            .sys_flag = record.sys_flag,
            .born_ms = get64(at + 40),
            .store_ms = record.store_ms,
            .body_at = start + (record.body.at - at),
            .body_bytes = (int64_t)record.body.size,
            .topic_at = start + (record.topic.at - at),
            .topic_bytes = (int64_t)record.topic.size,
            .properties_at = start + (record.properties.at - at),
            .properties_bytes = (int64_t)record.properties.size,
            .host_at = start + 56 + born,
            .damaged = check && !record_intact(crc, at, &record),
        };
        located->bytes += (size_t)record.size;
    }
}

bool records_plain(const struct place *places, size_t count, int64_t offset, int64_t next_offset)
{
    for (size_t n = 0; n < count; n++) {
        const struct place *place = places + n;
        /* The length of a topic has one byte in version 1, signed in Java. */
        bool narrow = place->topic_at - place->body_bytes - place->body_at == 1;
        if (place->damaged || place->sys_flag & (SYS_COMPRESSED | SYS_INNER_BATCH) || (narrow && place->topic_bytes > INT8_MAX) ||
            place->queue_offset < offset || place->queue_offset >= next_offset)
            return false;
        offset = place->queue_offset + 1; /* less than next_offset, so this cannot overflow */
    }
    return true;
}

/* -- a few properties of each ------------------------------------------------------------------------------------------ */

int record_values(const uint8_t *data, size_t size, const struct span *names, size_t count, struct valued *valued)
{
    struct record record;
    int why = record_parse(data, size, &record);
    if (why != SCAN_RECORD)
        return why;
    if (getu32(data + 4) == MAGIC_V1 && record.topic.size > TOPIC_BYTES_MAX)
        return SCAN_DAMAGED; /* its length is read as negative elsewhere */
    valued->size = (size_t)record.size;
    valued->queue_offset = record.queue_offset;
    valued->properties = record.properties;
    if (!count)
        return SCAN_RECORD;
    memset(valued->values, 0, sizeof valued->values);
    const uint8_t *start = record.properties.at, *end = start + record.properties.size, *middle = NULL;
    struct marks marks = marks_of(start, end, data + size);
    while (start < end) {
        const uint8_t *mark = next_mark(&marks);
        if (mark < end && *mark == 1) {
            if (!middle) /* more of them are part of the value */
                middle = mark;
            continue;
        }
        if (middle && mark > middle + 1) {
            struct span name = {start, (size_t)(middle - start)};
            for (size_t n = 0; n < count; n++)
                if (same_span(names[n], name)) {
                    valued->values[n] = (struct span){middle + 1, (size_t)(mark - middle - 1)};
                    break;
                }
        }
        start = mark + 1;
        middle = NULL;
    }
    return SCAN_RECORD;
}

/* -- gathering ------------------------------------------------------------------------------------------------------- */

/* The span of a place, false if it is not within the data or `extra`. */
static inline bool span_at(const struct sources *sources, int64_t at, int64_t size, struct span *span)
{
    int64_t first = (int64_t)sources->data.size, all = first + (int64_t)sources->extra.size;
    if (size < 0 || at < 0 || at > all || size > all - at || (at < first && size > first - at))
        return false;
    span->at = at < first ? sources->data.at + at : sources->extra.at + (at - first);
    span->size = (size_t)size;
    return true;
}

int64_t column_measure(const struct sources *sources, const struct place *places, size_t count, bool topics)
{
    int64_t total = 0;
    struct span span;
    for (size_t n = 0; n < count; n++) {
        const struct place *place = places + n;
        if (!span_at(sources, topics ? place->topic_at : place->body_at, topics ? place->topic_bytes : place->body_bytes, &span))
            return BAD_PLACE;
        total += (int64_t)span.size; /* each lies within the data, so this cannot overflow */
    }
    return total > INT32_MAX ? COLUMN_TOO_LARGE : total;
}

int column_write(const struct sources *sources, const struct place *places, size_t count, bool topics, int32_t *offsets, uint8_t *to)
{
    uint8_t *start = to;
    struct span span;
    for (size_t n = 0; n < count; n++) {
        const struct place *place = places + n;
        if (!span_at(sources, topics ? place->topic_at : place->body_at, topics ? place->topic_bytes : place->body_bytes, &span))
            return BAD_PLACE;
        if (topics && !utf8_valid(span.at, span.size))
            return BAD_PLACE;
        offsets[n] = (int32_t)(to - start);
        to = put_span(to, span);
    }
    offsets[count] = (int32_t)(to - start);
    return 0;
}

static int end_of(struct texts *texts)
{
    if (texts->data.size > INT32_MAX)
        return COLUMN_TOO_LARGE;
    if (bytes_reserve(&texts->offsets, sizeof(int32_t)))
        return NO_MEMORY;
    int32_t end = (int32_t)texts->data.size;
    memcpy(texts->offsets.data + texts->offsets.size, &end, sizeof end);
    texts->offsets.size += sizeof end;
    return 0;
}

/* Appends a text; memory for it and for its end offset is reserved. */
static inline void append_text(struct texts *texts, struct span span)
{
    put_span(texts->data.data + texts->data.size, span);
    texts->data.size += span.size;
    int32_t end = (int32_t)texts->data.size;
    memcpy(texts->offsets.data + texts->offsets.size, &end, sizeof end);
    texts->offsets.size += sizeof end;
}

static int add_bytes(struct texts *texts, struct span span)
{
    if (bytes_reserve(&texts->data, span.size))
        return NO_MEMORY;
    put_span(texts->data.data + texts->data.size, span);
    texts->data.size += span.size;
    return end_of(texts);
}

/* Appends a text, or null if it is missing (an empty value counts as missing). `row` is its index in the column. */
static int add_text(struct texts *texts, size_t row, struct span span)
{
    if (row % 8 == 0) {
        if (bytes_reserve(&texts->valid, 1))
            return NO_MEMORY;
        texts->valid.data[texts->valid.size++] = 0;
    }
    if (span.size)
        texts->valid.data[row / 8] |= (uint8_t)(1 << row % 8);
    else
        texts->nulls++;
    return add_bytes(texts, span);
}

/* The unique id, or address and log offset of the record in hexadecimal digits. */
static int add_id(struct texts *texts, const struct sources *sources, const struct place *place, struct span unique_key)
{
    if (unique_key.size)
        return add_bytes(texts, unique_key);
    struct span host;
    uint8_t number[8];
    int64_t host_bytes = place->sys_flag & SYS_STORE_V6 ? 20 : 8;
    if (!span_at(sources, place->host_at, host_bytes, &host))
        return BAD_PLACE;
    if (bytes_reserve(&texts->data, 56))
        return NO_MEMORY;
    put64(number, (uint64_t)place->log_offset);
    uint8_t *to = texts->data.data + texts->data.size;
    for (size_t at = 0; at < host.size + 8; at++) {
        uint8_t byte = at < host.size ? host.at[at] : number[at - host.size];
        *to++ = (uint8_t)"0123456789ABCDEF"[byte >> 4];
        *to++ = (uint8_t)"0123456789ABCDEF"[byte & 15];
    }
    texts->data.size += 2 * (host.size + 8);
    return end_of(texts);
}

/* The pairs of one record. `slots` finds a name without comparing it with all others: a record may have thousands. */
struct pairs {
    struct pair {
        struct span name, value;
    } *at;
    size_t count, room;
    uint16_t slots[1 << 15]; /* number of the pair plus one; cleared after each record that used them */
    bool hashed;
};
enum { HASH_FROM = 16, PAIR_BYTES_MIN = 4, PAIRS_MAX = UINT16_MAX / PAIR_BYTES_MIN + 1 };
_Static_assert(PAIRS_MAX <= 1 << 14, "the slots are never more than half full");

static inline uint32_t slot_of(struct span name) { return (hash_on(0, name.at, name.size) * 0x9E3779B1u) >> 17; }

static void hash_pair(struct pairs *pairs, size_t number)
{
    uint32_t slot = slot_of(pairs->at[number].name);
    while (pairs->slots[slot])
        slot = (slot + 1) & ((1 << 15) - 1);
    pairs->slots[slot] = (uint16_t)(number + 1);
}

static struct pair *find_pair(struct pairs *pairs, struct span name)
{
    if (!pairs->hashed) {
        for (size_t n = 0; n < pairs->count; n++)
            if (same_span(pairs->at[n].name, name))
                return &pairs->at[n];
        return NULL;
    }
    for (uint32_t slot = slot_of(name); pairs->slots[slot]; slot = (slot + 1) & ((1 << 15) - 1))
        if (same_span(pairs->at[pairs->slots[slot] - 1].name, name))
            return &pairs->at[pairs->slots[slot] - 1];
    return NULL;
}

/* As Java reads them: a pair with an empty half is ignored, a later value wins and takes the place of the first. */
static int read_pairs(struct span text, const uint8_t *readable, struct pairs *pairs)
{
    const uint8_t *start = text.at, *end = start + text.size, *middle = NULL;
    struct marks marks = marks_of(start, end, readable);
    if (pairs->hashed)
        memset(pairs->slots, 0, sizeof pairs->slots);
    pairs->hashed = false;
    pairs->count = 0;
    while (start < end) {
        const uint8_t *mark = next_mark(&marks);
        if (mark < end && *mark == 1) {
            if (!middle)
                middle = mark;
            continue;
        }
        if (middle && middle > start && mark > middle + 1) {
            struct pair new = {{start, (size_t)(middle - start)}, {middle + 1, (size_t)(mark - middle - 1)}};
            struct pair *known = find_pair(pairs, new.name);
            if (known) {
                known->value = new.value;
            } else {
                if (pairs->count >= PAIRS_MAX)
                    return BAD_PLACE; /* longer than the properties of any record */
                if (ARRAY_RESERVE(pairs->at, pairs->count, pairs->room))
                    return NO_MEMORY;
                pairs->at[pairs->count++] = new;
                if (pairs->hashed) {
                    hash_pair(pairs, pairs->count - 1);
                } else if (pairs->count == HASH_FROM) {
                    pairs->hashed = true;
                    for (size_t n = 0; n < pairs->count; n++)
                        hash_pair(pairs, n);
                }
            }
        }
        start = mark + 1;
        middle = NULL;
    }
    return 0;
}

/* The pairs of a record whose properties are `size` bytes long: no name or value is longer, so one check of the room is enough. */
static int add_pairs(struct maps *maps, const struct pairs *pairs, size_t size)
{
    struct texts *names = &maps->names, *values = &maps->values;
    size_t ends = pairs->count * sizeof(int32_t);
    if (bytes_reserve(&names->data, size) || bytes_reserve(&names->offsets, ends) || bytes_reserve(&values->data, size) ||
        bytes_reserve(&values->offsets, ends) || bytes_reserve(&maps->offsets, sizeof(int32_t)))
        return NO_MEMORY;
    for (size_t n = 0; n < pairs->count; n++) {
        if (is_private(pairs->at[n].name.at, pairs->at[n].name.size))
            continue;
        append_text(names, pairs->at[n].name);
        append_text(values, pairs->at[n].value);
        maps->count++;
    }
    if (names->data.size > INT32_MAX || values->data.size > INT32_MAX)
        return COLUMN_TOO_LARGE;
    memcpy(maps->offsets.data + maps->offsets.size, &maps->count, sizeof maps->count);
    maps->offsets.size += sizeof maps->count;
    return 0;
}

/* The three values that have columns of their own, without the other pairs: the same as `read_pairs` finds. */
struct named {
    struct span tags, keys, unique_key;
};

static inline void take_named(struct named *named, struct span name, struct span value)
{
    if (SPAN_IS(name, "TAGS"))
        named->tags = value;
    else if (SPAN_IS(name, "KEYS"))
        named->keys = value;
    else if (SPAN_IS(name, "UNIQ_KEY"))
        named->unique_key = value;
}

static void read_named(struct span text, const uint8_t *readable, struct named *named)
{
    const uint8_t *start = text.at, *end = start + text.size, *middle = NULL;
    struct marks marks = marks_of(start, end, readable);
    while (start < end) {
        const uint8_t *mark = next_mark(&marks);
        if (mark < end && *mark == 1) {
            if (!middle)
                middle = mark;
            continue;
        }
        if (middle && middle > start && mark > middle + 1)
            take_named(named, (struct span){start, (size_t)(middle - start)}, (struct span){middle + 1, (size_t)(mark - middle - 1)});
        start = mark + 1;
        middle = NULL;
    }
}

static int add_properties(const struct sources *sources, const struct place *place, size_t row, int wanted, struct pairs *pairs, struct bytes *repaired, struct property_columns *to)
{
    struct span text;
    struct named named = {0};
    if (!span_at(sources, place->properties_at, place->properties_bytes, &text))
        return BAD_PLACE;
    const uint8_t *readable = text.at + text.size;
    if (!utf8_valid(text.at, text.size)) { /* rare: as Java does it, broken pieces become replacement characters */
        repaired->size = 0;
        if (bytes_reserve(repaired, 3 * text.size))
            return NO_MEMORY;
        repaired->size = utf8_repair(text.at, text.size, repaired->data);
        text = (struct span){repaired->data, repaired->size};
        readable = text.at + text.size;
    }
    int result = 0;
    if (wanted & COLUMN_PROPERTIES || text.size / PAIR_BYTES_MIN >= PAIRS_MAX) {
        result = read_pairs(text, readable, pairs);
        for (size_t n = 0; n < pairs->count; n++)
            take_named(&named, pairs->at[n].name, pairs->at[n].value);
    } else {
        read_named(text, readable, &named);
    }
    if (!result && wanted & COLUMN_ID)
        result = add_id(&to->ids, sources, place, named.unique_key);
    if (!result && wanted & COLUMN_KEYS)
        result = add_text(&to->keys, row, named.keys);
    if (!result && wanted & COLUMN_TAGS)
        result = add_text(&to->tags, row, named.tags);
    if (!result && wanted & COLUMN_PROPERTIES)
        result = add_pairs(&to->maps, pairs, text.size);
    return result;
}

int columns_from_properties(const struct sources *sources, const struct place *places, size_t count, int wanted, struct property_columns *to)
{
    static const int32_t zero = 0;
    struct bytes repaired = {0};
    struct pairs *pairs = calloc(1, sizeof *pairs);
    int result = pairs ? 0 : NO_MEMORY;
    struct bytes *starts[] = {&to->ids.offsets, &to->keys.offsets, &to->tags.offsets, &to->maps.offsets, &to->maps.names.offsets, &to->maps.values.offsets};
    for (size_t n = 0; !result && n < sizeof starts / sizeof *starts; n++) {
        result = bytes_reserve(starts[n], (count + 1) * sizeof zero);
        if (!result) {
            memcpy(starts[n]->data, &zero, sizeof zero);
            starts[n]->size = sizeof zero;
        }
    }
    for (size_t n = 0; !result && n < count; n++)
        result = add_properties(sources, places + n, n, wanted, pairs, &repaired, to);
    bytes_free(&repaired);
    if (pairs)
        free(pairs->at);
    free(pairs);
    return result;
}

void columns_free(struct property_columns *columns)
{
    struct texts *all[] = {&columns->ids, &columns->keys, &columns->tags, &columns->maps.names, &columns->maps.values};
    for (size_t n = 0; n < sizeof all / sizeof *all; n++) {
        bytes_free(&all[n]->offsets);
        bytes_free(&all[n]->data);
        bytes_free(&all[n]->valid);
    }
    bytes_free(&columns->maps.offsets);
}
