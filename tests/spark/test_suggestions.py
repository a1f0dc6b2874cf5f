"""Hints for misspelt names."""

from __future__ import annotations

from kappamq.spark.suggestions import nearest


def test_a_close_name_is_suggested_as_it_is_written() -> None:
    assert nearest("startingoffset", ["startingOffsets", "topic"]) == " (did you mean startingOffsets?)"
    assert nearest("zzz", ["startingOffsets", "topic"]) == ""
