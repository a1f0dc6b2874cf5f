# The parts of kernel.h and flusher.h that _kernel.pyx uses; the headers document them. Cython reads this file by itself.
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t

cdef extern from "mapping.h" nogil:
    struct mapping_t "mapping":
        pass
    mapping_t *mapping_open(int, size_t)
    const uint8_t *mapping_data(const mapping_t *)
    void mapping_close(mapping_t *)
    void mapping_enter(const uint8_t *, size_t, size_t)
    size_t mapping_lost_count(const mapping_t *)
    bint mapping_is_lost(const mapping_t *, size_t, size_t)
    bint mapping_next_lost(const mapping_t *, size_t, size_t *, size_t *)
    int mapping_restore(mapping_t *, size_t, size_t, int)

cdef extern from "kernel.h" nogil:
    ctypedef bint c_bool "bool"
    enum:
        ENTRY_BYTES
        INDEX_PENDING_BYTES
        INDEX_ENTRY_BYTES
        BATCH_MEMBERS_MAX
        DONE
        LEFT
        FULL
        FOUND
        COLD
        NO_MEMORY
        SYS_TRANSACTION
        NOTE_OPENED
    const int64_t QUEUE_OFFSET_MAX
    const int64_t WARM_BLOCKS
    const int64_t LOG_OFFSET_MAX

    struct span_t "span":
        const uint8_t *at
        size_t size
    struct bytes_t "bytes":
        uint8_t *data
        size_t size, room
    struct crc_t "crc":
        pass
    void crc_init(crc_t *, c_bool)
    uint32_t crc32_of(const crc_t *, const uint8_t *, size_t)
    uint32_t hash_on(uint32_t, const uint8_t *, size_t)
    c_bool utf8_valid(const uint8_t *, size_t)
    c_bool plain_properties(span_t, const uint8_t *, span_t *)

    struct message_t "message":
        span_t body
        span_t properties
        span_t born
        int32_t flag
        int32_t sys_flag
        int32_t reconsume_times
        int64_t born_ms
        int64_t prepared
    struct member_t "member":
        int32_t flag
        span_t body
        span_t properties
    struct scanned_t "scanned":
        int64_t bytes
        int64_t records
        int64_t store_ms
        int why
    void log_scan(const crc_t *, const uint8_t *, size_t, int64_t, c_bool, scanned_t *)
    c_bool batch_next(span_t, size_t *, member_t *)

    enum:
        PLACE_BYTES
        RECORD_BYTES_MIN
        COLUMN_TOPIC
        COLUMN_BODY
        COLUMN_ID
        COLUMN_KEYS
        COLUMN_TAGS
        COLUMN_PROPERTIES
        BAD_PLACE
        COLUMN_TOO_LARGE
    struct place_t "place":
        pass
    struct located_t "located":
        size_t bytes
        size_t count
        int why
    void records_locate(const crc_t *, const uint8_t *, size_t, int64_t, c_bool, place_t *, size_t, located_t *)
    c_bool records_plain(const place_t *, size_t, int64_t, int64_t)
    struct sources_t "sources":
        span_t data
        span_t extra
    struct texts_t "texts":
        bytes_t offsets
        bytes_t data
        bytes_t valid
        size_t nulls
    struct maps_t "maps":
        bytes_t offsets
        texts_t names
        texts_t values
    struct property_columns_t "property_columns":
        texts_t ids
        texts_t keys
        texts_t tags
        maps_t maps
    enum:
        SCAN_RECORD
        VALUES_MAX
    struct valued_t "valued":
        size_t size
        int64_t queue_offset
        span_t properties
        span_t *values
    int record_values(const uint8_t *, size_t, const span_t *, size_t, valued_t *)
    int64_t column_measure(const sources_t *, const place_t *, size_t, c_bool)
    int column_write(const sources_t *, const place_t *, size_t, c_bool, int32_t *, uint8_t *)
    int columns_from_properties(const sources_t *, const place_t *, size_t, int, property_columns_t *)
    void columns_free(property_columns_t *)

    enum:
        ROW_TOO_LONG
        ROW_SEPARATOR
        ROW_EMPTY
    struct column_t "column":
        span_t valid
        span_t data
        const int32_t *offsets
    struct named_column_t "named_column":
        span_t name
        column_t column
    struct text_job_t "text_job":
        const named_column_t *named
        size_t named_count
        size_t count
        const int32_t *map_offsets
        span_t map_valid
        column_t map_names
        column_t map_values
        size_t map_count
        const span_t *left_out
        size_t left_out_count
    int texts_build(const text_job_t *, bytes_t *, bytes_t *, size_t *)
    struct batch_job_t "batch_job":
        column_t bodies
        column_t texts
        size_t count
        const int32_t *rows
        size_t row_count
        size_t bytes_max
        size_t count_max
        span_t id_prefix
        uint64_t first_id
    int64_t batch_sum(const crc_t *, span_t)
    int64_t batch_build(const batch_job_t *, size_t, bytes_t *, size_t *)

    struct topic_t "topic":
        uint8_t *name
        size_t name_size
        int32_t flags
        int64_t write_queues
        int64_t read_queues
        queue_t **queues
        size_t queue_room
    struct queue_t "queue":
        topic_t *topic
        int32_t id
        c_bool watched
        int64_t min
        int64_t end
        int64_t next
        int64_t stored
    struct note_t "note":
        int kind
        int64_t log_offset
        int64_t queue_offset
        int64_t number
        int64_t end
        size_t group_at
        size_t group_size
        const topic_t *topic
    struct waiting_t "waiting":
        note_t *notes
        size_t note_count
        bytes_t groups
        uint64_t parked
    int waiting_allow(waiting_t *, c_bool, int64_t, int64_t, span_t)
    void halves_remove(waiting_t *, int64_t)
    struct pull_t "pull":
        int verdict
        int64_t row
        int32_t queue_id
        int64_t offset
        int64_t count
        int32_t sys_flag
        int64_t suspend_ms
        int32_t opaque
        c_bool binary
        int64_t payload[3]
    struct commit_t "commit":
        int64_t row
        int32_t queue_id
        int64_t offset
    struct woken_t "woken":
        topic_t *topic
        int32_t queue_id
    struct gather_t "gather":
        size_t total
    struct asker_t "asker":
        int32_t opaque
        c_bool binary
    struct codes_t "codes":
        int32_t *at
        size_t count
        c_bool all
    struct kernel_t "kernel":
        int64_t segment_bytes, message_bytes_max, frame_bytes_max, header_bytes_max, pending_bytes_max
        int64_t transfer_bytes_max, transfer_count_max, tail_bytes_max
        uint8_t store_host[20]
        size_t store_host_size
        c_bool tail_crc, accepting, force_slow, index_enabled, mins_raised
        int64_t hot_from, log_min
        int64_t suggested, suggested_below
        int64_t *warm
        int64_t *delays_ms
        size_t delay_count
        size_t dirty_count
        bytes_t pending
        int64_t written, segment_end
        bytes_t index
        bytes_t acks
        gather_t replies
        pull_t *pulls
        size_t pull_count
        commit_t *commits
        size_t commit_count
        waiting_t waiting
        woken_t *woken
        size_t woken_count
        uint64_t fast_frames, left_frames
        int64_t put_count, put_bytes, get_count, get_bytes
    struct burst_t "burst":
        size_t consumed
        int verdict
    struct indexed_t "indexed":
        size_t position
        int32_t count
        int32_t fresh
    struct linked_t "linked":
        int32_t number
        int32_t fresh
        int64_t last

    kernel_t *kernel_new()
    void kernel_free(kernel_t *)
    int kernel_identity(kernel_t *, span_t, span_t, span_t, c_bool)
    void kernel_set_host(kernel_t *, span_t)
    int kernel_delays(kernel_t *, const int64_t *, size_t)
    topic_t *kernel_topic(kernel_t *, span_t)
    topic_t *kernel_find_topic(kernel_t *, span_t)
    c_bool kernel_forget_topic(kernel_t *, span_t)
    int64_t kernel_asked(const kernel_t *, span_t, span_t, int32_t)
    queue_t *topic_queue(topic_t *, int32_t)
    queue_t *topic_find_queue(const topic_t *, int32_t)
    void kernel_set_queue(kernel_t *, queue_t *, int64_t, int64_t)
    int kernel_lend(kernel_t *, queue_t *, int64_t, span_t)
    span_t kernel_tail_entries(const queue_t *, int64_t, int64_t)
    int kernel_set_row(kernel_t *, span_t, span_t, c_bool, int64_t, int64_t, const int32_t *, size_t, c_bool)
    void kernel_drop_row(kernel_t *, span_t, span_t, c_bool)
    int kernel_map(kernel_t *, int64_t, span_t, const mapping_t *)
    int kernel_dispatch(kernel_t *, const uint8_t *, size_t, int64_t, size_t *)
    int MISNUMBERED
    struct misnumbered_t "misnumbered":
        span_t topic
        int32_t queue_id
        int64_t number
        int64_t expected
    int kernel_number(kernel_t *, const uint8_t *, size_t, size_t *, misnumbered_t *)
    void kernel_rewind(kernel_t *)
    queue_t *kernel_dirty_queue(kernel_t *)
    span_t queue_unstored(const queue_t *)
    void kernel_stored(kernel_t *, queue_t *)
    void kernel_trim_tails(kernel_t *)
    int kernel_pull(kernel_t *, const topic_t *, int32_t, int64_t, int64_t, codes_t, const asker_t *, c_bool, gather_t *, int64_t *)
    void gather_clear(gather_t *)
    void gather_copy(const gather_t *, uint8_t *)
    int kernel_burst(kernel_t *, const uint8_t *, size_t, size_t, span_t, int64_t, burst_t *)
    int kernel_append(kernel_t *, queue_t *, message_t *, int64_t, c_bool, int64_t *)
    struct placed_t "placed":
        queue_t *queue
        message_t message
        int64_t log_offset
        int64_t queue_offset
        int64_t size
    int kernel_append_group(kernel_t *, placed_t *, size_t, int64_t)
    int kernel_append_batch(kernel_t *, placed_t *, queue_t *, const message_t *, span_t, int64_t, int64_t *)
    void kernel_taken(kernel_t *)
    void c_index_apply "index_apply"(uint8_t *, size_t, span_t, size_t, int32_t, int32_t, int64_t, uint8_t *, indexed_t *)
    void c_index_link "index_link"(uint8_t *, size_t, span_t, int32_t, int64_t, linked_t *)

cdef extern from "flusher.h" nogil:
    struct flusher_t "flusher":
        pass
    flusher_t *flusher_new()
    int flusher_descriptor(const flusher_t *)
    int flusher_request(flusher_t *, int, int64_t)
    void flusher_take(flusher_t *, int64_t *, int *)
    void flusher_cut(flusher_t *, int64_t)
    void flusher_stop(flusher_t *)
    void flusher_free(flusher_t *)
