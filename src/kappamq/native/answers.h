/* Functions of answers.c: they append to kernel.acks, which is sent when the log is safe. */
#ifndef KAPPAMQ_ANSWERS_H
#define KAPPAMQ_ANSWERS_H

#include "inline.h"

/* The content of the answer to a send. */
struct sent {
    const int64_t *offsets; /* of the records in the log */
    size_t count;
    int32_t queue_id;
    int64_t queue_offset;
    struct span unique_key, recall_handle; /* empty: none */
};

/* Reserves memory for the answer to a send with this many ids, and texts of this many bytes. */
int reserve_sent(struct kernel *kernel, size_t ids, size_t texts);
void put_sent(struct kernel *kernel, int32_t opaque, bool binary, const struct sent *sent);
/* The same for the end of a transaction. */
int reserve_ended(struct kernel *kernel);
void put_ended(struct kernel *kernel, int32_t opaque, bool binary);

#endif
