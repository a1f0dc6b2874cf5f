/* A closed-loop load generator for brokers that speak RocketMQ's remoting protocol.
 *
 *   load HOST PORT [--option value ...]        (options: see `options[]` below)
 *
 * N connections with M requests in flight each: sends (310), batches (320) or pulls (11), with headers as a Java client writes
 * them. Every answer is looked at: its code, its opaque and, for pulls, each record's size, magic and queue offset. With --rate,
 * requests fall due at fixed times and latency counts from then, so that a stalled broker cannot hide its stall.
 *
 * One thread, epoll, no allocation per request: it must cost less than what it measures. Prints one line of JSON. CPU time of the
 * processes named by --pid is read at the two ends of the very window in which requests are counted.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

enum { SEND, BATCH, PULL };
enum { CODE_SEND = 310, CODE_BATCH = 320, CODE_PULL = 11, PULL_NOT_FOUND = 19, CODES = 4096, PIDS_MAX = 8, TOPIC_MAX = 120 };
enum { READ_BYTES = 256 << 10, FRAME_BYTES_MAX = 17 << 20, OPAQUE_FIRST = 1000000000, OPAQUE_LAST = 2000000000 };
enum { SUB_BUCKETS = 64, BUCKETS = 64 * SUB_BUCKETS };
static const int64_t DRAIN_NS = 10000000000;

static struct {
    double mode, connections, inflight, body, topics, queues, binary, coalesce, seconds, warmup, rate, requests, batch, pull, offset,
        until, loop, wait, fifo;
} o = {.mode = SEND, .connections = 8, .inflight = 1, .body = 100, .topics = 1, .queues = 8, .coalesce = 1, .seconds = 2, .batch = 32,
       .pull = 32, .until = 1e18};

static const struct { const char *name; double *value; const char *help; } options[] = {
    {"--mode", &o.mode, "0 sends, 1 batches, 2 pulls"},
    {"--connections", &o.connections, "how many"},
    {"--inflight", &o.inflight, "requests under way on each"},
    {"--body", &o.body, "bytes of a message's body"},
    {"--topics", &o.topics, "with more than one, they are called NAME-00000, NAME-00001, ..."},
    {"--queues", &o.queues, "queues of each topic, used in turn"},
    {"--binary", &o.binary, "1: binary headers, 0: JSON"},
    {"--coalesce", &o.coalesce, "1: one write for all requests of a turn, 0: one write each"},
    {"--seconds", &o.seconds, "length of the counted window; 0: until --requests or the queues' end"},
    {"--warmup", &o.warmup, "seconds before it that do not count"},
    {"--rate", &o.rate, "requests per second over all connections; 0: as fast as answers come"},
    {"--requests", &o.requests, "end after so many; 0: no limit"},
    {"--batch", &o.batch, "messages of a batch"},
    {"--pull", &o.pull, "messages asked for by a pull"},
    {"--offset", &o.offset, "queue offset at which pulls begin"},
    {"--until", &o.until, "queue offset at which they end"},
    {"--loop", &o.loop, "1: pulls begin again at the end"},
    {"--wait", &o.wait, "1: pulls may be held by the broker until something comes"},
    {"--fifo", &o.fifo, "1: answers come in order and carry no opaque (an echo server)"},
};

typedef struct {
    int64_t due;      /* when the request was sent, or should have been */
    int32_t opaque;   /* of the request under way, else of the last one */
    uint32_t lane;    /* topic and queue: lane / queues, lane % queues */
    int64_t offset;   /* next to pull */
    bool busy, finished;
} Slot;

typedef struct {
    int fd, number;
    bool wants_write;
    char *in, *out;
    size_t in_used, in_size, out_used, out_sent, out_size;
    uint32_t fifo_sent, fifo_got;
    Slot *slots;
} Connection;

static const char *topic = "bench", *group = "bench-group", *broker_name = "broker-a";
static int pids[PIDS_MAX], pid_count;
static Connection *connections;
static int poller, timer;
static char *body;
static uint64_t sequence, lane_next;
static int64_t now_ns, now_ms, opens_at, closes_at, next_due;
static bool counting, stopping;
static uint64_t asked, answered, requests, messages, bytes, total_messages, wrong;
static uint64_t errors[CODES], histogram[BUCKETS];
static uint32_t under_way, finished_slots;
static Slot **idle;      /* slots that wait for their due time (only with --rate) */
static Connection **idle_of;
static uint32_t idle_count;
static struct { uint64_t run, wait; } cpu_before[PIDS_MAX + 1], cpu_after[PIDS_MAX + 1];

static void fail(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    fputs("load: ", stderr);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    exit(1);
}

static int64_t monotonic(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static void look_at_clocks(void) {
    struct timespec t;
    now_ns = monotonic();
    clock_gettime(CLOCK_REALTIME, &t);
    now_ms = t.tv_sec * 1000LL + t.tv_nsec / 1000000;
}

/* ---- figures ---------------------------------------------------------------------------------------------------------- */

static int bucket_of(uint64_t ns) {
    if (ns < SUB_BUCKETS) return (int)ns;
    int shift = 63 - __builtin_clzll(ns) - 6;
    return (shift + 1) * SUB_BUCKETS + (int)((ns >> shift) & (SUB_BUCKETS - 1));
}

static double bucket_us(int bucket) {
    if (bucket < SUB_BUCKETS) return bucket / 1e3;
    return (SUB_BUCKETS + bucket % SUB_BUCKETS + 0.5) * (double)(1ULL << (bucket / SUB_BUCKETS - 1)) / 1e3;
}

static double percentile_us(double part) {
    uint64_t count = 0, wanted = 0;
    for (int i = 0; i < BUCKETS; i++) wanted += histogram[i];
    wanted = (uint64_t)(part * (double)wanted);
    for (int i = 0; i < BUCKETS; i++)
        if (histogram[i] && (count += histogram[i]) > wanted) return bucket_us(i);
    for (int i = BUCKETS - 1; i > 0; i--)
        if (histogram[i]) return bucket_us(i);
    return 0;
}

static void read_cpu(int pid, uint64_t *run, uint64_t *wait) {
    char path[64], text[128];
    *run = *wait = 0;
    snprintf(path, sizeof path, "/proc/%d/task", pid);
    DIR *folder = opendir(path);
    if (!folder) return;
    for (struct dirent *entry; (entry = readdir(folder));) {
        if (entry->d_name[0] == '.') continue;
        snprintf(path, sizeof path, "/proc/%d/task/%.16s/schedstat", pid, entry->d_name);
        int fd = open(path, O_RDONLY);
        if (fd < 0) continue;
        ssize_t got = read(fd, text, sizeof text - 1);
        close(fd);
        if (got <= 0) continue;
        text[got] = 0;
        char *rest;
        *run += strtoull(text, &rest, 10);
        *wait += strtoull(rest, NULL, 10);
    }
    closedir(folder);
}

static void read_all_cpu(typeof(cpu_before[0]) *where) {
    for (int i = 0; i < pid_count; i++) read_cpu(pids[i], &where[i].run, &where[i].wait);
    read_cpu(getpid(), &where[pid_count].run, &where[pid_count].wait);
}

/* ---- requests --------------------------------------------------------------------------------------------------------- */

static inline char *put(char *at, const char *text, size_t size) { memcpy(at, text, size); return at + size; }
#define TEXT(at, literal) put(at, literal, sizeof(literal) - 1)

static char *put_number(char *at, int64_t value) {
    char digits[24], *p = digits + sizeof digits;
    if (value < 0) { *at++ = '-'; value = -value; }
    do *--p = (char)('0' + value % 10); while (value /= 10);
    return put(at, p, (size_t)(digits + sizeof digits - p));
}

static char *put_hex(char *at, uint64_t value, int digits) {
    for (int i = digits - 1; i >= 0; i--) at[i] = "0123456789ABCDEF"[value & 15], value >>= 4;
    return at + digits;
}

static char *put_be(char *at, uint64_t value, int size) {
    for (int i = size - 1; i >= 0; i--) *at++ = (char)(value >> (8 * i));
    return at;
}

static uint32_t get_be32(const char *at) { uint32_t v; memcpy(&v, at, 4); return be32toh(v); }
static uint64_t get_be64(const char *at) { uint64_t v; memcpy(&v, at, 8); return be64toh(v); }

static bool binary;

/* One field of the header; JSON writes the two property separators as \u0001 and \u0002. */
static char *field(char *at, const char *name, const char *value, size_t size) {
    size_t name_size = strlen(name);
    if (binary) {
        at = put(put_be(at, name_size, 2), name, name_size);
        return put(put_be(at, size, 4), value, size);
    }
    *at++ = '"';
    at = put(at, name, name_size);
    at = TEXT(at, "\":\"");
    for (size_t i = 0; i < size; i++) {
        if ((unsigned char)value[i] < 32) {
            at = TEXT(at, "\\u00");
            at = put_hex(at, (unsigned char)value[i], 2);
        } else *at++ = value[i];
    }
    return TEXT(at, "\",");
}

static char *number_field(char *at, const char *name, int64_t value) {
    char digits[24];
    return field(at, name, digits, (size_t)(put_number(digits, value) - digits));
}

#define FIELD(at, name, literal) field(at, name, literal, sizeof(literal) - 1)

/* What a Java client of 5.3.3 sets on a plain message: keys, its own id, wait, tags. */
static size_t properties(char *at, bool outer) {
    char *start = at;
    uint64_t id = sequence++;
    if (!outer) at = put_hex(TEXT(at, "KEYS\1key"), id, 10), at = TEXT(at, "\2");
    at = put_hex(TEXT(at, "UNIQ_KEY\1"), 0x7F00000100000000ULL | (uint32_t)getpid(), 16);
    at = put_hex(at, id, 16);
    at = TEXT(at, "\2WAIT\1true\2");
    if (!outer) at = TEXT(at, "TAGS\1TagA\2");
    return (size_t)(at - start);
}

static size_t topic_name(char *at, uint32_t lane) {
    if ((int)o.topics <= 1) return (size_t)(stpcpy(at, topic) - at);
    return (size_t)sprintf(at, "%s-%05u", topic, lane / (uint32_t)o.queues);
}

static char *send_fields(char *at, const Slot *slot, bool batch) {
    char text[512];
    at = FIELD(at, "a", "bench-producer");
    at = field(at, "b", text, topic_name(text, slot->lane));
    at = FIELD(at, "c", "TBW102");
    at = number_field(at, "d", (int64_t)o.queues);
    at = number_field(at, "e", slot->lane % (uint32_t)o.queues);
    at = FIELD(at, "f", "0");
    at = number_field(at, "g", now_ms);
    at = FIELD(at, "h", "0");
    at = field(at, "i", text, properties(text, batch));
    at = FIELD(at, "j", "0");
    at = FIELD(at, "k", "false");
    at = batch ? FIELD(at, "m", "true") : FIELD(at, "m", "false");
    return field(at, "n", broker_name, strlen(broker_name));
}

static char *pull_fields(char *at, const Slot *slot) {
    char text[TOPIC_MAX + 16];
    at = field(at, "consumerGroup", group, strlen(group));
    at = field(at, "topic", text, topic_name(text, slot->lane));
    at = number_field(at, "queueId", slot->lane % (uint32_t)o.queues);
    at = number_field(at, "queueOffset", slot->offset);
    at = number_field(at, "maxMsgNums", (int64_t)o.pull);
    at = o.wait ? FIELD(at, "sysFlag", "6") : FIELD(at, "sysFlag", "4");
    at = FIELD(at, "commitOffset", "0");
    at = FIELD(at, "suspendTimeoutMillis", "15000");
    at = FIELD(at, "subscription", "*");
    at = FIELD(at, "subVersion", "0");
    return FIELD(at, "expressionType", "TAG");
}

static char *batch_members(char *at) {
    for (int i = 0; i < (int)o.batch; i++) {
        char *member = at;
        at = put_be(at + 4, 0, 8);
        at = put_be(at, 0, 4);
        at = put(put_be(at, (uint64_t)o.body, 4), body, (size_t)o.body);
        size_t size = properties(at + 2, false);
        put_be(at, size, 2);
        at += 2 + size;
        put_be(member, (uint64_t)(at - member), 4);
    }
    return at;
}

static char *build(char *frame, const Slot *slot) {
    int mode = (int)o.mode, code = mode == SEND ? CODE_SEND : mode == BATCH ? CODE_BATCH : CODE_PULL;
    char *at = frame + 8, *map = NULL;
    if (binary) {
        at = put_be(put_be(at, (uint64_t)code, 2), 0, 1);
        at = put_be(put_be(at, 479, 2), (uint64_t)slot->opaque, 4);
        at = put_be(put_be(at, 0, 4), 0, 4);
        map = at;
        at += 4;
    } else {
        at = put_number(TEXT(at, "{\"code\":"), code);
        at = TEXT(at, ",\"extFields\":{");
    }
    at = mode == PULL ? pull_fields(at, slot) : send_fields(at, slot, mode == BATCH);
    if (binary) {
        put_be(map, (uint64_t)(at - map - 4), 4);
    } else {
        at = TEXT(at - 1, "},\"flag\":0,\"language\":\"JAVA\",\"opaque\":");
        at = put_number(at, slot->opaque);
        at = TEXT(at, ",\"serializeTypeCurrentRPC\":\"JSON\",\"version\":479}");
    }
    put_be(frame + 4, (uint64_t)(at - frame - 8) | (binary ? 1u << 24 : 0), 4);
    if (mode == SEND) at = put(at, body, (size_t)o.body);
    if (mode == BATCH) at = batch_members(at);
    put_be(frame, (uint64_t)(at - frame - 4), 4);
    return at;
}

static void watch_write(Connection *c, bool on) {
    if (on == c->wants_write) return;
    c->wants_write = on;
    struct epoll_event event = {.events = EPOLLIN | (on ? EPOLLOUT : 0), .data.ptr = c};
    epoll_ctl(poller, EPOLL_CTL_MOD, c->fd, &event);
}

static void flush_out(Connection *c) {
    while (c->out_sent < c->out_used) {
        ssize_t wrote = write(c->fd, c->out + c->out_sent, c->out_used - c->out_sent);
        if (wrote < 0 && errno == EINTR) continue;
        if (wrote < 0 && errno == EAGAIN) { watch_write(c, true); return; }
        if (wrote < 0) fail("writing failed: %s", strerror(errno));
        c->out_sent += (size_t)wrote;
    }
    c->out_sent = c->out_used = 0;
    watch_write(c, false);
}

static void ask(Connection *c, Slot *slot, int64_t due) {
    size_t room = 4096 + (size_t)o.body + ((int)o.mode == BATCH ? (size_t)o.batch * ((size_t)o.body + 256) : 0);
    if (c->out_size - c->out_used < room) {
        c->out_size = (c->out_used + room) * 2;
        c->out = realloc(c->out, c->out_size);
        if (!c->out) fail("out of memory");
    }
    if ((int)o.mode != PULL) slot->lane = (uint32_t)(lane_next++ % (uint64_t)(o.topics * o.queues));
    int slot_number = (int)(slot - c->slots), all = (int)o.inflight;
    if (!slot->opaque) slot->opaque = OPAQUE_FIRST + slot_number;
    slot->opaque += all;
    if (slot->opaque > OPAQUE_LAST) slot->opaque = OPAQUE_FIRST + slot_number;
    slot->due = due, slot->busy = true;
    c->out_used = (size_t)(build(c->out + c->out_used, slot) - c->out);
    under_way++, asked++, c->fifo_sent++;
    if (!o.coalesce) flush_out(c);
}

static bool may_ask(void) { return !stopping && (!o.requests || asked < (uint64_t)o.requests); }

static void next_request(Connection *c, Slot *slot) {
    if (slot->finished || !may_ask()) return;
    if (o.rate) idle[idle_count] = slot, idle_of[idle_count++] = c;
    else ask(c, slot, now_ns);
}

static void ask_those_due(void) {
    int64_t interval = (int64_t)(1e9 / o.rate);
    while (idle_count && next_due <= now_ns && may_ask()) {
        Connection *c = idle_of[--idle_count];
        ask(c, idle[idle_count], next_due);
        next_due += interval;
        flush_out(c);
    }
    if (idle_count && may_ask()) {
        struct itimerspec when = {.it_value = {next_due / 1000000000, next_due % 1000000000}};
        timerfd_settime(timer, TFD_TIMER_ABSTIME, &when, NULL);
    }
}

/* ---- answers ---------------------------------------------------------------------------------------------------------- */

typedef struct { int code; int32_t opaque; int64_t next; } Answer;

static int64_t json_number(const char *header, size_t size, const char *name, int64_t otherwise) {
    const char *at = memmem(header, size, name, strlen(name));
    return at ? strtoll(at + strlen(name), NULL, 10) : otherwise;
}

static Answer parse(const char *header, size_t size, bool is_binary) {
    Answer a = {.next = -1};
    if (!is_binary) {
        a.code = (int)json_number(header, size, "\"code\":", -1);
        a.opaque = (int32_t)json_number(header, size, "\"opaque\":", -1);
        if ((int)o.mode == PULL) a.next = json_number(header, size, "\"nextBeginOffset\":\"", -1);
        return a;
    }
    if (size < 21) fail("a binary header of %zu bytes", size);
    a.code = (int16_t)(get_be32(header) >> 16);
    a.opaque = (int32_t)get_be32(header + 5);
    size_t at = 17 + get_be32(header + 13) + 4;
    while ((int)o.mode == PULL && at + 6 <= size) {
        size_t name = get_be32(header + at) >> 16;
        if (at + 6 + name > size) break;
        size_t value = get_be32(header + at + 2 + name), start = at + 6 + name;
        if (start + value > size) break;
        char digits[24] = {0};
        if (name == 15 && !memcmp(header + at + 2, "nextBeginOffset", 15) && value < sizeof digits) {
            memcpy(digits, header + start, value);
            a.next = strtoll(digits, NULL, 10);
        }
        at = start + value;
    }
    return a;
}

/* Records must be whole, of a known version and numbered without a gap from `offset` on; returns how many. */
static uint64_t check_records(const char *data, size_t size, int64_t offset) {
    uint64_t count = 0;
    for (size_t at = 0; at < size; count++) {
        if (size - at < 91) { wrong++; break; }
        uint32_t record = get_be32(data + at), magic = get_be32(data + at + 4);
        if (record < 91 || record > size - at || (magic != 0xDAA320A7u && magic != 0xDAA320ABu)) { wrong++; break; }
        if ((int64_t)get_be64(data + at + 20) != offset + (int64_t)count) wrong++;
        at += record;
    }
    return count;
}

static void answer(Connection *c, const char *frame, size_t size) {
    uint32_t mark = get_be32(frame + 4), header = mark & 0xFFFFFF;
    if (header > size - 8) fail("an answer's header is longer than the answer");
    Slot *slot;
    Answer a = {.next = -1};
    if (o.fifo) {
        slot = &c->slots[c->fifo_got++ % (uint32_t)o.inflight];
    } else {
        a = parse(frame + 8, header, mark >> 24);
        if (a.opaque < OPAQUE_FIRST) fail("an answer with opaque %d: nobody asked", a.opaque);
        slot = &c->slots[(a.opaque - OPAQUE_FIRST) % (int)o.inflight];
        if (slot->opaque != a.opaque) fail("an answer to %d, but %d is under way", a.opaque, slot->opaque);
    }
    if (!slot->busy) fail("an answer that nobody waits for");
    slot->busy = false;
    uint64_t count = 0;
    under_way--, answered++;
    if (a.code == 0) {
        count = (int)o.mode == BATCH ? (uint64_t)o.batch : 1;
        if ((int)o.mode == PULL) {
            count = check_records(frame + 8 + header, size - 8 - header, slot->offset);
            if (!count || a.next != slot->offset + (int64_t)count) wrong++;
            slot->offset = a.next > slot->offset ? a.next : slot->offset;
        }
    } else if ((int)o.mode == PULL && a.code == PULL_NOT_FOUND) {
        if (!o.wait) slot->offset = (int64_t)o.until;
    } else {
        errors[a.code > 0 && a.code < CODES ? a.code : CODES - 1]++;
    }
    total_messages += count;
    if (counting) {
        requests++, messages += count, bytes += size;
        histogram[bucket_of((uint64_t)(now_ns > slot->due ? now_ns - slot->due : 0))]++;
    }
    if ((int)o.mode == PULL && slot->offset >= (int64_t)o.until) {
        if (o.loop) slot->offset = (int64_t)o.offset;
        else slot->finished = true, finished_slots++;
    }
    next_request(c, slot);
}

static void readable(Connection *c) {
    if (c->in_size - c->in_used < READ_BYTES) {
        c->in_size = c->in_used + 2 * READ_BYTES;
        if (c->in_size > 2 * FRAME_BYTES_MAX) fail("an answer of more than %d bytes", FRAME_BYTES_MAX);
        c->in = realloc(c->in, c->in_size);
        if (!c->in) fail("out of memory");
    }
    ssize_t got = read(c->fd, c->in + c->in_used, c->in_size - c->in_used);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (got < 0) fail("reading failed: %s", strerror(errno));
    if (got == 0) fail("the broker closed connection %d after %llu answers", c->number, (unsigned long long)answered);
    c->in_used += (size_t)got;
    now_ns = monotonic();
    size_t at = 0;
    while (c->in_used - at >= 8) {
        size_t size = 4 + (size_t)get_be32(c->in + at);
        if (size < 8 || size > FRAME_BYTES_MAX) fail("an answer of %zu bytes", size);
        if (c->in_used - at < size) break;
        answer(c, c->in + at, size);
        at += size;
    }
    memmove(c->in, c->in + at, c->in_used - at);
    c->in_used -= at;
    if (c->out_used && !c->wants_write) flush_out(c);
}

/* ---- the run ---------------------------------------------------------------------------------------------------------- */

static void open_window(void) {
    counting = true;
    read_all_cpu(cpu_before);
    opens_at = monotonic();
    closes_at = o.seconds ? opens_at + (int64_t)(o.seconds * 1e9) : INT64_MAX;
}

static void close_window(void) {
    if (!counting) return;
    closes_at = now_ns = monotonic();
    read_all_cpu(cpu_after);
    counting = false;
    stopping = true;
}

static void connect_all(const char *host, const char *port) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(port))};
    if (inet_pton(AF_INET, host, &address.sin_addr) != 1) fail("%s is no IPv4 address", host);
    connections = calloc((size_t)o.connections, sizeof *connections);
    for (int i = 0; i < (int)o.connections; i++) {
        Connection *c = &connections[i];
        int on = 1;
        c->number = i;
        c->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (c->fd < 0 || connect(c->fd, (struct sockaddr *)&address, sizeof address))
            fail("cannot connect to %s:%s: %s", host, port, strerror(errno));
        setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
        fcntl(c->fd, F_SETFL, O_NONBLOCK);
        c->slots = calloc((size_t)o.inflight, sizeof *c->slots);
        struct epoll_event event = {.events = EPOLLIN, .data.ptr = c};
        epoll_ctl(poller, EPOLL_CTL_ADD, c->fd, &event);
    }
}

static bool is_over(void) {
    if (o.requests && answered >= (uint64_t)o.requests) return true;
    return (int)o.mode == PULL && finished_slots == (uint32_t)(o.connections * o.inflight);
}

static void run(void) {
    struct epoll_event events[256];
    look_at_clocks();
    int64_t warm_until = now_ns + (int64_t)(o.warmup * 1e9), give_up = INT64_MAX;
    next_due = now_ns;
    if (!o.warmup) open_window();
    for (int s = 0; s < (int)o.inflight; s++)
        for (int i = 0; i < (int)o.connections; i++) {
            connections[i].slots[s].lane = (uint32_t)((uint64_t)(s * (int)o.connections + i) % (uint64_t)(o.topics * o.queues));
            connections[i].slots[s].offset = (int64_t)o.offset;
            next_request(&connections[i], &connections[i].slots[s]);
        }
    for (int i = 0; i < (int)o.connections; i++) flush_out(&connections[i]);
    if (o.rate) ask_those_due();
    while (under_way || (may_ask() && !is_over())) {
        int count = epoll_wait(poller, events, 256, 100);
        look_at_clocks();
        if (!stopping && !counting && now_ns >= warm_until) open_window();
        if (counting && (now_ns >= closes_at || is_over())) close_window();
        if (stopping && give_up == INT64_MAX) give_up = now_ns + DRAIN_NS;
        if (now_ns > give_up) fail("%u requests are unanswered after %d s", under_way, (int)(DRAIN_NS / 1000000000));
        for (int i = 0; i < count; i++) {
            Connection *c = events[i].data.ptr;
            if (!c) {
                uint64_t expirations;
                if (read(timer, &expirations, 8) < 0 && errno != EAGAIN) fail("timer: %s", strerror(errno));
                continue;
            }
            if (events[i].events & EPOLLOUT) flush_out(c);
            if (events[i].events & ~EPOLLOUT) readable(c);
        }
        if (o.rate && !stopping) look_at_clocks(), ask_those_due();
        if (stopping && o.wait) break; /* pulls that the broker holds are answered when it likes */
    }
    close_window();
}

static void report(void) {
    struct rusage own;
    getrusage(RUSAGE_SELF, &own);
    printf("{\"requests\": %llu, \"messages\": %llu, \"bytes\": %llu, \"seconds\": %.6f, \"total_messages\": %llu, \"wrong\": %llu",
           (unsigned long long)requests, (unsigned long long)messages, (unsigned long long)bytes,
           (double)(closes_at - opens_at) / 1e9, (unsigned long long)total_messages, (unsigned long long)wrong);
    printf(", \"p50_us\": %.1f, \"p99_us\": %.1f, \"p999_us\": %.1f, \"max_us\": %.1f", percentile_us(.5), percentile_us(.99),
           percentile_us(.999), percentile_us(1));
    printf(", \"own_cpu_ns\": %llu", (unsigned long long)(cpu_after[pid_count].run - cpu_before[pid_count].run));
    printf(", \"cpu\": {");
    for (int i = 0; i < pid_count; i++)
        printf("%s\"%d\": {\"run_ns\": %llu, \"wait_ns\": %llu}", i ? ", " : "", pids[i],
               (unsigned long long)(cpu_after[i].run - cpu_before[i].run),
               (unsigned long long)(cpu_after[i].wait - cpu_before[i].wait));
    printf("}, \"errors\": {");
    for (int code = 0, any = 0; code < CODES; code++)
        if (errors[code]) printf("%s\"%d\": %llu", any++ ? ", " : "", code, (unsigned long long)errors[code]);
    printf("}}\n");
}

static void usage(void) {
    fprintf(stderr, "load HOST PORT [--option value ...]\n  --topic --group --broker --pid\n");
    for (size_t i = 0; i < sizeof options / sizeof *options; i++)
        fprintf(stderr, "  %-14s %s (%g)\n", options[i].name, options[i].help, *options[i].value);
    exit(2);
}

static void read_option(const char *name, const char *value) {
    if (!strcmp(name, "--topic")) topic = value;
    else if (!strcmp(name, "--group")) group = value;
    else if (!strcmp(name, "--broker")) broker_name = value;
    else if (!strcmp(name, "--pid") && pid_count < PIDS_MAX) pids[pid_count++] = atoi(value);
    else {
        for (size_t i = 0; i < sizeof options / sizeof *options; i++)
            if (!strcmp(name, options[i].name)) {
                char *rest;
                *options[i].value = strtod(value, &rest);
                if (*rest || *options[i].value < 0) fail("%s %s: not a number", name, value);
                return;
            }
        usage();
    }
}

int main(int count, char **arguments) {
    if (count < 3 || count % 2 == 0) usage();
    for (int i = 3; i < count; i += 2) read_option(arguments[i], arguments[i + 1]);
    if (o.connections < 1 || o.inflight < 1 || o.queues < 1 || o.topics < 1 || o.mode > PULL || strlen(topic) > TOPIC_MAX) usage();
    binary = o.binary != 0;
    body = malloc((size_t)o.body + 1);
    for (size_t i = 0; i < (size_t)o.body; i++) body[i] = (char)('a' + i * 7 % 26);
    idle = calloc((size_t)(o.connections * o.inflight), sizeof *idle);
    idle_of = calloc((size_t)(o.connections * o.inflight), sizeof *idle_of);
    poller = epoll_create1(EPOLL_CLOEXEC);
    timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = NULL};
    epoll_ctl(poller, EPOLL_CTL_ADD, timer, &event);
    connect_all(arguments[1], arguments[2]);
    run();
    report();
    return 0;
}
