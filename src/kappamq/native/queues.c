/* Moves entries from memory to the files of their queues. pure_queues.py defines the behaviour. */
#include "inline.h"

struct queue *kernel_dirty_queue(struct kernel *kernel)
{
    return kernel->dirty.next == &kernel->dirty ? NULL : QUEUE_AT(kernel->dirty.next, place);
}

struct span queue_unstored(const struct queue *queue)
{
    size_t stored = (size_t)(queue->stored - queue->tail_first) * ENTRY_BYTES;
    return (struct span){queue->tail.data + stored, queue->tail.size - stored};
}

void kernel_stored(struct kernel *kernel, struct queue *queue)
{
    queue->stored = queue->end;
    kernel->dirty_count -= queue->dirty;
    queue->dirty = false;
    link_remove(&queue->place);
    link_append(&kernel->settled, &queue->place);
}

static void drop_tail(struct kernel *kernel, struct queue *queue)
{
    kernel->tail_bytes -= (int64_t)queue->tail.size;
    bytes_free(&queue->tail);
}

/* Drops the first `excess` bytes of a tail. */
static void cut_tail(struct kernel *kernel, struct queue *queue, size_t excess)
{
    struct bytes *tail = &queue->tail;
    tail->size -= excess;
    memmove(tail->data, tail->data + excess, tail->size);
    uint8_t *smaller = realloc(tail->data, tail->size);
    if (smaller) {
        tail->data = smaller;
        tail->room = tail->size;
    }
    queue->tail_first += (int64_t)(excess / ENTRY_BYTES);
    kernel->tail_bytes -= (int64_t)excess;
}

void kernel_trim_tails(struct kernel *kernel)
{
    while (kernel->tail_bytes > kernel->tail_bytes_max && kernel->settled.next != &kernel->settled) {
        struct queue *queue = QUEUE_AT(kernel->settled.next, place);
        link_remove(&queue->place);
        if (queue->tail.size > TAIL_KEEP_BYTES) {
            cut_tail(kernel, queue, queue->tail.size - TAIL_KEEP_BYTES);
            link_append(&kernel->settled, &queue->place);
        } else {
            drop_tail(kernel, queue);
            queue->tail_first = queue->end;
        }
    }
    /* Under load no queue comes to rest: then drop stored entries of the busy ones, too. */
    for (struct link *at = kernel->dirty.next; kernel->tail_bytes > kernel->tail_bytes_max && at != &kernel->dirty; at = at->next) {
        struct queue *queue = QUEUE_AT(at, place);
        size_t stored = (size_t)(queue->stored - queue->tail_first) * ENTRY_BYTES;
        size_t beyond = queue->tail.size > TAIL_KEEP_BYTES ? queue->tail.size - TAIL_KEEP_BYTES : 0;
        if (stored && beyond)
            cut_tail(kernel, queue, stored < beyond ? stored : beyond);
    }
}

struct span kernel_tail_entries(const struct queue *queue, int64_t offset, int64_t count)
{
    if (offset < queue->tail_first || offset >= queue->end || count <= 0)
        return (struct span){0};
    if (count > queue->end - offset)
        count = queue->end - offset;
    return (struct span){queue->tail.data + (offset - queue->tail_first) * ENTRY_BYTES, (size_t)count * ENTRY_BYTES};
}
