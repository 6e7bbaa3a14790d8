"""Geometry of the report's plots: numbers in, coordinates of an SVG out; templates/plots.html.jinja draws them.

Drawn by hand rather than by a plotting library, so that lines and text take the page's colours in light, dark and
print, text stays text, and fifty panels stay small.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from pipelines.report.formatting import axis_number

Point = tuple[float, float]

MANY_TASKS = 12
"""Above so many tasks their panels are small."""


@dataclass(frozen=True)
class Size:
    """A panel's pixels, before the page scales it to its column.

    Attributes:
        width, height: of the whole panel.
        right: margin that holds the labels at the lines' ends.
        ticks: the fewest on an axis.
    """

    width: int = 320
    height: int = 180
    right: int = 12
    ticks: int = 3

    left, top, bottom = 40, 8, 22

    def narrow(self) -> Size:
        """For a page of many panels."""
        return Size(200, 130, self.right, 2)


@dataclass(frozen=True)
class Series:
    """A line.

    Attributes:
        name: shown when pointed at, and read aloud.
        style: class that the style sheet gives a colour and dashes.
        points: (x, y); what is not finite is left out.
        end: label at the line's end.
    """

    name: str
    style: str
    points: Sequence[Point]
    end: str = ""


@dataclass(frozen=True)
class Marker:
    """A step at which something happened: a vertical line in every plot over steps."""

    name: str
    style: str
    step: float


@dataclass(frozen=True)
class Axis:
    """Maps values to pixels.

    Attributes:
        low, high: values at the ends.
        start, stop: pixels at the ends.
        bend: applied to values first, such as a square root.
    """

    low: float
    high: float
    start: float
    stop: float
    bend: Callable[[float], float] = float

    def __call__(self, value: float) -> float:
        """The pixel of a value."""
        low, high = self.bend(self.low), self.bend(self.high)
        share = (self.bend(value) - low) / ((high - low) or 1.0)
        return round(self.start + share * (self.stop - self.start), 1)


@dataclass(frozen=True)
class Plot:
    """A panel, in pixels.

    Attributes:
        title: above it.
        label: what it shows, in words, for those who do not see it.
        x_ticks, y_ticks: (pixel, text).
        paths: (style, path data, name).
        ends: (x, y, style, text) of labels at lines' ends.
        moments: (x, style, name).
        band: (x, width) of the shaded stretch, if there is one.
        dots: (x, y, style, y of the interval's low end, of its high end, text).
    """

    title: str
    label: str
    size: Size
    x_ticks: list[tuple[float, str]]
    y_ticks: list[tuple[float, str]]
    paths: list[tuple[str, str, str]]
    ends: list[tuple[float, float, str, str]] = field(default_factory=list)
    moments: list[tuple[float, str, str]] = field(default_factory=list)
    band: tuple[float, float] | None = None
    dots: list[tuple[float, float, str, float, float, str]] = field(default_factory=list)


def ticks(low: float, high: float, least: int) -> list[float]:
    """At least so many round numbers within [low, high], steps of 1, 2 or 5 times a power of ten."""
    if not high > low:
        return [low]
    power = 10.0 ** math.floor(math.log10(high - low))
    for step in (power * factor for factor in (5, 2, 1, 0.5, 0.2, 0.1)):
        first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
        if last - first + 1 >= least:
            break
    return [i * step for i in range(first, last + 1)]


def over_steps(
    title: str,
    series: Sequence[Series],
    *,
    steps: float,
    label: str,
    moments: Sequence[Marker] = (),
    y_range: tuple[float, float] | None = None,
    size: Size | None = None,
) -> Plot:
    """Lines over the steps of a training.

    Args:
        title: of the panel.
        series: the lines, those in front last.
        steps: the axis ends there.
        label: the plot in words.
        moments: vertical lines; the stretch between those of style ``anneal`` and ``choice`` is shaded.
        y_range: of the axis; default: what the lines span.
        size: of the panel.
    """
    size = size or Size()
    kept = [[(x, y) for x, y in line.points if math.isfinite(y)] for line in series]
    low, high = y_range or _span([y for points in kept for _, y in points])
    across = Axis(0, max(steps, 1), size.left, size.width - size.right)
    up = Axis(low, high, size.height - size.bottom, size.top)
    x_ticks, y_ticks = ticks(0, max(steps, 1), size.ticks), ticks(low, high, size.ticks)
    shaded = {moment.style: across(moment.step) for moment in moments}
    band = None
    if "anneal" in shaded and "choice" in shaded:
        band = (shaded["anneal"], round(shaded["choice"] - shaded["anneal"], 1))
    ends = [
        (across(points[-1][0]) + 4, up(points[-1][1]), line.style, line.end)
        for line, points in zip(series, kept, strict=True)
        if line.end and points
    ]
    return Plot(
        title,
        label,
        size,
        [(across(x), axis_number(x, x_ticks)) for x in x_ticks],
        [(up(y), axis_number(y, y_ticks)) for y in y_ticks],
        [
            (line.style, _path([(across(x), up(y)) for x, y in points]), line.name)
            for line, points in zip(series, kept, strict=True)
            if points
        ],
        _spread(ends, size),
        [(across(moment.step), moment.style, moment.name) for moment in moments],
        band,
    )


def calibration(
    title: str, curves: Sequence[tuple[str, str, Sequence[dict[str, Any]]]], label: str, size: Size
) -> Plot:
    """Observed rates against predicted ones on square-root axes, which keep rare events apart.

    Args:
        title: of the panel.
        curves: (name, style, bins with ``predicted``, ``observed``, ``low``, ``high`` (None if unknown) and ``rows``),
            in front last.
        label: the plot in words.
        size: of the panel.
    """
    bins = [b for _, _, curve in curves for b in curve]
    high = max([1e-9, *(value for b in bins for value in (b["predicted"], b["observed"], b["high"] or 0.0))]) * 1.02
    across = Axis(0, high, size.left, size.width - size.right, math.sqrt)
    up = Axis(0, high, size.height - size.bottom, size.top, math.sqrt)
    marks = sorted({0.0, *(_round_below(high * share) for share in (1 / 6, 1))})
    paths, dots = [("ideal", _path([(across(0), up(0)), (across(high), up(high))]), "perfect calibration")], []
    for name, style, curve in curves:
        paths.append((style, _path([(across(b["predicted"]), up(b["observed"])) for b in curve]), name))
        for b in curve:
            text = f"{name}: predicted {b['predicted']:.4f}, observed {b['observed']:.4f}, {b['rows']:,} rows"
            place = across(b["predicted"]), up(b["observed"])
            low, top = (b["observed"] if end is None else max(end, 0.0) for end in (b["low"], b["high"]))
            dots.append((*place, style, up(low), up(top), text))
    return Plot(
        title,
        label,
        size,
        [(across(x), f"{x:.2g}") for x in marks],
        [(up(y), f"{y:.2g}") for y in marks],
        paths,
        dots=dots,
    )


def thinned(points: Sequence[Point], most: int) -> list[Point]:
    """At most so many points, evenly chosen, the last one among them."""
    if len(points) <= most:
        return list(points)
    stride = (len(points) - 1) / (most - 1)
    return [points[round(i * stride)] for i in range(most)]


def _round_below(value: float) -> float:
    """The largest of 1, 2 and 5 times a power of ten that is not above."""
    power = 10.0 ** math.floor(math.log10(value))
    return power * max(factor for factor in (1, 2, 5) if factor * power <= value)


def _span(values: Sequence[float]) -> tuple[float, float]:
    if not values:
        return 0.0, 1.0
    low, high = min(values), max(values)
    margin = (high - low) * 0.06 or abs(high) * 0.1 or 1.0
    return low - margin, high + margin


def _path(points: Sequence[Point]) -> str:
    if len(points) == 1:
        return f"M{points[0][0]:g} {points[0][1]:g}h.1"  # a dot: the line's ends are round
    return "M" + "L".join(f"{x:g} {y:g}" for x, y in points)


def _spread(ends: list[tuple[float, float, str, str]], size: Size) -> list[tuple[float, float, str, str]]:
    """Moves labels apart that would cover each other, keeping their order."""
    line = 11.0
    ends = sorted(ends, key=lambda end: end[1])
    ys = [y for _, y, _, _ in ends]
    for i, j in itertools.pairwise(range(len(ys))):
        ys[j] = max(ys[j], ys[i] + line)
    if ys and ys[-1] > size.height - size.bottom:
        ys[-1] = float(size.height - size.bottom)
        for i in reversed(range(len(ys) - 1)):
            ys[i] = min(ys[i], ys[i + 1] - line)
    return [(x, round(y, 1), style, text) for (x, _, style, text), y in zip(ends, ys, strict=True)]
