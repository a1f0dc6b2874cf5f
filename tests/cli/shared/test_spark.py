"""Options of commands that start Spark, and Ctrl-C for what goes on until then."""

from __future__ import annotations

import os
import signal

import pytest
import typer

from kappamq.cli.shared.spark import asked_to_stop, properties_given


def test_properties() -> None:
    assert properties_given(["spark.x=a=b", " spark.y =1"]) == {"spark.x": "a=b", "spark.y": "1"}
    assert properties_given(None) == {}
    for text in ("spark.x", "=5"):
        with pytest.raises(typer.BadParameter, match="write it as name=value"):
            properties_given([text])


def test_the_first_interrupt_asks_and_the_second_one_ends() -> None:
    before = signal.getsignal(signal.SIGINT)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    now_s = 100.0
    try:
        with asked_to_stop(lambda: now_s) as asked:
            assert not asked()
            os.kill(os.getpid(), signal.SIGINT)
            assert asked()
            now_s += 0.9
            os.kill(os.getpid(), signal.SIGINT)  # as `timeout` does: to the process, and to its group
            now_s += 0.2
            with pytest.raises(KeyboardInterrupt):
                os.kill(os.getpid(), signal.SIGINT)
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)
