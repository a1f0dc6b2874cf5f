"""Settings changed while the broker runs (25), and shown (26).

A change is checked as a whole and written into the configuration objects that all parts hold: this is the only place that changes
them. Most parts look a value up when they need it; for those that keep it elsewhere (the kernel, a table) there is `on_change`.
Settings are those of one node, so the log, which others may copy, does not have them: they are kept in a file of their own, which is
written before the change is answered. Earlier versions did record them: a file that does not say `nodeFile` is one of theirs, and
what their records say is taken over into the node's file once. After that such records are ignored.

After a restart the changes are made again, each unless the start-up configuration says something else now than it said when
the change was made: then somebody has edited broker.conf since, and has the last word.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from kappamq.broker.requests.request import Handler, Request
from kappamq.config import apache
from kappamq.config import properties as java
from kappamq.config.apache import BrokerSettings
from kappamq.config.broker import BrokerConfig
from kappamq.config.net import NetConfig
from kappamq.config.store import StoreConfig
from kappamq.errors import ConfigError, InvalidParameter, KappaError, NotAvailable
from kappamq.net.requests.beside import Beside
from kappamq.net.requests.reader import InOrder
from kappamq.net.requests.sizes import BESIDE_BYTES
from kappamq.protocol.bodies.topics import DataVersion
from kappamq.protocol.codes import RequestCode
from kappamq.protocol.frame import Frame
from kappamq.protocol.headers.admin import GetBrokerConfig, GetBrokerConfigResponse, UpdateBrokerConfig

log = logging.getLogger(__name__)

Change = tuple[str, str | None]
"""The new value, and what the start-up configuration said instead."""


class Settings:
    file = "kappamq.settings.json"
    kinds = ("settings",)

    def __init__(
        self, broker: BrokerConfig, store: StoreConfig, net: NetConfig, now_ms: Callable[[], int]
    ) -> None:  # fmt: skip
        self._live = BrokerSettings(broker=broker, store=store, net=net)
        self._at_start = apache.rendered(self._live)
        self._now_ms = now_ms
        self._changes: dict[str, Change] = {}
        self.version = DataVersion(timestamp=now_ms())
        self.dirty = False
        self._is_node_file = False  # the file is the node's own: the log has nothing to add
        self.on_change: dict[str, Callable[[], None]] = {}  # by field, as in "store.transfer_bytes_max"
        self.save: Callable[[str], Awaitable[bool]]
        self.beside: Beside

    def handlers(self) -> dict[int, Handler]:
        return {RequestCode.UPDATE_BROKER_CONFIG: self.update, RequestCode.GET_BROKER_CONFIG: self.show}

    # -- requests ----------------------------------------------------------------------------------------------------------

    def update(self, request: Request[UpdateBrokerConfig]) -> InOrder:
        if len(request.body) > BESIDE_BYTES:
            return InOrder(self._update_later(request))
        return InOrder(self._update(request, _parsed(request.body)))

    async def _update_later(self, request: Request[UpdateBrokerConfig]) -> Frame:
        given = await self.beside.run(request.connection, _parsed, request.body, size=len(request.body))
        return await self._update(request, given)

    async def _update(self, request: Request[UpdateBrokerConfig], given: Mapping[str, str]) -> Frame:
        if not given:
            raise InvalidParameter("the request names no property: send lines of the form name=value")
        self.change(given)
        if self.dirty and not await self.save(self.file):
            raise NotAvailable(f"the change holds until a restart, but {self.file} cannot be written: see to the disk")
        return request.reply()

    def show(self, request: Request[GetBrokerConfig]) -> Frame:
        header = GetBrokerConfigResponse(version=self.version.encode().decode())
        return request.reply(header=header, body=java.render(apache.rendered(self._live)).encode())

    # -- changing ----------------------------------------------------------------------------------------------------------

    def change(self, given: Mapping[str, str]) -> None:
        """Change properties, all of them or, with an error, none."""
        new = apache.changed(self._live, given)
        before = apache.rendered(self._live)
        changes = {
            name: (text, self._at_start.get(name)) for name, text in given.items() if before.get(name) != text.strip()
        }
        if not changes:
            return
        self._note(changes)
        self._overwrite(new)

    def restore(self) -> None:
        """Make the changes of earlier runs again; once, when all parts are there."""
        for name, (text, instead_of) in list(self._changes.items()):
            if self._at_start.get(name) != instead_of:
                log.warning(
                    "%s=%s, set while the broker ran, no longer holds: the configuration now says %s where it said %s",
                    name, text, self._at_start.get(name), instead_of,
                )  # fmt: skip
                del self._changes[name]
                self.dirty = True
                continue
            try:
                self._overwrite(apache.changed(self._live, {name: text}))
                log.info("%s=%s, as set while the broker ran before", name, text)
            except KappaError as error:
                log.warning("%s=%s, set while the broker ran before, cannot be honoured: %s", name, text, error)

    def _overwrite(self, new: BrokerSettings) -> None:
        """Put new values into the objects that everybody holds. They were checked as new objects of their own."""
        changed: list[str] = []
        for part in ("broker", "store", "net"):
            live, wanted = getattr(self._live, part), getattr(new, part)
            for field in dataclasses.fields(live):
                value = getattr(wanted, field.name)
                if value != getattr(live, field.name):
                    object.__setattr__(live, field.name, value)
                    changed.append(f"{part}.{field.name}")
        # Afterwards, and each action once: those that read several values must find all of them.
        for action in dict.fromkeys(self.on_change[name] for name in changed if name in self.on_change):
            action()

    def _note(self, changes: Mapping[str, Change]) -> None:
        self._changes.update(changes)
        self.version = self.version.next(self._now_ms())
        self.dirty = True

    # -- fold --------------------------------------------------------------------------------------------------------------

    def to_snapshot(self) -> dict[str, Any]:
        changes = {name: [text, instead_of] for name, (text, instead_of) in self._changes.items()}
        return {"dataVersion": self.version.to_json(), "changes": changes, "nodeFile": True}

    def from_snapshot(self, table: dict[str, Any]) -> None:
        self.version = DataVersion.from_json(table.get("dataVersion") or {})
        for name, (text, instead_of) in (table.get("changes") or {}).items():
            self._changes[name] = (text, instead_of)
        self._is_node_file = bool(table.get("nodeFile"))

    def apply(self, kind: str, change: Any) -> None:
        """A record of an earlier version."""
        if not self._is_node_file:
            self._note({str(name): (str(text), instead_of) for name, (text, instead_of) in change.items()})

    def reset(self) -> None:
        self._changes.clear()
        self._is_node_file = False
        self.version = DataVersion(timestamp=self._now_ms())


def _parsed(body: bytes) -> dict[str, str]:
    """The properties in a request. Raises InvalidParameter."""
    try:
        return java.parse_bytes(body, where="the request")
    except ConfigError as error:
        raise InvalidParameter(str(error)) from error
