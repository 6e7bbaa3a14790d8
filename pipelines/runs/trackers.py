"""Tells experiment trackers how a training goes: TensorBoard, and MLflow where it is installed."""

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
"""Tracker → the module that it needs, and how to get it."""

MLFLOW_BATCH = 100
"""Metrics or parameters in one call: the most parameters that MLflow's server takes."""


class _Tracker(Protocol):
    def check(self, step: int, scalars: Mapping[str, float]) -> None: ...

    def finish(
        self, hyperparameters: Mapping[str, str], results: Mapping[str, float], texts: Mapping[str, str]
    ) -> None: ...

    def fail(self) -> None: ...


class Trackers:
    """Those that a configuration asks for; one that fails is dropped with a warning, and the training goes on.

    The first check opens them, so that of several ranks only the one that tells has them. As a context it tells them if
    the training ends in an error; ``finish`` ends them well.

    Args:
        config: names the trackers; its name is MLflow's experiment.
        run: its folder holds TensorBoard's files, and what is told at the end.
    """

    def __init__(self, config: Config, run: RunFolder) -> None:
        self._config, self._run = config, run
        self._open: dict[Tracker, _Tracker] = {}
        self._opened = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            for name, tracker in list(self._open.items()):
                with self._guarding(name):
                    tracker.fail()

    def _ready(self) -> list[tuple[Tracker, _Tracker]]:
        """Those that still listen."""
        if not self._opened:
            self._opened = True
            for name in self._config.training.trackers:
                with self._guarding(name):
                    self._open[name] = MAKERS[name](self._config, self._run)
        return list(self._open.items())

    def check(self, record: Mapping[str, Any]) -> None:
        """Tells a line of metrics.jsonl: every number in it, under its keys joined by ``/``."""
        scalars = numbers({key: value for key, value in record.items() if key != "step"})
        for name, tracker in self._ready():
            with self._guarding(name):
                tracker.check(record["step"], scalars)

    def finish(self) -> None:
        """Tells the settings, the test measures and the selection, and closes every tracker."""
        run = self._run
        evaluation = run.load_evaluation()["tasks"] if run.evaluation.exists() else {}
        selection = run.load_selection()
        results = numbers(
            {"test": evaluation, "selection": {key: selection[key] for key in ("flops", "snapped_codes")}}
        )
        results["selection/experts_used"] = float(len(selection["experts_used"]))
        texts = {"config.toml": run.config.read_text(), "selection.json": json.dumps(selection, indent=2)}
        for name, tracker in self._ready():
            with self._guarding(name):
                tracker.finish(settings(self._config), results, texts)

    @contextmanager
    def _guarding(self, name: Tracker) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            self._open.pop(name, None)
            why = (str(error).strip() or type(error).__name__).splitlines()[0]
            print_status(f"warning: {name} failed and is told no more, the training goes on ({why})")


def require_installed(trackers: Sequence[Tracker]) -> None:
    """Does nothing if every tracker can be used.

    Raises:
        ConfigError: names one that is not installed, and how to install it.
    """
    for name in trackers:
        module, how = PACKAGES[name]
        if importlib.util.find_spec(module) is None:
            raise ConfigError(f"training.trackers names '{name}', which is not installed: {how}")


def numbers(tree: Any, path: str = "") -> dict[str, float]:
    """Every number in nested dictionaries and lists by the path to it, such as ``gate_weights/click/3``.

    Truth values and texts are left out, and None, which stands for what is undefined.
    """
    if isinstance(tree, bool):
        return {}
    if isinstance(tree, int | float):
        return {path: float(tree)}
    parts = tree if isinstance(tree, Mapping) else dict(enumerate(tree)) if isinstance(tree, list) else {}
    return {
        inner: number
        for key, part in parts.items()
        for inner, number in numbers(part, f"{path}/{key}" if path else str(key)).items()
    }


def settings(config: Config) -> dict[str, str]:
    """The sections of a ranker.toml as ``section.key`` → value; features and tasks, which are lists, are left out."""
    flat: dict[str, str] = {}

    def add(path: str, value: Any) -> None:
        if isinstance(value, dict):
            for key, inner in value.items():
                add(f"{path}.{key}", inner)
        else:
            flat[path] = value if isinstance(value, str) else json.dumps(value)

    for section, value in config.model_dump(mode="json", exclude_none=True).items():
        if isinstance(value, dict):
            add(section, value)
    return flat


class _TensorBoard:
    """Event files in the run folder's ``tensorboard``; look at them with ``tensorboard --logdir``."""

    def __init__(self, _config: Config, run: RunFolder) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(run.tensorboard), flush_secs=10)
        self._step = 0

    def check(self, step: int, scalars: Mapping[str, float]) -> None:
        self._step = step
        for name, value in scalars.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def finish(
        self, hyperparameters: Mapping[str, str], results: Mapping[str, float], texts: Mapping[str, str]
    ) -> None:
        from torch.utils.tensorboard.summary import hparams

        writer = self._writer
        for summary in hparams(
            dict(hyperparameters), dict.fromkeys(results, 0.0)
        ):  # the metrics' names; their values follow
            writer.file_writer.add_summary(summary)
        for name, value in results.items():
            writer.add_scalar(name, value, self._step)
        for name, text in texts.items():
            writer.add_text(name, "\n".join(f"    {line}" for line in text.splitlines()), self._step)
        writer.close()

    def fail(self) -> None:
        self._writer.close()


class _MLflow:
    """A run in the experiment of the model's name; the server is MLflow's own setting, MLFLOW_TRACKING_URI."""

    def __init__(self, config: Config, run: RunFolder) -> None:
        os.environ.setdefault(
            "MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2"
        )  # its default waits minutes for a server that is gone
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "10")
        import mlflow

        self._client = mlflow.MlflowClient()
        known = self._client.get_experiment_by_name(config.name)
        experiment = known.experiment_id if known else self._client.create_experiment(config.name)
        self._run = self._client.create_run(experiment, run_name=run.path.name).info.run_id
        self._step = 0

    def check(self, step: int, scalars: Mapping[str, float]) -> None:
        self._step = step
        self._log(scalars)

    def finish(
        self, hyperparameters: Mapping[str, str], results: Mapping[str, float], texts: Mapping[str, str]
    ) -> None:
        from mlflow.entities import Param

        for part in _batches([Param(name, value) for name, value in hyperparameters.items()]):
            self._client.log_batch(self._run, params=part)
        self._log(results)
        for name, text in texts.items():
            self._client.log_text(self._run, text, name)
        self._client.set_terminated(self._run)

    def fail(self) -> None:
        self._client.set_terminated(self._run, "FAILED")

    def _log(self, scalars: Mapping[str, float]) -> None:
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        metrics = [Metric(re.sub(r"[^\w\-. /]", "_", name), value, now, self._step) for name, value in scalars.items()]
        for part in _batches(metrics):
            self._client.log_batch(self._run, metrics=part)


def _batches(things: list[Any]) -> Iterator[list[Any]]:
    for start in range(0, len(things), MLFLOW_BATCH):
        yield things[start : start + MLFLOW_BATCH]


MAKERS: dict[Tracker, Callable[[Config, RunFolder], _Tracker]] = {"tensorboard": _TensorBoard, "mlflow": _MLflow}
