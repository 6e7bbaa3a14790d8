"""Latency against load as a picture for docs/benchmarks.md."""

from __future__ import annotations

import statistics
from typing import Any

from pipelines.report.page import environment
from pipelines.report.plots import Plot, Series, Size, over_steps

TITLE, BELOW = 24, 24
"""Pixels above and below the panels."""
QUANTILES = {"p99": "second", "p50": "first"}
"""Quantile → style."""


def latency(measured: dict[str, Any]) -> str:
    """An SVG of what the open loops found: a panel for each number of candidates, medians of the turns."""
    size = Size(right=34)
    plots = [_panel(measured, candidates, size) for candidates in measured["candidates"]]
    height = TITLE + size.height + BELOW
    return (
        environment()
        .get_template("panels.svg.jinja")
        .render(
            plots=plots,
            width=len(plots) * size.width,
            height=height,
            below=f"milliseconds by requests/s, Poisson arrivals, {measured['form']}",
        )
    )


def _panel(measured: dict[str, Any], candidates: int, size: Size) -> Plot:
    loads = [[turn[f"{candidates} {share}"] for turn in measured["turns"]] for share in measured["shares"]]
    lines = []
    for quantile, style in QUANTILES.items():
        points = [
            (
                statistics.median(load["per_second"] for load in of_share),
                statistics.median(load[quantile] for load in of_share),
            )
            for of_share in loads
        ]
        lines.append(Series(quantile, style, sorted(points), quantile))
    rates, times = zip(*(point for line in lines for point in line.points), strict=True)
    return over_steps(
        f"{candidates:,} candidates",
        lines,
        steps=max(rates),
        label=f"milliseconds against requests a second, {candidates} candidates",
        y_range=(0.0, max(times) * 1.05),
        size=size,
    )
