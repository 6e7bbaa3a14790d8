"""What can be measured: a bundle here, a run in ``runs``, which needs TorchRec."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from torch import Tensor

from pipelines.config.config import EvaluationConfig, LogsConfig
from pipelines.config.uri import Uri
from pipelines.data.splits import split_bounds
from ranking.encoding.batch import EncodedBatch
from ranking.encoding.columns import FeatureTable
from ranking.encoding.encoder import Encoder
from ranking.encoding.torch_batch import TorchBatch
from ranking.errors import LogError
from ranking.frozen.calibration import Calibration
from ranking.frozen.ranker import FrozenRanker
from ranking.schema import Owner, Schema


@dataclass(frozen=True)
class TimeRange:
    """The rows of a log with since ≤ time < until; None is no bound."""

    path: Uri
    since: datetime | None = None
    until: datetime | None = None


@dataclass(frozen=True)
class Scorer:
    """Something that scores rows, and what is known of it.

    Attributes:
        name: the folder it came from.
        encoder: columns → arrays.
        tables: features of users and items by id.
        outputs: uncalibrated outputs [rows, tasks], and the gate's weights: [tasks, experts] or [rows, tasks, experts].
        calibration: of the outputs.
        num_experts: n.
        trained: ``selection.json``: how training came to the selection; None if nobody knows.
        trained_until: earlier rows of its log trained it; None if nobody knows.
        logs: the log it was trained on; a bundle carries none.
        settings: how it is measured unless a command says otherwise.
    """

    name: str
    encoder: Encoder
    tables: Mapping[Owner, FeatureTable]
    outputs: Callable[[EncodedBatch], tuple[Tensor, Tensor]]
    calibration: Calibration
    num_experts: int
    trained: Mapping[str, Any] | None
    trained_until: datetime | None
    logs: LogsConfig | None
    settings: EvaluationConfig

    @property
    def schema(self) -> Schema:
        """Features and tasks."""
        return self.encoder.schema

    def span(self, logs: Uri | None) -> TimeRange:
        """The whole of a log, or the test split of its own one.

        Raises:
            LogError: a bundle is to be measured on none.
        """
        if logs is not None:
            return TimeRange(logs)
        if self.logs is None:
            raise LogError(f"{self.name} is a bundle, which carries no log: name one with --logs")
        return TimeRange(self.logs.path, *split_bounds(self.logs, "test"))


def bundle_scorer(ranker: FrozenRanker, name: str) -> Scorer:
    """A loaded bundle as something to measure; one frozen before bundles said how is measured by the defaults."""
    schema, until = ranker.schema, ranker.details.get("trained_until")

    def outputs(inputs: EncodedBatch) -> tuple[Tensor, Tensor]:
        tensors = TorchBatch.from_numpy(inputs)
        return ranker.graph(tensors, schema.task_names), ranker.graph.routing(tensors)

    return Scorer(
        name,
        ranker.encoder,
        ranker.tables,
        outputs,
        ranker.calibration,
        ranker.selection.num_experts,
        ranker.details.get("selection"),
        None if until is None else datetime.fromisoformat(until),
        None,
        EvaluationConfig.model_validate(ranker.details.get("evaluation", {})),
    )
