"""The list of name servers: any of them will do; on a failure the next one is tried."""

from __future__ import annotations

import random
from collections.abc import Sequence

from kappamq.client.core.channels import Channels
from kappamq.errors import (
    ConfigError,
    KappaError,
    NotConnected,
    NotSupported,
    NotUnderstood,
    RequestTimeout,
    TopicNotFound,
    for_code,
)
from kappamq.protocol.bodies.topics import ClusterInfo
from kappamq.protocol.codes import ResponseCode
from kappamq.protocol.frame import Frame
from kappamq.protocol.headers.header import Header
from kappamq.protocol.headers.nameserver import GetAllTopics, GetClusterInfo, GetRoute

EVERY_NAME_SERVER_KNOWS = (GetAllTopics, GetClusterInfo, GetRoute)


class NameServers:
    """Starts with a random one, to spread clients, and stays with it until it fails."""

    def __init__(self, addresses: Sequence[str], channels: Channels, timeout: float) -> None:
        self.addresses = tuple(addresses)
        self.timeout = timeout
        self._channels = channels
        self._current = random.randrange(len(self.addresses))

    @property
    def current(self) -> str:
        return self.addresses[self._current]

    async def request(self, header: Header, body: bytes = b"") -> Frame:
        """Return the answer of the first name server that returns SUCCESS.

        If one does not know a topic the others are tried too: each knows only the brokers that registered with it.
        Raises the error of the answer, or NotConnected if none answers.
        """
        first, failures = self._current, list[KappaError]()
        unknown: TopicNotFound | None = None
        for step in range(len(self.addresses)):
            index = (first + step) % len(self.addresses)
            address = self.addresses[index]
            try:
                answer = await self._channels.request(address, header, body, self.timeout)
            except (NotConnected, RequestTimeout) as error:
                failures.append(error)
                continue
            if answer.code == ResponseCode.SUCCESS:
                if failures:
                    self._current = index  # those before it failed; one that only lacks a topic is kept
                return answer
            error_ = for_code(answer.code, answer.remark)
            if isinstance(error_, NotSupported) and isinstance(header, EVERY_NAME_SERVER_KNOWS):
                raise ConfigError(
                    f"{address} is a broker, not a name server; name servers usually listen on port 9876"
                ) from error_
            if not isinstance(error_, TopicNotFound):
                raise error_
            unknown = error_
        if unknown is not None:
            raise unknown
        raise _nobody(failures)

    async def know_a_broker(self) -> bool:
        """Return whether any of them has a broker; also True if one cannot be reached, since then it is unknown."""
        for address in self.addresses:
            try:
                answer = await self._channels.request(address, GetClusterInfo(), b"", self.timeout)
            except (NotConnected, RequestTimeout):
                return True
            if answer.code != ResponseCode.SUCCESS or ClusterInfo.decode(answer.body).brokers:
                return True
        return False

    async def request_all(self, header: Header, body: bytes = b"") -> None:
        """Send a request to every name server; those that cannot be reached are skipped as long as one can."""
        failures, told = list[KappaError](), 0
        for address in self.addresses:
            try:
                answer = await self._channels.request(address, header, body, self.timeout)
            except (NotConnected, RequestTimeout) as error:
                failures.append(error)
                continue
            if answer.code != ResponseCode.SUCCESS:
                raise for_code(answer.code, answer.remark)
            told += 1
        if not told:
            raise _nobody(failures)


def _nobody(failures: Sequence[KappaError]) -> NotConnected:
    told = "; ".join(map(str, failures))
    if any(isinstance(failure, NotUnderstood) for failure in failures):
        return NotUnderstood(f"no name server could be used: {told}")
    return NotConnected(
        f"no name server answers ({told}). Is one running? `kappamq up` starts one here; else check the address, or set "
        "KAPPAMQ_NAMESERVER"
    )
