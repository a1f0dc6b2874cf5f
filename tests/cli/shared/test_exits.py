from __future__ import annotations

from pathlib import Path

import pytest

from kappamq import errors
from kappamq.cli.shared.exits import Exit, exit_for


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.ConfigError("x"), Exit.CONFIG),
        (errors.NoSuchTopic("x"), Exit.NOT_FOUND),
        (errors.StoreLocked("x"), Exit.STORE),
        (errors.DiskFull("x"), Exit.STORE),
        (errors.for_code(17), Exit.NOT_FOUND),
        (errors.for_code(22), Exit.NOT_FOUND),
        (errors.NoRoute("x"), Exit.UNREACHABLE),
        (errors.SendTimeout("x"), Exit.UNREACHABLE),
        (errors.NotConnected("x"), Exit.UNREACHABLE),
        (errors.for_code(16), Exit.REFUSED),
        (errors.for_code(4711), Exit.REFUSED),
        (errors.ClientClosed("x"), Exit.FAILED),
        (KeyboardInterrupt(), Exit.INTERRUPTED),
        (PermissionError("x"), Exit.STORE),
        (ConnectionRefusedError("x"), Exit.UNREACHABLE),
        (OSError("x"), Exit.FAILED),
    ],
)
def test_every_error_has_its_exit(error: BaseException, code: Exit) -> None:
    assert exit_for(error) is code


def test_every_exit_code_is_documented() -> None:
    text = (Path(__file__).parents[3] / "docs" / "CLI.md").read_text()
    for code in Exit:
        assert f"| {int(code)} |" in text, f"docs/CLI.md does not explain exit code {int(code)}"
