"""Which topics of a store are wanted; what is wrong with options is in test_store_source.py."""

from __future__ import annotations

from kappamq.spark.store.options import OnDamage, StoreOptions


def test_topics_by_name_by_pattern_or_all() -> None:
    assert StoreOptions(path="x").wants("anything")
    assert StoreOptions(path="x", topics=("a",)).wants("a")
    assert not StoreOptions(path="x", topics=("a",)).wants("b")
    assert StoreOptions(path="x", topic_pattern="a.*").wants("abc")
    assert not StoreOptions(path="x", topic_pattern="a").wants("abc")
    assert StoreOptions(path="x").on_damage is OnDamage.FAIL
