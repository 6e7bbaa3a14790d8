"""A ranker that scores: tables in, tables of scores out. Its graph alone needs PyTorch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ranking.encoding.batch import EncodedBatch, Float32, Mask
from ranking.encoding.columns import FeatureTable, fill_features, invalid_rows
from ranking.encoding.encoder import Encoder
from ranking.errors import InvalidInputError
from ranking.frozen.calibration import Calibration, Floats, to_probabilities
from ranking.lookup.feature_index import FeatureIndex
from ranking.schema import Owner, Schema, Task
from ranking.selection import Selection

if TYPE_CHECKING:
    from ranking.frozen.graph import FrozenGraph
    from ranking.gates.config import GateConfig

SCORE_ROWS = 4096
"""Rows that are scored at a time; bounds the memory of a large table."""


@dataclass(frozen=True)
class FrozenRanker:
    """A ranker that scores: tables in, tables of scores out.

    Attributes:
        schema: features and tasks.
        encoder: columns → arrays.
        selection: what the gates chose.
        weights: of the graph, by the names of ``FrozenGraph``.
        tables: features of users and items by id, for what a table of candidates leaves out.
        objective: task → weight in the score that sorts, unless a request says otherwise.
        details: what else the bundle says of itself (costs, training).
        gate: settings of a per-example gate; None if the gate is static.
        calibration: of the graph's outputs; none by default.
        body: the graph behind the embeddings as ONNX, see ``onnx_body``; None if there is none.
        stored: ``encoded`` as a bundle holds it; None if the ranker is not from a bundle.
    """

    schema: Schema
    encoder: Encoder
    selection: Selection
    weights: Mapping[str, npt.NDArray[Any]] = field(repr=False)
    tables: Mapping[Owner, FeatureTable]
    objective: Mapping[str, float]
    details: Mapping[str, Any] = field(default_factory=dict)
    gate: GateConfig | None = None
    calibration: Calibration = field(default_factory=Calibration)
    body: bytes | None = field(default=None, repr=False)
    stored: Mapping[Owner, FeatureIndex] | None = field(default=None, repr=False)

    @cached_property
    def encoded(self) -> Mapping[Owner, FeatureIndex]:
        """The tables as a service looks them up: already encoded, of each owner that has features.

        Raises:
            InvalidInputError: a table holds a column of the wrong type, a NaN or infinite number (names the row).
        """
        if self.stored is not None:
            return self.stored
        owners = self.schema.owners
        return {
            owner: FeatureIndex.temporary(table, self.encoder, owner)
            for owner, table in self.tables.items()
            if owner in owners
        }

    @cached_property
    def graph(self) -> FrozenGraph:
        """What gives outputs, in PyTorch: the reference for everything else that does."""
        import torch

        from ranking.frozen.graph import FrozenGraph

        with torch.inference_mode(mode=False):  # the same tensors, whoever asks first
            return FrozenGraph(self.schema, self.selection, self.weights, self.gate)

    @property
    def backends(self) -> list[str]:
        """What can execute it: ``torch`` whatever it is, the others what they can hold."""
        onnx = [] if self.body is None else ["onnxruntime"]
        return [*onnx, *([] if self.gate is not None else ["cuda"]), "torch"]

    def score(self, table: pa.Table, tasks: Sequence[str] | None = None) -> pa.Table:
        """Scores of each row: probabilities of binary tasks, (transformed) numbers of regressions.

        Args:
            table: ids and features, one row a candidate; what is left out is looked up, see ``features.complete``.
            tasks: which; default all. Experts that none of them chose do not run.

        Returns:
            One float32 column a task, in the order asked for.

        Raises:
            InvalidInputError: an unknown task, a column of the wrong type, a NaN or infinite number (names the row).
        """
        chosen = self.tasks(tasks)
        scored, _ = self.score_completed(self.complete(table), chosen)
        return score_table(scored, chosen)

    def complete(self, table: pa.Table) -> pa.Table:
        """The table with every feature of the schema, looked up or null where it lacks one.

        Raises:
            InvalidInputError: a column of the wrong type, a NaN or infinite number (names the row).
        """
        whole = fill_features(table, self.schema, self.tables)
        for feature, broken, how in invalid_rows(whole, self.schema):
            row = broken.index(True).as_py()
            if row >= 0:
                raise InvalidInputError(feature.column, how, row)
        return whole

    def score_completed(self, table: pa.Table, tasks: Sequence[Task]) -> tuple[Float32, Mask]:
        """Scores [rows, tasks] of a completed table, and which ``schema.inputs`` it lacked [rows, features]."""
        names = [task.name for task in tasks]
        scored, missing = [np.empty((0, len(tasks)), np.float32)], [np.empty((0, len(self.schema.inputs)), np.bool_)]
        for start in range(0, table.num_rows, SCORE_ROWS):
            inputs = self.encoder.encode(table.slice(start, SCORE_ROWS))
            scored.append(self.finished(self.outputs(inputs, names), names))
            missing.append(inputs.missing)
        return np.concatenate(scored), np.concatenate(missing)

    def outputs(self, inputs: EncodedBatch, tasks: Sequence[str]) -> npt.NDArray[np.float64]:
        """What the graph gives for these tasks [rows, tasks], see ``FrozenGraph``."""
        import torch

        from ranking.encoding.torch_batch import TorchBatch

        with torch.inference_mode():
            found: npt.NDArray[np.float64] = self.graph(TorchBatch.from_numpy(inputs), tasks).numpy()
        return found

    def finished(self, outputs: Floats, tasks: Sequence[str]) -> Float32:
        """Scores [rows, tasks] of what the towers of these tasks give [rows, tasks], here or in a runtime."""
        return to_probabilities(self.calibration(outputs, tasks), self.tasks(tasks)).astype(np.float32)

    def explain(self, inputs: EncodedBatch, tasks: Sequence[str]) -> dict[str, dict[int, float]]:
        """Task → {expert: weight} that these rows' scores are made of; a per-example gate's are means over the rows."""
        if self.gate is None or not len(inputs):
            return {task: self.selection.tasks[task] if self.gate is None else {} for task in tasks}
        import torch

        from ranking.encoding.torch_batch import TorchBatch

        with torch.inference_mode():
            weights = self.graph.routing(TorchBatch.from_numpy(inputs)).mean(0)
        rows = (weights[self.schema.task_names.index(task)].tolist() for task in tasks)
        return {task: {e: w for e, w in enumerate(row) if w > 0} for task, row in zip(tasks, rows, strict=True)}

    def tasks(self, names: Sequence[str] | None) -> list[Task]:
        """The named tasks, default all.

        Raises:
            InvalidInputError: a name that the ranker does not know, or a name twice.
        """
        known = {task.name: task for task in self.schema.tasks}
        if names is None:
            return list(known.values())
        if not names:
            raise InvalidInputError("tasks", f"none is asked for: choose from {', '.join(known)}")
        for name in names:
            if name not in known:
                raise InvalidInputError("tasks", f"unknown task '{name}': choose from {', '.join(known)}")
        for i, name in enumerate(names):
            if name in names[:i]:
                raise InvalidInputError("tasks", f"task '{name}' is asked for twice")
        return [known[name] for name in names]


def score_table(scored: Float32, tasks: Sequence[Task]) -> pa.Table:
    """Scores [rows, tasks] as a table with a column for each task."""
    return pa.table({task.name: pa.array(column) for task, column in zip(tasks, scored.T, strict=True)})
