"""Which slots are in memory, while some are entered and others loaded."""

from __future__ import annotations

from kappamq.broker.timers.window import TimerWindow

T = 1_700_000_000_000


def test_a_window_begins_with_what_is_not_done() -> None:
    window = TimerWindow(T + 500)
    assert (window.upto_ms, window.complete_ms, window.is_all) == (T, T, False)
    assert window.load_ms == T - 3000


def test_loading_moves_it_on() -> None:
    window = TimerWindow(T + 500)
    assert window.begin_load(T + 10_500) == (T, T + 13_000)
    assert (window.complete_ms, window.load_ms) == (T, None), "nothing behind is to be trusted meanwhile"
    window.end_load(T + 13_000, None)
    assert window.is_all
    assert window.complete_ms > T * 1000, "nothing is left"
    window.note([T + 5000])
    assert window.is_all, "what is entered for the window goes to memory at once"
    window.note([T + 60_000, T + 30_000])
    assert (window.complete_ms, window.load_ms) == (T + 30_000, T + 27_000)


def test_loading_that_got_less_far() -> None:
    window = TimerWindow(T + 500)
    window.begin_load(T + 10_500)
    window.note([T + 14_000])
    window.end_load(T + 4000, T + 6000)
    assert (window.upto_ms, window.complete_ms) == (T + 4000, T + 6000)
    assert window.begin_load(T + 1) == (T + 4000, T + 5000), "a second at least"


def test_it_grows_over_empty_slots_only() -> None:
    window = TimerWindow(T + 500)
    window.grow(T + 5500)
    assert window.upto_ms == T, "there may be something in this one"
    window.begin_load(T + 500)
    window.grow(T + 9500)
    assert window.upto_ms == T + 3000, "it is being loaded"
    window.end_load(T + 3000, T + 9000)
    window.grow(T + 4500)
    assert window.upto_ms == T + 7000
    window.grow(T + 60_500)
    assert window.upto_ms == T + 9000
    window.grow(T)
    assert window.upto_ms == T + 9000, "it never shrinks"


def test_loading_that_failed() -> None:
    window = TimerWindow(T + 500)
    window.begin_load(T + 10_500)
    window.give_up_load()
    assert (window.upto_ms, window.complete_ms, window.load_ms) == (T, T, T - 3000)
    window.give_up_load()
    assert window.begin_load(T + 500) == (T, T + 3000)
