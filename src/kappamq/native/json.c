/* JSON headers, in one pass over the text. pure_scan.py states the rules. */
#include "fields.h"

/* Functions that consume a part of the text return where it continues, or NULL if the part is not there.
 *
 * The text ends in '}', which scan_json checks first. Only the end of an object consumes that byte, so a function that reads
 * anything else byte by byte stays inside the text without checking for its end. */
struct json {
    const uint8_t *end, *readable;
    uint8_t *out; /* where unescaped strings are written */
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

/* Four hex digits at `at`, -1 if they are not four. */
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

/* Decodes the escape whose backslash is at `at`: one past it, or NULL. */
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

/* The rest of a string that is not plain ASCII, from `at` on. */
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
    /* A broken character stays broken whatever follows it: escapes are ASCII in the raw text. */
    if (at >= end || (!ascii && !utf8_valid(start, (size_t)(at - start))))
        return NULL;
    memset(out, 0, 16); /* searching the string loads 16 bytes at a time */
    *string = (struct span){json->out, (size_t)(out - json->out)};
    json->out = out;
    return at + 1;
}

/* The string whose opening quote has been consumed. */
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

/* A name and its colon, with white space around them. */
static const uint8_t *take_name(struct json *json, const uint8_t *at, struct span *name)
{
    at = take(at, '"');
    if (!at || !(at = take_string(json, at, name)))
        return NULL;
    at = take(skip_space(at), ':');
    return at ? skip_space(at) : NULL;
}

/* A whole number; one that is out of range becomes INT64_MAX and may still be replaced by a later one. */
static inline const uint8_t *take_number(const uint8_t *start, int64_t *number)
{
    enum { TEXT_MAX = 4300, DIGITS_MAX = 18 }; /* msgspec accepts no longer texts; 18 digits fit 64 bits */
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

/* The letter of the next field if the text continues with  "a":"  and the like, as most ext fields do; else UNKNOWN. The bytes
 * examined may be behind the text, but then its closing brace is among them, which does not match. */
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

/* Fields that clients in other languages write as JSON numbers, and not as strings. */
#define SEND_NUMBERS (BIT(F_D) | BIT(F_E) | BIT(F_F) | BIT(F_G) | BIT(F_H) | BIT(F_J) | BIT(F_L))
#define NUMBERS (SEND_NUMBERS | SEND_NUMBERS << F_LONG | BIT(F_QUEUE_OFFSET) | BIT(F_COUNT) | BIT(F_COMMIT_OFFSET) | \
                 BIT(F_SUSPEND) | BIT(F_SUB_VERSION) | BIT(F_MAX_BYTES) | BIT(F_SOURCE) | BIT(F_HALF_OFFSET) | BIT(F_LOG_OFFSET) | \
                 BIT(F_DECISION))

/* The value of an ext field: a string, or a number where one is expected. */
static inline const uint8_t *take_value(struct json *json, const uint8_t *at, int field, struct span *value)
{
    int64_t number;
    if (likely(*at == '"'))
        return take_string(json, at + 1, value);
    const uint8_t *end = NUMBERS & BIT(field) ? take_number(at, &number) : NULL;
    if (end)
        *value = (struct span){at, (size_t)(end - at)};
    return end;
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
            at = take_string(json, at + 5, &fields->values[field]);
        } else {
            struct span name;
            if (!(at = take_name(json, at, &name)) || (field = field_of(name.at, name.size)) == UNKNOWN)
                return NULL;
            at = take_value(json, at, field, &fields->values[field]);
        }
        if (unlikely(!at))
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

/* The next name and where its value begins. Names as Java writes them first, other spellings after that. */
static inline const uint8_t *take_top(struct json *json, const uint8_t *at, int *top)
{
#define STARTS(text, name)                             \
    if (memcmp(at, text, sizeof(text) - 1) == 0) {     \
        *top = name;                                   \
        return skip_space(at + sizeof(text) - 1);      \
    }
    if (likely(json->readable - at >= 32)) /* as above: none of these names can extend beyond the text */
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

bool scan_json(const uint8_t *header, size_t size, const uint8_t *readable, uint8_t *scratch, struct plain *plain, struct fields *fields)
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
