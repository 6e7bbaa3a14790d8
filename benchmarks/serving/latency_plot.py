"""Plot latency against load for docs/benchmarks.md."""

from __future__ import annotations

import statistics
from typing import Any

from pipelines.report.page import template_environment
from pipelines.report.plots import Plot, Series, Size, line_plot

TITLE_HEIGHT, CAPTION_HEIGHT = 24, 24
"""Pixels above and below the panels."""
STYLES = {"p99": "second", "p50": "first"}
"""Percentile → CSS class of its line."""


def plot_latency(measured: dict[str, Any]) -> str:
    """Return an SVG of the open loops with a panel per number of candidates; values are medians of the turns."""
    size = Size(right=34)
    plots = [_panel(measured, candidates, size) for candidates in measured["candidates"]]
    height = TITLE_HEIGHT + size.height + CAPTION_HEIGHT
    return (
        template_environment()
        .get_template("panels.svg.jinja")
        .render(
            plots=plots,
            width=len(plots) * size.width,
            height=height,
            below=f"latency in milliseconds by requests/s, Poisson arrivals, {measured['form']}",
        )
    )


def _panel(measured: dict[str, Any], candidates: int, size: Size) -> Plot:
    loads = [[turn[f"{candidates} {share}"] for turn in measured["turns"]] for share in measured["shares"]]
    lines = []
    for name, style in STYLES.items():
        points = [
            (
                statistics.median(load["per_second"] for load in turns),
                statistics.median(load[name] for load in turns),
            )
            for turns in loads
        ]
        lines.append(Series(name, style, sorted(points), name))
    rates, latencies = zip(*(point for line in lines for point in line.points), strict=True)
    return line_plot(
        f"{candidates:,} candidates",
        lines,
        x_max=max(rates),
        label=f"latency in milliseconds by requests/s, {candidates} candidates",
        y_range=(0.0, max(latencies) * 1.05),
        size=size,
    )
