"""Whether the broker takes messages just now, and if not, why: one place that the kernel and the slow path both obey."""

from __future__ import annotations

from typing import Any

from kappamq.errors import KappaError


class Gate:
    """Closed while there is any reason to be. Each reason has a name, so that it can go away again."""

    def __init__(self, kernel: Any) -> None:
        self._kernel = kernel
        self._reasons: dict[str, KappaError] = {}
        kernel.accepting = True

    def close(self, name: str, error: KappaError) -> bool:
        """Refuse sends with `error` from now on; True if this reason is new."""
        fresh = name not in self._reasons
        self._reasons[name] = error
        self._kernel.accepting = False
        return fresh

    def open(self, name: str) -> bool:
        """That reason is gone; True if it was there."""
        gone = self._reasons.pop(name, None) is not None
        self._kernel.accepting = not self._reasons
        return gone

    def check(self) -> None:
        """Raises the reason why nothing can be stored now."""
        for error in self._reasons.values():
            raise error

    def has(self, name: str) -> bool:
        return name in self._reasons

    @property
    def reasons(self) -> list[str]:
        return [f"{name}: {error}" for name, error in self._reasons.items()]
