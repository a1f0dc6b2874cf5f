/* Header scan: which frames are plain sends and pulls, and what they say. pure_scan.py states the rules. */
#include "inline.h"

/* -- fields ---------------------------------------------------------------------------------------------------------- */

/* Every name that a plain send or pull may carry in its ext fields. A send has its fields twice, under the letters of code 310
 * and spelled out for code 10, in the same order. */
enum field {
    F_A, F_B, F_C, F_D, F_E, F_F, F_G, F_H, F_I, F_J, F_K, F_L, F_M, F_N,
    F_LO, F_NS, F_NSD, F_BNAME, F_OWAY,
    F_LONG, F_TOPIC = F_LONG + F_B, F_QUEUE_ID = F_LONG + F_E, F_SYS_FLAG = F_LONG + F_F,
    F_GROUP = F_LONG + F_N + 1, F_QUEUE_OFFSET, F_COUNT, F_COMMIT_OFFSET, F_SUSPEND, F_SUB_VERSION, F_SUBSCRIPTION, F_EXPRESSION,
    F_MAX_BYTES, F_SOURCE,
    FIELD_COUNT,
    UNKNOWN = -1,
};

#define BIT(field) ((uint64_t)1 << (field))
#define IGNORED (BIT(F_LO) | BIT(F_NS) | BIT(F_NSD) | BIT(F_BNAME) | BIT(F_OWAY))
#define LETTERS (BIT(F_N + 1) - 1)
#define SEND_NEEDS (BIT(F_H + 1) - 1)
#define PULL_NEEDS (BIT(F_TOPIC) | BIT(F_QUEUE_ID) | BIT(F_SYS_FLAG) | BIT(F_GROUP) | BIT(F_QUEUE_OFFSET) | BIT(F_COUNT) | \
                    BIT(F_COMMIT_OFFSET) | BIT(F_SUSPEND) | BIT(F_SUB_VERSION))
#define PULL_KNOWS (PULL_NEEDS | BIT(F_SUBSCRIPTION) | BIT(F_EXPRESSION) | BIT(F_MAX_BYTES) | BIT(F_SOURCE) | IGNORED)

struct fields {
    uint64_t present; /* has a value */
    uint64_t named;   /* was named, perhaps in an object that a later one replaced */
    uint64_t always;  /* was named in each of these objects */
    struct span values[FIELD_COUNT];
};

#define IS(text, field)                       \
    if (memcmp(name, text, sizeof(text) - 1) == 0) \
        return field

static int field_of(const uint8_t *name, size_t size)
{
    switch (size) {
    case 1:
        return name[0] >= 'a' && name[0] <= 'n' ? name[0] - 'a' : UNKNOWN;
    case 2:
        IS("lo", F_LO);
        IS("ns", F_NS);
        break;
    case 3:
        IS("nsd", F_NSD);
        break;
    case 4:
        IS("oway", F_OWAY);
        IS("flag", F_LONG + F_H);
        break;
    case 5:
        IS("bname", F_BNAME);
        IS("topic", F_TOPIC);
        IS("batch", F_LONG + F_M);
        break;
    case 7:
        IS("queueId", F_QUEUE_ID);
        IS("sysFlag", F_SYS_FLAG);
        break;
    case 8:
        IS("unitMode", F_LONG + F_K);
        break;
    case 10:
        IS("properties", F_LONG + F_I);
        IS("brokerName", F_LONG + F_N);
        IS("maxMsgNums", F_COUNT);
        IS("subVersion", F_SUB_VERSION);
        break;
    case 11:
        IS("queueOffset", F_QUEUE_OFFSET);
        IS("maxMsgBytes", F_MAX_BYTES);
        break;
    case 12:
        IS("defaultTopic", F_LONG + F_C);
        IS("commitOffset", F_COMMIT_OFFSET);
        IS("subscription", F_SUBSCRIPTION);
        break;
    case 13:
        IS("producerGroup", F_LONG + F_A);
        IS("bornTimestamp", F_LONG + F_G);
        IS("consumerGroup", F_GROUP);
        IS("requestSource", F_SOURCE);
        break;
    case 14:
        IS("reconsumeTimes", F_LONG + F_J);
        IS("expressionType", F_EXPRESSION);
        break;
    case 17:
        IS("maxReconsumeTimes", F_LONG + F_L);
        break;
    case 20:
        IS("suspendTimeoutMillis", F_SUSPEND);
        break;
    case 21:
        IS("defaultTopicQueueNums", F_LONG + F_D);
        break;
    }
    return UNKNOWN;
}

/* -- JSON ------------------------------------------------------------------------------------------------------------ */

/* Functions that take something from the text return where it goes on, or NULL if it is not there.
 *
 * The text ends in '}', which scan_json makes sure of first. Nothing but the end of an object is taken by that byte, so whoever
 * goes byte by byte over anything else stays inside the text without looking for its end. */
struct json {
    const uint8_t *end, *readable;
    uint8_t *out; /* where unescaped strings go */
};

enum top { T_CODE, T_EXT, T_FLAG, T_LANGUAGE, T_OPAQUE, T_REMARK, T_SERIALIZE, T_VERSION };

static int top_of(const uint8_t *name, size_t size)
{
    switch (size) {
    case 4:
        IS("code", T_CODE);
        IS("flag", T_FLAG);
        break;
    case 6:
        IS("opaque", T_OPAQUE);
        IS("remark", T_REMARK);
        break;
    case 7:
        IS("version", T_VERSION);
        break;
    case 8:
        IS("language", T_LANGUAGE);
        break;
    case 9:
        IS("extFields", T_EXT);
        break;
    case 23:
        IS("serializeTypeCurrentRPC", T_SERIALIZE);
        break;
    }
    return UNKNOWN;
}

static inline bool is_space(uint8_t byte) { return byte == ' ' || byte == '\t' || byte == '\r' || byte == '\n'; }

static inline const uint8_t *skip_space(const uint8_t *at)
{
    if (unlikely(*at <= ' '))
        while (is_space(*at))
            at++;
    return at;
}

static inline const uint8_t *take(const uint8_t *at, uint8_t byte) { return likely(*at == byte) ? at + 1 : NULL; }

static inline int hex_digit(uint8_t byte)
{
    if (byte >= '0' && byte <= '9')
        return byte - '0';
    byte |= 0x20;
    return byte >= 'a' && byte <= 'f' ? byte - 'a' + 10 : -1;
}

/* Four hex digits at `at`, -1 if they are not. */
static inline int32_t hex_unit(const uint8_t *at)
{
    int a = hex_digit(at[0]), b = hex_digit(at[1]), c = hex_digit(at[2]), d = hex_digit(at[3]);
    return (a | b | c | d) < 0 ? -1 : a << 12 | b << 8 | c << 4 | d;
}

static uint8_t *put_character(uint8_t *to, uint32_t character)
{
    if (character < 0x80) {
        *to++ = (uint8_t)character;
    } else if (character < 0x800) {
        *to++ = (uint8_t)(0xC0 | character >> 6);
        *to++ = (uint8_t)(0x80 | (character & 0x3F));
    } else if (character < 0x10000) {
        *to++ = (uint8_t)(0xE0 | character >> 12);
        *to++ = (uint8_t)(0x80 | (character >> 6 & 0x3F));
        *to++ = (uint8_t)(0x80 | (character & 0x3F));
    } else {
        *to++ = (uint8_t)(0xF0 | character >> 18);
        *to++ = (uint8_t)(0x80 | (character >> 12 & 0x3F));
        *to++ = (uint8_t)(0x80 | (character >> 6 & 0x3F));
        *to++ = (uint8_t)(0x80 | (character & 0x3F));
    }
    return to;
}

/* The escape whose backslash is at `at`: one past it, or NULL. */
static const uint8_t *unescape(const uint8_t *at, const uint8_t *end, uint8_t **to)
{
    if (end - at < 2)
        return NULL;
    uint8_t plain;
    switch (at[1]) {
    case '"': case '\\': case '/':
        plain = at[1];
        break;
    case 'b':
        plain = '\b';
        break;
    case 'f':
        plain = '\f';
        break;
    case 'n':
        plain = '\n';
        break;
    case 'r':
        plain = '\r';
        break;
    case 't':
        plain = '\t';
        break;
    case 'u': {
        if (end - at < 6)
            return NULL;
        int32_t unit = hex_unit(at + 2);
        at += 6;
        if (unit < 0 || (unit >= 0xDC00 && unit <= 0xDFFF))
            return NULL;
        uint32_t character = (uint32_t)unit;
        if (unit >= 0xD800 && unit <= 0xDBFF) {
            if (end - at < 6 || at[0] != '\\' || at[1] != 'u')
                return NULL;
            int32_t low = hex_unit(at + 2);
            at += 6;
            if (low < 0xDC00 || low > 0xDFFF)
                return NULL;
            character = 0x10000 + ((character - 0xD800) << 10) + ((uint32_t)low - 0xDC00);
        }
        *to = put_character(*to, character);
        return at;
    }
    default:
        return NULL;
    }
    *(*to)++ = plain;
    return at + 2;
}

/* The rest of a string that holds more than plain ASCII, from `at` on. */
static __attribute__((noinline)) const uint8_t *take_odd_string(struct json *json, const uint8_t *start, const uint8_t *at, struct span *string)
{
    uint8_t *out = put_bytes(json->out, start, (size_t)(at - start));
    const uint8_t *end = json->end;
    bool ascii = true;
    while (at < end && *at != '"') {
        if (likely(*at == '\\')) {
            /* The separators of properties come as \u0001 and \u0002. */
            if (likely(end - at >= 6 && raw32(at + 1) == raw32((const uint8_t *)"u000") && (at[5] == '1' || at[5] == '2'))) {
                *out++ = (uint8_t)(at[5] - '0');
                at += 6;
            } else {
                at = unescape(at, end, &out);
                if (!at)
                    return NULL;
            }
        } else if (*at >= 0x80) {
            *out++ = *at++;
            ascii = false;
        } else {
            return NULL; /* a control character */
        }
        at = string_copy(at, end, &out);
    }
    /* A broken character stays broken whatever comes next to it: escapes are ASCII in the raw text. */
    if (at >= end || (!ascii && !utf8_valid(start, (size_t)(at - start))))
        return NULL;
    memset(out, 0, 16); /* whoever searches the string loads 16 bytes at a time */
    *string = (struct span){json->out, (size_t)(out - json->out)};
    json->out = out;
    return at + 1;
}

/* The string whose opening quote has been taken. */
static inline const uint8_t *take_string(struct json *json, const uint8_t *start, struct span *string)
{
    const uint8_t *stop = string_stop(start, json->end, json->readable);
    if (unlikely(stop >= json->end))
        return NULL;
    if (unlikely(*stop != '"'))
        return take_odd_string(json, start, stop, string);
    *string = (struct span){start, (size_t)(stop - start)};
    return stop + 1;
}

/* A name, its colon, and the space around it. */
static const uint8_t *take_name(struct json *json, const uint8_t *at, struct span *name)
{
    at = take(at, '"');
    if (!at || !(at = take_string(json, at, name)))
        return NULL;
    at = take(skip_space(at), ':');
    return at ? skip_space(at) : NULL;
}

/* A whole number; one that is out of range comes as INT64_MAX and may yet be replaced by a later one. */
static inline const uint8_t *take_number(const uint8_t *start, int64_t *number)
{
    enum { TEXT_MAX = 4300, DIGITS_MAX = 18 }; /* msgspec reads no longer texts; 18 digits fit 64 bits */
    bool negative = *start == '-';
    const uint8_t *digits = start + negative, *at = digits;
    uint64_t value = 0;
    uint8_t digit;
    while ((digit = (uint8_t)(*at - '0')) <= 9) {
        value = value * 10 + digit;
        at++;
    }
    if (unlikely(at == digits || (*digits == '0' && at - digits > 1) || at - start > TEXT_MAX))
        return NULL;
    *number = unlikely(at - digits > DIGITS_MAX) ? INT64_MAX : negative ? -(int64_t)value : (int64_t)value;
    return at;
}

/* Which letter it is if the text goes on with  "a":"  and the like, which is what most ext fields look like; else UNKNOWN. The
 * bytes looked at may lie behind the text, but then its closing brace is among them, and that fits nowhere. */
static inline int letter_field(const uint8_t *at, const uint8_t *readable)
{
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    const uint64_t shape = '"' | (uint64_t)'"' << 16 | (uint64_t)':' << 24 | (uint64_t)'"' << 32, fixed = 0xFFFFFF00FFu;
    if (unlikely(readable - at < 8))
        return UNKNOWN;
    uint64_t word = raw64(at);
    uint8_t letter = (uint8_t)((uint8_t)(word >> 8) - 'a');
    return likely(((word ^ shape) & fixed) == 0 && letter <= F_N) ? letter : UNKNOWN;
#else
    (void)at, (void)readable;
    return UNKNOWN;
#endif
}

static inline const uint8_t *take_ext_fields(struct json *json, const uint8_t *at, struct fields *fields)
{
    uint64_t present = 0;
    if (!(at = take(at, '{')))
        return NULL;
    at = skip_space(at);
    if (unlikely(*at == '}')) {
        fields->present = 0;
        return at + 1;
    }
    for (;;) {
        int field = letter_field(at, json->readable);
        if (likely(field != UNKNOWN)) {
            at += 5;
        } else {
            struct span name;
            if (!(at = take_name(json, at, &name)) || (field = field_of(name.at, name.size)) == UNKNOWN || !(at = take(at, '"')))
                return NULL;
        }
        if (unlikely(!(at = take_string(json, at, &fields->values[field]))))
            return NULL;
        present |= BIT(field);
        at = skip_space(at);
        if (*at != ',')
            break;
        at = skip_space(at + 1);
    }
    fields->present = present;
    fields->named |= present;
    return take(at, '}');
}

/* The name that the text goes on with and where its value begins. Names come as Java writes them, or else in some other way. */
static inline const uint8_t *take_top(struct json *json, const uint8_t *at, int *top)
{
#define STARTS(text, name)                             \
    if (memcmp(at, text, sizeof(text) - 1) == 0) {     \
        *top = name;                                   \
        return skip_space(at + sizeof(text) - 1);      \
    }
    if (likely(json->readable - at >= 32)) /* as above: none of these names can reach behind the text */
        switch (at[1]) {
        case 'c':
            STARTS("\"code\":", T_CODE)
            break;
        case 'e':
            STARTS("\"extFields\":", T_EXT)
            break;
        case 'f':
            STARTS("\"flag\":", T_FLAG)
            break;
        case 'l':
            STARTS("\"language\":", T_LANGUAGE)
            break;
        case 'o':
            STARTS("\"opaque\":", T_OPAQUE)
            break;
        case 's':
            STARTS("\"serializeTypeCurrentRPC\":", T_SERIALIZE)
            break;
        case 'v':
            STARTS("\"version\":", T_VERSION)
            break;
        }
#undef STARTS
    struct span name;
    at = take_name(json, at, &name);
    if (at)
        *top = top_of(name.at, name.size);
    return at;
}

static bool scan_json(const uint8_t *header, size_t size, const uint8_t *readable, uint8_t *scratch, struct plain *plain, struct fields *fields)
{
    const uint8_t *at = header, *end = header + size;
    while (end > at && is_space(end[-1]))
        end--;
    if (end == at || end[-1] != '}')
        return false;
    struct json json = {end, readable, scratch};
    int64_t numbers[T_VERSION + 1] = {[T_CODE] = -1, [T_FLAG] = -1, [T_OPAQUE] = INT64_MAX, [T_VERSION] = 0};
    bool ext = false;
    struct span ignored;
    if (!(at = take(skip_space(at), '{')))
        return false;
    for (;;) {
        int top;
        if (!(at = take_top(&json, skip_space(at), &top)))
            return false;
        switch (top) {
        case T_CODE: case T_FLAG: case T_OPAQUE: case T_VERSION:
            at = take_number(at, &numbers[top]);
            break;
        case T_EXT:
            at = take_ext_fields(&json, at, fields);
            fields->always &= fields->present;
            ext = true;
            if (at == end)
                return false; /* that was the last brace: ours is missing */
            break;
        case T_LANGUAGE: case T_REMARK: case T_SERIALIZE:
            if (*at == '"')
                at = take_string(&json, at + 1, &ignored);
            else
                at = end - at > 4 && memcmp(at, "null", 4) == 0 ? at + 4 : NULL;
            break;
        default:
            return false;
        }
        if (unlikely(!at))
            return false;
        at = skip_space(at);
        if (*at != ',')
            break;
        at++;
    }
    if (*at != '}' || at + 1 != end || !ext)
        return false;
    if (numbers[T_CODE] < 0 || numbers[T_CODE] > INT32_MAX || (numbers[T_FLAG] != 0 && numbers[T_FLAG] != 2))
        return false;
    if (numbers[T_OPAQUE] < INT32_MIN || numbers[T_OPAQUE] > INT32_MAX || numbers[T_VERSION] < INT32_MIN || numbers[T_VERSION] > INT32_MAX)
        return false;
    plain->code = (int32_t)numbers[T_CODE];
    plain->flag = (int32_t)numbers[T_FLAG];
    plain->opaque = (int32_t)numbers[T_OPAQUE];
    return true;
}

/* -- binary ---------------------------------------------------------------------------------------------------------- */

static bool scan_binary(const uint8_t *header, size_t size, struct plain *plain, struct fields *fields)
{
    if (size < 21 || get32(header + 13) != 0 || get32(header + 17) < 0 || (size_t)get32(header + 17) != size - 21)
        return false;
    plain->code = (int16_t)get16(header);
    plain->opaque = get32(header + 5);
    plain->flag = get32(header + 9);
    if (plain->flag != 0 && plain->flag != 2)
        return false;
    const uint8_t *at = header + 21, *end = header + size;
    while (at < end) {
        if (end - at < 2)
            return false;
        int name_size = (int16_t)get16(at);
        at += 2;
        if (name_size <= 0 || end - at < name_size + 4)
            return false;
        int field = field_of(at, (size_t)name_size);
        at += name_size;
        int32_t value_size = get32(at);
        at += 4;
        if (field == UNKNOWN || value_size <= 0 || end - at < value_size || !utf8_valid(at, (size_t)value_size))
            return false;
        fields->values[field] = (struct span){at, (size_t)value_size};
        fields->present |= BIT(field);
        fields->named |= BIT(field);
        at += value_size;
    }
    fields->always = fields->present;
    return true;
}

/* -- what the fields mean -------------------------------------------------------------------------------------------- */

/* A minus and up to `digits_max` (at most 18) digits. */
static inline bool read_number(struct span text, size_t digits_max, int64_t *number)
{
    const uint8_t *at = text.at, *end = at + text.size;
    bool negative = at < end && *at == '-';
    at += negative;
    if (at == end || (size_t)(end - at) > digits_max)
        return false;
    int64_t value = 0;
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    if (end - at >= 8) {
        /* Eight digits at once: neighbours are joined to numbers of two, four and eight digits. */
        uint64_t word = raw64(at) ^ 0x3030303030303030u;
        if ((word | (word + 0x0606060606060606u)) & 0xF0F0F0F0F0F0F0F0u)
            return false;
        word = (word * 10 + (word >> 8)) & 0x00FF00FF00FF00FFu;
        word = (word * 100 + (word >> 16)) & 0x0000FFFF0000FFFFu;
        value = (int64_t)((word * 10000 + (word >> 32)) & 0xFFFFFFFFu);
        at += 8;
    }
#endif
    for (; at < end; at++) {
        uint8_t digit = (uint8_t)(*at - '0');
        if (digit > 9)
            return false;
        value = value * 10 + digit;
    }
    *number = negative ? -value : value;
    return true;
}

static inline bool read_long(struct span text, int64_t *number) { return read_number(text, 18, number); }

static inline bool read_int(struct span text, int32_t *number)
{
    int64_t value;
    if (!read_number(text, 10, &value) || value < INT32_MIN || value > INT32_MAX)
        return false;
    *number = (int32_t)value;
    return true;
}

static inline bool is_boolean(struct span text) { return SPAN_IS(text, "true") || SPAN_IS(text, "false"); }

/* ASCII that can be printed and needs no escape. */
static bool printable_key(struct span key, const uint8_t *readable)
{
    const uint8_t *end = key.at + key.size;
    return key.size && string_stop(key.at, end, readable) == end && !memchr(key.at, 0x7F, key.size);
}

#define HAS(field) (fields->present & BIT(field))

/* A text lies in the frame as it came or, unescaped, in the scratch buffer, where 16 bytes more can always be read. */
static inline const uint8_t *readable_behind(struct span text, const uint8_t *frame, const uint8_t *readable)
{
    bool in_frame = (uintptr_t)text.at >= (uintptr_t)frame && (uintptr_t)text.at < (uintptr_t)readable;
    return in_frame ? readable : text.at + text.size + (text.size ? 16 : 0);
}

static bool read_send(const struct fields *fields, int32_t code, int base, const uint8_t *frame, const uint8_t *readable,
                      struct plain_send *send)
{
    const struct span *value = fields->values + base;
    uint64_t present = fields->present >> base;
    int32_t default_queues, reconsume_max;
    if (!read_int(value[F_D], &default_queues) || !read_int(value[F_E], &send->queue_id) || !read_int(value[F_F], &send->sys_flag) ||
        !read_long(value[F_G], &send->born_ms) || !read_int(value[F_H], &send->flag))
        return false;
    send->reconsume_times = 0;
    if (present & BIT(F_J) && !read_int(value[F_J], &send->reconsume_times))
        return false;
    if (present & BIT(F_L) && !read_int(value[F_L], &reconsume_max))
        return false;
    if (send->queue_id < 0 || send->sys_flag & ~SYS_PLAIN)
        return false;
    if (present & BIT(F_K) && !is_boolean(value[F_K]))
        return false;
    if (code == CODE_SEND_BATCH ? !(present & BIT(F_M) && SPAN_IS(value[F_M], "true")) : (present & BIT(F_M) && !SPAN_IS(value[F_M], "false")))
        return false;
    send->topic = value[F_B];
    send->properties = present & BIT(F_I) ? value[F_I] : (struct span){(const uint8_t *)"", 0};
    readable = readable_behind(send->properties, frame, readable);
    return plain_properties(send->properties, readable, &send->unique_key) &&
           (code == CODE_SEND_BATCH || printable_key(send->unique_key, readable));
}

static bool read_pull(const struct fields *fields, int32_t code, int32_t flag, struct plain_pull *pull)
{
    const struct span *value = fields->values;
    int32_t count_max, bytes_max, source;
    int64_t sys_flag;
    if (!read_int(value[F_QUEUE_ID], &pull->queue_id) || !read_long(value[F_QUEUE_OFFSET], &pull->offset) ||
        !read_int(value[F_COUNT], &count_max) || !read_number(value[F_SYS_FLAG], 10, &sys_flag) ||
        !read_long(value[F_COMMIT_OFFSET], &pull->commit_offset) || !read_long(value[F_SUSPEND], &pull->suspend_ms) ||
        !read_long(value[F_SUB_VERSION], &pull->version))
        return false;
    if (HAS(F_MAX_BYTES) && (!read_int(value[F_MAX_BYTES], &bytes_max) || bytes_max < 0))
        return false;
    if (HAS(F_SOURCE) && (!read_int(value[F_SOURCE], &source) || source != -1))
        return false;
    if (HAS(F_EXPRESSION) && !SPAN_IS(value[F_EXPRESSION], "TAG"))
        return false;
    if (pull->queue_id < 0 || count_max <= 0 || pull->offset < 0 || pull->suspend_ms < 0 || flag & 2)
        return false;
    if ((sys_flag & ~(int64_t)(PULL_COMMIT | PULL_SUSPEND | PULL_SUBSCRIPTION)) != (code == CODE_LITE_PULL ? PULL_LITE : 0))
        return false;
    pull->explicit_ = sys_flag & PULL_SUBSCRIPTION;
    if (pull->explicit_ && !(HAS(F_SUBSCRIPTION) && SPAN_IS(value[F_SUBSCRIPTION], "*")))
        return false;
    pull->group = value[F_GROUP];
    pull->topic = value[F_TOPIC];
    pull->count_max = count_max;
    pull->sys_flag = (int32_t)sys_flag;
    return true;
}

bool scan_header(const uint8_t *header, size_t size, const uint8_t *readable, bool binary, uint8_t *scratch, struct plain *plain)
{
    struct fields fields;
    fields.present = fields.named = 0;
    fields.always = ~(uint64_t)0;
    if (binary ? !scan_binary(header, size, plain, &fields) : !scan_json(header, size, readable, scratch, plain, &fields))
        return false;
    switch (plain->code) {
    case CODE_SEND_V2: case CODE_SEND_BATCH:
        return !(fields.named & ~(LETTERS | IGNORED)) && (fields.always & SEND_NEEDS) == SEND_NEEDS &&
               read_send(&fields, plain->code, F_A, header, readable, &plain->send);
    case CODE_SEND:
        return !(fields.named & ~(LETTERS << F_LONG | IGNORED)) && (fields.always >> F_LONG & SEND_NEEDS) == SEND_NEEDS &&
               read_send(&fields, plain->code, F_LONG, header, readable, &plain->send);
    case CODE_PULL: case CODE_LITE_PULL:
        return !(fields.named & ~PULL_KNOWS) && (fields.always & PULL_NEEDS) == PULL_NEEDS &&
               read_pull(&fields, plain->code, plain->flag, &plain->pull);
    default:
        return false;
    }
}

/* -- properties ------------------------------------------------------------------------------------------------------ */

/* Names that make a message more than plain: layout.SPECIAL_PROPERTIES. */
static bool is_special(const uint8_t *name, size_t size)
{
    switch (size) {
    case 5:
        IS("DELAY", true);
        break;
    case 6:
        IS("POP_CK", true);
        break;
    case 7:
        IS("CLUSTER", true);
        break;
    case 8:
        IS("REAL_QID", true);
        IS("TRAN_MSG", true);
        IS("TRACE_ON", true);
        IS("__CRC32#", true);
        IS("__BATCH#", true);
        break;
    case 9:
        IS("INNER_NUM", true);
        break;
    case 10:
        IS("REAL_TOPIC", true);
        IS("MSG_REGION", true);
        IS("INNER_BASE", true);
        break;
    case 12:
        IS("TIMER_OUT_MS", true);
        break;
    case 14:
        IS("RECONSUME_TIME", true);
        IS("TIMER_DELAY_MS", true);
        break;
    case 15:
        IS("TIMER_DELAY_SEC", true);
        break;
    case 16:
        IS("TIMER_DELIVER_MS", true);
        IS("TIMER_ENQUEUE_MS", true);
        IS("TIMER_DEQUEUE_MS", true);
        IS("TIMER_ROLL_TIMES", true);
        break;
    case 17:
        IS("TIMER_DEL_UNIQKEY", true);
        IS("TIMER_DELAY_LEVEL", true);
        break;
    case 19:
        IS("MAX_RECONSUME_TIMES", true);
        break;
    case 20:
        IS("INNER_MULTI_DISPATCH", true);
        break;
    case 24:
        IS("INNER_MULTI_QUEUE_OFFSET", true);
        break;
    case 26:
        IS("TRAN_PREPARED_QUEUE_OFFSET", true);
        break;
    }
    return false;
}

bool plain_properties(struct span text, const uint8_t *readable, struct span *unique_key)
{
    const uint8_t *start = text.at, *end = start + text.size, *middle = NULL;
    struct marks marks = marks_of(start, end, readable);
    *unique_key = (struct span){(const uint8_t *)"", 0};
    while (start < end) {
        const uint8_t *mark = next_mark(&marks);
        if (mark < end && *mark == 1) {
            if (!middle)
                middle = mark;
            continue;
        }
        /* A pair ends here. */
        if (!middle || middle == start || mark == middle + 1)
            return false;
        struct span name = {start, (size_t)(middle - start)}, value = {middle + 1, (size_t)(mark - middle - 1)};
        if (is_special(name.at, name.size))
            return false;
        if (SPAN_IS(name, "UNIQ_KEY"))
            *unique_key = value;
        else if (SPAN_IS(name, "WAIT") && !SPAN_IS(value, "true"))
            return false;
        start = mark + 1;
        middle = NULL;
    }
    return true;
}
