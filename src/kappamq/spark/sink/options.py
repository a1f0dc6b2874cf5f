"""The options of a write, checked once, on the driver."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from kappamq.errors import ConfigError
from kappamq.protocol.names import check_group, check_topic
from kappamq.spark.connection import WRITER_GROUP
from kappamq.spark.tls import TLS_OPTIONS, Tls, tls_options
from kappamq.spark.topic.options import checked_name, known_options, nameservers

WRITE_OPTIONS: Final = ("nameservers", "topic", "group", "delivery", *TLS_OPTIONS)
_SPARKS_OWN: Final = ("checkpointlocation", "queryname")  # of streaming writes, which Spark hands on
AT_LEAST_ONCE: Final = "at-least-once"
EXACTLY_ONCE: Final = "exactly-once"


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOptions:
    nameservers: str
    topic: str | None = None  # None: a column names it
    group: str = WRITER_GROUP
    tls: Tls | None = None

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> WriteOptions:
        """Parse options. Raises ConfigError, which names the option, what is wrong with it, and what is accepted."""
        ours = {name: value for name, value in options.items() if name.lower() not in _SPARKS_OWN}
        given = known_options(ours, WRITE_OPTIONS)
        delivery = given.get("delivery", AT_LEAST_ONCE).lower()
        if delivery == EXACTLY_ONCE:
            raise ConfigError(
                "delivery=exactly-once is not implemented yet: leave the option out; then a batch that Spark retries may write "
                "some rows twice (at least once)"
            )
        if delivery != AT_LEAST_ONCE:
            raise ConfigError(f"delivery={given['delivery']!r} must be {AT_LEAST_ONCE}")
        return cls(
            nameservers=nameservers(given),
            topic=checked_name("topic", given["topic"].strip(), check_topic) if "topic" in given else None,
            group=checked_name("group", given["group"], check_group) if "group" in given else WRITER_GROUP,
            tls=tls_options(given),
        )
