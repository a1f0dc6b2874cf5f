from __future__ import annotations

from typing import Any

from kappamq.client import Producer
from kappamq.local import Local
from kappamq.message import Message


def test_the_life_of_a_scope(kappamq: Any, topic: str, cluster: Local) -> None:
    name = f"scope-of-{topic}"
    with Producer(cluster.nameserver) as producer, producer.batch_transaction(name, 3, owner="query 1") as batch:
        batch.send(Message(topic, b"a"))
    rows = {row["scope"]: row for row in kappamq("scope", "list", "-o", "json").json}
    row = rows[name]
    assert (row["owner"], row["coordinator"], row["last_batch"], row["open_since"]) == ("query 1", "broker-a", 3, None)
    assert f"{name}: last batch 3, owner query 1," in " ".join(kappamq("scope", "list").out.split())
    nobody = kappamq("scope", "reset", name)
    assert nobody.exit_code == 2
    assert "use --yes to reset" in " ".join(nobody.err.split())
    done = kappamq("scope", "reset", name, "--yes")
    assert (done.exit_code, done.out.strip()) == (0, f"reset {name} on 1 broker")
    again = kappamq("scope", "reset", name, "--yes")
    assert again.exit_code != 0
    assert "no broker knows the scope" in " ".join(again.err.split())
