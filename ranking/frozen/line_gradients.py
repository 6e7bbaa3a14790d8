"""Mean gradients of a frozen graph on lines between inputs, in NumPy.

The graph is piecewise linear: its gradient changes only at points where a ReLU switches. One gradient is exact for a
segment of a line in which none switches. Other segments are halved until their error is small.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ranking.frozen.weights import FrozenModel, factors_of, layers_of

Float64 = npt.NDArray[np.float64]
Int64 = npt.NDArray[np.int64]
Layer = tuple[Float64, Float64]
"""Weight [inputs, outputs] and bias [outputs]."""

SEGMENTS = 16
"""Segments of a line before any is halved."""
MAX_HALVINGS = 24
"""Maximum number of times that a segment is halved."""
MAX_LINES = 16
"""Lines that are computed at once, which bounds the memory."""


@dataclass(frozen=True)
class Segments:
    """Segments of lines, all of the same width.

    Attributes:
        lines: line of each segment [segments].
        begins: position on the line at which it begins, from 0 to 1 [segments].
        first: outputs at its begin [segments, tasks].
        last: outputs at its end [segments, tasks].
    """

    lines: Int64
    begins: Float64
    first: Float64
    last: Float64

    def halves(self, which: npt.NDArray[np.bool_], width: float, middle: Float64) -> Segments:
        """Return both halves of some segments.

        Args:
            which: segments that are halved [segments].
            width: their width.
            middle: outputs in the middle of each segment [segments, tasks].
        """
        begins, middle = self.begins[which], middle[which]
        return Segments(
            np.tile(self.lines[which], 2),
            np.concatenate([begins, begins + width / 2]),
            np.concatenate([self.first[which], middle]),
            np.concatenate([middle, self.last[which]]),
        )


class LineGradients:
    """Computes outputs and mean gradients of a frozen graph with a static gate.

    Args:
        model: the model of the graph.
    """

    def __init__(self, model: FrozenModel) -> None:
        selection, weights = model.selection, model.weights
        self._selection, self._side_by_side = selection, selection.reading == "side_by_side"
        self._experts = {e: _layers(weights, f"expert.{e}") for e in selection.experts_used}
        self._factors = {task: factors_of(weights, selection, task) for task in selection.tasks}
        self._towers = {task: _layers(weights, f"tower.{task}") for task in selection.tasks}

    def outputs(self, x: Float64, tasks: Sequence[str]) -> Float64:
        """Return the uncalibrated outputs [rows, tasks] of inputs [rows, inputs]."""
        experts = {e: _forward(self._experts[e], x) for e in self._selection.experts_for(tasks)}
        return np.concatenate([self._tower(task, experts)[-1] for task in tasks], 1)

    def mean_gradients(
        self, start: Float64, stop: Float64, tasks: Sequence[str], limits: Float64
    ) -> tuple[Float64, int]:
        """Return the mean gradient on the line from a start to each row, and the number of gradients computed for it.

        Args:
            start: input at which all lines start [1, inputs].
            stop: inputs at which they end [rows, inputs].
            tasks: names of the tasks.
            limits: error of the output over a segment above which it is halved [rows, tasks].

        Returns:
            Gradients [tasks, rows, inputs].
        """
        parts, count = [np.empty((len(tasks), 0, start.shape[1]))], 0
        for i in range(0, len(stop), MAX_LINES):
            chunk = slice(i, i + MAX_LINES)
            gradients, points = self._integrate(start, stop[chunk] - start, tasks, limits[chunk])
            parts.append(gradients)
            count += points
        return np.concatenate(parts, 1), count

    def _integrate(
        self, start: Float64, difference: Float64, tasks: Sequence[str], limits: Float64
    ) -> tuple[Float64, int]:
        """Return the mean gradients [tasks, lines, inputs] on lines that are computed at once."""
        used = self._selection.experts_for(tasks)
        # The first layer of an expert is linear on a line, so that it is computed once per line, in both directions.
        slopes = {e: difference @ self._experts[e][0][0] for e in used}
        biases = {e: start @ self._experts[e][0][0] + self._experts[e][0][1] for e in used}

        def activate(lines: Int64, positions: Float64) -> dict[int, list[Float64]]:
            """Return the activations of each expert at points, from its first layer on."""
            hidden = {e: np.maximum(positions[:, None] * slopes[e][lines] + biases[e], 0.0) for e in used}
            return {e: _forward(self._experts[e][1:], x) for e, x in hidden.items()}

        segments = self._first_segments(activate, len(difference), tasks)
        sums = {(task, e): np.zeros_like(slopes[e]) for task in tasks for e in self._selection.tasks[task]}
        count, width = 0, 1.0 / SEGMENTS
        for halvings in range(MAX_HALVINGS + 1):
            if not len(segments.lines):
                break
            count += len(segments.lines)
            experts = activate(segments.lines, segments.begins + width / 2)
            middle, gradients = np.empty_like(segments.first), {}
            errors = segments.first - segments.last
            for position, task in enumerate(tasks):
                tower = self._tower(task, experts)
                middle[:, position] = tower[-1][:, 0]
                for e, upstream in self._backward_tower(task, tower).items():
                    gradient = _backward(self._experts[e][1:], experts[e], upstream) * (experts[e][0] > 0)
                    gradients[task, e] = gradient
                    errors[:, position] += width * np.einsum("ij,ij->i", gradient, slopes[e][segments.lines])
            halved = np.any(np.abs(errors) > limits[segments.lines], axis=1)
            if halvings == MAX_HALVINGS:
                halved[:] = False
            kept = width * ((segments.lines == np.arange(len(difference))[:, None]) & ~halved)  # [lines, segments]
            for key, gradient in gradients.items():
                sums[key] += kept @ gradient
            segments = segments.halves(halved, width, middle)
            width /= 2
        by_task = [
            np.sum([sums[task, e] @ self._experts[e][0][0].T for e in self._selection.tasks[task]], 0) for task in tasks
        ]
        return np.stack(by_task), count

    def _first_segments(
        self, activate: Callable[[Int64, Float64], dict[int, list[Float64]]], lines: int, tasks: Sequence[str]
    ) -> Segments:
        """Divide each line into segments of the same width."""
        positions = np.linspace(0.0, 1.0, SEGMENTS + 1)
        experts = activate(np.repeat(np.arange(lines), SEGMENTS + 1), np.tile(positions, lines))
        outputs = np.concatenate([self._tower(task, experts)[-1] for task in tasks], 1)
        outputs = outputs.reshape(lines, SEGMENTS + 1, len(tasks))
        shape = (lines * SEGMENTS, len(tasks))
        return Segments(
            np.repeat(np.arange(lines), SEGMENTS),
            np.tile(positions[:-1], lines),
            outputs[:, :-1].reshape(shape),
            outputs[:, 1:].reshape(shape),
        )

    def _tower(self, task: str, experts: Mapping[int, list[Float64]]) -> list[Float64]:
        """Mix the experts of a task and return the activations of its tower; the last layer has no ReLU."""
        parts = [experts[e][-1] * factor for e, factor in self._factors[task].items()]
        mixed = np.concatenate(parts, 1) if self._side_by_side else np.sum(parts, 0)
        *layers, (weight, bias) = self._towers[task]
        activations = _forward(layers, mixed)
        return [*activations, activations[-1] @ weight + bias]

    def _backward_tower(self, task: str, activations: Sequence[Float64]) -> dict[int, Float64]:
        """Return the gradient at the output of each of a task's experts [points, width]."""
        *layers, (weight, _) = self._towers[task]
        upstream = np.broadcast_to(weight[:, 0], (len(activations[0]), len(weight)))
        upstream, factors = _backward(layers, activations[:-1], upstream), self._factors[task]
        parts = np.split(upstream, len(factors), 1) if self._side_by_side else [upstream] * len(factors)
        return {e: part * factor for part, (e, factor) in zip(parts, factors.items(), strict=True)}


def _forward(layers: Sequence[Layer], x: Float64) -> list[Float64]:
    """Return the input and the activation of each ReLU layer."""
    activations = [x]
    for weight, bias in layers:
        activations.append(np.maximum(activations[-1] @ weight + bias, 0.0))
    return activations


def _backward(layers: Sequence[Layer], activations: Sequence[Float64], upstream: Float64) -> Float64:
    """Return the gradient at the input of ReLU layers.

    Args:
        layers: the layers.
        activations: their result of ``_forward``.
        upstream: gradient at their output.
    """
    for (weight, _), activation in zip(reversed(layers), reversed(activations[1:]), strict=True):
        upstream = (upstream * (activation > 0)) @ weight.T
    return upstream


def _layers(weights: Mapping[str, npt.NDArray[Any]], name: str) -> list[Layer]:
    return [(weight.astype(np.float64), bias.astype(np.float64)) for weight, bias in layers_of(weights, name)]
