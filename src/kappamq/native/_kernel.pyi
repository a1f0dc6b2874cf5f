"""The compiled kernel has the names of the twin, and these."""

from kappamq.native.flusher import Flusher as Flusher
from kappamq.native.layout import SegmentFull as SegmentFull
from kappamq.native.mapping import MappedFile as MappedFile
from kappamq.native.pure import Kernel as Kernel
from kappamq.native.pure_batches import CallbackSink as CallbackSink
from kappamq.native.pure_batches import SendEntry as SendEntry
from kappamq.native.pure_batches import batch_body as batch_body
from kappamq.native.pure_batches import batch_checksum as batch_checksum
from kappamq.native.pure_batches import column_of as column_of
from kappamq.native.pure_batches import filled_objects as filled_objects
from kappamq.native.pure_batches import front_entries as front_entries
from kappamq.native.pure_batches import property_texts as property_texts
from kappamq.native.pure_batches import settle_entries as settle_entries
from kappamq.native.pure_batches import unique_ids as unique_ids
from kappamq.native.pure_columns import bodies_of as bodies_of
from kappamq.native.pure_columns import columns as columns
from kappamq.native.pure_columns import index_plain as index_plain
from kappamq.native.pure_columns import locate as locate
from kappamq.native.pure_columns import property_rows as property_rows
from kappamq.native.pure_index import index_apply as index_apply
from kappamq.native.pure_index import index_link as index_link
from kappamq.native.pure_record import Buffer
from kappamq.native.pure_record import java_hash as java_hash
from kappamq.native.pure_record import plain_batch as plain_batch
from kappamq.native.pure_record import scan as scan
from kappamq.native.pure_record import split_batch as split_batch

NAME: str
SURVIVES_FAILED_READS: bool

def crc32(data: Buffer, portable: bool = False) -> int: ...
