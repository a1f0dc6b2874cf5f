"""The sizes that requests to a broker may have. Which request has which is declared in table.py; see net/requests/sizes.py."""

from __future__ import annotations

from typing import Final

from kappamq.net.requests.sizes import RequestLimit
from kappamq.protocol.bodies.body import Body

FIELDS: Final = RequestLimit()
"""A request that says everything in its header."""
MESSAGE: Final = RequestLimit("frame_bytes_max", "header_bytes_max")
"""The store and the kernel check how large a message is: up to a frame. Its properties are in the header."""
# Whole messages are the answer. They are read by workers, and a peer must not have any number of them read and not take them.
ANSWERED_BY_A_MESSAGE: Final = RequestLimit(answer_bytes=4 << 20)
ANSWERED_BY_MESSAGES: Final = RequestLimit(answer_bytes=8 << 20)


def json_body(kind: type[Body], setting: str = "request_bytes_max") -> RequestLimit:
    """The body is JSON of this kind, which is parsed beside the loop if it is large; `setting` limits it."""
    return RequestLimit(setting, kind=kind)
