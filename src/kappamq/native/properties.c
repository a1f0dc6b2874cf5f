/* Properties of a message: whether there is anything about them that the broker has to think about. */
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
