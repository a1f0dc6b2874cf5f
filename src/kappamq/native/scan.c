/* Header scan: which frames are plain sends, pulls and ends of transactions, and their fields. pure_scan.py states the rules. */
#include "fields.h"

/* Signed requests (clients with credentials, and the C++ client always) are accepted: signatures are not checked yet. */
#define IGNORED (BIT(F_LO) | BIT(F_NS) | BIT(F_NSD) | BIT(F_BNAME) | BIT(F_OWAY) | BIT(F_ACCESS_KEY) | BIT(F_CHANNEL) | \
                 BIT(F_SECURITY_TOKEN) | BIT(F_SIGNATURE))
#define LETTERS (BIT(F_N + 1) - 1)
#define SEND_NEEDS (BIT(F_H + 1) - 1)
#define PULL_NEEDS (BIT(F_TOPIC) | BIT(F_QUEUE_ID) | BIT(F_SYS_FLAG) | BIT(F_GROUP) | BIT(F_QUEUE_OFFSET) | BIT(F_COUNT) | \
                    BIT(F_COMMIT_OFFSET) | BIT(F_SUSPEND) | BIT(F_SUB_VERSION))
#define END_NEEDS (BIT(F_LONG + F_A) | BIT(F_HALF_OFFSET) | BIT(F_LOG_OFFSET) | BIT(F_DECISION) | BIT(F_MESSAGE_ID))
#define END_KNOWS (END_NEEDS | BIT(F_TOPIC) | BIT(F_FROM_CHECK) | BIT(F_TRANSACTION_ID) | IGNORED)
#define PULL_KNOWS (PULL_NEEDS | BIT(F_SUBSCRIPTION) | BIT(F_EXPRESSION) | BIT(F_MAX_BYTES) | BIT(F_SOURCE) | IGNORED)

int field_of(const uint8_t *name, size_t size)
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
        IS("msgId", F_MESSAGE_ID);
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
    case 9:
        IS("AccessKey", F_ACCESS_KEY);
        IS("Signature", F_SIGNATURE);
        break;
    case 10:
        IS("OnsChannel", F_CHANNEL);
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
        IS("SecurityToken", F_SECURITY_TOKEN);
        IS("transactionId", F_TRANSACTION_ID);
        break;
    case 14:
        IS("reconsumeTimes", F_LONG + F_J);
        IS("expressionType", F_EXPRESSION);
        break;
    case 15:
        IS("commitLogOffset", F_LOG_OFFSET);
        break;
    case 16:
        IS("commitOrRollback", F_DECISION);
        break;
    case 17:
        IS("maxReconsumeTimes", F_LONG + F_L);
        break;
    case 20:
        IS("suspendTimeoutMillis", F_SUSPEND);
        IS("tranStateTableOffset", F_HALF_OFFSET);
        IS("fromTransactionCheck", F_FROM_CHECK);
        break;
    case 21:
        IS("defaultTopicQueueNums", F_LONG + F_D);
        break;
    }
    return UNKNOWN;
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

/* The C++ client writes 0 and 1. */
static inline bool is_false(struct span text) { return SPAN_IS(text, "false") || SPAN_IS(text, "0"); }
static inline bool is_boolean(struct span text) { return SPAN_IS(text, "true") || SPAN_IS(text, "1") || is_false(text); }

/* Printable ASCII that needs no escape. */
static bool printable_key(struct span key, const uint8_t *readable)
{
    const uint8_t *end = key.at + key.size;
    return key.size && string_stop(key.at, end, readable) == end && !memchr(key.at, 0x7F, key.size);
}

#define HAS(field) (fields->present & BIT(field))

/* A text is in the frame as it came or, unescaped, in the scratch buffer, where 16 bytes more can always be read. */
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
    if (send->queue_id < 0 || send->sys_flag & ~(SYS_PLAIN | SYS_PREPARED))
        return false;
    if (present & BIT(F_K) && !is_boolean(value[F_K]))
        return false;
    if (code == CODE_SEND_BATCH ? !(present & BIT(F_M) && SPAN_IS(value[F_M], "true")) : (present & BIT(F_M) && !is_false(value[F_M])))
        return false;
    send->topic = value[F_B];
    send->properties = present & BIT(F_I) ? value[F_I] : (struct span){(const uint8_t *)"", 0};
    readable = readable_behind(send->properties, frame, readable);
    send->waiting.kind = WAITS_NOT;
    if (!plain_properties(send->properties, readable, &send->unique_key) &&
        (code == CODE_SEND_BATCH || !waiting_properties(send->properties, readable, &send->unique_key, &send->waiting)))
        return false;
    if (send->sys_flag & SYS_PREPARED && send->waiting.kind != WAITS_FOR_DECISION)
        return false;
    return code == CODE_SEND_BATCH || printable_key(send->unique_key, readable);
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

static bool read_end(const struct fields *fields, struct plain_end *end)
{
    const struct span *value = fields->values;
    if (!read_long(value[F_HALF_OFFSET], &end->queue_offset) || !read_long(value[F_LOG_OFFSET], &end->log_offset) ||
        !read_int(value[F_DECISION], &end->decision))
        return false;
    if (HAS(F_FROM_CHECK) && !is_boolean(value[F_FROM_CHECK]))
        return false;
    end->group = value[F_LONG + F_A];
    end->message_id = value[F_MESSAGE_ID];
    end->transaction_id = HAS(F_TRANSACTION_ID) ? value[F_TRANSACTION_ID] : (struct span){(const uint8_t *)"", 0};
    return end->decision == SYS_COMMIT || end->decision == SYS_ROLLBACK;
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
    case CODE_END_TRANSACTION:
        return !(fields.named & ~END_KNOWS) && (fields.always & END_NEEDS) == END_NEEDS && read_end(&fields, &plain->end);
    default:
        return false;
    }
}
