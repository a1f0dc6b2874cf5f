"""What the kernel answers, read back as a client would."""

from __future__ import annotations

import json

import pytest

from kappamq.native.pure_replies import LANGUAGE, VERSION, Replies
from tests.native.conftest import HOST
from tests.native.requests import KEY, answers


@pytest.mark.parametrize("region", ["DefaultRegion", 'a "b" \\ é %d', ""])
@pytest.mark.parametrize("binary", [False, True])
def test_answer_to_a_send(region: str, binary: bool) -> None:
    replies = Replies(HOST, region, "true")
    ((head, body),) = answers(replies.sent(-9, binary, [0x1234, 1 << 40], 3, 17, KEY))
    assert body == b""
    assert head["extFields"] == {
        "msgId": "7F00000100002A9F0000000000001234,7F00000100002A9F0000010000000000", "queueId": "3", "queueOffset": "17",
        "transactionId": KEY, "MSG_REGION": region, "TRACE_ON": "true",
    }  # fmt: skip
    assert (head["code"], head["flag"], head["opaque"], head["version"]) == (0, 1, -9, VERSION)
    assert head["language"] == (LANGUAGE if binary else "PYTHON")
    ((head, _),) = answers(replies.sent(1, binary, [0], 3, 17, ""))
    assert "transactionId" not in head["extFields"]


@pytest.mark.parametrize("binary", [False, True])
def test_answer_to_a_pull(binary: bool) -> None:
    ((head, body),) = answers(Replies(HOST, "", "false").pulled(5, binary, 10, 2, 11, b"records"))
    assert body == b"records"
    assert head["remark"] == "FOUND"
    assert head["extFields"] == {
        "suggestWhichBrokerId": "0",
        "nextBeginOffset": "10",
        "minOffset": "2",
        "maxOffset": "11",
    }


def test_json_is_what_java_writes() -> None:
    data = Replies(HOST, "r", "true").sent(1, False, [0], 3, 17, KEY)
    text = data[8:].decode()
    assert text == json.dumps(json.loads(text), separators=(",", ":")), "no blanks"
    assert list(json.loads(text)) == sorted(json.loads(text)), "keys in alphabetical order"
