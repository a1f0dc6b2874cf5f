from kappamq.sim.broker import Broker
from kappamq.sim.mutants import MUTANTS
from kappamq.sim.running import failure, failures


def test_no_failure() -> None:
    assert failure(0) is None
    assert list(failures(range(2))) == []


def test_a_checkers_word_and_an_assertion_of_the_core() -> None:
    found = failure(0, MUTANTS["shows-written"].broker)
    assert found is not None
    assert (found.seed, found.where) == (0, "")
    assert "shows its log up to" in found.what

    class Broken(Broker):
        def _flush(self) -> None:
            raise ZeroDivisionError("planted")

    found = failure(0, Broken)
    assert found is not None
    assert found.what == "ZeroDivisionError: planted"
    assert "_flush" in found.where
