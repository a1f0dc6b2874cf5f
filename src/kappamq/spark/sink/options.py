"""The options of a write, checked once, on the driver."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from kappamq.errors import ConfigError
from kappamq.protocol.names import check_group, check_topic
from kappamq.spark.connection import WRITER_GROUP
from kappamq.spark.suggestions import nearest
from kappamq.spark.tls import TLS_OPTIONS, Tls, tls_options
from kappamq.spark.topic.options import checked_name, known_options, nameservers

TRANSACTION_OPTIONS: Final = ("transactionScope", "transactionNumber", "transactionOwner", "onRepeatedBatch")
WRITE_OPTIONS: Final = ("nameservers", "topic", "group", "delivery", *TRANSACTION_OPTIONS, *TLS_OPTIONS)
_SPARKS_OWN: Final = ("checkpointlocation", "queryname")  # of streaming writes, passed on by Spark
AT_LEAST_ONCE: Final = "at-least-once"
EXACTLY_ONCE: Final = "exactly-once"
_REPEATED: Final = {"compare": False, "skip": True}
OWNER_CHARACTERS_MAX: Final = 200


@dataclass(frozen=True, slots=True)
class ExactlyOnce:
    """The batches that a write makes."""

    scope: str
    number: int | None = None  # None: a stream, whose batches Spark numbers
    owner: str | None = None  # None: of a stream, its query; of a batch write, the group
    skip_repeated: bool = False  # a batch that was decided before is not read again to compare it


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOptions:
    nameservers: str
    topic: str | None = None  # None: a column names it
    group: str = WRITER_GROUP
    exactly_once: ExactlyOnce | None = None  # None: at least once
    tls: Tls | None = None

    @classmethod
    def parse(cls, options: Mapping[str, str], *, streaming: bool = False) -> WriteOptions:
        """Parse options. Raises ConfigError, which names the option, what is wrong with it, and what is accepted."""
        ours = {name: value for name, value in options.items() if name.lower() not in _SPARKS_OWN}
        given = known_options(ours, WRITE_OPTIONS)
        return cls(
            nameservers=nameservers(given),
            topic=checked_name("topic", given["topic"].strip(), check_topic) if "topic" in given else None,
            group=checked_name("group", given["group"], check_group) if "group" in given else WRITER_GROUP,
            exactly_once=_delivery(given, streaming),
            tls=tls_options(given),
        )


def _delivery(given: Mapping[str, str], streaming: bool) -> ExactlyOnce | None:
    delivery = given.get("delivery", AT_LEAST_ONCE).strip().lower()
    if delivery not in (AT_LEAST_ONCE, EXACTLY_ONCE):
        near = nearest(delivery, (AT_LEAST_ONCE, EXACTLY_ONCE))
        raise ConfigError(f"delivery={given['delivery']!r} must be {AT_LEAST_ONCE} or {EXACTLY_ONCE}{near}")
    if delivery == AT_LEAST_ONCE:
        for name in TRANSACTION_OPTIONS:
            if name in given:
                raise ConfigError(f"the option {name} is for delivery={EXACTLY_ONCE}: set that, or leave {name} out")
        return None
    if "transactionScope" not in given:
        raise ConfigError(
            f"delivery={EXACTLY_ONCE} needs the option transactionScope: a name for this sequence of batches, which no other query uses"
        )
    scope = checked_name("transactionScope", given["transactionScope"].strip(), check_group)
    repeated = given.get("onRepeatedBatch", "compare").strip().lower()
    if repeated not in _REPEATED:
        raise ConfigError(
            f"onRepeatedBatch={given['onRepeatedBatch']!r} must be compare (its rows are read, and must be the same) or skip"
            f"{nearest(repeated, _REPEATED)}"
        )
    if not streaming:
        return ExactlyOnce(scope, _number(given), _owner(given), _REPEATED[repeated])
    for name, why in (
        ("transactionNumber", "Spark numbers the batches of a stream"),
        ("transactionOwner", "a stream's query owns its scope, so that a deleted checkpoint is noticed"),
    ):
        if name in given:
            raise ConfigError(f"the option {name} is for batch writes, and {why}: leave it out")
    return ExactlyOnce(scope, skip_repeated=_REPEATED[repeated])


def _number(given: Mapping[str, str]) -> int:
    text = given.get("transactionNumber", "").strip()
    if not text:
        raise ConfigError(
            f"a batch write with delivery={EXACTLY_ONCE} needs the option transactionNumber: the number of this batch in its scope, higher "
            "than that of the batch before, and the same again when the same rows are written again"
        )
    if not re.fullmatch("[0-9]{1,18}", text):
        raise ConfigError(f"transactionNumber={given['transactionNumber']!r} must be an integer, 0 or more")
    return int(text)


def _owner(given: Mapping[str, str]) -> str | None:
    if "transactionOwner" not in given:
        return None
    owner = given["transactionOwner"].strip()
    if not 0 < len(owner) <= OWNER_CHARACTERS_MAX or not owner.isprintable():
        raise ConfigError(
            f"transactionOwner={given['transactionOwner'][:80]!r} must have 1 to {OWNER_CHARACTERS_MAX} printable characters"
        )
    return owner
