"""Attributes of topics and groups."""

from __future__ import annotations

import pytest

from kappamq.errors import InvalidParameter
from kappamq.state.attributes import altered_group, altered_topic, listed, parse


def test_set_change_and_remove() -> None:
    made = altered_topic({}, parse("+message.type=FIFO, +cleanup.policy=DELETE"))
    assert made == {"message.type": "FIFO", "cleanup.policy": "DELETE"}
    assert altered_topic(made, parse("-cleanup.policy,+message.type=NORMAL")) == {"message.type": "NORMAL"}
    assert made["message.type"] == "FIFO", "what was there is not changed in place"
    assert altered_topic(made, parse(None)) == made
    assert altered_group({}, ["+priority.factor=50"]) == {"priority.factor": "50"}


def test_the_form_of_bodies() -> None:
    assert listed({"+a": "1", "-b": "", "c": "2"}) == ["+a=1", "-b", "+c=2"]


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ("message.type=FIFO", "+key=value"),
        ("+message.type", "+key=value"),
        ("-message.type=FIFO", "+key=value"),
        ("+=1", "+key=value"),
        ("-message.type", "does not have"),
        ("+colour=red", "unsupported key: colour"),
        ("+message.type=LOUD", "one of UNSPECIFIED"),
        ("+queue.type=BatchCQ", "not supported by this version"),
        ("+cleanup.policy=COMPACTION", "not supported by this version"),
        ("+message.type=MIXED", "not supported by this version"),
        ("+message.type=FIFO,+message.type=NORMAL", "twice"),
        ("+reserve.time=soon", "a number"),
    ],
)
def test_what_is_refused(changes: str, text: str) -> None:
    with pytest.raises(InvalidParameter, match="(?s)" + text.replace("+", r"\+")):
        altered_topic({}, parse(changes))


def test_topics_and_groups_have_keys_of_their_own() -> None:
    with pytest.raises(InvalidParameter, match="unsupported key"):
        altered_group({}, ["+message.type=FIFO"])
