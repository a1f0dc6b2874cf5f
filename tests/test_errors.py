from __future__ import annotations

import pickle

import pytest

from kappamq import errors
from kappamq.errors import KappaError, Retry
from kappamq.protocol.codes import ResponseCode


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (1, errors.BrokerError),
        (2, errors.Busy),
        (3, errors.NotSupported),
        (13, errors.IllegalMessage),
        (14, errors.NotAvailable),
        (16, errors.NoPermission),
        (17, errors.TopicNotFound),
        (22, errors.QueryNotFound),
        (23, errors.SubscriptionInvalid),
        (24, errors.SubscriptionUnknown),
        (25, errors.SubscriptionOutdated),
        (26, errors.GroupNotFound),
        (29, errors.InvalidParameter),
        (206, errors.ConsumerOffline),
        (1500, errors.GoingAway),
    ],
)
def test_each_code_has_its_class(code: int, kind: type[KappaError]) -> None:
    error = errors.for_code(code, " why \n")
    assert type(error) is kind
    assert (str(error), error.response_code, int(kind.code or 0)) == ("why", code, code)


def test_unknown_and_unclaimed_codes_are_readable() -> None:
    assert type(errors.for_code(4711)) is errors.BrokerError
    assert errors.for_code(4711).response_code == 4711
    assert "4711" in str(errors.for_code(4711, None))
    unclaimed = next(code for code in ResponseCode if code not in KappaError.by_code and code != 0)
    assert unclaimed.name in str(errors.for_code(unclaimed))


def test_a_code_cannot_be_claimed_twice() -> None:
    with pytest.raises(AssertionError, match="both claim"):
        type("Impostor", (KappaError,), {"code": ResponseCode.TOPIC_NOT_EXIST})
    assert KappaError.by_code[ResponseCode.TOPIC_NOT_EXIST] is errors.TopicNotFound


def test_a_subclass_answers_with_the_code_of_its_parent() -> None:
    kind = type("VeryBusy", (errors.Busy,), {})
    assert kind("x").response_code == 2
    assert KappaError.by_code[ResponseCode.SYSTEM_BUSY] is errors.Busy


# RocketMQ's producer tries another broker after exactly these codes (behaviour.md section 4), those that have a class.
RETRIED = {17, 14, 1, 2, 16, 1500}


def test_retry_elsewhere_or_after_a_new_route_for_the_codes_rocketmq_retries() -> None:
    ours = {int(code) for code, kind in KappaError.by_code.items() if kind.retry in (Retry.ELSEWHERE,)}
    assert ours | {17} == RETRIED
    assert errors.TopicNotFound.retry is Retry.AFTER_ROUTE_REFRESH


def test_stored_but_not_flushed_is_never_sent_again() -> None:
    for code in (10, 11, 12):
        assert errors.for_code(code).retry is Retry.NEVER


def test_timeouts_and_lost_connections_are_the_usual_exceptions_too() -> None:
    assert isinstance(errors.SendTimeout("3 s"), TimeoutError)
    assert isinstance(errors.NotConnected("refused"), ConnectionError)
    assert str(errors.SendTimeout("3 s")) == errors.SendTimeout("3 s").message == "3 s"
    assert errors.SendTimeout("3 s").response_code is None


@pytest.mark.parametrize("error", [errors.for_code(4711, "x"), errors.SendTimeout("y"), errors.StoreLocked("z")])
def test_errors_survive_pickling(error: KappaError) -> None:
    # Spark carries them from executor to driver.
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again), again.response_code) == (type(error), str(error), error.response_code)
