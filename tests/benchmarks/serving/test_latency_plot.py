"""Tests of the latency plot."""

from __future__ import annotations

from xml.etree import ElementTree

from benchmarks.serving.latency_plot import plot_latency
from tests.support.bench_results import load, measured_values


def test_plot_latency_has_a_panel_per_number_of_candidates_and_a_line_per_percentile() -> None:
    measured = measured_values()["open"]
    measured["candidates"] = [100, 500]
    for turn in measured["turns"]:
        turn |= {f"500 {share}": load(10 * share, 20.0, 50.0) for share in (0.3, 0.7)}
    picture = ElementTree.fromstring(plot_latency(measured))
    namespaces = {"svg": "http://www.w3.org/2000/svg"}
    panels = picture.findall("svg:svg", namespaces)
    assert len(panels) == 2
    for panel in panels:
        lines = [path for path in panel.findall("svg:path", namespaces) if "line" in path.attrib["class"].split()]
        assert [line.find("svg:title", namespaces).text for line in lines] == ["p99", "p50"]  # type: ignore[union-attr]
    titles = [text.text for text in picture.findall("svg:text", namespaces)]
    assert titles[:2] == ["100 candidates", "500 candidates"]
