/* Generated from the table in property_names.py: edit that, then run
 * tests/native/test_property_names.py with KAPPAMQ_REWRITE=1. */
#ifndef KAPPAMQ_PROPERTY_NAMES_H
#define KAPPAMQ_PROPERTY_NAMES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define TAIL_CRC_PROPERTY "__CRC32#"
#define BATCH_BYTES_PROPERTY "__BATCH#"

/* The broker has to act on it. */
static inline bool is_special(const uint8_t *name, size_t size)
{
    switch (size) {
    case 5:
        return memcmp(name, "DELAY", 5) == 0;
    case 6:
        return memcmp(name, "POP_CK", 6) == 0 || memcmp(name, "__END#", 6) == 0;
    case 7:
        return memcmp(name, "CLUSTER", 7) == 0;
    case 8:
        return memcmp(name, "REAL_QID", 8) == 0 || memcmp(name, "TRACE_ON", 8) == 0 || memcmp(name, "TRAN_MSG", 8) == 0 || memcmp(name, "__BATCH#", 8) == 0 || memcmp(name, "__CRC32#", 8) == 0;
    case 9:
        return memcmp(name, "INNER_NUM", 9) == 0;
    case 10:
        return memcmp(name, "INNER_BASE", 10) == 0 || memcmp(name, "MSG_REGION", 10) == 0 || memcmp(name, "REAL_TOPIC", 10) == 0 || memcmp(name, "__HALF_MS#", 10) == 0;
    case 12:
        return memcmp(name, "TIMER_OUT_MS", 12) == 0;
    case 14:
        return memcmp(name, "RECONSUME_TIME", 14) == 0 || memcmp(name, "TIMER_DELAY_MS", 14) == 0;
    case 15:
        return memcmp(name, "TIMER_DELAY_SEC", 15) == 0;
    case 16:
        return memcmp(name, "TIMER_DELIVER_MS", 16) == 0 || memcmp(name, "TIMER_DEQUEUE_MS", 16) == 0 || memcmp(name, "TIMER_ENQUEUE_MS", 16) == 0 || memcmp(name, "TIMER_ROLL_TIMES", 16) == 0;
    case 17:
        return memcmp(name, "TIMER_DELAY_LEVEL", 17) == 0 || memcmp(name, "TIMER_DEL_UNIQKEY", 17) == 0;
    case 19:
        return memcmp(name, "MAX_RECONSUME_TIMES", 19) == 0;
    case 20:
        return memcmp(name, "INNER_MULTI_DISPATCH", 20) == 0;
    case 24:
        return memcmp(name, "INNER_MULTI_QUEUE_OFFSET", 24) == 0;
    case 26:
        return memcmp(name, "TRAN_PREPARED_QUEUE_OFFSET", 26) == 0;
    }
    return false;
}

/* Bookkeeping of the broker: not shown to readers. */
static inline bool is_private(const uint8_t *name, size_t size)
{
    switch (size) {
    case 6:
        return memcmp(name, "__END#", 6) == 0;
    case 8:
        return memcmp(name, "__BATCH#", 8) == 0 || memcmp(name, "__CRC32#", 8) == 0;
    case 10:
        return memcmp(name, "__HALF_MS#", 10) == 0;
    }
    return false;
}

#endif
