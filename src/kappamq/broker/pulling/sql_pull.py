"""Pulls with an SQL condition: the kernel finds the records and reads the properties that the condition names, Python judges.

Records with the same values in these properties have the same verdict, so within one pull it is asked for once. What one pull may
cost is bounded: then it is answered with what was found, or with where to go on.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any, Final, Protocol

from kappamq.native.interface import Kernel
from kappamq.native.layout import COLD, FOUND, NO_MATCH, VALUES_MAX
from kappamq.protocol.codes import FLAG_RESPONSE, ResponseCode
from kappamq.protocol.frame import Frame
from kappamq.protocol.headers.client import PullMessageResponse
from kappamq.protocol.records.view import Front, RecordView, walk

if TYPE_CHECKING:
    from kappamq.filters.sql import Sql

try:
    from kappamq.native._kernel import property_rows
except ImportError:
    from kappamq.native.pure_columns import property_rows

Get = Callable[[str], str | None]
Wanted = Callable[[Get], bool]
Values = tuple[str | None, ...] | tuple[bytes]
"""The properties that a condition names, or all properties of a record as they are stored."""

WORK_MAX: Final = 2000
"""Records and conditions that one pull looks at: about as many microseconds."""
READ_BYTES_MAX: Final = 2 << 20
_RECORD_WORK: Final = 3


class Pull(Protocol):
    """The attributes of a pull that are needed here."""

    topic: str
    queue_id: int
    offset: int
    count: int
    opaque: int
    binary: bool


class Properties:
    """The properties of one stored message after the other; `get` is what conditions ask."""

    __slots__ = ("_needles", "_text")

    def __init__(self) -> None:
        self._text = b""
        self._needles: dict[str, bytes] = {}

    def look_at(self, text: bytes) -> None:
        self._text = b"\x02" + text

    def get(self, name: str) -> str | None:
        """As `properties.decode` does it, without reading all the others."""
        needle = self._needles.get(name)
        if needle is None:
            needle = self._needles[name] = f"\x02{name}\x01".encode()
        text = self._text
        at = text.rfind(needle)
        while at >= 0:
            start = at + len(needle)
            end = text.find(b"\x02", start)
            value = text[start:end] if end >= 0 else text[start:]
            if value:
                return value.decode("utf-8", "replace")
            at = text.rfind(needle, 0, at + 1)  # without a value it counts as absent; there may be another
        return None


class Sieve:
    """Pulls messages that match `wanted`, which uses only the properties `names`; `size` is its cost, in conditions."""

    def __init__(self, wanted: Wanted, names: Collection[str], size: int) -> None:
        self._wanted = wanted
        # Where there are too many, all properties are read, and searched for those that are really asked for.
        self._names = tuple(names) if len(names) <= VALUES_MAX else ()
        self._encoded = tuple([name.encode() for name in self._names])
        self._work = _RECORD_WORK + size

    @classmethod
    def of(cls, sql: Sql) -> Sieve:
        return cls(sql.matches, sql.names, sql.size)

    def pull(
        self, kernel: Kernel, request: Pull, bytes_max: int, warm: bool, is_warm: Callable[[int, int], bool]
    ) -> tuple[int, Any]:  # fmt: skip
        """As `Kernel.pull`. NO_MATCH also means that it has looked at enough for now; its payload says where to go on."""
        scan = _Scan(request.offset, request.count, bytes_max)
        while True:
            verdict, payload = kernel.fetch(request.topic, request.queue_id, scan.at, request.count, warm)
            if verdict == COLD and not warm and is_warm(*payload):
                warm = True
                continue
            if verdict != FOUND:
                if scan.at == request.offset:
                    return verdict, payload
                break
            if not scan.sift(payload, self._encoded, self._judge, self._work):
                break
            warm = False  # the next ones are not known to be in memory yet
        kernel.get_count += len(scan.kept)
        kernel.get_bytes += scan.kept_bytes
        low, end, _next, _stored = kernel.queue_state(request.topic, request.queue_id)
        if not scan.kept:
            return NO_MATCH, (scan.at, low, end)
        last = Front(scan.kept[-1]).log_offset
        suggested = kernel.suggested if last < kernel.suggested_below else 0
        header = PullMessageResponse(suggested_broker_id=suggested, next_offset=scan.at, min_offset=low, max_offset=end)
        answer = Frame(
            code=ResponseCode.SUCCESS, opaque=request.opaque, flag=FLAG_RESPONSE, remark="FOUND", ext=header.encode(),
            body=b"".join(scan.kept), binary=request.binary,
        )  # fmt: skip
        return FOUND, answer.encode()

    def _judge(self, values: Values) -> bool:
        if isinstance(values[0], bytes):
            found = Properties()
            found.look_at(values[0])
            return self._wanted(found.get)
        return self._wanted(dict(zip(self._names, values, strict=True)).get)


class _Scan:
    """How far one pull has come."""

    def __init__(self, at: int, count_max: int, bytes_max: int) -> None:
        self.at = at  # the next record to look at
        self.kept: list[bytes] = []
        self.kept_bytes = 0
        self._count_max, self._bytes_max = count_max, bytes_max
        self._work = self._read = 0
        self._judged: dict[Values, bool] = {}

    def sift(self, records: bytes, names: tuple[bytes, ...], judge: Callable[[Values], bool], work: int) -> bool:
        """Examine records of the queue; False if that was enough."""
        rest, judged = records, self._judged
        while rest:
            rows, read = property_rows(rest, names)
            if not rows:
                record = next(walk(rest, check_crc=False))
                if not isinstance(record, RecordView):  # damaged: it is not known whether it matches
                    self._work += work
                    self.at = Front(rest, record.position).queue_offset + 1
                    break
                rows, read = [(record.queue_offset, 0, record.end, (record.all_property_bytes,))], record.end
            for queue_offset, start, end, values in rows:
                self._work += work
                wanted = judged.get(values)
                if wanted is None:
                    wanted = judged[values] = judge(values)
                if wanted:
                    if self.kept and self.kept_bytes + end - start > self._bytes_max:
                        return False
                    self.kept.append(rest[start:end])
                    self.kept_bytes += end - start
                self.at = queue_offset + 1
                if len(self.kept) >= self._count_max or self._work >= WORK_MAX:
                    return False
            rest = rest[read:]
        self._read += len(records)
        return self._read < READ_BYTES_MAX and self._work < WORK_MAX
