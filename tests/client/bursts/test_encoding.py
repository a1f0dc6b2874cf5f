"""A burst as one body: both kernels, and the protocol's own encoder, give the same bytes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kappamq.client.bursts.encoding import Encoder
from kappamq.config.client import ClientConfig
from kappamq.errors import IllegalMessage
from kappamq.message import Message
from kappamq.protocol.codes import RequestCode
from kappamq.protocol.records import batch, properties

words = st.text("aß\U0001f375 z", min_size=1, max_size=5).map(str.strip).filter(bool)
messages = st.builds(
    Message,
    st.just("tea"),
    st.binary(min_size=1, max_size=20),
    tags=st.just("") | words,
    keys=st.lists(st.text("aß1", min_size=1, max_size=3), max_size=3).map(tuple),
    properties=st.dictionaries(st.text("pqä", min_size=1, max_size=3), words, max_size=3),
    sharding_key=st.just("") | words,
)


@given(st.lists(messages, min_size=1, max_size=10))
def test_kernel_twin_and_protocol_agree(several: list[Message]) -> None:
    ids = [f"ID{number:030}" for number in range(len(several))]
    made = Encoder(ClientConfig(), "twin").body(several, ids)
    assert Encoder(ClientConfig(), "auto").body(several, ids) == made
    for member, message, message_id in zip(batch.split(made), several, ids, strict=True):
        assert member.body == message.body
        wanted = {"UNIQ_KEY": message_id, "TAGS": message.tags, "KEYS": " ".join(message.keys)}
        wanted |= {"__SHARDINGKEY": message.sharding_key, **message.properties}
        assert properties.decode(member.properties) == {name: value for name, value in wanted.items() if value}


def test_a_batch_says_only_what_its_members_cannot() -> None:
    encoder = Encoder(ClientConfig())
    made = encoder.batch([Message("tea", b"a"), Message("tea", b"b")], ["1", "2"], 5)
    assert (made.code, made.properties, made.message_ids) == (RequestCode.SEND_BATCH_MESSAGE, "", ("1", "2"))
    hasty = [Message("tea", b"a", wait_stored=False)] * 2
    assert properties.decode(encoder.batch(hasty, ["1", "2"], 5).properties) == {"WAIT": "false"}


@pytest.mark.parametrize("kernel", ["auto", "twin"])
@pytest.mark.parametrize("text", ["a\2b", "\ud800", "x" * 40_000])
def test_what_cannot_be_encoded_is_found_and_explained(kernel: str, text: str) -> None:
    encoder = Encoder(ClientConfig(), kernel)
    good, bad = Message("tea", b"a"), Message("tea", b"b", tags=text)
    with pytest.raises((ValueError, OverflowError)):
        encoder.body([good, bad], ["1", "2"])
    assert encoder.wrong(good, "1") is None
    assert encoder.wrong(bad, "2") is not None


def test_what_no_broker_takes_is_refused() -> None:
    encoder = Encoder(ClientConfig(message_bytes_max=10))
    encoder.check(Message("tea", b"x" * 10, properties={"cups": "2"}))
    for wrong in (Message("tea", b""), Message("tea", b"x" * 11), Message("tea", b"x", properties={"KEYS": "1"})):
        with pytest.raises(IllegalMessage):
            encoder.check(wrong)


@given(st.lists(st.binary(min_size=1, max_size=40), min_size=1, max_size=10))
def test_bare_messages_are_encoded_as_others_are(bodies: list[bytes]) -> None:
    several = [Message("tea", body) for body in bodies]
    ids = [f"ID{number:030}" for number in range(len(several))]
    encoder = Encoder(ClientConfig())
    assert encoder.body(several, ids, bare=True) == encoder.body(several, ids)
