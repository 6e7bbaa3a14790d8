"""What can be measured: a bundle here, a run in ``runs``, which needs TorchRec."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from torch import Tensor

from pipelines.config import EvaluationConfig, LogsConfig
from pipelines.logs.places import Place
from pipelines.logs.splits import split_bounds
from ranking.calibration import Calibration
from ranking.encoding import Encoder
from ranking.errors import LogError
from ranking.features import FeatureTable
from ranking.frozen import FrozenRanker
from ranking.inputs import Inputs
from ranking.schema import Owner, Schema
from ranking.tensors import InputTensors


@dataclass(frozen=True)
class Span:
    """The rows of a log with since ≤ time < until; None is no bound."""

    path: Place
    since: datetime | None = None
    until: datetime | None = None


@dataclass(frozen=True)
class Source:
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
    outputs: Callable[[Inputs], tuple[Tensor, Tensor]]
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

    def span(self, logs: Place | None) -> Span:
        """The whole of a log, or the test split of its own one.

        Raises:
            LogError: a bundle is to be measured on none.
        """
        if logs is not None:
            return Span(logs)
        if self.logs is None:
            raise LogError(f"{self.name} is a bundle, which carries no log: name one with --logs")
        return Span(self.logs.path, *split_bounds(self.logs, "test"))


def bundle_source(ranker: FrozenRanker, name: str) -> Source:
    """A loaded bundle as something to measure; one frozen before bundles said how is measured by the defaults."""
    schema, until = ranker.schema, ranker.details.get("trained_until")

    def outputs(inputs: Inputs) -> tuple[Tensor, Tensor]:
        tensors = InputTensors.of(inputs)
        return ranker.graph(tensors, schema.task_names), ranker.graph.routing(tensors)

    return Source(
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
