"""What hypothesis draws for several test files of this folder."""

from __future__ import annotations

from enum import Enum
from typing import Any, get_args, get_type_hints

from hypothesis import strategies as st

from kappamq.message import MessageQueue
from kappamq.protocol.headers.header import Header, Int32

# Everything UTF-8 can carry: no surrogates.
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
names = st.text(st.sampled_from("abcXYZ019_-%"), min_size=1, max_size=20)
int32s = st.integers(-(1 << 31), (1 << 31) - 1)
int64s = st.integers(-(1 << 63), (1 << 63) - 1)
queues = st.builds(MessageQueue, texts, texts, int32s)


def values_of(hint: Any) -> st.SearchStrategy[Any]:
    if hint is str:
        return texts
    if hint is int:
        return int64s
    if hint is bool:
        return st.booleans()
    if hint == Int32:
        return int32s
    if isinstance(hint, type) and issubclass(hint, Enum):
        return st.sampled_from(hint)
    (kind,) = (part for part in get_args(hint) if part is not type(None))
    return st.none() | values_of(kind)


def headers(kind: type[Header]) -> st.SearchStrategy[Header]:
    hints = get_type_hints(kind, include_extras=True)
    return st.builds(kind, **{name: values_of(hints[name]) for name in kind.wire_names})
