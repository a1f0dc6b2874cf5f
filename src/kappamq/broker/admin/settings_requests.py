"""Requests that change settings while the broker runs (25) and show them (26)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

from kappamq.broker.admin.settings import Settings
from kappamq.broker.requests.request import Handler, Request
from kappamq.config import properties as java
from kappamq.errors import ConfigError, InvalidParameter, NotAvailable
from kappamq.net.requests.beside import Beside
from kappamq.net.requests.reader import InOrder
from kappamq.net.requests.sizes import BESIDE_BYTES
from kappamq.protocol.codes import RequestCode
from kappamq.protocol.frame import Frame
from kappamq.protocol.headers.admin import GetBrokerConfig, GetBrokerConfigResponse, UpdateBrokerConfig


class SettingsRequests:
    def __init__(self, settings: Settings, save: Callable[[str], Awaitable[bool]], beside: Beside) -> None:
        """`save`: writes one table's file; False if that is not possible."""
        self._settings = settings
        self._save = save
        self._beside = beside

    def handlers(self) -> dict[int, Handler]:
        return {RequestCode.UPDATE_BROKER_CONFIG: self.update, RequestCode.GET_BROKER_CONFIG: self.show}

    def update(self, request: Request[UpdateBrokerConfig]) -> InOrder:
        if len(request.body) > BESIDE_BYTES:
            return InOrder(self._update_later(request))
        return InOrder(self._update(request, _parsed(request.body)))

    async def _update_later(self, request: Request[UpdateBrokerConfig]) -> Frame:
        given = await self._beside.run(request.connection, _parsed, request.body, size=len(request.body))
        return await self._update(request, given)

    async def _update(self, request: Request[UpdateBrokerConfig], given: Mapping[str, str]) -> Frame:
        if not given:
            raise InvalidParameter("the request names no property: send lines of the form name=value")
        settings = self._settings
        settings.change(given)
        if settings.dirty and not await self._save(settings.file):
            raise NotAvailable(
                f"the change holds until a restart, but {settings.file} cannot be written: see to the disk"
            )
        return request.reply()

    def show(self, request: Request[GetBrokerConfig]) -> Frame:
        header = GetBrokerConfigResponse(version=self._settings.version.encode().decode())
        return request.reply(header=header, body=self._settings.rendered().encode())


def _parsed(body: bytes) -> dict[str, str]:
    """The properties in a request. Raises InvalidParameter."""
    try:
        return java.parse_bytes(body, where="the request")
    except ConfigError as error:
        raise InvalidParameter(str(error)) from error
