"""The compiled kernel has the names of the twin, and these."""

from kappamq.native.flusher import Flusher as Flusher
from kappamq.native.layout import SegmentFull as SegmentFull
from kappamq.native.pure import Kernel as Kernel
from kappamq.native.pure_index import index_apply as index_apply
from kappamq.native.pure_index import index_link as index_link
from kappamq.native.pure_record import Buffer
from kappamq.native.pure_record import java_hash as java_hash
from kappamq.native.pure_record import scan as scan
from kappamq.native.pure_record import split_batch as split_batch

NAME: str

def crc32(data: Buffer, portable: bool = False) -> int: ...
