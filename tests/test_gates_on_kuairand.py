"""Training, freezing and serving with every kind of gate on KuaiRand."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from fastapi.testclient import TestClient

import ranking
from pipelines.cli.main import main
from pipelines.data.reader import LogReader, load_tables
from pipelines.data.splits import split_range
from pipelines.datasets.kuairand import convert
from pipelines.runs.run import RunFolder
from pipelines.training.model_factory import load_model
from ranking.encoding.torch_batch import TorchBatch
from ranking.frozen.calibration import to_probabilities
from service.app import create_app
from service.settings import Settings
from tests.conftest import Once

GATE_LINE = 'kind = "dselect_k"'
KINDS = {
    "dselect_k": GATE_LINE,
    "dselect_k per example": f"{GATE_LINE}\nper_example = true",
    "top_k": 'kind = "top_k"',
    "top_k per example": 'kind = "top_k"\nper_example = true',
    "softmax": 'kind = "softmax"',
    "softmax per example": 'kind = "softmax"\nper_example = true',
    "gumbel_softmax": 'kind = "gumbel_softmax"',
    "softmax_selectors": 'kind = "softmax_selectors"',
    "attentive": 'kind = "attentive"',
    "shared_bottom": 'kind = "shared_bottom"',
}
SETTINGS = [
    "training.batch_size=1024",
    "training.checks_per_epoch=2",
    "evaluation.bootstrap=0",
    "evaluation.baselines=[]",
]
OPTIONS = [word for setting in SETTINGS for word in ("--set", setting)]
DAYS = {f"date=202205{day:02d}" for day in (1, 2, 3, 4)}
"""Days of the log: two train, one validates, one tests. test_quality.py uses all days."""


@pytest.fixture(scope="session")
def toml(kuairand_raw: Path, once: Once) -> Path:
    def convert_days(folder: Path) -> None:
        def other_days(_: str, names: list[str]) -> list[str]:
            return [name for name in names if name.startswith("date=") and name not in DAYS]

        shutil.copytree(kuairand_raw, folder / "raw", ignore=other_days)
        convert(folder / "raw", folder / "logs")

    return once("days of KuaiRand", convert_days) / "logs" / "ranker.toml"


def with_gate(toml: Path, name: str, line: str) -> Path:
    """Write a copy of the configuration with another gate."""
    text = toml.read_text()
    assert text.count(GATE_LINE) == 1
    other = toml.with_name(f"{name}.toml")
    other.write_text(text.replace(GATE_LINE, line))
    return other


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=[] if kind == "dselect_k" else pytest.mark.nightly) for kind in KINDS]
)
def test_gate_of_every_kind_trains_on_kuairand_and_serves_the_scores_of_the_dense_model(
    toml: Path, tmp_path: Path, kind: str
) -> None:
    """Protects the path from a real log to the answers of the service."""
    run, bundle, repository = tmp_path / "run", tmp_path / "bundle", tmp_path / "repository"
    assert main(["train", str(with_gate(toml, kind, KINDS[kind])), "--run", str(run), *OPTIONS]) == 0
    evaluation = json.loads((run / "evaluation.json").read_text())
    assert evaluation["gates"]["kind"] == kind.split()[0]
    assert evaluation["tasks"]["click"]["auc"] > 0.65, "the model must learn"
    cost = json.loads((run / "selection.json").read_text())["flops"]
    assert kind != "dselect_k" or cost["frozen"] <= 0.4 * cost["dense"]
    assert main(["freeze", str(run), "--out", str(bundle)]) == 0
    assert main(["publish", str(bundle), str(repository)]) == 0

    ranker = ranking.load(repository / "kuairand" / "1")
    folder = RunFolder.open(run)
    config = folder.load_config()
    logged = config.serving_schema.logged
    reader = LogReader(config.logs.path, logged, load_tables(config.logs, logged))
    rows = next(part.rows for part in reader.scan(split_range(config.logs, "test")) if part.rows.num_rows > 50)
    rows = ranker.complete(rows.slice(0, 50))
    model, encoder = load_model(folder, config)
    with torch.inference_mode():
        dense = to_probabilities(model(TorchBatch.from_numpy(encoder.encode(rows))).numpy(), config.tasks)
    columns = list(dict.fromkeys(feature.column for feature in ranker.schema.features))
    frozen = ranker.score(rows.select(columns))
    np.testing.assert_allclose(np.stack(frozen.drop(["score"]).columns, 1), dense, rtol=0.0, atol=1e-5)

    with TestClient(create_app(Settings(repository=repository))) as client:
        items = list(dict.fromkeys(rows["video_id"].to_pylist()))[:20]
        body: dict[str, Any] = {"user": {"id": rows["user_id"][0].as_py()}, "items": [{"id": item} for item in items]}
        answer = client.post("/v1/rank", json=body)
        assert answer.status_code == 200, answer.text
        user = pa.array([body["user"]["id"]] * len(items))
        looked_up = {column for table in ranker.tables.values() for column in table.table.column_names}
        context = [column for column in columns if column not in looked_up | {"user_id", "video_id"}]
        nulls = {column: pa.nulls(len(items)) for column in context}
        expected = ranker.score(pa.table({"user_id": user, "video_id": items} | nulls)).drop(["score"]).to_pylist()
        by_id = dict(zip(items, expected, strict=True))
        for item in answer.json()["items"]:
            assert item["scores"] == pytest.approx(by_id[item["id"]], abs=1e-6)


@pytest.mark.nightly(
    short="tests/pipelines/cli/test_main.py::test_single_task_run_is_evaluated_as_a_whole_and_frozen_by_task"
)
def test_single_task_baseline_trains_and_freezes_one_model_per_task(
    toml: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    single = with_gate(toml, "single_task", 'kind = "single_task"')
    assert main(["train", str(single), "--run", str(run), *OPTIONS]) == 0
    evaluation = json.loads((run / "evaluation.json").read_text())
    assert len(evaluation["tasks"]) == 9
    assert evaluation["tasks"]["click"]["auc"] > 0.6
    assert main(["freeze", str(run), "--out", str(tmp_path / "bundle")]) == 1
    assert "independent model for each task: freeze each of them" in capsys.readouterr().err
    assert main(["freeze", str(run / "tasks" / "click"), "--out", str(tmp_path / "bundle")]) == 0
    assert ranking.load(tmp_path / "bundle").schema.task_names == ["click"]
