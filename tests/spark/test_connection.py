"""One client per process: kept between tasks, made anew after a fork."""

from __future__ import annotations

import os

from kappamq.spark import connection


def test_a_client_is_kept_and_belongs_to_its_process() -> None:
    first = connection.reader("127.0.0.1:1")
    assert connection.reader("127.0.0.1:1") is first
    assert connection.reader("127.0.0.1:2") is not first
    assert connection.reader("127.0.0.1:1", "other") is not first
    assert connection.admin("127.0.0.1:1") is connection.admin("127.0.0.1:1")
    assert connection.producer("127.0.0.1:1") is connection.producer("127.0.0.1:1")
    pid = os.fork()
    if pid == 0:
        os._exit(0 if connection.reader("127.0.0.1:1") is not first else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_all_can_be_closed_and_are_made_again() -> None:
    first = connection.reader("127.0.0.1:1")
    connection.close_all()
    assert connection.reader("127.0.0.1:1") is not first
