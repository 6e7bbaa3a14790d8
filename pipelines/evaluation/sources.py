"""Models that can be evaluated: bundles and training runs behind one interface."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from pipelines.config.config import Config, EvaluationConfig, LogsConfig
from pipelines.config.uri import Uri, Uris
from pipelines.data.reader import load_tables
from pipelines.data.splits import ALL_TIME, TimeRange, split_range
from pipelines.runs.run import RunFolder
from ranking.artifacts import bundle
from ranking.artifacts.bundle import MANIFEST
from ranking.counters.features import CounterFeatures
from ranking.encoding.batch import EncodedBatch
from ranking.encoding.encoder import Encoder
from ranking.encoding.feature_table import FeatureTable
from ranking.encoding.torch_batch import TorchBatch
from ranking.errors import LogError
from ranking.frozen.calibration import Calibration
from ranking.frozen.ranker import FrozenRanker
from ranking.schema import Owner, Schema
from ranking.settings.gate import SingleTaskConfig

if TYPE_CHECKING:
    from ranking.model.mmoe import MMoE


@dataclass(frozen=True)
class LogRange:
    """The rows of a log in a time range, of all users or of a share of them.

    Attributes:
        path: location of the log.
        time_range: the time range; by default the whole log.
        features: computed columns of counters and histories of a run, which are used if they contain this log.
        users: share of the users whose rows are read.
    """

    path: Uris
    time_range: TimeRange = ALL_TIME
    features: Path | None = None
    users: float = 1.0


@dataclass(frozen=True)
class Scorer:
    """A model that scores rows, with the metadata that an evaluation needs.

    Attributes:
        name: folder of the run or bundle, for messages.
        encoder: encoder of the model's input columns.
        tables: features of users and items by id.
        forward: maps encoded rows to uncalibrated outputs [rows, tasks] and gate weights; the weights have shape
            [tasks, experts] for a static gate and [rows, tasks, experts] for a per-example gate.
        calibration: calibration of the outputs.
        num_experts: number of experts n of the gate.
        selection: content of ``selection.json``; None if unknown.
        trained_until: exclusive end of the training data; None if unknown.
        validated_until: exclusive end of the validation data, which follows the training data; None if unknown.
        logs: log that the model was trained on; None for a bundle.
        settings: default evaluation settings.
        features: computed columns of counters and histories for ``logs``; None for a bundle.
        counter_features: state of counters and histories; None if the model has none.
    """

    name: str
    encoder: Encoder
    tables: Mapping[Owner, FeatureTable]
    forward: Callable[[EncodedBatch], tuple[Tensor, Tensor]]
    calibration: Calibration
    num_experts: int
    selection: Mapping[str, Any] | None
    trained_until: datetime | None
    logs: LogsConfig | None
    settings: EvaluationConfig
    features: Path | None = None
    counter_features: CounterFeatures | None = None
    validated_until: datetime | None = None

    @property
    def schema(self) -> Schema:
        """Features and tasks of the model."""
        return self.encoder.schema

    def log_range(self, logs: Uri | None) -> LogRange:
        """Return the whole of ``logs``, or by default the test split of the model's own log, of the configured users.

        Raises:
            LogError: ``logs`` is None and the model is a bundle.
        """
        if logs is not None:
            return LogRange(logs, features=self.features, users=self.settings.users)
        if self.logs is None:
            raise LogError(f"{self.name} is a bundle, which does not contain a log: specify one with --logs")
        return LogRange(self.logs.path, split_range(self.logs, "test"), self.features, self.settings.users)


def resolve_scorers(path: Path) -> Iterable[Scorer]:
    """Return the model of a run or bundle; for a single-task run, the model of each task.

    Raises:
        LogError: the path is neither a run nor a bundle, or a file of the run is damaged.
        BundleError: the bundle is damaged.
    """
    if (path / MANIFEST).exists():
        return [load_scorer(path, None)]
    return run_scorers(RunFolder.open(path))


def load_scorer(path: Path, selection: Mapping[str, Any] | None) -> Scorer:
    """Load the model of a bundle or of a run, which may lack its ``selection.json`` because its evaluation comes first.

    Args:
        path: folder of the bundle or run.
        selection: content of that file.

    Raises:
        LogError: a file of the run is damaged.
        BundleError: the bundle is damaged.
    """
    if (path / MANIFEST).exists():
        return bundle_scorer(bundle.load(path), str(path))
    from pipelines.training.model_factory import load_model  # requires TorchRec, which bundles do not need

    run = RunFolder(path)
    config = run.load_config()
    assert selection is not None
    return run_scorer(run, config, *load_model(run, config), selection)


def bundle_scorer(ranker: FrozenRanker, name: str) -> Scorer:
    """Return the scorer of a loaded bundle.

    A bundle without evaluation settings (written by an older version) uses the default settings.
    """
    schema = ranker.schema
    trained_until, validated_until = (ranker.details.get(key) for key in ("trained_until", "validated_until"))

    def forward(inputs: EncodedBatch) -> tuple[Tensor, Tensor]:
        tensors = TorchBatch.from_numpy(inputs)
        return ranker.graph(tensors, schema.task_names), ranker.graph.routing(tensors)

    return Scorer(
        name=name,
        encoder=ranker.encoder,
        tables=ranker.tables,
        forward=forward,
        calibration=ranker.calibration,
        num_experts=ranker.selection.num_experts,
        selection=ranker.details.get("selection"),
        trained_until=None if trained_until is None else datetime.fromisoformat(trained_until),
        logs=None,
        settings=EvaluationConfig.model_validate(ranker.details.get("evaluation", {})),
        counter_features=ranker.counter_features,
        validated_until=None if validated_until is None else datetime.fromisoformat(validated_until),
    )


def run_scorers(run: RunFolder) -> Iterator[Scorer]:
    """Load the model of a run; for a single-task run, load the model of each task one after the other.

    Raises:
        LogError: a file of the run is damaged.
    """
    config = run.load_config()
    if isinstance(config.model.gate, SingleTaskConfig):
        for task in config.task_names:
            yield from run_scorers(RunFolder.open(run.task_folder(task)))
    else:
        yield load_scorer(run.path, run.load_selection())


def run_scorer(run: RunFolder, config: Config, model: MMoE, encoder: Encoder, selection: Mapping[str, Any]) -> Scorer:
    """Return the scorer of a run whose model is already loaded.

    Args:
        run: the run folder.
        config: configuration of the run.
        model: the model with its best weights, in eval mode.
        encoder: encoder of the run.
        selection: content of ``selection.json``, which may not be written yet.
    """

    def forward(inputs: EncodedBatch) -> tuple[Tensor, Tensor]:
        result = model.forward_with_routing(TorchBatch.from_numpy(inputs))
        return result.outputs, result.routing.weights

    return Scorer(
        name=str(run.path),
        encoder=encoder,
        tables=load_tables(config.logs, encoder.schema),
        forward=forward,
        calibration=run.load_calibration(),
        num_experts=model.gate.num_experts,
        selection=selection,
        trained_until=config.logs.validation_from,
        logs=config.logs,
        settings=config.evaluation,
        features=run.features if encoder.schema.counter_features else None,
        counter_features=CounterFeatures.open(run.counters, encoder.schema)
        if encoder.schema.counter_features
        else None,
        validated_until=config.logs.test_from,
    )
