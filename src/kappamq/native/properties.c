/* Properties of a message: whether any of them needs the broker's attention. */
#include "fields.h"
#include "property_names.h"

bool plain_properties(struct span text, const uint8_t *readable, struct span *unique_key)
{
    const uint8_t *start = text.at, *end = start + text.size, *middle = NULL;
    struct marks marks = marks_of(start, end, readable);
    *unique_key = (struct span){(const uint8_t *)"", 0};
    while (start < end) {
        const uint8_t *mark = next_mark(&marks);
        if (mark < end && *mark == 1) {
            if (middle) /* a value should contain no separator: leave it to Python */
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

/* The properties for which a message waits. */
static int wish_of(struct span name)
{
    switch (name.size) {
    case 5:
        return SPAN_IS(name, "DELAY") ? WAITS_LEVEL : WAITS_NOT;
    case 8:
        return SPAN_IS(name, "TRAN_MSG") ? WAITS_FOR_DECISION : WAITS_NOT;
    case 14:
        return SPAN_IS(name, "TIMER_DELAY_MS") ? WAITS_MS : WAITS_NOT;
    case 15:
        return SPAN_IS(name, "TIMER_DELAY_SEC") ? WAITS_SECONDS : WAITS_NOT;
    case 16:
        return SPAN_IS(name, "TIMER_DELIVER_MS") ? WAITS_UNTIL : WAITS_NOT;
    default:
        return WAITS_NOT;
    }
}

/* Properties that the broker itself writes into a half, or acts on. */
static bool is_of_half(struct span name)
{
    return SPAN_IS(name, "CHECK_IMMUNITY_TIME_IN_SECONDS") || SPAN_IS(name, "TRANSACTION_CHECK_TIMES") || SPAN_IS(name, "__transactionId__");
}

bool waiting_properties(struct span text, const uint8_t *readable, struct span *unique_key, struct wish *wish)
{
    struct span names[WAITING_PAIRS_MAX];
    size_t count = 0;
    const uint8_t *start = text.at, *end = start + text.size, *middle = NULL;
    if (text.size > WAITING_BYTES_MAX)
        return false;
    struct marks marks = marks_of(start, end, readable);
    *wish = (struct wish){WAITS_NOT, {0}, {0}};
    *unique_key = (struct span){(const uint8_t *)"", 0};
    while (start < end) {
        const uint8_t *mark = next_mark(&marks);
        if (mark < end && *mark == 1) {
            if (middle)
                return false;
            middle = mark;
            continue;
        }
        if (!middle || middle == start || mark == middle + 1 || count == WAITING_PAIRS_MAX)
            return false;
        struct span name = {start, (size_t)(middle - start)}, value = {middle + 1, (size_t)(mark - middle - 1)};
        for (size_t n = 0; n < count; n++)
            if (same_span(names[n], name))
                return false;
        names[count++] = name;
        int kind = wish_of(name);
        if (kind != WAITS_NOT) {
            if (wish->kind != WAITS_NOT)
                return false;
            wish->kind = kind;
            wish->value = value;
        } else if (is_special(name.at, name.size) || is_of_half(name)) {
            return false;
        } else if (SPAN_IS(name, "UNIQ_KEY")) {
            *unique_key = value;
        } else if (SPAN_IS(name, "PGROUP")) {
            wish->group = value;
        } else if (SPAN_IS(name, "WAIT") && !SPAN_IS(value, "true")) {
            return false;
        }
        start = mark + 1;
        middle = NULL;
    }
    return wish->kind != WAITS_NOT;
}
