"""Experiment trackers that record a training: TensorBoard, and MLflow if it is installed."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol, Self

from pipelines.config.config import Config, Tracker
from pipelines.console import print_status
from pipelines.runs.run import RunFolder
from ranking.errors import ConfigError

PACKAGES: dict[Tracker, tuple[str, str]] = {
    "tensorboard": ("tensorboard", "pip install --no-deps -r requirements/train.lock"),
    "mlflow": ("mlflow", "pip install mlflow-skinny"),
}
"""Module that each tracker needs, and the command that installs it."""

MLFLOW_BATCH = 100
"""Metrics or parameters per call; MLflow's server accepts at most 100 parameters."""


class _Tracker(Protocol):
    def log_check(self, step: int, scalars: Mapping[str, float]) -> None: ...

    def finish(
        self, hyperparameters: Mapping[str, str], results: Mapping[str, float], texts: Mapping[str, str]
    ) -> None: ...

    def fail(self) -> None: ...


class Trackers:
    """The trackers that a configuration names. One that fails is dropped with a warning; the training continues.

    The first check opens them, so that only the rank that logs has any. Leaving the context with an error marks the
    tracked run as failed; ``finish`` marks it as finished.

    Args:
        config: names the trackers; its name is the MLflow experiment.
        run: folder for TensorBoard's files, and source of the results.
    """

    def __init__(self, config: Config, run: RunFolder) -> None:
        self._config, self._run = config, run
        self._trackers: dict[Tracker, _Tracker] = {}
        self._opened = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            for name, tracker in list(self._trackers.items()):
                with self._drop_on_error(name):
                    tracker.fail()

    def _active(self) -> list[tuple[Tracker, _Tracker]]:
        """Return the trackers that have not failed; the first call opens them."""
        if not self._opened:
            self._opened = True
            for name in self._config.training.trackers:
                with self._drop_on_error(name):
                    self._trackers[name] = TRACKERS[name](self._config, self._run)
        return list(self._trackers.items())

    def log_check(self, record: Mapping[str, Any]) -> None:
        """Record all numbers of a line of metrics.jsonl, named by their keys joined with ``/``."""
        scalars = flatten_numbers({key: value for key, value in record.items() if key != "step"})
        for name, tracker in self._active():
            with self._drop_on_error(name):
                tracker.log_check(record["step"], scalars)

    def finish(self) -> None:
        """Record the settings, the test metrics and the selection, and close all trackers."""
        run = self._run
        evaluation = run.load_evaluation()["tasks"] if run.evaluation.exists() else {}
        selection = run.load_selection()
        results = flatten_numbers(
            {"test": evaluation, "selection": {key: selection[key] for key in ("flops", "snapped_codes")}}
        )
        results["selection/experts_used"] = float(len(selection["experts_used"]))
        texts = {"config.toml": run.config.read_text(), "selection.json": json.dumps(selection, indent=2)}
        for name, tracker in self._active():
            with self._drop_on_error(name):
                tracker.finish(flatten_settings(self._config), results, texts)

    @contextmanager
    def _drop_on_error(self, name: Tracker) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            self._trackers.pop(name, None)
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            print_status(f"warning: {name} failed and is disabled; the training continues ({reason})")


def require_installed(trackers: Sequence[Tracker]) -> None:
    """Check that all trackers are installed.

    Raises:
        ConfigError: names one that is not installed, and the command that installs it.
    """
    for name in trackers:
        module, command = PACKAGES[name]
        if importlib.util.find_spec(module) is None:
            raise ConfigError(f"training.trackers names '{name}', which is not installed: {command}")


def flatten_numbers(tree: Any, path: str = "") -> dict[str, float]:
    """Return all numbers in nested dictionaries and lists by their path, such as ``gate_weights/click/3``.

    Booleans, strings and None are omitted.
    """
    if isinstance(tree, bool):
        return {}
    if isinstance(tree, int | float):
        return {path: float(tree)}
    children = tree if isinstance(tree, Mapping) else dict(enumerate(tree)) if isinstance(tree, list) else {}
    return {
        child_path: number
        for key, child in children.items()
        for child_path, number in flatten_numbers(child, f"{path}/{key}" if path else str(key)).items()
    }


def flatten_settings(config: Config) -> dict[str, str]:
    """Return the settings of a configuration as ``section.key`` → value, without the lists (features and tasks)."""
    settings: dict[str, str] = {}

    def add(path: str, value: Any) -> None:
        if isinstance(value, dict):
            for key, child in value.items():
                add(f"{path}.{key}", child)
        else:
            settings[path] = value if isinstance(value, str) else json.dumps(value)

    for section, value in config.model_dump(mode="json", exclude_none=True).items():
        if isinstance(value, dict):
            add(section, value)
    return settings


class _TensorBoard:
    """Event files in the run folder's ``tensorboard``, for ``tensorboard --logdir``."""

    def __init__(self, _config: Config, run: RunFolder) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(run.tensorboard), flush_secs=10)
        self._step = 0

    def log_check(self, step: int, scalars: Mapping[str, float]) -> None:
        self._step = step
        for name, value in scalars.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def finish(
        self, hyperparameters: Mapping[str, str], results: Mapping[str, float], texts: Mapping[str, str]
    ) -> None:
        from torch.utils.tensorboard.summary import hparams

        writer = self._writer
        # The summaries declare the names of the metrics; add_scalar writes their values.
        summaries = hparams(dict(hyperparameters), dict.fromkeys(results, 0.0))  # type: ignore[no-untyped-call]
        for summary in summaries:
            writer.file_writer.add_summary(summary)  # type: ignore[attr-defined]
        for name, value in results.items():
            writer.add_scalar(name, value, self._step)
        for name, text in texts.items():
            writer.add_text(name, "\n".join(f"    {line}" for line in text.splitlines()), self._step)
        writer.close()

    def fail(self) -> None:
        self._writer.close()


class _MLflow:
    """A run in the experiment named after the model, on the server that MLFLOW_TRACKING_URI names."""

    def __init__(self, config: Config, run: RunFolder) -> None:
        # By default, MLflow retries for minutes if the server does not respond.
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "10")
        import mlflow

        self._client = mlflow.MlflowClient()
        existing = self._client.get_experiment_by_name(config.name)
        experiment = existing.experiment_id if existing else self._client.create_experiment(config.name)
        self._run = self._client.create_run(experiment, run_name=run.path.name).info.run_id
        self._step = 0

    def log_check(self, step: int, scalars: Mapping[str, float]) -> None:
        self._step = step
        self._log_metrics(scalars)

    def finish(
        self, hyperparameters: Mapping[str, str], results: Mapping[str, float], texts: Mapping[str, str]
    ) -> None:
        from mlflow.entities import Param

        for params in _batches([Param(name, value) for name, value in hyperparameters.items()]):
            self._client.log_batch(self._run, params=params)
        self._log_metrics(results)
        for name, text in texts.items():
            self._client.log_text(self._run, text, name)
        self._client.set_terminated(self._run)

    def fail(self) -> None:
        self._client.set_terminated(self._run, "FAILED")

    def _log_metrics(self, scalars: Mapping[str, float]) -> None:
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        metrics = [Metric(re.sub(r"[^\w\-. /]", "_", name), value, now, self._step) for name, value in scalars.items()]
        for batch in _batches(metrics):
            self._client.log_batch(self._run, metrics=batch)


def _batches(items: list[Any]) -> Iterator[list[Any]]:
    for start in range(0, len(items), MLFLOW_BATCH):
        yield items[start : start + MLFLOW_BATCH]


TRACKERS: dict[Tracker, Callable[[Config, RunFolder], _Tracker]] = {"tensorboard": _TensorBoard, "mlflow": _MLflow}
