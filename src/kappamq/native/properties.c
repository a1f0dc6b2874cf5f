/* Properties of a message: whether there is anything about them that the broker has to think about. */
#include "fields.h"

/* Names that make a message more than plain: layout.SPECIAL_PROPERTIES. */
static bool is_special(const uint8_t *name, size_t size)
{
    switch (size) {
    case 5:
        IS("DELAY", true);
        break;
    case 6:
        IS("POP_CK", true);
        IS("__END#", true);
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
        IS("__HALF_MS#", true);
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
            if (middle) /* a value should hold no separator: Python looks what it may be good for */
                return false;
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
