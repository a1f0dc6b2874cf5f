"""What a request is answered that could not be carried out."""

from __future__ import annotations

import logging

from kappamq.errors import KappaError, ProtocolError
from kappamq.protocol.codes import ResponseCode
from kappamq.protocol.frame import Frame, reply

log = logging.getLogger(__name__)


def failure(request: Frame, error: Exception) -> Frame:
    """The answer to a request that raised: its code and text if it is one of ours, else SYSTEM_ERROR and a line in the log."""
    if isinstance(error, ProtocolError):
        return reply(request, ResponseCode.SYSTEM_ERROR, str(error))
    if isinstance(error, KappaError) and error.code is not None:
        return reply(request, error.code, str(error))
    log.exception("request %d failed", request.code, exc_info=error)
    return reply(request, ResponseCode.SYSTEM_ERROR, f"{type(error).__name__}: {error}")
