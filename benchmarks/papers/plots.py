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


def expert_weights(panels: Mapping[str, Sequence[tuple[int, Sequence[float]]]], true_experts: Sequence[int]) -> Figure:
    """Plot the weight of each expert over the steps, one panel per method.

    Args:
        panels: method → (step, weights [experts]).
        true_experts: experts to color; the others are gray.
    """
    figure = Figure(figsize=(4.6 * len(panels) + 1.4, 3.4), layout="constrained")
    axes = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    for axis, (name, trajectory) in zip(axes, panels.items(), strict=True):
        steps = [step for step, _ in trajectory]
        for expert in sorted(range(len(trajectory[0][1])), key=lambda expert: expert in true_experts):
            color = COLORS[true_experts.index(expert)] if expert in true_experts else OTHERS
            weights = [values[expert] for _, values in trajectory]
            label = f"true expert {expert}" if expert in true_experts else None
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


def counts(panels: Mapping[str, Sequence[Sequence[int]]], row_label: str) -> Figure:
    """Plot tables of counts as heat maps, in a grid of two columns.

    Args:
        panels: title → counts [rows, experts].
        row_label: label of the rows.
    """
    figure = Figure(figsize=(10, 3.6 * -(-len(panels) // 2)), layout="constrained")
    axes = figure.subplots(-(-len(panels) // 2), 2, squeeze=False).flat
    highest = max(max(map(max, table)) for table in panels.values())
    for axis, (title, table) in zip(axes, panels.items(), strict=True):
        image = axis.imshow(table, cmap="cividis", vmin=0, vmax=highest, aspect="auto")
        axis.set_title(title)
        axis.set_xticks(range(len(table[0])))
        axis.set_yticks(range(len(table)))
        axis.set_xlabel("expert")
        axis.set_ylabel(row_label)
        figure.colorbar(image, ax=axis, label="images")
    return figure
