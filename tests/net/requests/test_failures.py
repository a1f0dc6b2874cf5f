"""Errors become answers."""

from __future__ import annotations

from kappamq.errors import InvalidParameter, KappaError, ProtocolError
from kappamq.net.requests.failures import failure
from kappamq.protocol.codes import ResponseCode
from kappamq.protocol.frame import Frame


def test_failures() -> None:
    class Ours(KappaError):
        """One without a code."""

    request = Frame(code=10, opaque=3, binary=True)
    for error, code, text in [
        (InvalidParameter("bad"), ResponseCode.INVALID_PARAMETER, "bad"),
        (ProtocolError("no number"), ResponseCode.SYSTEM_ERROR, "no number"),
        (Ours("odd"), ResponseCode.SYSTEM_ERROR, "Ours: odd"),
        (KeyError("x"), ResponseCode.SYSTEM_ERROR, "KeyError: 'x'"),
    ]:
        answer = failure(request, error)
        assert (answer.code, answer.remark, answer.opaque, answer.binary) == (code, text, 3, True)
        assert answer.is_response
