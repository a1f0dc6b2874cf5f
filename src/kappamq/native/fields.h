/* Internals of the header scan, shared by json.c and scan.c. */
#ifndef KAPPAMQ_FIELDS_H
#define KAPPAMQ_FIELDS_H

#include "inline.h"

/* Every name that a plain send, pull or end of a transaction may carry in its ext fields. A send has its fields twice, under the letters of code 310
 * and spelled out for code 10, in the same order. */
enum field {
    F_A, F_B, F_C, F_D, F_E, F_F, F_G, F_H, F_I, F_J, F_K, F_L, F_M, F_N,
    F_LO, F_NS, F_NSD, F_BNAME, F_OWAY, F_ACCESS_KEY, F_CHANNEL, F_SECURITY_TOKEN, F_SIGNATURE,
    F_LONG, F_TOPIC = F_LONG + F_B, F_QUEUE_ID = F_LONG + F_E, F_SYS_FLAG = F_LONG + F_F,
    F_GROUP = F_LONG + F_N + 1, F_QUEUE_OFFSET, F_COUNT, F_COMMIT_OFFSET, F_SUSPEND, F_SUB_VERSION, F_SUBSCRIPTION, F_EXPRESSION,
    F_MAX_BYTES, F_SOURCE,
    F_HALF_OFFSET, F_LOG_OFFSET, F_DECISION, F_FROM_CHECK, F_MESSAGE_ID, F_TRANSACTION_ID,
    FIELD_COUNT,
    UNKNOWN = -1,
};

#define BIT(field) ((uint64_t)1 << (field))

struct fields {
    uint64_t present; /* has a value */
    uint64_t named;   /* was named, maybe in an object that a later one replaced */
    uint64_t always;  /* was named in each of these objects */
    struct span values[FIELD_COUNT];
};

/* For a switch over the size of `name`: whether it is this one. */
#define IS(text, field)                       \
    if (memcmp(name, text, sizeof(text) - 1) == 0) \
        return field

int field_of(const uint8_t *name, size_t size);

/* Parses the fields of a JSON header without interpreting them; false if it is not plain. */
bool scan_json(const uint8_t *header, size_t size, const uint8_t *readable, uint8_t *scratch, struct plain *plain, struct fields *fields);

#endif
