from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from pipelines.jobs.train import train
from pipelines.runs import trackers as trackers_module
from pipelines.runs.run import RunFolder
from pipelines.runs.trackers import Trackers, flatten_numbers, flatten_settings
from ranking.errors import ConfigError, RankerError

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

    from tests.pipelines.conftest import Shop

RECORD = {"step": 5, "phase": "selected", "best": True, "gamma": 0.5, "train": {"click": 0.25}}


RECORDED = {"trackers": ["mlflow", "tensorboard"]}
"""Training settings with both trackers."""


def use_local_store(folder: Path, patch: pytest.MonkeyPatch) -> None:
    patch.setenv("MLFLOW_TRACKING_URI", (folder / "mlruns").as_uri())
    patch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")


@pytest.fixture(autouse=True)
def _local_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use_local_store(tmp_path, monkeypatch)


def new_client() -> MlflowClient:
    from mlflow import MlflowClient  # takes 2 s, which each test process would spend

    return MlflowClient()


@dataclass
class Tracked:
    """A finished training that both trackers were recorded."""

    run: RunFolder
    board: EventAccumulator
    mlflow: Run
    client: MlflowClient

    @property
    def checks(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.run.metrics.read_text().splitlines()]


@pytest.fixture(scope="module")
def tracked(shared_shop: Shop, tmp_path_factory: pytest.TempPathFactory) -> Tracked:
    """A training that both trackers recorded; read only."""
    folder = tmp_path_factory.mktemp("tracked")
    with pytest.MonkeyPatch.context() as patch:
        use_local_store(folder, patch)
        run = train(shared_shop.config(training=RECORDED), folder / "run")
        client = new_client()
        (mlflow_run,) = client.search_runs([client.get_experiment_by_name("shop").experiment_id])
    return Tracked(run, EventAccumulator(str(run.tensorboard)).Reload(), mlflow_run, client)


@pytest.fixture
def trackers(shop: Shop, tmp_path: Path) -> Callable[..., Trackers]:
    """Factory: names → trackers of a run that has not trained yet."""

    def build(*names: str) -> Trackers:
        config = shop.config(training={"trackers": list(names)})
        return Trackers(config, RunFolder.create(tmp_path / "run", config))

    return build


def test_trackers_record_every_number_of_every_check(tracked: Tracked) -> None:
    for name in ("train/click", "validation/watch", "learning_rate", "gamma", "experts", "rows_per_second"):
        path = name.split("/")
        expected = []
        for check in tracked.checks:
            value: Any = check
            for part in path:
                value = value[part]
            expected.append((check["step"], pytest.approx(value)))
        assert [(event.step, event.value) for event in tracked.board.Scalars(name)] == expected
        history = tracked.client.get_metric_history(tracked.mlflow.info.run_id, name)
        assert [(metric.step, metric.value) for metric in history] == expected


def test_trackers_record_the_gate_weights_of_every_task(tracked: Tracked) -> None:
    last = tracked.checks[-1]["gate_weights"]
    for task, weights in last.items():
        for expert, weight in enumerate(weights):
            name = f"gate_weights/{task}/{expert}"
            assert tracked.board.Scalars(name)[-1].value == pytest.approx(weight)
            assert tracked.mlflow.data.metrics[name] == pytest.approx(weight)


def test_trackers_record_test_metrics_and_cost(tracked: Tracked) -> None:
    logloss = tracked.run.load_evaluation()["tasks"]["click"]["logloss"]
    frozen = tracked.run.load_selection()["flops"]["frozen"]
    for name, value in (("test/click/logloss", logloss), ("selection/flops/frozen", frozen)):
        assert tracked.board.Scalars(name)[0].value == pytest.approx(value)
        assert tracked.mlflow.data.metrics[name] == pytest.approx(value)


def test_trackers_record_the_settings(tracked: Tracked) -> None:
    assert tracked.mlflow.data.params["training.batch_size"] == "32"
    assert tracked.mlflow.data.params["model.gate.kind"] == "dselect_k"
    (file,) = tracked.run.tensorboard.iterdir()
    assert b"training.batch_size" in file.read_bytes()


def test_trackers_store_selection_and_configuration(tracked: Tracked) -> None:
    kept = {file.path for file in tracked.client.list_artifacts(tracked.mlflow.info.run_id)}
    assert kept == {"config.toml", "selection.json"}
    assert {"config.toml/text_summary", "selection.json/text_summary"} <= set(tracked.board.Tags()["tensors"])


def test_trackers_mark_a_finished_training_as_finished(tracked: Tracked) -> None:
    assert tracked.mlflow.info.status == "FINISHED"
    assert tracked.mlflow.info.run_name == "run"


def test_tracker_that_fails_to_open_is_dropped_with_one_warning(
    shop: Shop, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = shop.config(training={"trackers": ["tensorboard"]})
    run = RunFolder.create(tmp_path / "run", config)
    run.tensorboard.write_text("no folder")
    trackers = Trackers(config, run)
    trackers.log_check(RECORD)
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("warning: tensorboard failed and is disabled; the training continues (")


def test_tracker_that_fails_during_training_does_not_stop_it(
    shared_shop: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with vanishing_server(requests=3) as address:  # gets the experiment, creates a run, logs once
        monkeypatch.setenv("MLFLOW_TRACKING_URI", address)
        monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
        run = train(shared_shop.config(training=RECORDED), tmp_path / "run")
    assert run.evaluation.exists()
    assert capsys.readouterr().err.count("warning: mlflow failed") == 1
    checks = len(run.metrics.read_text().splitlines())
    assert len(EventAccumulator(str(run.tensorboard)).Reload().Scalars("train/click")) == checks > 1


def test_tracker_that_is_not_installed_raises_an_error_with_the_install_command(
    shop: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.write(shop.table(60))
    monkeypatch.setitem(trackers_module.PACKAGES, "mlflow", ("no_such_module", trackers_module.PACKAGES["mlflow"][1]))
    with pytest.raises(ConfigError, match="'mlflow', which is not installed: pip install mlflow-skinny"):
        train(shop.config(training={"trackers": ["mlflow"]}), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_trackers_mark_a_training_that_raises_as_failed(trackers: Callable[..., Trackers]) -> None:
    def diverge() -> None:
        with trackers("mlflow") as opened:
            opened.log_check(RECORD)
            raise RankerError("the loss is not finite")

    with pytest.raises(RankerError):
        diverge()
    client = new_client()
    (mlflow_run,) = client.search_runs([client.get_experiment_by_name("shop").experiment_id])
    assert mlflow_run.info.status == "FAILED"


def test_flatten_numbers_returns_numbers_at_any_depth() -> None:
    tree = {**RECORD, "weights": {"click": [0.5, 0.25]}, "auc": None}
    assert flatten_numbers(tree) == {
        "step": 5.0, "gamma": 0.5, "train/click": 0.25, "weights/click/0": 0.5, "weights/click/1": 0.25
    }  # fmt: skip


def test_flatten_settings_names_settings_by_section(shop: Shop) -> None:
    flat = flatten_settings(shop.config())
    assert flat["training.learning_rate.gates"] == "0.01"
    assert flat["model.expert_layers"] == "[8]"
    assert not any(name.startswith(("features", "tasks")) for name in flat)


class _MinimalMLflow(BaseHTTPRequestHandler):
    """Minimal responses that MLflow's client accepts."""

    def do_GET(self) -> None:
        body = json.dumps({"experiment": {"experiment_id": "1", "name": "shop"}, "run": {"info": {"run_id": "r"}}})
        if self.headers.get("Content-Length"):
            self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(body.encode())

    do_POST = do_GET

    def log_message(self, *_: Any) -> None:
        pass


@contextmanager
def vanishing_server(requests: int) -> Iterator[str]:
    """Start an HTTP server that stops after ``requests`` requests, and yield its address."""
    server = HTTPServer(("127.0.0.1", 0), _MinimalMLflow)

    def serve() -> None:
        for _ in range(requests):
            server.handle_request()
        server.server_close()

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    thread.join(timeout=30)
    assert not thread.is_alive(), "the training sent fewer requests"
