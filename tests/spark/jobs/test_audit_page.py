"""The page says what was found, needs nothing else, and nobody's names can do anything in it."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path

from kappamq.spark.jobs.audit_page import render
from kappamq.spark.jobs.audit_report import Report
from tests.spark.jobs.audit_reports import a_report

VOID = {"meta", "line", "rect", "br"}


class Checked(HTMLParser):
    """Elements are closed in order; collects their names, attributes and texts."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.texts: list[str] = []
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _value in attrs}
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _value in attrs}

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def test_it_says_what_was_found() -> None:
    page = render(a_report())
    text = " ".join("".join(Checked(page).texts).split())
    assert "3 findings say that messages are lost or duplicated." in text
    assert "1,200,000 messages (3.0 GiB) of 1,234,567 records" in text
    assert "lost: missing - 1 finding about 42 messages" in text
    assert "late: stored - 25 findings" in text
    assert "The first 10 of them; more in tables/findings.parquet." in text
    assert "Rules that found nothing: sent, undelivered" in text
    assert "2 others" in text, "topics that have no area of their own"
    assert "RMQ_SYS" not in text
    assert "5.0 MiB more" in text


def test_it_loads_and_runs_nothing() -> None:
    page = render(a_report())
    checked = Checked(page)
    assert not checked.tags & {"script", "link", "img", "iframe", "object", "embed", "a", "form", "base"}
    assert not {name for name in checked.attributes if name.startswith("on") or name in ("src", "href", "action")}
    assert "://" not in page
    assert "default-src 'none'" in page


def test_hostile_names_are_only_shown() -> None:
    hostile = '</title></style><script>alert("1")</script><img src=x onerror=alert(1)>&amp;\x00\ud800'
    report = a_report(topics=(hostile, hostile + "2"))
    report.store = Path("/tmp/<b>")
    report.remarks.append(hostile)
    page = render(report)
    page.encode()
    checked = Checked(page)
    assert not checked.tags & {"script", "img", "b"} - {"b"}
    assert "onerror" not in checked.attributes
    assert any('<script>alert("1")</script>' in text for text in checked.texts), "as text it is there"


def test_an_empty_store() -> None:
    report = Report(
        store=Path("/data"), made_ms=0, log_min=0, log_end=0, late_ms=1, tolerance_ms=1, trace_topic="T"
    )  # fmt: skip
    text = "".join(Checked(render(report)).texts)
    assert "There were no messages to look at" in text
    assert "Nothing is lost" not in text
    assert "0 messages (0 B) of 0 records" in text


def test_it_says_which_topics_it_was_limited_to() -> None:
    report = a_report()
    report.found = type(report.found)()
    text = "".join(Checked(render(report)).texts)
    assert "Nothing is lost, duplicated or out of order." in text
    assert "Only topics" not in text
    report.only_topics = ("Orders", "mail")
    assert "Only topics: Orders, mail" in "".join(Checked(render(report)).texts)
    report.only_topics, report.only_pattern = (), "<b>.*"
    assert "Only topics that match <b>.*" in "".join(Checked(render(report)).texts)
