"""Figures of the papers' experiments; colors of Okabe and Ito, which color-blind readers distinguish."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
OTHERS = "#BBBBBB"
MARKERS = "os^Dv<>"

mpl.rcParams |= {"svg.hashsalt": "papers", "svg.fonttype": "none"}  # Makes the files reproducible.


def expert_weights(panels: Mapping[str, Sequence[tuple[int, Sequence[float]]]], colored: Mapping[int, str]) -> Figure:
    """Plot the weight of each expert over the steps, one panel per method.

    Args:
        panels: method → (step, weights [experts]).
        colored: label of each expert to color; the others are gray.
    """
    figure = Figure(figsize=(4.6 * len(panels) + 1.4, 3.4), layout="constrained")
    axes = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    for axis, (name, trajectory) in zip(axes, panels.items(), strict=True):
        steps = [step for step, _ in trajectory]
        for expert in sorted(range(len(trajectory[0][1])), key=lambda expert: expert in colored):
            label = colored.get(expert)
            color = COLORS[list(colored).index(expert)] if label else OTHERS
            weights = [values[expert] for _, values in trajectory]
            axis.plot(steps, weights, color=color, linewidth=1.6 if label else 0.8, label=label)
        axis.set_title(name)
        axis.set_xlabel("step")
    axes[0].set_ylabel("weight of an expert")
    axes[-1].plot([], [], color=OTHERS, label="other expert")
    figure.legend(*axes[-1].get_legend_handles_labels(), loc="outside right center", fontsize=8, frameon=False)
    return figure


def lines(
    axis: Axes, x: Sequence[float], series: Iterable[tuple[str, Sequence[float], Sequence[float] | None]]
) -> None:
    """Draw a line per series with error bars; a series without errors is a gray reference.

    Args:
        axis: axis to draw on.
        x: positions, ascending.
        series: (label, values, errors).
    """
    style = 0
    for label, values, errors in series:
        if errors is None:
            axis.plot(x, values, color=OTHERS, linestyle="--", label=label)
            continue
        color, marker = COLORS[style], MARKERS[style]
        axis.errorbar(x, values, yerr=errors, color=color, marker=marker, markersize=5, capsize=2, label=label)
        style += 1
    axis.set_xscale("log", base=2)
    axis.set_xticks(x, [f"{value:g}" for value in x])


def heatmaps(
    panels: Mapping[str, Mapping[str, Sequence[float]]],
    row_label: str = "task",
    value_label: str = "weight of an expert",
    highest: float = 1.0,
    digits: int = 2,
    columns: int = 1,
) -> Figure:
    """Plot a value per row and expert as colors and numbers.

    Args:
        panels: title → name of the row → values [experts].
        row_label: label of the rows.
        value_label: label of the colors.
        highest: value of the darkest color.
        digits: digits after the point; zeros are not written.
        columns: panels beside each other.
    """
    tables = list(panels.values())
    heights = [max(map(len, tables[first : first + columns])) for first in range(0, len(tables), columns)]
    size = (6.4 * columns, 0.32 * sum(heights) + 1.0 * len(heights))
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots(len(heights), columns, height_ratios=heights, squeeze=False)
    for axis, (title, rows) in zip(axes.flat, panels.items(), strict=True):
        values = list(rows.values())
        image = axis.imshow(values, cmap="Blues", vmin=0, vmax=highest, aspect="auto")
        for row, row_values in enumerate(values):
            for expert, value in enumerate(row_values):
                if value > 0:
                    color = "white" if value > 0.6 * highest else "black"
                    text = f"{value:.{digits}f}"
                    axis.text(expert, row, text, ha="center", va="center", fontsize=8, color=color)
        axis.set_yticks(range(len(rows)), list(rows))
        axis.set_xticks(range(len(values[0])))
        axis.set_xlabel("expert")
        axis.set_title(title)
        axis.set_ylabel(row_label)
    figure.colorbar(image, ax=axes, label=value_label, shrink=0.6)
    return figure
