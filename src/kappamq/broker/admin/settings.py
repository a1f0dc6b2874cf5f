"""Settings changed while the broker runs.

A change is checked as a whole and written into the configuration objects that all parts hold: this is the only place that changes
them. Most parts look a value up when they need it; those that keep it elsewhere (the kernel, a table) listen to `SettingsChanged`.
Settings belong to one node, so they are not in the log, which others may copy: they are kept in a separate file, which is
written before the change is answered. Earlier versions did record them: a file without `nodeFile` is one of theirs, and
the settings in their records are copied into the node's file once. After that such records are ignored.

After a restart the changes are applied again, each unless the start-up configuration has another value now than when
the change was made: then broker.conf was edited since, and its value is used.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Mapping
from typing import Any

from kappamq.config import apache
from kappamq.config import properties as java
from kappamq.config.apache import BrokerSettings
from kappamq.errors import KappaError
from kappamq.events import Events
from kappamq.protocol.bodies.topics import DataVersion
from kappamq.state.events import SettingsChanged

log = logging.getLogger(__name__)

Change = tuple[str, str | None]
"""The new value, and that of the start-up configuration."""


class Settings:
    file = "kappamq.settings.json"
    kinds = ("settings",)

    def __init__(self, live: BrokerSettings, now_ms: Callable[[], int], events: Events) -> None:
        self._live = live
        self._at_start = apache.rendered(self._live)
        self._now_ms = now_ms
        self._changes: dict[str, Change] = {}
        self.version = DataVersion(timestamp=now_ms())
        self.dirty = False
        self._is_node_file = False  # the file is the node's own: the log has nothing to add
        self._events = events

    # -- changing ----------------------------------------------------------------------------------------------------------

    def rendered(self) -> str:
        """All settings as they are now, as lines of the form name=value."""
        return java.render(apache.rendered(self._live))

    def change(self, given: Mapping[str, str]) -> None:
        """Change properties: all of them or, with an error, none."""
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
        """Apply the changes of earlier runs again; once, when all parts exist."""
        for name, (text, instead_of) in list(self._changes.items()):
            if self._at_start.get(name) != instead_of:
                log.warning(
                    "%s=%s, set at run time, no longer applies: the configuration now says %s where it said %s",
                    name,
                    text,
                    self._at_start.get(name),
                    instead_of,
                )
                del self._changes[name]
                self.dirty = True
                continue
            try:
                self._overwrite(apache.changed(self._live, {name: text}))
                log.info("%s=%s, set at run time before the restart", name, text)
            except KappaError as error:
                log.warning("%s=%s, set at run time before the restart, cannot be applied: %s", name, text, error)

    def _overwrite(self, new: BrokerSettings) -> None:
        """Put new values into the configuration objects that all parts share. They were validated as separate objects before."""
        changed: list[str] = []
        for part in ("broker", "store", "net", "copies"):
            live, wanted = getattr(self._live, part), getattr(new, part)
            for field in dataclasses.fields(live):
                value = getattr(wanted, field.name)
                if value != getattr(live, field.name):
                    object.__setattr__(live, field.name, value)
                    changed.append(f"{part}.{field.name}")
        # Afterwards, and once: listeners that read several values must find all of them changed.
        if changed:
            self._events.publish(SettingsChanged(frozenset(changed)))

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
