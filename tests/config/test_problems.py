from __future__ import annotations

from pathlib import Path

import pytest

from kappamq.config import apache
from kappamq.config.problems import Problems, Written, place_of
from kappamq.errors import ConfigError

BAD = """# a file with a slip in nearly every line
brokerName = broker-a
listenPort = abc
brokerNmae = x

flushDiskType = MAYBE
aclEnable = true
brokerPermission = 99
defaultTopicQueueNums = 0
net.idle_s = soon
storePathIndex = /elsewhere
teapot = 1
"""


def test_all_that_is_wrong_is_told_at_once_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "bad.conf"
    path.write_text(BAD)
    with pytest.raises(ConfigError) as caught:
        apache.broker_settings(apache.read_file(path), defaults={"store": {"root": tmp_path}})
    head, *lines = str(caught.value).splitlines()
    assert head == "9 problems:"
    expected = [
        (3, "listenPort must be an integer"),
        (4, "unknown property brokerNmae (did you mean brokerName?)"),
        (6, "flushDiskType must be"),
        (7, "aclEnable=true cannot be honoured"),
        (8, "permission"),
        (9, "default_topic_queues"),
        (10, "net.idle_s must be a number"),
        (11, "storePathIndex=/elsewhere"),
        (12, "unknown property teapot"),
    ]
    for line, (number, text) in zip(lines, expected, strict=True):
        assert line.strip().startswith(f"{path}, line {number}: ")
        assert text in line


def test_unknown_names_alone_stop_nothing_and_say_where_they_are(tmp_path: Path) -> None:
    path = tmp_path / "odd.conf"
    path.write_text("\nteapot=1\n")
    _, findings = apache.broker_settings(apache.read_file(path), defaults={"store": {"root": tmp_path}})
    assert findings.unknown == (f"teapot in {path}, line 2",)
    path.write_text("listenPort=x\nteapot=1\n")
    with pytest.raises(ConfigError, match=r"2 problems:(?s:.*)teapot"):
        apache.nameserver_settings(apache.read_file(path), defaults={"nameserver": {"root": tmp_path}})


def test_one_problem_is_one_sentence() -> None:
    problems = Problems()
    problems.unknown("x", "teapot")
    problems.settle()
    problems = Problems()
    problems.wrong(Written("x", "--set teapot"), "no")
    with pytest.raises(ConfigError, match=r"^--set teapot: no$"):
        problems.settle()


def test_a_value_is_a_text_like_any_other() -> None:
    value = {"a": Written("x", "f", 3)}["a"]
    assert (value, place_of(value), place_of("x")) == ("x", "f, line 3", "")
