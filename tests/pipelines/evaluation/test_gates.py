"""Every kind of gate, from its configuration to a bundle whose scores equal those of the run."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
import torch

import ranking
from pipelines.evaluation.evaluate import evaluate, evaluate_all
from pipelines.evaluation.format import format_evaluation
from pipelines.evaluation.gates import format_gates
from pipelines.evaluation.sources import bundle_scorer, run_scorers
from pipelines.jobs.freeze import TOLERANCE, freeze_run
from pipelines.jobs.publish import publish
from pipelines.jobs.train import train
from pipelines.runs.run import RunFolder
from pipelines.training.model_factory import build_model, load_model
from ranking.encoding.encoder import Encoder
from ranking.encoding.torch_batch import TorchBatch
from ranking.errors import BundleError, LogError, NotConvergedError
from ranking.frozen.calibration import to_probabilities
from ranking.frozen.freeze import freeze
from tests.conftest import GATES
from tests.pipelines.conftest import QUICK
from tests.support.one_model import weights_of
from tests.support.split_rows import split_rows

if TYPE_CHECKING:
    from tests.pipelines.conftest import Shop

RunOf = Callable[[str], RunFolder]
BundleOf = Callable[[str], Path]

EXPERTS, K = 4, 2
"""Values of the shared configuration."""

BUDGETS = {"dselect_k": 2, "dselect_k per example budget": 2, "softmax_selectors": 2}
NEVER_BINARY = {"top_k", "top_k per example", "softmax", "softmax per example", "attentive", "shared_bottom"}

MEASURES = {
    "kind",
    "num_experts",
    "k",
    "per_example",
    "experts_used",
    "experts_a_row",
    "experts_a_task",
    "jaccard",
    "sparsity",
    "utilisation",
    "mutual_information",
    "table",
    "table_by_class",
    "binary_at_step",
    "steps_to_binary",
    "training_experts_of_top_k",
    "frozen_flops",
    "frozen_of_dense",
}

ALWAYS_CHECKED = {"dselect_k", "top_k per example"}
"""Gates that each run of the tests checks: one selection for all rows, and one for each row."""
every_gate = pytest.mark.parametrize(
    "gate", [pytest.param(gate, marks=[] if gate in ALWAYS_CHECKED else pytest.mark.nightly) for gate in GATES]
)


def read_json(file: Path) -> dict[str, Any]:
    data: dict[str, Any] = json.loads(file.read_text())
    return data


def uses_all_experts(gate: str) -> bool:
    """Return whether every task (of every example) uses every expert."""
    return gate.startswith(("softmax per", "attentive")) or gate in ("softmax", "shared_bottom")


def is_per_example(gate: str) -> bool:
    return "per example" in gate or gate == "attentive"


def num_experts_of(gate: str) -> int:
    return 1 if gate == "shared_bottom" else EXPERTS


@pytest.fixture(scope="module")
def test_rows(run: RunFolder) -> pa.Table:
    """Return the rows of the test split with all feature columns."""
    return split_rows(run, "test")


class TestSelection:
    @every_gate
    def test_selection_states_experts_and_costs(self, run_of: RunOf, gate: str) -> None:
        run = run_of(gate)
        data = read_json(run.selection)
        assert data["kind"] == gate.split()[0] == run.load_config().model.gate.kind
        assert data["per_example"] is is_per_example(gate)
        assert data["num_experts"] == num_experts_of(gate)
        assert data["converged"] is True
        assert list(data["tasks"]) == run.load_config().task_names
        assert set(data["flops"]) == {"dense", "frozen", "per_task"}
        assert set(data["flops"]["per_task"]) == set(data["tasks"])
        assert 0 < max(data["flops"]["per_task"].values()) <= data["flops"]["frozen"] <= data["flops"]["dense"]
        assert len(data["experts_used"]) <= BUDGETS.get(gate, num_experts_of(gate))

    @every_gate
    def test_selection_weights_sum_to_one(self, run_of: RunOf, gate: str) -> None:
        data = read_json(run_of(gate).selection)
        for weights in data["tasks"].values():
            total = sum(weights.values())
            assert total == pytest.approx(1.0, abs=1e-5) if gate != "gumbel_softmax" else 0 < total <= 1 + 1e-6
            assert all(weight >= 0 for weight in weights.values())
            if not is_per_example(gate):
                assert len(weights) <= data["k"]
        assert data["k"] == (num_experts_of(gate) if uses_all_experts(gate) or gate == "gumbel_softmax" else K)

    @every_gate
    def test_selection_states_when_it_became_exact(self, run_of: RunOf, gate: str) -> None:
        data = read_json(run_of(gate).selection)
        if gate in NEVER_BINARY:
            assert data["binary_at_step"] is None
        else:
            assert 1 <= data["binary_at_step"] <= round(0.6 * data["steps"])
        assert (data["codes_changed"] is None) == (gate not in ("dselect_k", "dselect_k all experts"))

    @every_gate
    def test_selection_lists_the_active_experts_of_the_best_weights(self, run_of: RunOf, gate: str) -> None:
        run = run_of(gate)
        model, _ = load_model(run, run.load_config())
        used = read_json(run.selection)["experts_used"]
        assert set(used) <= set(model.active.tolist())
        if gate not in NEVER_BINARY:
            assert used == model.active.tolist()

    def test_selection_of_a_per_example_gate_counts_the_experts_of_its_rows(self, run_of: RunOf) -> None:
        """Softmax runs every expert; Top-k runs at most k per task and row."""
        softmax, top_k = (read_json(run_of(f"{kind} per example").selection) for kind in ("softmax", "top_k"))
        assert softmax["flops"]["frozen"] == softmax["flops"]["dense"]
        assert top_k["flops"]["frozen"] < top_k["flops"]["dense"]
        static = read_json(run_of("softmax").selection)
        assert softmax["flops"]["dense"] > static["flops"]["dense"]  # includes the cost of the gate


class TestFrozen:
    @every_gate
    def test_frozen_ranker_scores_equal_those_of_the_run(
        self, run_of: RunOf, bundle_of: BundleOf, test_rows: pa.Table, gate: str
    ) -> None:
        run = run_of(gate)
        model, encoder = load_model(run, run.load_config())
        ranker = ranking.load(bundle_of(gate))
        with torch.no_grad():
            outputs = model(TorchBatch.from_numpy(encoder.encode(test_rows)))
        dense = to_probabilities(outputs.numpy(), ranker.schema.tasks)
        frozen = ranker.score(test_rows)
        assert frozen.num_rows == len(dense) > 100
        for i, task in enumerate(ranker.schema.task_names):
            assert frozen[task].to_numpy() == pytest.approx(dense[:, i], abs=TOLERANCE), task

    @every_gate
    def test_frozen_ranker_scores_do_not_depend_on_other_tasks_and_rows(
        self, bundle_of: BundleOf, test_rows: pa.Table, gate: str
    ) -> None:
        ranker = ranking.load(bundle_of(gate))
        scores = ranker.score(test_rows.slice(0, 40))
        task = scores.column_names[3]
        assert ranker.score(test_rows.slice(0, 40), [task])[task].equals(scores[task])
        for row in (0, 7, 39):
            row_scores = ranker.score(test_rows.slice(row, 1))
            assert [row_scores[t][0].as_py() for t in row_scores.column_names] == pytest.approx(
                [scores[t][row].as_py() for t in row_scores.column_names], abs=1e-7
            )

    @every_gate
    def test_frozen_ranker_contains_selected_experts_and_only_per_example_gates(
        self, run_of: RunOf, bundle_of: BundleOf, gate: str
    ) -> None:
        ranker = ranking.load(bundle_of(gate))
        names = set(weights_of(ranker))
        assert {int(name.split(".")[1]) for name in names if name.startswith("expert.")} == set(
            read_json(run_of(gate).selection)["experts_used"]
        )
        assert any(name.startswith("gate.") for name in names) is is_per_example(gate)
        assert ranker.selection.per_example is is_per_example(gate)

    @pytest.mark.parametrize("gate", ["dselect_k per example", "top_k per example", "attentive", "gumbel_softmax"])
    def test_publish_of_a_frozen_gate_keeps_its_scores(
        self, bundle_of: BundleOf, test_rows: pa.Table, tmp_path: Path, gate: str
    ) -> None:
        publish(bundle_of(gate), tmp_path / "repository")
        published = ranking.load(tmp_path / "repository" / "feed" / "1")
        rows = test_rows.slice(0, 50)
        assert published.score(rows).equals(ranking.load(bundle_of(gate)).score(rows))

    @pytest.mark.parametrize("gate", ["dselect_k per example", "dselect_k per example budget", "top_k per example"])
    def test_frozen_per_example_gate_runs_only_the_selected_experts_of_a_row(
        self, bundle_of: BundleOf, test_rows: pa.Table, gate: str
    ) -> None:
        """NaN weights of an expert change exactly the rows that selected it, at most k experts per task and row."""
        (graph,) = ranking.load(bundle_of(gate)).graph.graphs
        ranker = ranking.load(bundle_of(gate))
        inputs = TorchBatch.from_numpy(ranker.encoder.encode(test_rows))
        selected = graph.routing(inputs) > 0
        assert bool((selected.sum(-1) <= K).all())
        expert = ranker.selection.experts_used[0]
        assert 0 < int(selected[:, :, expert].sum()) < selected[:, :, expert].numel()
        for weight, _ in graph.experts[expert]:
            weight.fill_(torch.nan)
        for t, task in enumerate(ranker.schema.task_names):
            is_nan = graph(inputs, [task])[:, 0].isnan()
            assert torch.equal(is_nan, selected[:, t, expert]), task


class TestUnfrozenGates:
    def test_freeze_attentive_gate_before_distillation_fails(self, run_of: RunOf) -> None:
        run = run_of("attentive")
        config = run.load_config()
        encoder = Encoder.read(run.encoder, config.serving_schema)
        with pytest.raises(NotConvergedError) as caught:
            freeze(build_model(config, encoder), encoder, {}, config.objective)
        assert "\n" not in str(caught.value)
        assert "attentive" in str(caught.value)
        assert "distilled" in str(caught.value)

    @pytest.mark.parametrize("kind", ["dselect_k", "softmax_selectors", "gumbel_softmax", "dselect_k per example"])
    def test_freeze_gate_without_final_selection_fails(self, run_of: RunOf, kind: str) -> None:
        config = run_of(kind).load_config()
        encoder = Encoder.read(run_of(kind).encoder, config.serving_schema)
        with pytest.raises(NotConvergedError, match=r"has not converged.* train for more steps") as caught:
            freeze(build_model(config, encoder), encoder, {}, config.objective)
        assert "\n" not in str(caught.value)


class TestGateMetrics:
    @every_gate
    def test_gate_metrics_are_part_of_the_evaluation(self, run_of: RunOf, gate: str) -> None:
        run = run_of(gate)
        result, selection = read_json(run.evaluation)["gates"], read_json(run.selection)
        assert set(result) == MEASURES
        for name in ("kind", "num_experts", "k", "per_example", "binary_at_step", "training_experts_of_top_k"):
            assert result[name] == selection[name]
        assert set(result["jaccard"]) == {"all", "within_groups", "across_groups"}
        tasks = run.load_config().task_names
        for name in ("experts_a_task", "sparsity", "utilisation", "mutual_information", "table"):
            assert list(result[name]) == tasks
        binary = [task.name for task in run.load_config().tasks if task.kind == "binary"]
        assert list(result["table_by_class"]) == binary
        assert {task for task, value in result["mutual_information"].items() if value is not None} <= set(binary)
        assert result["mutual_information"]["click"] is not None
        assert result["frozen_of_dense"] == selection["flops"]["frozen"] / selection["flops"]["dense"]
        steps = None if gate in NEVER_BINARY else selection["binary_at_step"] / selection["steps"]
        assert result["steps_to_binary"] == steps

    @every_gate
    def test_gate_metrics_are_consistent(self, run_of: RunOf, gate: str) -> None:
        result = read_json(run_of(gate).evaluation)["gates"]
        n = result["num_experts"]
        assert 1 <= result["experts_used"] <= BUDGETS.get(gate, n)
        for task, experts in result["experts_a_task"].items():
            assert 1 <= experts <= min(result["experts_a_row"], result["k"])
            assert -1e-9 <= result["sparsity"][task] <= result["utilisation"][task] + 1e-9 <= math.log2(n) + 2e-9
            if not is_per_example(gate):
                assert result["sparsity"][task] == pytest.approx(result["utilisation"][task])
                assert experts == round(experts) == len(result["table"][task])
                assert result["mutual_information"][task] in (None, pytest.approx(0.0, abs=1e-9))
        assert result["experts_a_row"] <= result["experts_used"]
        for value in result["jaccard"].values():
            assert 0 <= value <= 1
        for task, classes in result["table_by_class"].items():
            assert set(classes) == {"0", "1"}
            assert all(sum(row.values()) == pytest.approx(1.0) for row in classes.values()), task

    @every_gate
    def test_gate_metrics_match_the_kind_of_gate(self, run_of: RunOf, gate: str) -> None:
        result = read_json(run_of(gate).evaluation)["gates"]
        if uses_all_experts(gate):
            assert set(result["experts_a_task"].values()) == {result["num_experts"]}
            assert result["experts_a_row"] == result["experts_used"] == result["num_experts"]
            assert result["jaccard"]["all"] == 1.0
            assert result["frozen_of_dense"] == 1.0
        elif not is_per_example(gate) and gate in BUDGETS:
            assert result["frozen_of_dense"] < 0.75
        if gate.startswith("top_k"):
            assert set(result["experts_a_task"].values()) == {K}
            assert result["training_experts_of_top_k"] == 1.0
        if gate == "dselect_k all experts":
            assert 1.0 < result["training_experts_of_top_k"] < EXPERTS / K

    def test_gate_metrics_of_per_example_gates_differ_between_rows(self, run_of: RunOf) -> None:
        for gate in ("dselect_k per example", "top_k per example", "softmax per example", "attentive"):
            result = read_json(run_of(gate).evaluation)["gates"]
            entropies = zip(result["utilisation"].values(), result["sparsity"].values(), strict=True)
            assert max(of_mean - mean for of_mean, mean in entropies) > 1e-7, gate
            assert max(value or 0.0 for value in result["mutual_information"].values()) > 1e-9, gate

    @every_gate
    def test_gate_metrics_of_run_and_bundle_agree(
        self, run_of: RunOf, bundle_of: BundleOf, logs: Path, gate: str
    ) -> None:
        dense = evaluate_all(run_scorers(run_of(gate)), logs / "log" / "date=2026-01-10")
        assert json.loads(json.dumps(dense, allow_nan=False)) == read_json(run_of(gate).evaluation)
        dense = evaluate_all(run_scorers(run_of(gate)), logs / "log")
        frozen = evaluate(bundle_scorer(ranking.load(bundle_of(gate)), "bundle"), logs / "log")
        assert dense["rows"] == frozen["rows"] > 0
        assert_close(frozen["gates"], dense["gates"])
        for task, measures in dense["tasks"].items():
            for measure, value in measures.items():
                assert frozen["tasks"][task][measure] == pytest.approx(value, abs=5e-3), (task, measure)

    @every_gate
    def test_format_gates_follows_the_task_tables(self, run_of: RunOf, gate: str) -> None:
        evaluation = read_json(run_of(gate).evaluation)
        text = format_evaluation(evaluation)
        assert text.endswith("\n\n" + format_gates(evaluation["gates"]))
        result = evaluation["gates"]
        first, *rest = format_gates(result).splitlines()
        lines = rest[-len(result["table"]) :]
        assert first.startswith(result["kind"] + (", per example: " if is_per_example(gate) else ": "))
        assert f"{result['experts_used']} of {result['num_experts']} experts used" in first
        assert ("selection exact after" in first) == (gate not in NEVER_BINARY)
        assert ("the experts of Top-k" in first) == (result["k"] < result["num_experts"])
        assert f"{result['frozen_flops']:,} FLOPs per row" in first
        assert f"{result['jaccard']['all']:.3f}" in rest[0]
        assert [line.split()[0] for line in lines] == list(result["table"])


def assert_close(result: Any, expected: Any) -> None:
    """Compare numbers up to rounding; one row in a thousand may lie on the border between two experts."""
    if isinstance(expected, dict):
        assert result.keys() == expected.keys()
        for name, value in expected.items():
            assert_close(result[name], value)
    elif isinstance(expected, float):
        assert result == pytest.approx(expected, abs=2e-3)
    else:
        assert result == expected


class TestSingleTaskRun:
    """Tests on a generated log with two tasks."""

    @pytest.fixture(scope="class")
    @staticmethod
    def single(shared_shop: Shop) -> RunFolder:
        config = shared_shop.config(model={"gate": {"kind": "single_task"}}, **QUICK)
        return train(config, shared_shop.folder / "single")

    def test_single_task_run_contains_one_run_per_task(self, single: RunFolder) -> None:
        assert [folder.name for folder in sorted((single.path / "tasks").iterdir())] == ["click", "watch"]
        for task in ("click", "watch"):
            part = RunFolder.open(single.task_folder(task))
            assert part.load_config().task_names == [task]
            assert part.load_config().model.gate.kind == "shared_bottom"
            assert list(read_json(part.selection)["tasks"]) == [task]

    def test_single_task_selection_combines_its_parts(self, single: RunFolder) -> None:
        RunFolder.open(single.path)
        runs = {task: RunFolder.open(single.task_folder(task)) for task in ("click", "watch")}
        parts = {task: read_json(run.selection) for task, run in runs.items()}
        data = read_json(single.selection)
        assert data["kind"] == "single_task"
        assert data["per_example"] is False
        assert data["tasks"] == {"click": {"0": 1.0}, "watch": {"1": 1.0}}
        assert data["experts_used"] == [0, 1]
        assert data["flops"]["per_task"] == {task: part["flops"]["frozen"] for task, part in parts.items()}
        assert data["flops"]["frozen"] == data["flops"]["dense"] == sum(data["flops"]["per_task"].values())
        assert data["steps"] == sum(part["steps"] for part in parts.values())
        assert set(data) == set(parts["click"])

    def test_single_task_evaluation_equals_those_of_its_parts(self, single: RunFolder) -> None:
        result = read_json(single.evaluation)
        assert list(result["tasks"]) == ["click", "watch"]
        assert result["gates"] is None
        for task, measures in result["tasks"].items():
            assert read_json(RunFolder.open(single.task_folder(task)).evaluation)["tasks"] == {task: measures}
        assert json.loads(json.dumps(evaluate_all(run_scorers(single)))) == result
        assert [line.split()[0] for line in format_evaluation(result).splitlines()[1:] if line] == [
            "task",
            "click",
            "task",
            "watch",
        ]

    def test_freeze_single_task_run_fails_and_names_its_parts(self, single: RunFolder, tmp_path: Path) -> None:
        with pytest.raises(BundleError, match="freeze each of them") as caught:
            freeze_run(single.path, tmp_path / "bundle")
        assert "\n" not in str(caught.value)
        assert str(single.task_folder("click")) in str(caught.value)
        assert list(tmp_path.iterdir()) == []

    def test_freeze_part_of_a_single_task_run_scores_its_task(
        self, single: RunFolder, shared_shop: Shop, tmp_path: Path
    ) -> None:
        freeze_run(single.task_folder("watch"), tmp_path / "watch")
        ranker = ranking.load(tmp_path / "watch")
        assert ranker.schema.task_names == ["watch"]
        assert ranker.objective == {"watch": 1.0}
        assert ranker.score(shared_shop.table(20).drop_columns(["n", "is_click", "seconds"])).num_rows == 20

    def test_open_unfinished_single_task_run_fails(self, single: RunFolder, tmp_path: Path) -> None:
        unfinished = RunFolder.create(tmp_path / "unfinished", single.load_config())
        unfinished.task_folder("click").mkdir(parents=True)
        with pytest.raises(LogError, match="training has not finished"):
            RunFolder.open(unfinished.path)

    def test_train_single_task_on_an_unusable_log_leaves_no_folder(self, shop: Shop) -> None:
        rows = shop.table(200)
        constant = pa.array([0] * rows.num_rows, pa.int64())
        shop.write(rows.set_column(rows.column_names.index("is_click"), "is_click", constant))
        for _ in range(2):
            with pytest.raises(LogError, match="is_click"):
                train(shop.config(model={"gate": {"kind": "single_task"}}), shop.folder / "run")
            assert not (shop.folder / "run").exists()
