"""Draws any body for a test: used by the tests of the three files that declare bodies."""

from __future__ import annotations

import types
from collections.abc import Callable
from dataclasses import fields
from enum import Enum
from typing import Any, Union, get_args, get_origin, get_type_hints

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kappamq.errors import ProtocolError
from kappamq.message import MessageQueue
from kappamq.protocol.bodies.body import Body
from kappamq.protocol.later import complete
from tests.protocol.strategies import int64s, queues, texts

_JSON = st.recursive(
    st.none() | st.booleans() | int64s | texts | st.floats(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=5,
)
_SIMPLE: dict[Any, st.SearchStrategy[Any]] = {
    str: texts,
    int: int64s,
    float: st.floats(allow_nan=False, allow_infinity=False),
    bool: st.booleans(),
    Any: texts,
    MessageQueue: queues,
}


def kinds_in(module: types.ModuleType) -> list[type[Body]]:
    found = [kind for kind in vars(module).values() if isinstance(kind, type) and issubclass(kind, Body)]
    return [kind for kind in found if kind.__module__ == module.__name__ and kind is not Body]


def values_of(hint: Any) -> st.SearchStrategy[Any]:
    if hint in _SIMPLE:
        return _SIMPLE[hint]
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return st.none() | values_of(next(part for part in arguments if part is not type(None)))
    if origin is list:
        return st.lists(values_of(arguments[0]), max_size=2)
    if origin is set:
        return st.sets(values_of(arguments[0]), max_size=2)
    if origin is dict:
        return st.dictionaries(values_of(arguments[0]), values_of(arguments[1]), max_size=2)
    if issubclass(hint, Enum):
        return st.sampled_from(hint)
    return bodies(hint)


def bodies(kind: type[Body]) -> st.SearchStrategy[Body]:
    hints = get_type_hints(kind)
    complete(kind)
    return st.builds(kind, **{item.name: values_of(hints[item.name]) for item in fields(kind)})  # type: ignore[arg-type]


def there_and_back_tests(module: types.ModuleType) -> tuple[Callable[..., None], Callable[..., None]]:
    """Return the two tests that every body must pass."""

    @pytest.mark.parametrize("kind", kinds_in(module), ids=lambda kind: kind.__name__)
    @given(data=st.data())
    @settings(max_examples=15)
    def test_there_and_back(kind: type[Body], data: st.DataObject) -> None:
        body = data.draw(bodies(kind))
        assert kind.decode(body.encode()) == body
        assert kind.decode(body.encode(standard=True)) == body
        assert kind.decode(kind().encode()) == kind()

    @pytest.mark.parametrize("kind", kinds_in(module), ids=lambda kind: kind.__name__)
    @given(data=st.data())
    @settings(max_examples=30)
    def test_any_json_is_read_or_refused(kind: type[Body], data: st.DataObject) -> None:
        names = [name for _, name, _, _ in kind._codec]
        value = data.draw(st.dictionaries(st.sampled_from(names), _JSON, max_size=3) if names else _JSON)
        try:
            kind.from_json(value)
        except ProtocolError:
            pass

    return test_there_and_back, test_any_json_is_read_or_refused
