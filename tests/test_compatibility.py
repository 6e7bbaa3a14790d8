"""Bundles and runs written by an earlier version still load, score and serve (files in ``tests/fixtures``)."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fastapi.testclient import TestClient

import ranking
from pipelines.cli.main import main
from service.app import create_app
from service.settings import Settings

FIXTURE = Path(__file__).parent / "fixtures" / "version_0_1"
LAST_DAY = FIXTURE / "log" / "log" / "date=2026-01-10"
TOLERANCE = 1e-5


@pytest.fixture(scope="module")
def expected() -> pa.Table:
    """Scores that version 0.1.0 wrote for the last day."""
    return pq.read_table(FIXTURE / "scores.parquet")


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A copy of the run whose configuration names the log where it is here."""
    folder = shutil.copytree(FIXTURE / "run", tmp_path / "run")
    config = folder / "config.toml"
    config.write_text(config.read_text().replace("FIXTURE", str(FIXTURE)))
    return folder


def assert_same_scores(file: Path, expected: pa.Table) -> None:
    scores = pq.read_table(file)
    assert scores.column_names == [*expected.column_names, "score"]
    for name in expected.column_names:
        if pa.types.is_floating(expected[name].type):
            np.testing.assert_allclose(scores[name].to_numpy(), expected[name].to_numpy(), rtol=0.0, atol=TOLERANCE)
        else:
            assert scores[name].equals(expected[name])


def test_bundle_of_version_0_1_scores_as_before(expected: pa.Table, tmp_path: Path) -> None:
    out = tmp_path / "scores.parquet"
    assert main(["score", str(FIXTURE / "bundle"), "--logs", str(LAST_DAY), "--out", str(out)]) == 0
    assert_same_scores(out, expected)


def test_bundle_of_version_0_1_is_served_with_the_scores_of_offline_scoring(expected: pa.Table, tmp_path: Path) -> None:
    assert main(["publish", str(FIXTURE / "bundle"), str(tmp_path / "repository")]) == 0
    (file,) = LAST_DAY.iterdir()
    impressions, scores = pq.ParquetFile(file).read().to_pylist(), expected.to_pylist()
    with TestClient(create_app(Settings(repository=tmp_path / "repository"))) as client:
        for impression, score in list(zip(impressions, scores, strict=True))[:20]:
            body = {
                "user": {"id": impression["user_id"]},
                "context": {name: impression[name] for name in ("surface", "hour")},
                "items": [{"id": impression["item_id"]}],
            }
            response = client.post("/v1/rank", json=body)
            assert response.status_code == 200, response.text
            for task, value in response.json()["items"][0]["scores"].items():
                assert value == pytest.approx(score[task], abs=TOLERANCE)


def test_run_of_version_0_1_freezes_into_a_bundle_that_scores_as_before(
    run: Path, expected: pa.Table, tmp_path: Path
) -> None:
    bundle, out = tmp_path / "bundle", tmp_path / "scores.parquet"
    assert main(["freeze", str(run), "--out", str(bundle)]) == 0
    assert main(["score", str(bundle), "--logs", str(LAST_DAY), "--out", str(out)]) == 0
    assert_same_scores(out, expected)


def test_bundle_of_version_0_1_does_not_clip_numbers(run: Path, tmp_path: Path) -> None:
    assert main(["freeze", str(run), "--out", str(tmp_path / "bundle")]) == 0
    for folder in (FIXTURE / "bundle", tmp_path / "bundle"):
        ranker = ranking.load(folder)
        assert {scale.clip for scale in ranker.encoder.scales.values()} == {None}, folder
        assert {feature.clip for feature in ranker.schema.numerics} == {"none"}, folder


def test_bundle_of_version_0_1_has_no_bins_and_pools_histories_by_their_mean(run: Path, tmp_path: Path) -> None:
    assert main(["freeze", str(run), "--out", str(tmp_path / "bundle")]) == 0
    for folder in (FIXTURE / "bundle", tmp_path / "bundle"):
        ranker = ranking.load(folder)
        assert len(ranker.encoder.bins) == 0, folder
        assert {feature.bins for feature in ranker.schema.numerics} == {0}, folder
        assert {bag.pooling for bag in ranker.schema.bags} <= {"mean", "sum"}, folder


def test_run_of_version_0_1_evaluates_and_reports_as_before(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["evaluate", str(run), "--json"]) == 0
    evaluation, before = json.loads(capsys.readouterr().out), json.loads((run / "evaluation.json").read_text())
    assert evaluation["rows"] == before["rows"]
    for task, measures in before["tasks"].items():
        names = measures.keys() & {"auc", "logloss", "rmse"}
        assert names, task
        for name in names:
            assert evaluation["tasks"][task][name] == pytest.approx(measures[name], abs=TOLERANCE), (task, name)
    assert main(["report", str(run)]) == 0
    assert (run / "report.html").exists()


def test_finished_run_of_version_0_1_stays_as_it_is_when_resumed(run: Path) -> None:
    config = (run / "config.toml").read_text()
    assert main(["train", str(run / "config.toml"), "--run", str(run), "--resume"]) == 0
    assert (run / "config.toml").read_text() == config
