"""The frozen ranker: tables of candidates in, tables of scores out. Only its graph needs PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ranking.counters.features import CounterFeatures
from ranking.encoding.batch import EncodedBatch, Float32, Mask
from ranking.encoding.columns import invalid_rows
from ranking.encoding.encoder import Encoder
from ranking.encoding.feature_table import FeatureTable, fill_features
from ranking.encoding.id_rows import OOV
from ranking.encoding.missing_columns import describe_missing, missing_feature_columns, suggest_column
from ranking.encoding.vocabulary import Vocabulary
from ranking.errors import BundleError, InvalidInputError, RankerError
from ranking.frozen.calibration import Calibration, Floats, to_probabilities
from ranking.frozen.contributions import Contributions, ContributionsGraph
from ranking.frozen.embedding_rows import PREFIX, ROW_TYPES, RowType
from ranking.frozen.weights import FrozenModel, Weights
from ranking.lookup.feature_index import FeatureIndex
from ranking.schema import Owner, Schema, Task
from ranking.selection import Selection

if TYPE_CHECKING:
    from ranking.frozen.graph import MeanGraph

SCORE = "score"
"""Column of the score that sorts candidates."""
SCORE_ROWS = 4096
"""Rows scored per batch, which bounds the memory that a large table needs."""


@dataclass(frozen=True)
class FrozenRanker:
    """A converged ranker that contains only the selected experts.

    Attributes:
        schema: features and tasks.
        encoder: encoder of feature columns.
        models: models whose outputs are averaged; usually there is one.
        tables: features of users and items by id, for columns that a table of candidates leaves out.
        objective: default weight of each task in the score that sorts candidates.
        details: further entries of the manifest (costs, training).
        calibration: calibration of the graph's outputs; none by default.
        stored: feature indexes of the bundle; None if the ranker was not loaded from a bundle.
        counter_features: computes the features of counters and histories; None: they are null where a table has no
            value.
        reload: function and argument that load this ranker again, by which it can be pickled; None if it was not loaded
            from a bundle.
    """

    schema: Schema
    encoder: Encoder
    models: tuple[FrozenModel, ...]
    tables: Mapping[Owner, FeatureTable]
    objective: Mapping[str, float]
    details: Mapping[str, Any] = field(default_factory=dict)
    calibration: Calibration = field(default_factory=Calibration)
    stored: Mapping[Owner, FeatureIndex] | None = field(default=None, repr=False)
    counter_features: CounterFeatures | None = field(default=None, repr=False)
    reload: tuple[Callable[[str], FrozenRanker], str] | None = field(default=None, init=False, repr=False)

    def __reduce__(self) -> tuple[Callable[[str], FrozenRanker], tuple[str]]:
        if self.reload is None:
            raise TypeError("only a ranker that 'ranking.load' returned can be pickled: write a bundle and load it")
        function, folder = self.reload
        return function, (folder,)

    @cached_property
    def selection(self) -> Selection:
        """The selected experts of all models, see ``Selection.joined``."""
        return Selection.joined([model.selection for model in self.models])

    @property
    def per_example(self) -> bool:
        """Whether the gate of a model selects per example."""
        return any(model.gate is not None for model in self.models)

    def map_weights(self, change: Callable[[Weights], Weights]) -> FrozenRanker:
        """Return the ranker with changed weights of each model."""
        return replace(self, models=tuple(replace(model, weights=change(model.weights)) for model in self.models))

    @cached_property
    def encoded(self) -> Mapping[Owner, FeatureIndex]:
        """Encoded feature indexes by owner, as the service uses them.

        Raises:
            InvalidInputError: a table contains a column of the wrong type, a NaN or an infinite value (names the row).
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
    def graph(self) -> MeanGraph:
        """The reference graph in PyTorch, with which every backend is compared."""
        import torch

        from ranking.frozen.graph import FrozenGraph, MeanGraph

        with torch.inference_mode(mode=False):  # Ordinary tensors, also if the first caller is in inference mode.
            return MeanGraph([FrozenGraph(self.encoder, model) for model in self.models])

    @cached_property
    def contributions_graph(self) -> ContributionsGraph | None:
        """The graph that computes contributions of features, in NumPy; None for a per-example gate."""
        return None if self.per_example else ContributionsGraph(self.encoder, self.models, self.calibration)

    @property
    def embeddings(self) -> RowType:
        """Type of the rows of embedding tables; float32 if there are none."""
        weights = (item for model in self.models for item in model.weights.items())
        types = {str(weight.dtype) for name, weight in weights if name.startswith(PREFIX)}
        return next((row_type for row_type in ROW_TYPES[::-1] if row_type in types), "float32")

    @property
    def backends(self) -> list[str]:
        """Names of the backends that can run this ranker."""
        return ["torch"] if self.per_example else ["onnxruntime", "cuda", "torch"]

    def require_backend(self, name: str) -> None:
        """Check that a backend can run this ranker.

        Raises:
            BundleError: it cannot.
        """
        if name not in self.backends:
            raise BundleError(
                f"'{self.schema.name}' has a per-example gate, which the {name} backend cannot run: "
                "serve it with the torch backend"
            )

    def score(self, table: pa.Table, tasks: Sequence[str] | None = None) -> pa.Table:
        """Score each row: probabilities of binary tasks, (transformed) values of regressions.

        Args:
            table: ids and features, one row per candidate. A column of the ranker's tables may be left out: it is
                looked up by id, see ``fill_features``. A null in any other column means an unknown value.
            tasks: names of the tasks to score; default all. Experts that none of them selected do not run.

        Returns:
            One float32 column per task, in the order of ``tasks``, and ``score``, see ``to_table``.

        Raises:
            InvalidInputError: an unknown task, a column that is missing or of the wrong type, a NaN or infinite value
                (names the row).
        """
        selected = self.tasks(tasks)
        self._require_columns(table.column_names)
        scores, _ = self.score_completed(self.complete(table), selected)
        return self.to_table(scores, selected)

    def to_table(self, scores: Float32, tasks: Sequence[Task]) -> pa.Table:
        """Return scores [rows, tasks] as a table with a column per task and ``score``, by which a service sorts.

        A task with the name ``score`` keeps its column; the table then lacks the other one.
        """
        table = score_table(scores, tasks)
        if SCORE in table.column_names:
            return table
        return table.append_column(SCORE, pa.array(scores.astype(np.float64) @ self.objective_weights(tasks)))

    def objective_weights(self, tasks: Sequence[Task]) -> npt.NDArray[np.float64]:
        """Return the weight of each task [tasks] in the score that sorts candidates.

        The weights are those of the objective for these tasks if one is not 0, else 1 for the first task.
        """
        weights = [self.objective.get(task.name, 0.0) for task in tasks]
        return np.array(weights if any(weights) else [1.0] + [0.0] * (len(tasks) - 1))

    def _require_columns(self, names: Sequence[str]) -> None:
        """Check that each feature has a column, in the rows or in a table of its owner.

        Raises:
            InvalidInputError: a column is missing; the reason lists all of them.
        """
        side_columns = {owner: features.table.column_names for owner, features in self.tables.items()}
        missing = missing_feature_columns(self.schema, names, side_columns)
        if missing:
            raise InvalidInputError(next(iter(missing)), describe_missing(missing) + suggest_column(missing, names))

    def complete(self, table: pa.Table) -> pa.Table:
        """Return the table with every feature of the schema; missing features are looked up or null, as when serving.

        The features of counters and histories are computed from the state of the ranker, unless the table has values.

        Raises:
            InvalidInputError: a column of the wrong type, a NaN or infinite value (names the row).
        """
        filled = fill_features(table, self.schema, self.tables)
        for feature, invalid, reason in invalid_rows(filled, self.schema):
            row = invalid.index(True).as_py()
            if row >= 0:
                raise InvalidInputError(feature.column, reason, row)
        return self.derive(filled)

    def derive(self, table: pa.Table) -> pa.Table:
        """Return a completed table with the features of counters and histories where it has no values for them.

        Raises:
            InvalidInputError: the time column holds no times.
        """
        return table if self.counter_features is None else self.counter_features.complete(table)

    def score_completed(self, table: pa.Table, tasks: Sequence[Task]) -> tuple[Float32, Mask]:
        """Score a completed table; returns scores [rows, tasks] and a mask of missing inputs [rows, features]."""
        names = [task.name for task in tasks]
        scores, missing = [np.empty((0, len(tasks)), np.float32)], [np.empty((0, len(self.schema.inputs)), np.bool_)]
        for start in range(0, table.num_rows, SCORE_ROWS):
            inputs = self.encoder.encode(table.slice(start, SCORE_ROWS))
            scores.append(self.finished(self.outputs(inputs, names), names))
            missing.append(inputs.missing)
        return np.concatenate(scores), np.concatenate(missing)

    def outputs(self, inputs: EncodedBatch, tasks: Sequence[str]) -> npt.NDArray[np.float64]:
        """Return the reference graph's outputs for these tasks [rows, tasks] float64, see ``FrozenGraph``."""
        import torch

        from ranking.encoding.torch_batch import TorchBatch

        with torch.inference_mode():
            outputs: npt.NDArray[np.float64] = self.graph(TorchBatch.from_numpy(inputs), tasks).numpy()
        return outputs

    def finished(self, outputs: Floats, tasks: Sequence[str]) -> Float32:
        """Convert the outputs of these tasks' towers [rows, tasks], from any backend, to scores [rows, tasks]."""
        return to_probabilities(self.calibration(outputs, tasks), self.tasks(tasks)).astype(np.float32)

    def knows_ids(self, owner: Owner) -> bool:
        """Return whether the ranker knows ids of the owner, see ``known_ids``."""
        return self.schema.id_feature(owner) is not None or owner in self.tables

    def known_ids(self, owner: Owner) -> pa.Array | None:
        """Return the ids of the owner that the ranker has seen, int64 or string; None if it does not know any.

        These are the vocabulary of the feature that reads the ids, else the ids of the owner's table.
        """
        feature = self.schema.id_feature(owner)
        if feature is not None:
            vocabulary = self.encoder.id_mappings[feature.table]
            assert isinstance(vocabulary, Vocabulary)
            return vocabulary.ids()
        return self.tables[owner].ids if owner in self.tables else None

    def count_unseen(self, owner: Owner, ids: pa.Array) -> int:
        """Return how many ids are set but not among the ``known_ids`` of the owner, which must not be None.

        Raises:
            InvalidInputError: an id cannot be converted to the type of the known ones.
        """
        feature = self.schema.id_feature(owner)
        if feature is not None:
            rows = self.encoder.id_mappings[feature.table].rows(ids, feature.column)
            return int(np.count_nonzero(rows == OOV))
        known = int(np.count_nonzero(self.tables[owner].contains(ids)))
        return len(ids) - int(ids.null_count) - known

    def explain(self, inputs: EncodedBatch, tasks: Sequence[str]) -> dict[str, dict[int, float]]:
        """Return the expert weights of each task; for a per-example gate, their means over the rows."""
        if not self.per_example or not len(inputs):
            return {task: {} if self.per_example else self.selection.tasks[task] for task in tasks}
        import torch

        from ranking.encoding.torch_batch import TorchBatch

        with torch.inference_mode():
            weights = self.graph.routing(TorchBatch.from_numpy(inputs)).mean(0)
        rows = (weights[self.schema.task_names.index(task)].tolist() for task in tasks)
        return {task: {e: w for e, w in enumerate(row) if w > 0} for task, row in zip(tasks, rows, strict=True)}

    def contributions(self, table: pa.Table, tasks: Sequence[str] | None = None) -> Contributions:
        """Return the contribution of each feature to the logit of each row, see ``Contributions``.

        Args:
            table: ids and features, one row per candidate, as in ``score``.
            tasks: names of the tasks; default all.

        Raises:
            InvalidInputError: an unknown task, a column that is missing or of the wrong type, a NaN or infinite value
                (names the row).
            RankerError: the gate selects experts per example.
        """
        selected = [task.name for task in self.tasks(tasks)]
        if self.contributions_graph is None:
            raise RankerError(
                f"'{self.schema.name}' has a per-example gate, whose outputs jump where the selected experts change: "
                "contributions need a gate without per_example"
            )
        self._require_columns(table.column_names)
        return self.contributions_graph(self.encoder.encode(self.complete(table)), selected)

    def tasks(self, names: Sequence[str] | None) -> list[Task]:
        """Return the named tasks, default all.

        Raises:
            InvalidInputError: a name is unknown or repeated.
        """
        known = {task.name: task for task in self.schema.tasks}
        if names is None:
            return list(known.values())
        if not names:
            raise InvalidInputError("tasks", f"the list is empty: choose from {', '.join(known)}")
        for name in names:
            if name not in known:
                raise InvalidInputError("tasks", f"unknown task '{name}': choose from {', '.join(known)}")
        if len(set(names)) < len(names):
            repeated = next(name for i, name in enumerate(names) if name in names[:i])
            raise InvalidInputError("tasks", f"task '{repeated}' is repeated")
        return [known[name] for name in names]


def score_table(scores: Float32, tasks: Sequence[Task]) -> pa.Table:
    """Return scores [rows, tasks] as a table with one column per task."""
    return pa.table({task.name: pa.array(column) for task, column in zip(tasks, scores.T, strict=True)})
