from __future__ import annotations

import io
import json
import math
import platform
import shutil
from collections.abc import Callable, Iterable, Sequence
from contextlib import redirect_stderr
from pathlib import Path
from typing import Any

import cloudpickle
import pyarrow as pa
import pytest
import torch
from safetensors.torch import load_file

import ranking
from pipelines.config.config import Config, load_config
from pipelines.evaluation import sources
from pipelines.evaluation.evaluate import evaluate_all
from pipelines.evaluation.sources import run_scorers
from pipelines.jobs.freeze import freeze_run
from pipelines.jobs.train import train
from pipelines.runs.run import RunFolder
from pipelines.training.model_factory import load_model
from ranking.encoding.encoder import Encoder
from ranking.errors import LogError, OutputError, RankerError
from ranking.selection import Selection
from tests.conftest import Once
from tests.pipelines.conftest import Shop


def read_json(file: Path) -> dict[str, Any]:
    data: dict[str, Any] = json.loads(file.read_text())
    return data


@pytest.fixture(scope="session")
def nested(once: Once) -> RunFolder:
    """A run on 300 rows in a folder whose parents did not exist, made by a known command; read only."""

    def train_nested(folder: Path) -> None:
        shop = Shop(folder)
        shop.write(shop.table(300))
        train(shop.config(), folder / "a" / "b" / "run", command=["ranker", "train", "ranker.toml"])

    return RunFolder(once("shop of a nested run", train_nested) / "a" / "b" / "run")


@pytest.fixture(scope="session")
def again(nested: RunFolder, once: Once) -> RunFolder:
    """A run with the configuration of ``nested``, in a folder that was empty; read only."""

    def train_again(folder: Path) -> None:
        folder.mkdir()
        train(nested.load_config(), folder)

    return RunFolder(once("run in an empty folder", train_again))


@pytest.fixture(scope="session")
def odd(once: Once) -> RunFolder:
    """A run on 200 rows with a bad row, a constant feature and new users after the training split; read only.

    The folder above it has what the training wrote to stderr, in ``err.txt``.
    """

    def train_odd(folder: Path) -> None:
        shop, err = Shop(folder), io.StringIO()
        table = shop.with_value(shop.table(200), "item_id", 7, None)
        columns = {"user_id": ["new" if n >= 160 else "old" for n in range(200)], "tab": [3] * 200}
        for name, values in columns.items():
            table = table.set_column(table.column_names.index(name), name, pa.array(values))
        shop.write(table)
        with redirect_stderr(err):
            train(shop.config(), folder / "run")
        (folder / "err.txt").write_text(err.getvalue())

    return RunFolder(once("shop with an odd log", train_odd) / "run")


def test_train_writes_the_documented_files(run: RunFolder) -> None:
    assert {file.name for file in run.path.iterdir()} == {
        "config.toml",
        "counters",
        "encoder",
        "features",
        "index.parquet",
        "inputs.json",
        "survey.json",
        "task_similarity.json",
        "metrics.jsonl",
        "selection.json",
        "evaluation.json",
        "checkpoints",
        "quarantine.jsonl",
        "command.json",
    }
    assert [file.name for file in (run.path / "checkpoints").iterdir()] == ["best.safetensors"]


def with_other_processes(function: Callable[[Any], Any], parts: Sequence[Any]) -> Iterable[Any]:
    """An engine whose workers have only what is sent to them."""
    return map(cloudpickle.loads(cloudpickle.dumps(function)), parts)


def test_workers_of_the_preparation_also_score_the_rows_of_the_evaluation(
    shop: Shop, nested: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker loads the model of a run that is not finished yet."""
    from pipelines.evaluation import predict

    loaded = []

    def load_scorer(path: Path, *arguments: Any) -> Any:
        loaded.append((path, RunFolder(path).finished))
        return sources.load_scorer(path, *arguments)

    monkeypatch.setattr(predict, "load_scorer", load_scorer)
    parted = train(nested.load_config(), shop.folder / "parted", engine=with_other_processes)
    assert loaded == [(parted.path, False)]
    assert parted.load_evaluation() == nested.load_evaluation()


def test_train_writes_the_resolved_configuration(run: RunFolder, config: Config) -> None:
    assert run.load_config() == config
    assert load_config(run.path / "config.toml").logs.path.is_absolute()


def test_run_folder_can_be_moved(run: RunFolder, tmp_path: Path) -> None:
    moved = shutil.copytree(run.path, tmp_path / "moved")
    assert RunFolder.open(moved).load_config() == run.load_config()


def test_train_fits_the_encoder_on_the_training_split_only(odd: RunFolder) -> None:
    encoder = Encoder.read(odd.encoder, odd.load_config().serving_schema)
    assert encoder.id_mappings["user_id"].size == 3  # missing, unseen, old


def test_train_writes_bad_rows_to_the_quarantine(odd: RunFolder) -> None:
    (line,) = odd.quarantine.read_text().splitlines()
    assert json.loads(line)["file_row"] == 7


def test_train_creates_parent_folders(nested: RunFolder) -> None:
    assert nested.selection.is_file()


def test_train_writes_the_profile_of_the_log(odd: RunFolder) -> None:
    survey = read_json(odd.survey)
    assert survey["rows"] == {"train": 159, "validation": 20, "test": 20}
    assert sum(survey["bad"].values()) == 1


def test_train_writes_command_and_versions_but_no_machine_name(nested: RunFolder) -> None:
    kept = read_json(nested.command)
    assert kept["argv"] == ["ranker", "train", "ranker.toml"]
    assert kept["versions"]["torch"] == torch.__version__
    assert platform.node() not in nested.command.read_text()


def test_train_of_single_tasks_writes_command_and_profile_per_task(shop: Shop) -> None:
    shop.write(shop.table(200))
    run = train(shop.config(model={"gate": {"kind": "single_task"}}), shop.folder / "run")
    assert run.command.exists()
    assert RunFolder(run.task_folder("click")).command.exists()
    assert RunFolder(run.task_folder("click")).survey.exists()


def test_selection_file_has_the_documented_keys(run: RunFolder) -> None:
    data = read_json(run.selection)
    documented = {"num_experts", "k", "converged", "binary_at_step", "steps", "tasks", "experts_used", "flops"}
    assert documented <= set(data)
    assert set(data["flops"]) == {"dense", "frozen", "per_task"}
    assert set(data["flops"]["per_task"]) == set(data["tasks"])


def test_selection_file_reports_convergence_before_the_end_of_annealing(run: RunFolder, config: Config) -> None:
    data = read_json(run.selection)
    assert data["converged"] is True
    assert 1 <= data["binary_at_step"] <= data["steps"]
    until = config.training.convergence.anneal_until * data["steps"]
    assert data["binary_at_step"] <= round(until)


def test_selection_file_has_at_most_k_experts_per_task_with_weights_that_sum_to_one(
    run: RunFolder, config: Config
) -> None:
    data = read_json(run.selection)
    assert list(data["tasks"]) == config.task_names
    assert (data["num_experts"], data["k"]) == (config.model.experts, config.model.gate.k)
    for weights in data["tasks"].values():
        assert 1 <= len(weights) <= data["k"]
        assert all(0 <= int(expert) < data["num_experts"] for expert in weights)
        assert all(weight > 0 for weight in weights.values())
        assert sum(weights.values()) == pytest.approx(1.0, abs=1e-5)


def test_selection_file_lists_the_experts_used(run: RunFolder) -> None:
    data = read_json(run.selection)
    assert data["experts_used"] == sorted({int(expert) for weights in data["tasks"].values() for expert in weights})


def test_selection_file_frozen_flops_are_at_most_dense_flops(run: RunFolder) -> None:
    flops = read_json(run.selection)["flops"]
    assert flops["frozen"] <= flops["dense"]
    assert max(flops["per_task"].values()) <= flops["frozen"]


def test_selection_file_describes_the_best_weights_not_the_last(shop: Shop) -> None:
    """selection.json describes the model that is evaluated and frozen."""
    shop.write(shop.table(200))
    training = {"batch_size": 8, "epochs": 3, "checks_per_epoch": 10, "patience": 1000}
    rates = {"trunk": 0.01, "gates": 0.1}
    model = {"experts": 8, "gate": {"overlap_weight": 10.0}}  # so that selectors differ, and weights matter
    config = shop.config(training={**training, "learning_rate": rates}, model=model)
    run = train(config, shop.folder / "run")
    records = [json.loads(line) for line in run.metrics.read_text().splitlines()]
    assert not records[-1]["best"]
    written = Selection.from_json(read_json(run.selection))
    assert max(map(len, written.tasks.values())) > 1
    best = load_model(run, run.load_config())[0].gate.selection(config.task_names)
    for task, chosen in written.tasks.items():
        assert best.tasks[task] == pytest.approx(chosen, abs=1e-6)


def test_evaluation_file_equals_an_evaluation_of_the_test_split(run: RunFolder) -> None:
    data = read_json(run.evaluation)
    metrics = {"tasks", "calibration_curves", "slices", "gates"}
    assert set(data) == {"rows", "users", "bad_rows", "intervals", "ndcg_at"} | metrics
    assert data == json.loads(json.dumps(evaluate_all(run_scorers(run))))


def test_run_is_finished_although_the_share_of_the_users_has_no_test_row(
    shop: Shop, capsys: pytest.CaptureFixture[str]
) -> None:
    shop.write(shop.table(300))
    run = train(shop.config(evaluation={"users": 1e-9}), shop.folder / "run")
    assert run.finished
    assert not run.evaluation.exists()
    assert "the run has no evaluation: there are no rows of 1e-07 % of the users" in capsys.readouterr().err


def test_evaluation_file_is_not_written_without_a_test_split(shop: Shop) -> None:
    shop.write(shop.table(300).slice(0, 265))
    run = train(shop.config(), shop.folder / "run")
    assert not run.evaluation.exists()
    RunFolder.open(run.path)
    with pytest.raises(LogError, match=r"there are no rows to evaluate: move logs\.test_from"):
        evaluate_all(run_scorers(run))


def test_train_with_the_same_seed_gives_identical_runs(nested: RunFolder, again: RunFolder) -> None:
    a, b = load_file(nested.best), load_file(again.best)
    assert a.keys() == b.keys()
    assert all(torch.equal(a[name], b[name]) for name in a)
    assert read_json(nested.selection) == read_json(again.selection)
    assert read_json(nested.evaluation) == read_json(again.evaluation)


def log_error(shop: Shop, table: pa.Table, **sections: Any) -> str:
    shop.write(table)
    with pytest.raises(LogError) as caught:
        train(shop.config(**sections), shop.folder / "run")
    with pytest.raises(LogError):
        RunFolder.open(shop.folder / "run")
    return str(caught.value)


@pytest.mark.parametrize(
    ("label", "value", "message"),
    [
        ("is_click", 0, "label 'is_click' of task 'click' is 0 in every training row"),
        ("is_click", None, "label 'is_click' of task 'click' is null in every training row"),
        ("seconds", None, "label 'seconds' of task 'watch' is null in every training row"),
    ],
)
def test_train_with_a_constant_label_raises_a_log_error(
    shop: Shop, label: str, value: int | None, message: str
) -> None:
    table = shop.table(100)
    index = table.column_names.index(label)
    values = pa.array([value] * 100, table.schema.field(label).type)
    assert message in log_error(shop, table.set_column(index, label, values))


@pytest.mark.parametrize(
    ("rows", "message"),
    [((80,), "nothing to train on"), ((0, 80), "nothing to validate on"), ((0, 0), "no usable row")],
)
def test_train_without_rows_of_a_split_raises_a_log_error(shop: Shop, rows: tuple[int, ...], message: str) -> None:
    assert message in log_error(shop, shop.table(100).slice(*rows))


def test_train_with_a_missing_column_raises_a_log_error(shop: Shop) -> None:
    assert "column 'age' (feature 'age') is missing" in log_error(shop, shop.table(100).drop_columns(["age"]))


def test_train_without_a_log_raises_a_log_error(shop: Shop) -> None:
    text = log_error(shop, shop.table(100), logs={"path": shop.folder / "nothing"})
    assert text == f"{shop.folder}/nothing: no such log; name a Parquet file or a folder of Parquet files"


def test_train_with_inconsistent_id_types_raises_an_error_that_names_the_file(shop: Shop) -> None:
    table = shop.table(100)
    index = table.column_names.index("user_id")
    shop.write(table.slice(0, 50).set_column(index, "user_id", pa.array(range(50))), "part-0.parquet")
    later = shop.write(table.slice(50), "part-1.parquet")
    with pytest.raises(RankerError, match="'user_id' holds string, but int64 in ") as caught:
        train(shop.config(), shop.folder / "run")
    assert str(caught.value).startswith(f"{later}: column ")


def test_train_into_a_nonempty_folder_raises_an_output_error(shop: Shop) -> None:
    shop.write(shop.table(100))
    (shop.folder / "run").mkdir()
    (shop.folder / "run" / "mine.txt").write_text("keep")
    with pytest.raises(OutputError, match="exists and is never overwritten: name another folder") as caught:
        train(shop.config(), shop.folder / "run")
    assert str(caught.value).startswith(f"{shop.folder}/run ")
    assert [file.name for file in (shop.folder / "run").iterdir()] == ["mine.txt"]


def test_train_into_an_empty_folder_succeeds(again: RunFolder) -> None:
    assert again.selection.is_file()


def test_train_into_a_file_raises_an_output_error(shop: Shop) -> None:
    shop.write(shop.table(100))
    (shop.folder / "run").write_text("mine")
    with pytest.raises(OutputError, match="name another folder"):
        train(shop.config(), shop.folder / "run")


def test_train_below_a_file_raises_an_output_error(shop: Shop) -> None:
    shop.write(shop.table(100))
    (shop.folder / "file").write_text("mine")
    with pytest.raises(OutputError, match=f"{shop.folder}/file is a file, not a folder"):
        train(shop.config(), shop.folder / "file" / "run")


def test_open_of_another_folder_raises_a_log_error(tmp_path: Path) -> None:
    with pytest.raises(LogError, match=r"is not a run folder: it has no config\.toml; create one with 'ranker train'"):
        RunFolder.open(tmp_path)


@pytest.mark.parametrize("missing", ["selection.json", "checkpoints/best.safetensors"])
def test_open_of_an_unfinished_run_raises_a_log_error(run: RunFolder, tmp_path: Path, missing: str) -> None:
    unfinished = shutil.copytree(run.path, tmp_path / "unfinished")
    (unfinished / missing).unlink()
    with pytest.raises(LogError, match=r"training has not finished; continue with .*--resume"):
        RunFolder.open(unfinished)


@pytest.mark.parametrize("file", ["checkpoints/best.safetensors", "encoder/scales.parquet"])
@pytest.mark.parametrize("damage", ["cut", "gone"])
def test_load_model_of_a_damaged_run_raises_a_log_error(run: RunFolder, tmp_path: Path, file: str, damage: str) -> None:
    broken = RunFolder.open(shutil.copytree(run.path, tmp_path / "broken"))
    if damage == "gone":
        (broken.path / file).unlink()
    else:
        content = (broken.path / file).read_bytes()
        (broken.path / file).write_bytes(content[: len(content) // 2])
    with pytest.raises(LogError, match="the run is damaged") as caught:
        load_model(broken, broken.load_config())
    assert str(caught.value).startswith(f"{broken.path}: ")
    assert "\n" not in str(caught.value)


def test_load_model_returns_a_converged_model_in_eval_mode(run: RunFolder) -> None:
    model, _ = load_model(run, run.load_config())
    assert not model.training
    assert bool(model.gate.converged().all())


def test_train_that_fails_before_training_removes_its_folder(shop: Shop) -> None:
    table = shop.table(200)
    constant = pa.array([0] * table.num_rows, pa.int64())
    shop.write(table.set_column(table.column_names.index("is_click"), "is_click", constant))
    for _ in range(2):
        with pytest.raises(LogError, match="is_click"):
            train(shop.config(), shop.folder / "run")
        assert not (shop.folder / "run").exists()


def test_train_with_wrong_labels_in_every_split_leaves_them_out(shop: Shop) -> None:
    """Labels of 1e300 stopped the training at its first step, and ruined the evaluation."""
    table = shop.table(600)
    for row in (7, 8, 9, 500, 590):
        table = shop.with_value(table, "seconds", row, 1e300)
    shop.write(table)
    run = train(shop.config(), shop.folder / "run")
    reasons = {json.loads(line)["file_row"]: json.loads(line)["reason"] for line in run.quarantine.open()}
    assert set(reasons) == {7, 8, 9, 500, 590}
    assert all("label 'seconds' is outside" in reason for reason in reasons.values())
    evaluation = read_json(run.evaluation)
    assert list(evaluation["bad_rows"].values()) == [1]
    assert evaluation["tasks"]["watch"]["rmse"] < 5
    assert all(math.isfinite(json.loads(line)["validation_total"]) for line in run.metrics.open())
    assert sum(evaluate_all(run_scorers(run), shop.log)["bad_rows"].values()) == 5


def test_label_bounds_of_a_run_are_those_of_its_bundle(shop: Shop) -> None:
    shop.write(shop.table(600))
    run = train(shop.config(), shop.folder / "run")
    low, high = read_json(run.survey)["label_bounds"]["watch"]
    assert low is None
    assert 200 < high < 1e6
    ranker = freeze_run(run.path, shop.folder / "bundle")
    assert ranker.schema.tasks[1].max == high
    assert ranking.load(shop.folder / "bundle").schema.tasks[1].max == high


def test_train_with_too_many_bad_rows_stops_before_training(shop: Shop) -> None:
    table = shop.table(300)
    for row in range(10):
        table = shop.with_value(table, "is_click", row, 5)
    assert "10 of 300 rows are bad" in log_error(shop, table)
    run = train(shop.config(logs={"max_bad_rows": 0.05}), shop.folder / "run")
    assert run.finished


def test_train_prints_the_warnings_of_check(odd: RunFolder) -> None:
    err = (odd.path.parent / "err.txt").read_text()
    assert "warning: feature 'tab' is 3 in every training row" in err


def test_failed_training_is_replaced_with_overwrite(shop: Shop) -> None:
    shop.write(shop.table(200))
    with pytest.raises(RankerError, match="use the same command with --overwrite"):
        train(shop.config(training={"learning_rate": {"trunk": 1e30}}), shop.folder / "run")
    with pytest.raises(OutputError, match=r"contains an unfinished run: .* replace it with --overwrite"):
        train(shop.config(), shop.folder / "run")
    run = train(shop.config(), shop.folder / "run", overwrite=True)
    assert run.finished
    assert not list(run.path.glob("bad-batch-*"))
    with pytest.raises(OutputError, match="contains a finished run, which is never overwritten"):
        train(shop.config(), shop.folder / "run", overwrite=True)
