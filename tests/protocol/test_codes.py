"""The numbers are the protocol: a few of them, and that none is given twice."""

from __future__ import annotations

from kappamq.protocol.codes import VERSION, Language, RequestCode, ResponseCode


def test_numbers_that_everything_depends_on() -> None:
    assert (RequestCode.SEND_MESSAGE_V2, RequestCode.PULL_MESSAGE, RequestCode.REGISTER_BROKER) == (310, 11, 103)
    assert (ResponseCode.SUCCESS, ResponseCode.TOPIC_NOT_EXIST, ResponseCode.GO_AWAY) == (0, 17, 1500)
    assert (Language.JAVA, Language.PYTHON, Language.NODE_JS) == (0, 3, 13)
    assert VERSION == 479


def test_no_number_has_two_names() -> None:
    for kind in (RequestCode, ResponseCode, Language):
        assert len(kind.__members__) == len({member.value for member in kind})
