"""The exit codes of `kappamq`, documented in docs/CLI.md, and the mapping of errors to them."""

from __future__ import annotations

import enum

from kappamq import errors
from kappamq.errors import KappaError


class Exit(enum.IntEnum):
    OK = 0
    FAILED = 1  # the operation failed, or a check found something
    USAGE = 2  # the command line is wrong
    CONFIG = 3  # an option's value, a property, a file or a port is wrong: nothing was started
    UNREACHABLE = 4  # no name server, no broker, no route, or no answer in time
    NOT_FOUND = 5  # the topic, message or group does not exist
    REFUSED = 6  # a server refused the request
    STORE = 7  # the data directory cannot be used: locked, damaged, full, no rights
    FINDINGS = 8  # an audit found messages lost, duplicated or out of order
    INTERRUPTED = 130  # Ctrl-C


# The first match wins: specific classes before general ones.
_BY_KIND: list[tuple[type[KappaError], Exit]] = [
    (errors.NoSuchTopic, Exit.NOT_FOUND),
    (errors.ConfigError, Exit.CONFIG),
    (errors.StoreError, Exit.STORE),
    (errors.TopicNotFound, Exit.NOT_FOUND),
    (errors.QueryNotFound, Exit.NOT_FOUND),
    (errors.GroupNotFound, Exit.NOT_FOUND),
    (errors.BrokerNotFound, Exit.NOT_FOUND),
    (errors.UnknownTopic, Exit.NOT_FOUND),
    (errors.NoRoute, Exit.UNREACHABLE),
    (errors.NotConnected, Exit.UNREACHABLE),
    (errors.SendTimeout, Exit.UNREACHABLE),
    (errors.RequestTimeout, Exit.UNREACHABLE),
]


def exit_for(error: BaseException) -> Exit:
    if isinstance(error, KeyboardInterrupt):
        return Exit.INTERRUPTED
    if isinstance(error, KappaError):
        for kind, code in _BY_KIND:
            if isinstance(error, kind):
                return code
        return Exit.REFUSED if error.response_code is not None else Exit.FAILED
    if isinstance(error, PermissionError):
        return Exit.STORE
    return Exit.UNREACHABLE if isinstance(error, (ConnectionError, TimeoutError)) else Exit.FAILED
