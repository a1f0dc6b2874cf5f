"""The size limits of requests to a name server, by request code. See net/requests/sizes.py."""

from __future__ import annotations

from typing import Final

from kappamq.net.requests.sizes import RequestLimit
from kappamq.protocol.bodies.all import TopicRouteData
from kappamq.protocol.codes import RequestCode

REQUEST_SIZES: Final[dict[int, RequestLimit]] = {
    **dict.fromkeys(RequestCode, RequestLimit()),
    # Decoded by `Registering`, which also keeps a broker's requests in order.
    RequestCode.REGISTER_BROKER: RequestLimit("registration_bytes_max"),
    RequestCode.REGISTER_TOPIC_IN_NAMESRV: RequestLimit(kind=TopicRouteData),
    RequestCode.PUT_KV_CONFIG: RequestLimit(header="header_bytes_max"),  # the value is in the header
}
