# What a producer does once per message, besides encoding it. pure_batches.py defines the behaviour of each function.

cdef extern from "messages.h":
    int messages_learn(object cls, tuple names) except -1
    Py_ssize_t messages_plain(object message)
    void messages_leave(object message)
    void messages_come_back(object message)


cdef extern from *:
    """
    static PyObject *kq_new(PyObject *cls, PyObject *nothing) { return ((PyTypeObject *)cls)->tp_new((PyTypeObject *)cls, nothing, NULL); }
    static int kq_set(PyObject *setter, PyObject *object, PyObject *value) {
        return Py_TYPE(setter)->tp_descr_set(setter, object, value);
    }
    static void kq_spare(PyObject *object) { if (PyObject_IS_GC(object)) PyObject_GC_UnTrack(object); }
    static int kq_can_set(PyObject *setter) { return Py_TYPE(setter)->tp_descr_set != NULL; }
    """
    object _kq_new "kq_new"(object cls, object nothing)
    int _kq_set "kq_set"(object setter, object target, object value) except -1
    bint _kq_can_set "kq_can_set"(object setter)
    void _kq_spare "kq_spare"(object target)


cdef enum:
    MEMBER_BYTES = 128
    PLAIN_BYTES_MAX = 4096

cdef const char *_HEX = b"0123456789ABCDEF"


@cython.freelist(1024)
cdef class CallbackSink:
    cdef object _call, _complain
    cdef bint _done

    def __init__(self, call, complain):
        self._call = call
        self._complain = complain
        self._done = False

    def done(self):
        return self._done

    def set_result(self, result):
        self._tell(result, None)

    def set_exception(self, error):
        self._tell(None, error)

    cdef int _tell(self, result, error) except -1:
        self._done = True
        try:
            self._call(result, error)
        except Exception:
            self._complain()
        return 0


cdef inline bint _is_told(sink) except -1:
    return (<CallbackSink>sink)._done if type(sink) is CallbackSink else sink.done()


@cython.freelist(1024)
cdef class SendEntry:
    cdef public object message, sink, limits, key, queue
    cdef public double accepted, deadline
    cdef public int64_t born_ms
    cdef public Py_ssize_t size, weight
    cdef public bint sent, settled, joins, plain

    def __init__(self, message, sink, limits, key, queue, double accepted, double deadline, int64_t born_ms):
        cdef Py_ssize_t size = messages_plain(message)
        self.message = message
        self.sink = sink
        self.limits = limits
        self.key = key
        self.queue = queue
        self.accepted = accepted
        self.deadline = deadline
        self.born_ms = born_ms
        self.sent = self.settled = False
        if size >= 0:
            messages_leave(message)
            self.size = size
            self.weight = size + MEMBER_BYTES
            self.joins = True
            self.plain = key is None and queue is None and 0 < size < PLAIN_BYTES_MAX
            return
        self.plain = False
        self.size = len(message.body)
        self.joins = not (
            message.flag
            or message.delay_level
            or message.delay is not None
            or message.deliver_at is not None
            or message.transaction_id
            or (<str?>message.topic).startswith("%RETRY%")
        )
        if message.tags or message.keys or message.properties or message.sharding_key:
            self.weight = 0
        else:
            self.weight = self.size + MEMBER_BYTES
            self.plain = self.joins and key is None and queue is None and 0 < self.size < PLAIN_BYTES_MAX

    def __dealloc__(self):
        messages_come_back(self.message)

    @property
    def limit(self):
        return self.deadline - self.accepted


def quick_messages(cls, tuple names not None):
    messages_learn(cls, names)


def entries_by_topic(list entries not None):
    cdef list found = [], part = []
    cdef SendEntry entry
    cdef double deadline = float("inf")
    topic = None
    for entry in entries:
        of = entry.message.topic
        if of is not topic and of != topic:
            if part:
                found.append((topic, part))
            topic, part = of, []
        part.append(entry)
        if entry.deadline < deadline:
            deadline = entry.deadline
    if part:
        found.append((topic, part))
    return found, deadline


def front_entries(waiting, Py_ssize_t bytes_max, Py_ssize_t count_max):
    cdef list entries = [], gone = []
    cdef Py_ssize_t weight = 0, dropped = 0
    cdef SendEntry entry, first = None
    take = waiting.popleft
    while waiting:
        entry = waiting[0]
        if entry.settled or _is_told(entry.sink):
            take()
            dropped += entry.weight
            gone.append(entry)
            continue
        if first is None:
            first = entry
        elif (
            not entry.joins
            or not first.joins
            or weight + entry.weight > bytes_max
            or len(entries) >= count_max
            or entry.message.wait_stored != first.message.wait_stored
        ):
            break
        take()
        weight += entry.weight
        entries.append(entry)
    return entries, gone, weight + dropped


def settle_entries(entries, results, set still_open not None):
    cdef list fresh = [], given = entries, found = results
    cdef Py_ssize_t n, size = 0, count = 0
    cdef SendEntry entry
    limits = None
    if len(given) != len(found):
        raise ValueError(f"{len(given)} messages have {len(found)} results")
    for n in range(len(given)):
        entry = given[n]
        if entry.settled:
            continue
        entry.settled = True
        if entry.limits is not limits:
            if count:
                limits.give_back(size, count)
            limits, size, count = entry.limits, 0, 0
        size += entry.size
        count += 1
        fresh.append((entry, found[n]))
    if count:
        limits.give_back(size, count)
    for entry, result in fresh:
        still_open.discard(entry)
        sink = entry.sink
        if type(sink) is CallbackSink:
            if not (<CallbackSink>sink)._done:
                (<CallbackSink>sink)._tell(result, None)
        elif not sink.done():
            sink.set_result(result)


def unique_ids(str beginning not None, Py_ssize_t first, Py_ssize_t count):
    cdef list made = []
    cdef Py_ssize_t n, size, number
    cdef const char *front = PyUnicode_AsUTF8AndSize(beginning, &size)
    cdef bytes room = PyBytes_FromStringAndSize(NULL, size + 4)  # the four digits are overwritten, again and again
    cdef char *digits = PyBytes_AS_STRING(room) + size
    memcpy(PyBytes_AS_STRING(room), front, <size_t>size)
    for n in range(count):
        number = (first + n) & 0xFFFF
        digits[0] = _HEX[number >> 12]
        digits[1] = _HEX[number >> 8 & 15]
        digits[2] = _HEX[number >> 4 & 15]
        digits[3] = _HEX[number & 15]
        made.append(PyUnicode_DecodeUTF8(PyBytes_AS_STRING(room), size + 4, NULL))
    return made


def filled_objects(
    cls, tuple setters not None, tuple columns not None, tuple shared not None, Py_ssize_t count, bint spared=False
):
    cdef list made = []
    cdef Py_ssize_t n, which, each = len(columns), wide = len(setters)
    cdef tuple nothing = ()
    if not isinstance(cls, type) or each + len(shared) != wide:
        raise ValueError("one setter for each column and each shared value")
    for which in range(wide):
        if not _kq_can_set(setters[which]):
            raise TypeError("a setter must be the descriptor of a slot")
    for which in range(each):
        if len(<list?>columns[which]) < count:
            raise ValueError("a column is too short")
    for n in range(count):
        target = _kq_new(cls, nothing)
        for which in range(each):
            _kq_set(setters[which], target, (<list>columns[which])[n])
        for which in range(each, wide):
            _kq_set(setters[which], target, shared[which - each])
        if spared:
            _kq_spare(target)
        made.append(target)
    return made
