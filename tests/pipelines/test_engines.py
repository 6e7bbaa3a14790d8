"""Processes, Ray and Spark call a function for many tasks."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

import ranking
from pipelines.engines import kept_processes, run_in_processes
from pipelines.runs.run import RunFolder
from ranking.errors import RankerError
from tests.support.command import ranker
from tests.support.waiting import TIMEOUT_SECONDS, wait_until
from tests.support.worker_tasks import double, own_id

ROOT = Path(__file__).parents[2]
PYTHON = ROOT / ".venv" / "engines" / "bin" / "python"


def test_processes_return_the_result_of_each_task() -> None:
    assert sorted(run_in_processes(2, double, range(5))) == [0, 2, 4, 6, 8]


def test_error_in_a_process_keeps_its_message() -> None:
    with pytest.raises(RankerError, match=r"^part-13\.parquet: is damaged$"):
        list(run_in_processes(2, double, [1, 13, 2]))


def test_killed_process_is_reported() -> None:
    with pytest.raises(RankerError, match="a worker was killed, perhaps because the memory was full"):
        list(run_in_processes(2, double, [1, 99, 2]))


def test_calls_share_processes_that_are_kept() -> None:
    """Protects against processes that start for each call, which takes seconds, or stay."""
    ids = []
    with kept_processes():
        for _ in range(2):
            with kept_processes():
                ids.append(set(run_in_processes(1, own_id, [0])))
        with pytest.raises(RankerError):
            list(run_in_processes(1, double, [99]))
        ids.append(set(run_in_processes(1, own_id, [0])))
        (last,) = ids[-1]
        assert Path(f"/proc/{last}").exists()
    assert ids[0] == ids[1] != ids[2], "a killed process is replaced"
    wait_until(lambda: not Path(f"/proc/{last}").exists())


def start_two_workers(bundle: Path, log: Path, out: Path) -> tuple[subprocess.Popen[str], list[str]]:
    """Start `ranker score --workers 2`; returns it with the ids of its workers."""
    command = [sys.executable, "-m", "pipelines.cli", "score", bundle, "--logs", log, "--workers", "2", "--out", out]
    process = subprocess.Popen(
        list(map(str, command)), cwd=ROOT, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    # Two workers, and a process that tracks their resources.
    wait_until(lambda: len(children.read_text().split()) == 3)
    return process, children.read_text().split()


@pytest.mark.nightly(short="test_workers_end_with_a_process_that_is_terminated")
def test_interrupted_processes_end_without_a_trace(bundle: Path, logs: Path, tmp_path: Path) -> None:
    """Ctrl-C in a terminal is sent to the workers, too."""
    process, workers = start_two_workers(bundle, logs / "log", tmp_path / "scores")
    os.killpg(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=TIMEOUT_SECONDS)
    assert process.returncode == 1
    assert err.splitlines()[-1] == "ranker: interrupted"
    assert "Traceback" not in err
    assert list(tmp_path.iterdir()) == []
    wait_until(lambda: not any(Path(f"/proc/{worker}").exists() for worker in workers))


@pytest.mark.system
def test_workers_end_with_a_process_that_is_terminated(bundle: Path, logs: Path, tmp_path: Path) -> None:
    """Supervisors send SIGTERM, which ends the process at once."""
    process, workers = start_two_workers(bundle, logs / "log", tmp_path / "scores")
    process.terminate()
    assert process.wait(TIMEOUT_SECONDS) == -signal.SIGTERM
    wait_until(lambda: not any(Path(f"/proc/{worker}").exists() for worker in workers))
    process.communicate()


@pytest.mark.parametrize("engine", ["ray", "spark"])
def test_missing_engine_is_reported(engine: str, bundle: Path, logs: Path, tmp_path: Path) -> None:
    code, out, err = ranker("score", bundle, "--logs", logs / "log", "--out", tmp_path / "scores", "--engine", engine)
    assert (code, out) == (1, "")
    assert f"pip install 'dselect-ranker[{engine}]'" in err
    assert list(tmp_path.iterdir()) == []


def score(engine: str, bundle: Path, log: Path, out: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run `ranker score --engine`."""
    return with_engines("score", bundle, "--logs", log, "--engine", engine, "--out", out, **variables)


def with_engines(*arguments: object, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run `ranker` in an environment with Ray and Spark."""
    command = [PYTHON, "-m", "pipelines.cli", *arguments]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "MASTER": "local[2]"} | variables
    return subprocess.run(
        list(map(str, command)), env=environment, cwd=ROOT, capture_output=True, text=True, check=False
    )


@pytest.mark.nightly(
    short="tests/pipelines/jobs/test_score.py::test_parts_in_processes_have_the_scores_of_the_whole_log"
)
@pytest.mark.parametrize("engine", ["ray", "spark"])
def test_engine_gives_the_scores_of_one_process(engine: str, bundle: Path, logs: Path, tmp_path: Path) -> None:
    """On this machine, with two workers."""
    result = score(engine, bundle, logs / "log", tmp_path / "scores")
    assert result.returncode == 0, result.stderr
    ranker("score", bundle, "--logs", logs / "log", "--out", tmp_path / "scores.parquet")
    assert pq.read_table(tmp_path / "scores").equals(pq.read_table(tmp_path / "scores.parquet"))


@pytest.mark.nightly(
    short="tests/pipelines/evaluation/test_predict.py::test_parts_have_the_predictions_of_the_whole_log"
)
@pytest.mark.parametrize("engine", ["ray", "spark"])
def test_engine_gives_the_measures_of_one_process(engine: str, run: RunFolder) -> None:
    """Of a run with counters and baselines, on its test split."""
    code, expected, _ = ranker("evaluate", run.path, "--json")
    result = with_engines("evaluate", run.path, "--json", "--engine", engine)
    assert result.returncode == code == 0, result.stderr
    assert json.loads(result.stdout) == json.loads(expected)


@pytest.mark.nightly(
    short="tests/pipelines/jobs/test_prepare.py::test_prepare_with_workers_writes_the_files_of_one_process"
)
@pytest.mark.parametrize("engine", ["ray", "spark"])
def test_engine_prepares_the_files_of_one_process(engine: str, logs: Path, tmp_path: Path) -> None:
    for options in (["--run", tmp_path / "whole"], ["--run", tmp_path / "parts", "--engine", engine]):
        result = with_engines("prepare", logs / "ranker.toml", *options)
        assert result.returncode == 0, result.stderr
    files = [file.relative_to(tmp_path / "whole") for file in (tmp_path / "whole" / "encoder").rglob("*.parquet")]
    for file in [*files, "survey.json", "index.parquet", "inputs.json"]:
        assert (tmp_path / "parts" / file).read_bytes() == (tmp_path / "whole" / file).read_bytes()


@pytest.mark.nightly(short="test_error_in_a_process_keeps_its_message")
@pytest.mark.parametrize("engine", ["ray", "spark"])
def test_damaged_file_is_reported_by_an_engine_in_one_line(
    engine: str, bundle: Path, logs: Path, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    shutil.copytree(logs / "log" / "date=2026-01-08", log / "date=2026-01-08")
    (log / "date=2026-01-09").mkdir()
    (log / "date=2026-01-09" / "part-0.parquet").write_text("not Parquet")
    result = score(engine, bundle, log, tmp_path / "scores")
    assert result.returncode == 1
    (line,) = [line for line in result.stderr.splitlines() if line.startswith("ranker: ")]
    assert f"{log}/date=2026-01-09/part-0.parquet" in line
    assert [file.name for file in tmp_path.iterdir()] == ["log"]


@pytest.mark.nightly(short="test_missing_engine_is_reported")
@pytest.mark.parametrize(
    ("engine", "variables", "message"),
    [
        ("ray", {"RAY_ADDRESS": "127.0.0.1:1"}, "there is no Ray cluster at RAY_ADDRESS=127.0.0.1:1 ("),
        ("spark", {"JAVA_HOME": "/nonexistent"}, ": install Java 17 or newer"),
    ],
)
def test_cluster_that_is_not_there_is_reported(
    engine: str, variables: dict[str, str], message: str, bundle: Path, logs: Path, tmp_path: Path
) -> None:
    result = score(engine, bundle, logs / "log", tmp_path / "scores", **variables)
    assert result.returncode == 1
    assert message in result.stderr.splitlines()[-1]


RECIPES = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "scaling.md").read_text(), re.DOTALL)
"""Code of the documentation: functions that add scores, their use with Ray and with Spark, and an MLflow model."""


@pytest.mark.nightly(short="tests/ranking/artifacts/test_bundle.py::test_loaded_ranker_can_be_pickled")
@pytest.mark.parametrize("engine", ["ray", "spark"])
def test_documented_job_adds_scores(engine: str, bundle: Path, logs: Path, tmp_path: Path) -> None:
    functions, with_ray, with_spark, _ = RECIPES
    start = {
        "ray": "import ray\n",
        "spark": "from pyspark.sql import SparkSession\nspark = SparkSession.builder.getOrCreate()\n",
    }
    script = functions + start[engine] + {"ray": with_ray, "spark": with_spark}[engine]
    script = script.replace("/shared/models/feed/3", str(bundle))
    script = re.sub(r"s3a?://shop/candidates", str(logs / "log" / "date=2026-01-10"), script)
    script = re.sub(r"s3a?://shop/scores", str(tmp_path / "scores"), script)
    environment = os.environ | {"PYTHONPATH": str(ROOT), "MASTER": "local[2]", "PYSPARK_PYTHON": str(PYTHON)}
    subprocess.run([PYTHON, "-c", script], env=environment, cwd=ROOT, capture_output=True, text=True, check=True)
    rows = pq.read_table(logs / "log" / "date=2026-01-10", partitioning=None)
    scores = pq.read_table(tmp_path / "scores")
    assert scores.column_names == ["user_id", "item_id", "score"]
    expected = ranking.load(bundle).score(rows)["score"]
    assert np.allclose(np.sort(scores["score"]), np.sort(expected), atol=1e-6)


@pytest.mark.nightly(
    short="tests/ranking/artifacts/test_mlflow_model.py::test_arguments_name_the_bundle_and_its_loader"
)
def test_documented_mlflow_model_scores_in_spark_and_alone(bundle: Path, logs: Path, tmp_path: Path) -> None:
    alone = f"""
import pyarrow.parquet as pq
rows = pq.read_table("{logs}/log/date=2026-01-10", partitioning=None).to_pandas()
scores = mlflow.pyfunc.load_model("{tmp_path}/model").predict(rows.iloc[::-1])
assert scores.index.equals(rows.index[::-1])
scores.iloc[::-1].to_parquet("{tmp_path}/alone.parquet")
"""
    start = "from pyspark.sql import SparkSession\nspark = SparkSession.builder.getOrCreate()\n"
    script = start + RECIPES[-1].replace("/shared/models/feed/3", str(bundle)) + alone
    script = script.replace("/shared/mlflow/feed", str(tmp_path / "model"))
    script = script.replace("s3a://shop/candidates", str(logs / "log" / "date=2026-01-10"))
    script = script.replace("s3a://shop/scores", str(tmp_path / "scores"))
    environment = os.environ | {"PYTHONPATH": str(ROOT), "MASTER": "local[2]", "PYSPARK_PYTHON": str(PYTHON)}
    subprocess.run([PYTHON, "-c", script], env=environment, cwd=tmp_path, capture_output=True, text=True, check=True)
    rows = pq.read_table(logs / "log" / "date=2026-01-10", partitioning=None)
    expected = ranking.load(bundle).score(rows)
    assert pq.read_table(tmp_path / "alone.parquet").equals(expected)
    scores = pq.read_table(tmp_path / "scores")["scores"].combine_chunks()
    for name in ("click", "score"):
        np.testing.assert_allclose(np.sort(scores.field(name)), np.sort(expected[name]), rtol=1e-6)
