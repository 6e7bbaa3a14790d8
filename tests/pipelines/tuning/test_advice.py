"""Tests of the advice on gates and experts of equal cost."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from pipelines.cli.main import main
from pipelines.config.config import load_config
from pipelines.datasets.conflict import generate
from pipelines.jobs.train import train
from pipelines.tuning.advice import CURRENT, SELECTED, SEPARATE, SHARED, advise, fit_experts, format_advice, recommend
from pipelines.tuning.search_space import override
from ranking.selection import Shape

if TYPE_CHECKING:
    from tests.pipelines.conftest import Shop

SETTINGS = [
    "model.expert_layers=[12, 6]",
    "model.experts=6",
    "model.gate.experts_budget=4",
    "training.batch_size=64",
    "evaluation.baselines=[]",
]
SETS = [word for setting in SETTINGS for word in ("--set", setting)]


@pytest.fixture(scope="module")
def config_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The configuration of a log whose groups of tasks conflict; read only."""
    folder = tmp_path_factory.mktemp("log")
    generate(folder, 1.0, 6_000)
    return folder / "ranker.toml"


@pytest.mark.nightly(short="test_advice_on_a_small_log_of_whole_days")
def test_advice_compares_models_of_equal_cost_and_names_settings_that_train(
    config_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Takes about 15 s: protects the command from the log to settings, and from training twice."""
    command = ["advise", str(config_file), "--work", str(tmp_path / "work"), "--seeds", "2", *SETS]
    assert main([*command, "--json"]) == 0
    advice = json.loads(capsys.readouterr().out)
    assert json.loads((tmp_path / "work" / "advice.json").read_text()) == advice
    assert sorted(task for group in advice["groups"] for task in group) == load_config(config_file).task_names
    assert set(advice["models"]) == {CURRENT, SHARED, SEPARATE, SELECTED}
    limit = advice["models"][CURRENT]["flops"]
    assert all(0.7 * limit < advice["models"][name]["flops"] <= limit for name in (SHARED, SEPARATE))
    assert advice["models"][SELECTED]["flops"] <= limit
    assert advice["models"][SHARED]["change"] == {"mean": 0.0, "half_width": 0.0}
    means = [model["change"]["mean"] for model in advice["models"].values()]
    assert means == sorted(means)
    runs = sorted((tmp_path / "work").glob("*/selection.json"))
    assert len(runs) == 8
    logs = [file.read_text() for file in (tmp_path / "work").glob("*.log")]
    assert sum("the log was prepared in" in log for log in logs) == 7, "the first training prepares it"
    assert not list((tmp_path / "work").glob("*/evaluation.json")), "the test split is not read"
    written = [file.stat().st_mtime_ns for file in runs]

    assert main(command) == 0
    assert [file.stat().st_mtime_ns for file in runs] == written
    output = capsys.readouterr()
    assert output.out == format_advice(advice) + "\n"
    assert main([*command, "--set", "training.epochs=2"]) != 0
    assert "training.epochs was 1, now it is 2; name another folder" in capsys.readouterr().err
    assert "training: one bottom per group, seed 1" in output.err
    for name, model in advice["models"].items():
        chosen = format_advice({**advice, "recommended": name})
        options = [line.split("'")[1] for line in chosen.splitlines() if line.startswith("  --set ")]
        assert load_config(config_file, [*SETTINGS, *options]).model == (
            override(load_config(config_file, SETTINGS), model["settings"]).model
        )


def test_another_model_is_recommended_only_if_its_gain_is_certain() -> None:
    assert recommend({CURRENT: [0.0, 0.1, 0.0], SHARED: [-1.0, -0.9, -1.1]}) == SHARED
    assert recommend({CURRENT: [0.0, 0.1, 0.0], SHARED: [-1.0, 0.3, -0.5]}) == CURRENT
    assert recommend({CURRENT: [0.0, 0.1, 0.0], SHARED: [1.0, 0.9, 1.1]}) == CURRENT
    assert recommend({CURRENT: [0.0, 0.0], SHARED: [-1.0, -1.0], SELECTED: [-2.0, -2.0]}) == SELECTED


@pytest.mark.parametrize("reading", ["sum", "side_by_side"])
def test_fitted_experts_are_the_widest_that_do_not_cost_more(config_file: Path, reading: str) -> None:
    config = load_config(config_file, SETTINGS)
    gate = {"kind": "dselect_k", "k": 2, "experts_budget": 3}
    settings = {"model.gate": gate, "model.reading": reading}

    def cost(layers: list[int]) -> int:
        shape = Shape(32, layers, config.model.tower_layers, reading)  # type: ignore[arg-type]
        return 3 * shape.expert + len(config.tasks) * (shape.mixing(2) + shape.tower)

    fitted = fit_experts(config, settings, 60_000, 32)
    assert fitted is not None
    first, last = fitted["model.expert_layers"]
    assert first == 2 * last
    assert cost([first, last]) <= 60_000 < cost([first + 2, last + 1])
    assert fit_experts(config, settings, 0, 32) is None


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (['model.gate={kind="single_task"}'], "choose another model.gate.kind"),
        (["model.gate.per_example=true"], "set model.gate.per_example = false"),
        (["training.teachers=['run']"], "remove training.teachers"),
    ],
)
def test_configurations_without_a_selection_from_labels_are_rejected(
    config_file: Path, tmp_path: Path, settings: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    sets = [word for setting in (*settings, "model.reading=sum") for word in ("--set", setting)]
    assert main(["advise", str(config_file), "--work", str(tmp_path / "work"), *sets]) != 0
    assert message in capsys.readouterr().err
    assert not (tmp_path / "work").exists()


def test_work_path_of_a_file_is_rejected(config_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    work = tmp_path / "work"
    work.write_text("a file")
    assert main(["advise", str(config_file), "--work", str(work), *SETS]) != 0
    assert f"{work} is a file, not a folder" in capsys.readouterr().err


def test_seeds_without_an_interval_and_several_processes_are_rejected(
    config_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ["advise", str(config_file), "--work", str(tmp_path / "work"), *SETS]
    assert main([*command, "--seeds", "1"]) != 0
    assert "at least two trainings" in capsys.readouterr().err
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert main(command) != 0
    assert "without torchrun" in capsys.readouterr().err


def test_advice_of_a_run_is_shown_by_its_report_and_evaluation(
    shop: Shop, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Protects runs whose model is one of the rivals, which is then trained once."""
    shop.write(shop.table(400))
    shared = {"gate": {"kind": "shared_bottom"}}
    config = shop.config(model=shared, training={"batch_size": 4096}, evaluation={"baselines": [], "bootstrap": 2})
    run = train(config, tmp_path / "run")
    assert main(["report", str(run.path)]) == 0
    command = ["advise", str(run.path), "--work", str(tmp_path / "work"), "--seeds", "2"]
    assert main([*command, "--set", "evaluation.bootstrap=0"]) == 0
    assert "advice" not in run.load_evaluation(), "the advice is on another configuration"
    assert main(["advise", str(run.path), "--work", str(tmp_path / "own"), "--seeds", "2"]) == 0
    assert f"{SHARED}, which is the configuration" in capsys.readouterr().out
    assert len(list((tmp_path / "own").glob("*/selection.json"))) == 2
    verdict = json.loads((tmp_path / "own" / "advice.json").read_text())["verdict"]
    assert verdict.startswith("All tasks are alike")
    assert verdict.endswith("(reading = sum, experts = 1, expert_layers = [8]), because no rival is certainly better.")
    assert verdict in run.report.read_text()
    assert main(["evaluate", str(run.path)]) == 0
    assert capsys.readouterr().out.rstrip().endswith(f"advice: {verdict}")


def test_advice_on_a_small_log_of_whole_days(shop: Shop, tmp_path: Path) -> None:
    """Protects logs whose training split is one batch, and whose times are dates.

    All rows of the first day of the test split have exactly the time at which it starts.
    """
    table = shop.table(400)
    days = pc.floor_temporal(table["time"], unit="day")
    table = table.set_column(table.column_names.index("time"), "time", days)
    config = shop.config(training={"batch_size": 4096})
    first, *others = config.task_names
    validation = pc.equal(days, pa.scalar(config.logs.validation_from, days.type))
    column = pc.if_else(validation, None, table["is_click"])
    shop.write(table.set_column(table.column_names.index("is_click"), "is_click", column))
    advice = advise(config, tmp_path / "work", 2)
    assert advice["groups"] == [[first, *others]]
    assert advice["without_labels"] == [first]
    assert set(advice["models"]) == {CURRENT, SHARED}
    assert f"without labels in the validation split: {first}" in format_advice(advice)
    surveys = [json.loads(file.read_text()) for file in (tmp_path / "work").glob("*/survey.json")]
    assert [survey["rows"]["test"] for survey in surveys] == [0] * 4
