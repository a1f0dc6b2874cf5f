"""Plots are well-formed, show what they are given, and nobody's names break them."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree

import pytest

from kappamq.spark.jobs.audit_charts import (
    COLOURS,
    bars,
    clipped,
    columns,
    duration,
    moment,
    short,
    shown,
    size,
    stacked,
)

HOSTILE = '"><script>alert(1)</script>&\x00\x1b\ud800 \u202e'


def parsed(svg: str) -> ElementTree.Element:
    root = ElementTree.fromstring(svg)
    assert not [element for element in root.iter() if element.tag in ("script", "image", "foreignObject", "a")]
    return root


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0, "0"),
        (7, "7"),
        (1234, "1,234"),
        (12_345, "12.3k"),
        (123_456, "123k"),
        (4_500_000, "4.5M"),
        (2e9, "2G"),
        (0.25, "0.25"),
    ],
)
def test_numbers_at_a_glance(number: float, text: str) -> None:
    assert short(number) == text


def test_sizes_durations_and_moments() -> None:
    assert [size(0), size(2048), size(5 << 40), size(1 << 60)] == ["0 B", "2.0 KiB", "5.0 TiB", "1048576.0 TiB"]
    texts = [duration(ms) for ms in (None, 0, 999, 1500, 90_000, 7_200_000, 10 * 86_400_000, -1500)]
    assert texts == ["-", "0 ms", "999 ms", "1.5 s", "1.5 min", "2 h", "10.0 days", "-1.5 s"]
    assert moment(1_700_000_000_000) == "2023-11-14 22:13:20"
    assert moment(1 << 62) == f"{1 << 62} ms", "no calendar has it"
    assert clipped("x" * 100) == "x" * 17 + "…" + "x" * 17


def test_hostile_texts_are_only_shown() -> None:
    assert "<" not in shown(HOSTILE)
    assert not {"\x00", "\x1b", "\ud800", "\u202e"} & set(shown(HOSTILE)), "nor do they turn the text around"
    for svg in (
        bars(HOSTILE, [(HOSTILE, 3, HOSTILE)]),
        columns(HOSTILE, [HOSTILE], [1], HOSTILE),
        stacked(HOSTILE, [0, 1000], [(HOSTILE, [1.0, 2.0])], 1000, HOSTILE),
    ):
        svg.encode()
        parsed(svg)


def test_bars_are_as_long_as_their_values() -> None:
    rectangles = parsed(bars("bytes", [("a", 100, "100"), ("b", 25, "25"), ("c", 0, "0")])).findall(".//rect")
    widths = [float(rectangle.attrib["width"]) for rectangle in rectangles]
    assert widths[0] == pytest.approx(4 * widths[1], rel=0.01)
    assert widths[2] == 1, "nothing is still a bar that can be seen"
    assert parsed(bars("bytes", [])).findall(".//rect") == []


def test_empty_columns_at_the_ends_are_left_out() -> None:
    labels = [f"< {number}" for number in range(20)]
    values = [0] * 20
    values[8] = values[12] = 5
    texts = [element.text for element in parsed(columns("times", labels, values, "messages")).iter("text")]
    assert "< 8" in texts
    assert "< 12" in texts
    assert "< 2" not in texts
    assert "< 19" not in texts
    parsed(columns("times", labels, [0] * 20, "messages"))


def test_areas_lie_on_top_of_each_other() -> None:
    series = [(f"topic-{number}", [1.0, 2.0, 3.0]) for number in range(len(COLOURS))]
    areas = parsed(stacked("rates", [0, 1000, 2000], series, 1000, "per 1 s")).findall(".//polygon")
    assert [area.attrib["fill"] for area in areas] == list(COLOURS)
    heights = [[float(point.split(",")[1]) for point in area.attrib["points"].split()] for area in areas]
    assert max(heights[1][:6]) <= max(heights[0][:6]), "the second begins where the first ends"
    assert heights[1][6:] == heights[0][:6][::-1]
