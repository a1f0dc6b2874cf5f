"""Bodies of batch transactions: there and back."""

from __future__ import annotations

from kappamq.protocol.bodies import batches
from kappamq.protocol.bodies.batches import ChunkList
from tests.protocol.round_trips import there_and_back_tests

test_there_and_back, test_any_json_is_read_or_refused = there_and_back_tests(batches)


def test_chunks_are_pairs_of_numbers() -> None:
    assert ChunkList.decode(b'{"chunks":{"a":[[1,2],["3",4]]}}').chunks == {"a": [[1, 2], [3, 4]]}
