"""Geometry of the report's plots: computes SVG coordinates, which templates/plots.html.jinja draws.

The plots do not use a plotting library. Lines and text can then take the colors of the page in light, dark and print
mode, text stays text, and a page with fifty panels stays small.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from pipelines.report.formatting import axis_label

Point = tuple[float, float]
EndLabel = tuple[float, float, str, str]

MANY_TASKS = 12
"""Number of tasks above which the panels are small."""

LABEL_HEIGHT = 11.0
"""Minimum vertical distance between two labels in pixels."""


@dataclass(frozen=True)
class Size:
    """Size of a panel in pixels, before the page scales it to its column.

    Attributes:
        width: width of the whole panel.
        height: height of the whole panel.
        right: right margin, which contains the labels at the ends of the lines.
        ticks: minimum number of ticks per axis.
    """

    width: int = 320
    height: int = 180
    right: int = 12
    ticks: int = 3

    left, top, bottom = 40, 8, 22

    def narrow(self) -> Size:
        """Return the size for a page with many panels."""
        return Size(200, 130, self.right, 2)


@dataclass(frozen=True)
class Series:
    """A line of a plot.

    Attributes:
        name: tooltip and accessible name.
        style: CSS class that sets the color and dashes.
        points: (x, y) pairs; pairs with a non-finite y are skipped.
        end: label at the end of the line.
    """

    name: str
    style: str
    points: Sequence[Point]
    end: str = ""


@dataclass(frozen=True)
class Marker:
    """A vertical line at a training step.

    Attributes:
        name: tooltip and legend text.
        style: CSS class.
        step: position on the x axis.
    """

    name: str
    style: str
    step: float


@dataclass(frozen=True)
class Axis:
    """Map values to pixels.

    Attributes:
        low: value at the start of the axis.
        high: value at the end of the axis.
        start: pixel at the start of the axis.
        stop: pixel at the end of the axis.
        scale: transform that is applied to values, such as the square root.
    """

    low: float
    high: float
    start: float
    stop: float
    scale: Callable[[float], float] = float

    def __call__(self, value: float) -> float:
        """Return the pixel of a value."""
        low, high = self.scale(self.low), self.scale(self.high)
        share = (self.scale(value) - low) / ((high - low) or 1.0)
        return round(self.start + share * (self.stop - self.start), 1)


@dataclass(frozen=True)
class Plot:
    """A panel in pixel coordinates.

    Attributes:
        title: heading.
        label: text alternative of the plot.
        size: size of the panel.
        x_ticks: (pixel, text) of each tick of the x axis.
        y_ticks: (pixel, text) of each tick of the y axis.
        paths: (style, path data, name) of each line.
        ends: (x, y, style, text) of each label at the end of a line.
        markers: (x, style, name) of each vertical line.
        band: (x, width) of the shaded band; None for no band.
        dots: (x, y, style, y of the interval's low end, y of its high end, text) of each dot.
    """

    title: str
    label: str
    size: Size
    x_ticks: list[tuple[float, str]]
    y_ticks: list[tuple[float, str]]
    paths: list[tuple[str, str, str]]
    ends: list[EndLabel] = field(default_factory=list)
    markers: list[tuple[float, str, str]] = field(default_factory=list)
    band: tuple[float, float] | None = None
    dots: list[tuple[float, float, str, float, float, str]] = field(default_factory=list)


def line_plot(
    title: str,
    series: Sequence[Series],
    *,
    x_max: float,
    label: str,
    markers: Sequence[Marker] = (),
    y_range: tuple[float, float] | None = None,
    size: Size | None = None,
) -> Plot:
    """Plot lines over an x axis that starts at 0.

    Args:
        title: heading of the panel.
        series: the lines; later ones are drawn on top.
        x_max: end of the x axis.
        label: text alternative of the plot.
        markers: vertical lines; the band between those of style ``anneal`` and ``final`` is shaded.
        y_range: range of the y axis; default: the range of the lines.
        size: size of the panel.
    """
    size = size or Size()
    finite = [[(x, y) for x, y in line.points if math.isfinite(y)] for line in series]
    low, high = y_range or _padded_range([y for points in finite for _, y in points])
    x_axis = Axis(0, max(x_max, 1), size.left, size.width - size.right)
    y_axis = Axis(low, high, size.height - size.bottom, size.top)
    x_ticks, y_ticks = ticks(0, max(x_max, 1), size.ticks), ticks(low, high, size.ticks)
    marker_x = {marker.style: x_axis(marker.step) for marker in markers}
    band = None
    if "anneal" in marker_x and "final" in marker_x:
        band = (marker_x["anneal"], round(marker_x["final"] - marker_x["anneal"], 1))
    ends = [
        (x_axis(points[-1][0]) + 4, y_axis(points[-1][1]), line.style, line.end)
        for line, points in zip(series, finite, strict=True)
        if line.end and points
    ]
    return Plot(
        title,
        label,
        size,
        [(x_axis(x), axis_label(x, x_ticks)) for x in x_ticks],
        [(y_axis(y), axis_label(y, y_ticks)) for y in y_ticks],
        [
            (line.style, _path([(x_axis(x), y_axis(y)) for x, y in points]), line.name)
            for line, points in zip(series, finite, strict=True)
            if points
        ],
        _spread_labels(ends, size),
        [(x_axis(marker.step), marker.style, marker.name) for marker in markers],
        band,
    )


def calibration_plot(
    title: str, curves: Sequence[tuple[str, str, Sequence[dict[str, Any]]]], label: str, size: Size
) -> Plot:
    """Plot observed against predicted rates on square-root axes, which separate rare events.

    Args:
        title: heading of the panel.
        curves: (name, style, bins) of each curve; later ones are drawn on top. A bin has ``predicted``, ``observed``,
            ``low`` and ``high`` (None if unknown) and ``rows``.
        label: text alternative of the plot.
        size: size of the panel.
    """
    bins = [b for _, _, curve in curves for b in curve]
    high = max([1e-9, *(value for b in bins for value in (b["predicted"], b["observed"], b["high"] or 0.0))]) * 1.02
    x_axis = Axis(0, high, size.left, size.width - size.right, math.sqrt)
    y_axis = Axis(0, high, size.height - size.bottom, size.top, math.sqrt)
    tick_values = sorted({0.0, *(_round_down(high * share) for share in (1 / 6, 1))})
    diagonal = [(x_axis(0), y_axis(0)), (x_axis(high), y_axis(high))]
    paths, dots = [("ideal", _path(diagonal), "perfect calibration")], []
    for name, style, curve in curves:
        paths.append((style, _path([(x_axis(b["predicted"]), y_axis(b["observed"])) for b in curve]), name))
        for b in curve:
            text = f"{name}: predicted {b['predicted']:.4f}, observed {b['observed']:.4f}, {b['rows']:,} rows"
            low, top = (b["observed"] if end is None else max(end, 0.0) for end in (b["low"], b["high"]))
            dots.append((x_axis(b["predicted"]), y_axis(b["observed"]), style, y_axis(low), y_axis(top), text))
    return Plot(
        title,
        label,
        size,
        [(x_axis(x), f"{x:.2g}") for x in tick_values],
        [(y_axis(y), f"{y:.2g}") for y in tick_values],
        paths,
        dots=dots,
    )


def ticks(low: float, high: float, min_count: int) -> list[float]:
    """Return at least ``min_count`` multiples of a step of 1, 2 or 5 times a power of ten within [low, high]."""
    if not high > low:
        return [low]
    power = 10.0 ** math.floor(math.log10(high - low))
    for step in (power * factor for factor in (5, 2, 1, 0.5, 0.2, 0.1)):
        first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
        if last - first + 1 >= min_count:
            break
    return [i * step for i in range(first, last + 1)]


def thin(points: Sequence[Point], max_count: int) -> list[Point]:
    """Return at most ``max_count`` evenly spaced points, including the first and the last."""
    if len(points) <= max_count:
        return list(points)
    stride = (len(points) - 1) / (max_count - 1)
    return [points[round(i * stride)] for i in range(max_count)]


def _round_down(value: float) -> float:
    """Return the largest of 1, 2 and 5 times a power of ten that does not exceed the value."""
    power = 10.0 ** math.floor(math.log10(value))
    return power * max(factor for factor in (1, 2, 5) if factor * power <= value)


def _padded_range(values: Sequence[float]) -> tuple[float, float]:
    if not values:
        return 0.0, 1.0
    low, high = min(values), max(values)
    margin = (high - low) * 0.06 or abs(high) * 0.1 or 1.0
    return low - margin, high + margin


def _path(points: Sequence[Point]) -> str:
    if len(points) == 1:
        return f"M{points[0][0]:g} {points[0][1]:g}h.1"  # round line caps make this a dot
    return "M" + "L".join(f"{x:g} {y:g}" for x, y in points)


def _spread_labels(ends: list[EndLabel], size: Size) -> list[EndLabel]:
    """Move overlapping labels apart without changing their order."""
    ends = sorted(ends, key=lambda end: end[1])
    ys = [y for _, y, _, _ in ends]
    for i, j in itertools.pairwise(range(len(ys))):
        ys[j] = max(ys[j], ys[i] + LABEL_HEIGHT)
    if ys and ys[-1] > size.height - size.bottom:
        ys[-1] = float(size.height - size.bottom)
        for i in reversed(range(len(ys) - 1)):
            ys[i] = min(ys[i], ys[i + 1] - LABEL_HEIGHT)
    return [(x, round(y, 1), style, text) for (x, _, style, text), y in zip(ends, ys, strict=True)]
