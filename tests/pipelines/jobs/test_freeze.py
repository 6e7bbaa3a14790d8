from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import load_file, save_file

import ranking
from pipelines.cli.main import main
from pipelines.jobs import freeze
from pipelines.jobs.freeze import (
    MAX_AUC_CHANGE,
    MAX_SCORE_CHANGE,
    TOLERANCE,
    VERIFIED_ROWS,
    freeze_run,
    largest_difference,
)
from pipelines.jobs.publish import publish
from pipelines.runs.run import RunFolder
from pipelines.training.model_factory import load_model
from ranking.encoding.torch_batch import TorchBatch
from ranking.errors import BundleError, ConfigError, LogError, NotConvergedError, OutputError, UsageError
from ranking.frozen.calibration import Platt, to_probabilities
from service.models import catalog
from tests.conftest import Once
from tests.support.one_model import weights_of
from tests.support.split_rows import split_rows


@pytest.fixture
def copy(run: RunFolder, tmp_path: Path) -> RunFolder:
    """A copy of the run that a test may change."""
    return RunFolder(shutil.copytree(run.path, tmp_path / "run"))


@pytest.fixture(scope="module")
def held_out(run: RunFolder) -> pa.Table:
    """Completed rows of the validation split."""
    return split_rows(run, "validation")


def fill_weights(run: RunFolder, **weights: float) -> None:
    """Fill the named tensors of the best weights with a number."""
    best = load_file(run.best)
    for name, value in weights.items():
        best[name.replace("__", ".")].fill_(value)
    save_file(best, run.best)


# Unconverged gates.


@pytest.fixture
def unconverged(copy: RunFolder) -> RunFolder:
    fill_weights(copy, gate__z=0.0)
    return copy


def test_unconverged_gate_is_rejected_with_task_selector_and_distance(unconverged: RunFolder, tmp_path: Path) -> None:
    with pytest.raises(NotConvergedError) as caught:
        freeze_run(unconverged.path, tmp_path / "bundle")
    for task in unconverged.load_config().task_names:
        assert f"task '{task}' selector 0 is 100.0% of γ/2 away" in str(caught.value)
    assert "train for more steps" in str(caught.value)


def test_unconverged_gate_leaves_no_files(unconverged: RunFolder, tmp_path: Path) -> None:
    with pytest.raises(NotConvergedError):
        freeze_run(unconverged.path, tmp_path / "bundle")
    assert [file.name for file in tmp_path.iterdir()] == ["run"]


def test_only_unconverged_selectors_are_named(copy: RunFolder, tmp_path: Path) -> None:
    best = load_file(copy.best)
    best["gate.z"][2, 1] = 0.4 * best["gate.gamma"]
    save_file(best, copy.best)
    task = copy.load_config().task_names[2]
    with pytest.raises(NotConvergedError) as caught:
        freeze_run(copy.path, tmp_path / "bundle")
    assert f"task '{task}' selector 1 is 20.0% of γ/2 away" in str(caught.value)
    assert str(caught.value).count(" selector ") == 1


# Output folder.


@pytest.mark.parametrize("kind", ["file", "bundle"])
def test_existing_output_is_rejected_and_unchanged(run: RunFolder, bundle: Path, tmp_path: Path, kind: str) -> None:
    out = tmp_path / "out"
    if kind == "file":
        out.write_text("mine")
    else:
        shutil.copytree(bundle, out)
    before = sorted(out.rglob("*"))
    with pytest.raises(OutputError, match="exists and is never overwritten: name another folder") as caught:
        freeze_run(run.path, out)
    assert str(caught.value).startswith(f"{out} ")
    assert sorted(out.rglob("*")) == before


def test_parent_folders_of_the_output_are_created(run: RunFolder, tmp_path: Path) -> None:
    freeze_run(run.path, tmp_path / "a" / "b" / "bundle")
    assert (tmp_path / "a" / "b" / "bundle" / "manifest.json").is_file()


def test_unwritable_output_is_rejected_before_any_work(
    run: RunFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(OutputError, match=f"{tmp_path}/file is a file, not a folder"):
        freeze_run(run.path, tmp_path / "file" / "bundle")
    assert capsys.readouterr().err == ""


# Bundle.


def test_bundle_scores_equal_the_dense_model(run: RunFolder, bundle: Path, held_out: pa.Table) -> None:
    model, encoder = load_model(run, run.load_config())
    ranker = ranking.load(bundle)
    with torch.no_grad():
        outputs = model(TorchBatch.from_numpy(encoder.encode(held_out)))
    dense = to_probabilities(outputs.numpy(), ranker.schema.tasks)
    frozen = ranker.score(held_out)
    assert frozen.column_names == [*ranker.schema.task_names, "score"]
    for i, task in enumerate(ranker.schema.task_names):
        assert frozen[task].to_numpy() == pytest.approx(dense[:, i], abs=TOLERANCE)


def test_bundle_scores_of_single_tasks_equal_the_dense_model(run: RunFolder, bundle: Path, held_out: pa.Table) -> None:
    model, _ = load_model(run, run.load_config())
    assert largest_difference(model, ranking.load(bundle), held_out) <= TOLERANCE


# Embeddings of other types.


@pytest.mark.parametrize("row_type", ["float16", "int8"])
def test_compact_embeddings_change_scores_by_as_much_as_recorded(
    run: RunFolder, bundle: Path, held_out: pa.Table, tmp_path: Path, capsys: pytest.CaptureFixture[str], row_type: str
) -> None:
    assert main(["freeze", str(run.path), "--out", str(tmp_path / "compact"), "--embeddings", row_type]) == 0
    assert f"embeddings in {row_type} change scores by up to" in capsys.readouterr().err
    exact, compact = ranking.load(bundle), ranking.load(tmp_path / "compact")
    assert (exact.embeddings, compact.embeddings) == ("float32", row_type)
    recorded = compact.details["embeddings"]
    assert recorded["type"] == row_type
    rows = held_out.slice(0, VERIFIED_ROWS)
    before, after = exact.score(rows), compact.score(rows)
    for task in exact.schema.tasks:
        scores = before[task.name].to_numpy()
        change = np.abs(after[task.name].to_numpy() - scores).max() / scores.std()
        assert 0 < change <= MAX_SCORE_CHANGE
        assert recorded["changes"][task.name]["scores"] == pytest.approx(change, rel=1e-3)
        if task.kind == "binary":
            assert abs(recorded["changes"][task.name]["auc"]) <= MAX_AUC_CHANGE


@pytest.mark.parametrize(("bound", "message"), [("MAX_SCORE_CHANGE", "scores of '"), ("MAX_AUC_CHANGE", "AUC of '")])
def test_compact_embeddings_that_change_scores_too_much_are_rejected(
    run: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bound: str, message: str
) -> None:
    monkeypatch.setattr(freeze, bound, 1e-12)
    with pytest.raises(BundleError, match=message) as caught:
        freeze_run(run.path, tmp_path / "compact", "int8")
    assert "freeze with --embeddings float32" in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_bundle_contains_only_selected_experts(bundle: Path) -> None:
    ranker = ranking.load(bundle)
    held = {int(name.split(".")[1]) for name in weights_of(ranker) if name.startswith("expert.")}
    assert held == set(ranker.selection.experts_used)


def test_bundle_contains_schema_objective_tables_and_training_details(run: RunFolder, bundle: Path) -> None:
    config, ranker = run.load_config(), ranking.load(bundle)
    tasks = tuple(task.model_copy(update={"min": None, "max": None}) for task in ranker.schema.tasks)
    assert ranker.schema.model_copy(update={"tasks": tasks}) == config.serving_schema  # but for estimated bounds
    assert ranker.objective == config.objective
    assert set(ranker.tables) == {"user", "item"}
    assert ranker.details["training"]["seed"] == config.training.seed
    assert ranker.details["time_zone"] is None
    assert ranker.details["model"]["experts"] == config.model.experts
    assert set(ranker.details["flops"]) == {"dense", "frozen", "per_task"}


def test_bundle_contains_golden_rows_of_the_validation_split(bundle: Path, held_out: pa.Table) -> None:
    golden = pq.read_table(bundle / "golden.parquet")["inputs"].combine_chunks()
    inputs = pa.Table.from_struct_array(golden)
    assert inputs.to_pylist() == held_out.select(inputs.column_names).slice(0, inputs.num_rows).to_pylist()


def test_freezing_twice_gives_identical_bundles(run: RunFolder, bundle: Path, tmp_path: Path) -> None:
    freeze_run(run.path, tmp_path / "again")
    assert (tmp_path / "again" / "SHA256SUMS").read_text() == (bundle / "SHA256SUMS").read_text()


# Largest difference.


def test_largest_difference_detects_a_changed_bias(run: RunFolder, bundle: Path, held_out: pa.Table) -> None:
    model, _ = load_model(run, run.load_config())
    with torch.no_grad():
        model.output.bias[3] += 0.5
    assert largest_difference(model, ranking.load(bundle), held_out) > 100 * TOLERANCE


# Unusable runs.


def test_folder_without_a_run_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(LogError, match="is not a run folder"):
        freeze_run(tmp_path, tmp_path / "bundle")


def test_unfinished_run_is_rejected(copy: RunFolder, tmp_path: Path) -> None:
    copy.selection.unlink()
    with pytest.raises(LogError, match="training has not finished"):
        freeze_run(copy.path, tmp_path / "bundle")


def test_damaged_run_is_rejected(copy: RunFolder, tmp_path: Path) -> None:
    copy.best.write_bytes(copy.best.read_bytes()[:1000])
    with pytest.raises(LogError, match="the run is damaged"):
        freeze_run(copy.path, tmp_path / "bundle")


def test_run_with_missing_log_is_rejected(copy: RunFolder, tmp_path: Path) -> None:
    text = copy.config.read_text()
    copy.config.write_text(text.replace('path = "', 'path = "/nowhere'))
    with pytest.raises(LogError, match="no such log"):
        freeze_run(copy.path, tmp_path / "bundle")
    assert not (tmp_path / "bundle").exists()


def test_run_with_missing_validation_split_is_rejected(copy: RunFolder, run: RunFolder, tmp_path: Path) -> None:
    logs = run.load_config().logs
    shutil.copytree(logs.path, tmp_path / "log", ignore=shutil.ignore_patterns("date=2026-01-09"))
    copy.config.write_text(copy.config.read_text().replace(f'"{logs.path}"', f'"{tmp_path}/log"'))
    with pytest.raises(LogError, match=r"the validation split has no rows to verify .*restore the log") as caught:
        freeze_run(copy.path, tmp_path / "bundle")
    assert str(caught.value).startswith(f"{tmp_path}/log: ")
    assert not (tmp_path / "bundle").exists()


def test_run_with_invalid_number_in_items_is_rejected(copy: RunFolder, run: RunFolder, tmp_path: Path) -> None:
    logs = run.load_config().logs
    items = pq.read_table(logs.items)
    number = next(f.column for f in run.load_config().serving_schema.numerics if f.owner == "item")
    values = items[number].to_pylist()
    values[17] = float("nan")
    items = items.set_column(items.column_names.index(number), number, pa.array(values, pa.float64()))
    pq.write_table(items, tmp_path / "bad.parquet")
    copy.config.write_text(copy.config.read_text().replace(f'"{logs.items}"', f'"{tmp_path}/bad.parquet"'))
    with pytest.raises(LogError, match="is NaN or infinite: write null for unknown") as caught:
        freeze_run(copy.path, tmp_path / "bundle")
    assert str(caught.value).startswith(f"{tmp_path}/bad.parquet: column '{number}', row 17: ")
    assert not (tmp_path / "bundle").exists()


def test_run_with_nan_weights_is_rejected(copy: RunFolder, tmp_path: Path) -> None:
    fill_weights(copy, output__bias=float("nan"))
    with pytest.raises((BundleError, LogError)):
        freeze_run(copy.path, tmp_path / "bundle")
    assert not (tmp_path / "bundle").exists()


def test_bundle_contains_the_evaluation_and_the_report_of_the_run(copy: RunFolder, tmp_path: Path) -> None:
    (copy.path / "report.html").write_text("<h1>Report</h1>")
    freeze_run(copy.path, tmp_path / "bundle")
    assert (tmp_path / "bundle" / "report.html").read_text() == "<h1>Report</h1>"
    assert (tmp_path / "bundle" / "evaluation.json").read_bytes() == copy.evaluation.read_bytes()
    assert "report.html" in (tmp_path / "bundle" / "SHA256SUMS").read_text()


# The mean of several runs.


@pytest.fixture(scope="module")
def softmax(run_of: Callable[[str], RunFolder]) -> RunFolder:
    """A run with another gate on the same log."""
    return run_of("softmax")


@pytest.fixture(scope="module")
def mean(run: RunFolder, softmax: RunFolder, once: Once) -> Path:
    return once("mean of runs", lambda folder: freeze_run(run.path, folder, others=[softmax.path]))


def test_bundle_of_several_runs_averages_their_outputs(
    run: RunFolder, softmax: RunFolder, mean: Path, held_out: pa.Table
) -> None:
    ranker, config = ranking.load(mean), run.load_config()
    inputs, names = ranker.encoder.encode(held_out), config.task_names
    outputs = [load_model(one, one.load_config())[0](TorchBatch.from_numpy(inputs)) for one in (run, softmax)]
    expected = torch.stack(outputs).mean(0).detach().numpy()
    np.testing.assert_allclose(ranker.outputs(inputs, names), expected, rtol=1e-4, atol=1e-5)
    costs = [one.load_selection()["flops"] for one in (run, softmax)]
    assert ranker.details["flops"]["frozen"] == costs[0]["frozen"] + costs[1]["frozen"]
    assert ranker.details["selection"]["kind"] == "dselect_k, softmax"
    assert ranker.selection.num_experts == 8


def test_bundle_of_several_runs_contains_the_evaluation_of_their_mean(
    run: RunFolder, mean: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is what comparing the bundle with a run measures."""
    evaluation = json.loads((mean / "evaluation.json").read_text())
    assert main(["compare", str(mean), str(run.path), "--json"]) == 0
    compared = json.loads(capsys.readouterr().out)
    binary = [task.name for task in run.load_config().tasks if task.kind == "binary"]
    for task in binary:
        assert evaluation["tasks"][task]["auc"] == pytest.approx(
            compared["tasks"][task]["measures"]["auc"]["a"], rel=1e-6
        )
    assert not (mean / "report.html").exists()


def test_command_freezes_several_runs_and_prints_the_evaluation(
    run: RunFolder, softmax: RunFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "bundle"
    assert main(["freeze", str(run.path), str(softmax.path), "--out", str(out), "--embeddings", "int8"]) == 0
    printed = capsys.readouterr().out
    assert printed.endswith(f"{out}\n")
    assert "logloss" in printed
    assert ranking.load(out).embeddings == "int8"


def test_mean_of_runs_is_calibrated_on_its_own_outputs(run: RunFolder, softmax: RunFolder, tmp_path: Path) -> None:
    """The mean of two calibrated runs is not what either of them was calibrated for."""
    copies = []
    for number, one in enumerate((run, softmax)):
        folder = RunFolder(shutil.copytree(one.path, tmp_path / f"run {number}"))
        text = folder.config.read_text().replace('calibration = "none"', 'calibration = "platt"', 1)
        folder.config.write_text(text)
        assert "platt" in text
        copies.append(folder)
    ranker = freeze_run(copies[0].path, tmp_path / "bundle", others=[copies[1].path])
    (task, *_) = ranker.calibration.tasks
    assert isinstance(ranker.calibration.tasks[task], Platt)
    assert not copies[0].calibration.exists()


def test_catalog_names_the_gates_of_all_runs(mean: Path, tmp_path: Path) -> None:
    name, version = publish(mean, tmp_path / "repository")
    entry = catalog.read_entry(tmp_path / "repository", name, version)
    assert entry.gate == "dselect_k, softmax"
    assert entry.selection.num_experts == 8


def test_run_that_is_named_twice_is_rejected(run: RunFolder, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is named twice: name each run once"):
        freeze_run(run.path, tmp_path / "bundle", others=[run.path / ".." / run.path.name])


def test_runs_of_other_logs_are_rejected(run: RunFolder, copy: RunFolder, tmp_path: Path) -> None:
    survey = copy.load_survey()
    survey["rows"]["train"] += 1
    copy.survey.write_text(json.dumps(survey))
    with pytest.raises(ConfigError, match="encodes ids and numbers differently from") as caught:
        freeze_run(run.path, tmp_path / "bundle", others=[copy.path])
    assert str(copy.path) in str(caught.value)
    text = copy.config.read_text()
    copy.config.write_text(text.replace("min_count = 1", "min_count = 2", 1))
    assert copy.config.read_text() != text
    with pytest.raises(ConfigError, match=r"cannot be combined with the other runs: features\..* is 2 instead of 1"):
        freeze_run(run.path, tmp_path / "bundle", others=[copy.path])
    assert [file.name for file in tmp_path.iterdir()] == ["run"]
