"""The answers to failed requests."""

from __future__ import annotations

import logging

from kappamq.errors import KappaError, ProtocolError
from kappamq.protocol.codes import ResponseCode
from kappamq.protocol.frame import Frame, reply

log = logging.getLogger(__name__)


def failure(request: Frame, error: Exception) -> Frame:
    """Return the answer for an exception: code and text of a KappaError, otherwise SYSTEM_ERROR, which is also logged."""
    if isinstance(error, ProtocolError):
        return reply(request, ResponseCode.SYSTEM_ERROR, str(error))
    if isinstance(error, KappaError) and error.code is not None:
        return reply(request, error.code, str(error))
    log.exception("request %d failed", request.code, exc_info=error)
    return reply(request, ResponseCode.SYSTEM_ERROR, f"{type(error).__name__}: {error}")
