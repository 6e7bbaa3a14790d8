"""Every kind of gate, from one changed setting to a bundle that scores as the run does."""

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
from pipelines.data.reader import LogReader, load_tables
from pipelines.data.splits import split_bounds
from pipelines.evaluation import gates
from pipelines.evaluation.evaluate import evaluate, evaluate_all
from pipelines.evaluation.format import table
from pipelines.evaluation.run_sources import run_scorers
from pipelines.evaluation.sources import bundle_scorer
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

if TYPE_CHECKING:
    from tests.pipelines.conftest import Shop

RunOf = Callable[[str], RunFolder]
BundleOf = Callable[[str], Path]

EXPERTS, K = 4, 2
"""Of the shared configuration."""

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

every_gate = pytest.mark.parametrize("gate", GATES)


def json_of(file: Path) -> dict[str, Any]:
    data: dict[str, Any] = json.loads(file.read_text())
    return data


def uses_all(gate: str) -> bool:
    """Whether every task (of every example) uses every expert."""
    return gate.startswith(("softmax per", "attentive")) or gate in ("softmax", "shared_bottom")


def sees_examples(gate: str) -> bool:
    return "per example" in gate or gate == "attentive"


def experts_of(gate: str) -> int:
    return 1 if gate == "shared_bottom" else EXPERTS


@pytest.fixture(scope="module")
def test_rows(run: RunFolder) -> pa.Table:
    """Completed rows of the test split."""
    config = run.load_config()
    reader = LogReader(config.logs.path, config.schema_only, load_tables(config.logs, config.schema_only))
    return pa.concat_tables([batch.rows for batch in reader.scan(*split_bounds(config.logs, "test"))])


class TestSelection:
    @every_gate
    def test_says_what_was_chosen_and_what_it_costs(self, run_of: RunOf, gate: str) -> None:
        run = run_of(gate)
        data = json_of(run.selection)
        assert data["kind"] == gate.split()[0] == run.load_config().model.gate.kind
        assert data["per_example"] is sees_examples(gate)
        assert data["num_experts"] == experts_of(gate)
        assert data["converged"] is True
        assert list(data["tasks"]) == run.load_config().task_names
        assert set(data["flops"]) == {"dense", "frozen", "per_task"}
        assert set(data["flops"]["per_task"]) == set(data["tasks"])
        assert 0 < max(data["flops"]["per_task"].values()) <= data["flops"]["frozen"] <= data["flops"]["dense"]
        assert len(data["experts_used"]) <= BUDGETS.get(gate, experts_of(gate))

    @every_gate
    def test_weighs_experts_up_to_one(self, run_of: RunOf, gate: str) -> None:
        data = json_of(run_of(gate).selection)
        for weights in data["tasks"].values():
            total = sum(weights.values())
            assert total == pytest.approx(1.0, abs=1e-5) if gate != "gumbel_softmax" else 0 < total <= 1 + 1e-6
            assert all(weight >= 0 for weight in weights.values())
            if not sees_examples(gate):
                assert len(weights) <= data["k"]
        assert data["k"] == (experts_of(gate) if uses_all(gate) or gate == "gumbel_softmax" else K)

    @every_gate
    def test_says_when_the_choice_became_exact(self, run_of: RunOf, gate: str) -> None:
        data = json_of(run_of(gate).selection)
        if gate in NEVER_BINARY:
            assert data["binary_at_step"] is None
        else:
            assert 1 <= data["binary_at_step"] <= round(0.6 * data["steps"])
        assert (data["codes_changed"] is None) == (gate not in ("dselect_k", "dselect_k all experts"))

    @every_gate
    def test_lists_the_experts_that_the_best_weights_hold(self, run_of: RunOf, gate: str) -> None:
        run = run_of(gate)
        model, _ = load_model(run, run.load_config())
        used = json_of(run.selection)["experts_used"]
        assert set(used) <= set(model.active.tolist())
        if gate not in NEVER_BINARY:
            assert used == model.active.tolist()

    def test_of_a_gate_that_sees_examples_costs_what_its_rows_need(self, run_of: RunOf) -> None:
        """Softmax runs every expert, Top-k on each row at most k a task."""
        everything, sparse = (json_of(run_of(f"{kind} per example").selection) for kind in ("softmax", "top_k"))
        assert everything["flops"]["frozen"] == everything["flops"]["dense"]
        assert sparse["flops"]["frozen"] < sparse["flops"]["dense"]
        static = json_of(run_of("softmax").selection)
        assert everything["flops"]["dense"] > static["flops"]["dense"]  # the gate itself costs something


class TestFrozen:
    @every_gate
    def test_scores_as_the_run_is_evaluated(
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
        for i, task in enumerate(frozen.column_names):
            assert frozen[task].to_numpy() == pytest.approx(dense[:, i], abs=TOLERANCE), task

    @every_gate
    def test_scores_tasks_alone_and_rows_alone_as_together(
        self, bundle_of: BundleOf, test_rows: pa.Table, gate: str
    ) -> None:
        ranker = ranking.load(bundle_of(gate))
        together = ranker.score(test_rows.slice(0, 40))
        task = together.column_names[3]
        assert ranker.score(test_rows.slice(0, 40), [task])[task].equals(together[task])
        for row in (0, 7, 39):
            alone = ranker.score(test_rows.slice(row, 1))
            assert [alone[t][0].as_py() for t in alone.column_names] == pytest.approx(
                [together[t][row].as_py() for t in alone.column_names], abs=1e-7
            )

    @every_gate
    def test_holds_the_chosen_experts_and_a_gate_only_if_it_sees_examples(
        self, run_of: RunOf, bundle_of: BundleOf, gate: str
    ) -> None:
        ranker = ranking.load(bundle_of(gate))
        names = set(ranker.weights)
        assert {int(name.split(".")[1]) for name in names if name.startswith("expert.")} == set(
            json_of(run_of(gate).selection)["experts_used"]
        )
        assert any(name.startswith("gate.") for name in names) is sees_examples(gate)
        assert ranker.selection.per_example is sees_examples(gate)

    @pytest.mark.parametrize("gate", ["dselect_k per example", "top_k per example", "attentive", "gumbel_softmax"])
    def test_can_be_published(self, bundle_of: BundleOf, test_rows: pa.Table, tmp_path: Path, gate: str) -> None:
        publish(bundle_of(gate), tmp_path / "repository")
        published = ranking.load(tmp_path / "repository" / "feed" / "1")
        few = test_rows.slice(0, 50)
        assert published.score(few).equals(ranking.load(bundle_of(gate)).score(few))

    @pytest.mark.parametrize("gate", ["dselect_k per example", "dselect_k per example budget", "top_k per example"])
    def test_runs_an_expert_on_no_row_that_did_not_choose_it(
        self, bundle_of: BundleOf, test_rows: pa.Table, gate: str
    ) -> None:
        """At most k experts a task and row; poisoned ones spoil exactly the rows that chose them."""
        graph = ranking.load(bundle_of(gate)).graph
        ranker = ranking.load(bundle_of(gate))
        inputs = TorchBatch.from_numpy(ranker.encoder.encode(test_rows))
        chose = graph.routing(inputs) > 0
        assert bool((chose.sum(-1) <= K).all())
        expert = ranker.selection.experts_used[0]
        assert 0 < int(chose[:, :, expert].sum()) < chose[:, :, expert].numel()
        for weight, _ in graph.experts[expert]:
            weight.fill_(torch.nan)
        for t, task in enumerate(ranker.schema.task_names):
            spoilt = graph(inputs, [task])[:, 0].isnan()
            assert torch.equal(spoilt, chose[:, t, expert]), task


class TestWhatCannotBeFrozen:
    def test_an_attentive_gate_before_its_distillation(self, run_of: RunOf) -> None:
        run = run_of("attentive")
        config = run.load_config()
        encoder = Encoder.read(run.encoder, config.schema_only)
        with pytest.raises(NotConvergedError) as caught:
            freeze(build_model(config, encoder), encoder, {}, config.objective)
        assert "\n" not in str(caught.value)
        assert "attentive" in str(caught.value)
        assert "distilled" in str(caught.value)

    @pytest.mark.parametrize("kind", ["dselect_k", "softmax_selectors", "gumbel_softmax", "dselect_k per example"])
    def test_a_gate_whose_choice_is_not_final(self, run_of: RunOf, kind: str) -> None:
        config = run_of(kind).load_config()
        encoder = Encoder.read(run_of(kind).encoder, config.schema_only)
        with pytest.raises(NotConvergedError, match=r"has not converged.* train for more steps") as caught:
            freeze(build_model(config, encoder), encoder, {}, config.objective)
        assert "\n" not in str(caught.value)


class TestMeasures:
    @pytest.fixture(scope="class")
    @staticmethod
    def day(logs: Path) -> Path:
        return logs / "log" / "date=2026-01-10"

    @every_gate
    def test_stand_in_the_evaluation(self, run_of: RunOf, gate: str) -> None:
        run = run_of(gate)
        found, trained = json_of(run.evaluation)["gates"], json_of(run.selection)
        assert set(found) == MEASURES
        for name in ("kind", "num_experts", "k", "per_example", "binary_at_step", "training_experts_of_top_k"):
            assert found[name] == trained[name]
        assert set(found["jaccard"]) == {"all", "within_groups", "across_groups"}
        tasks = run.load_config().task_names
        for name in ("experts_a_task", "sparsity", "utilisation", "mutual_information", "table"):
            assert list(found[name]) == tasks
        binary = [task.name for task in run.load_config().tasks if task.kind == "binary"]
        assert list(found["table_by_class"]) == binary
        assert {task for task, value in found["mutual_information"].items() if value is not None} <= set(binary)
        assert found["mutual_information"]["click"] is not None
        assert found["frozen_of_dense"] == trained["flops"]["frozen"] / trained["flops"]["dense"]
        steps = None if gate in NEVER_BINARY else trained["binary_at_step"] / trained["steps"]
        assert found["steps_to_binary"] == steps

    @every_gate
    def test_hold_together(self, run_of: RunOf, gate: str) -> None:
        found = json_of(run_of(gate).evaluation)["gates"]
        n = found["num_experts"]
        assert 1 <= found["experts_used"] <= BUDGETS.get(gate, n)
        for task, experts in found["experts_a_task"].items():
            assert 1 <= experts <= min(found["experts_a_row"], found["k"])
            assert -1e-9 <= found["sparsity"][task] <= found["utilisation"][task] + 1e-9 <= math.log2(n) + 2e-9
            if not sees_examples(gate):
                assert found["sparsity"][task] == pytest.approx(found["utilisation"][task])
                assert experts == round(experts) == len(found["table"][task])
                assert found["mutual_information"][task] in (None, pytest.approx(0.0, abs=1e-9))
        assert found["experts_a_row"] <= found["experts_used"]
        for value in found["jaccard"].values():
            assert 0 <= value <= 1
        for task, classes in found["table_by_class"].items():
            assert set(classes) == {"0", "1"}
            assert all(sum(row.values()) == pytest.approx(1.0) for row in classes.values()), task

    @every_gate
    def test_know_gates_that_use_every_expert(self, run_of: RunOf, gate: str) -> None:
        found = json_of(run_of(gate).evaluation)["gates"]
        if uses_all(gate):
            assert set(found["experts_a_task"].values()) == {found["num_experts"]}
            assert found["experts_a_row"] == found["experts_used"] == found["num_experts"]
            assert found["jaccard"]["all"] == 1.0
            assert found["frozen_of_dense"] == 1.0
        elif not sees_examples(gate) and gate in BUDGETS:
            assert found["frozen_of_dense"] < 0.75
        if gate.startswith("top_k"):
            assert set(found["experts_a_task"].values()) == {K}
            assert found["training_experts_of_top_k"] == 1.0
        if gate == "dselect_k all experts":
            assert 1.0 < found["training_experts_of_top_k"] < EXPERTS / K

    def test_of_gates_that_see_examples_find_that_rows_differ(self, run_of: RunOf) -> None:
        for gate in ("dselect_k per example", "top_k per example", "softmax per example", "attentive"):
            found = json_of(run_of(gate).evaluation)["gates"]
            entropies = zip(found["utilisation"].values(), found["sparsity"].values(), strict=True)
            assert max(of_mean - mean for of_mean, mean in entropies) > 1e-7, gate
            assert max(value or 0.0 for value in found["mutual_information"].values()) > 1e-9, gate

    @every_gate
    def test_of_evaluation_run_and_bundle_agree_on_the_same_rows(
        self, run_of: RunOf, bundle_of: BundleOf, day: Path, gate: str
    ) -> None:
        dense = evaluate_all(run_scorers(run_of(gate)), day)
        assert json.loads(json.dumps(dense, allow_nan=False)) == json_of(run_of(gate).evaluation)
        frozen = evaluate(bundle_scorer(ranking.load(bundle_of(gate)), "bundle"), day)
        assert dense["rows"] == frozen["rows"] > 0
        assert_alike(frozen["gates"], dense["gates"])
        for task, measures in dense["tasks"].items():
            for measure, value in measures.items():
                assert frozen["tasks"][task][measure] == pytest.approx(value, abs=5e-3), (task, measure)

    @every_gate
    def test_are_shown_below_the_tasks(self, run_of: RunOf, gate: str) -> None:
        evaluation = json_of(run_of(gate).evaluation)
        shown = table(evaluation)
        assert shown.endswith("\n\n" + gates.table(evaluation["gates"]))
        found = evaluation["gates"]
        first, *rest = gates.table(found).splitlines()
        lines = rest[-len(found["table"]) :]
        assert first.startswith(found["kind"] + (", per example: " if sees_examples(gate) else ": "))
        assert f"{found['experts_used']} of {found['num_experts']} experts used" in first
        assert ("choice exact after" in first) == (gate not in NEVER_BINARY)
        assert ("of Top-k's" in first) == (found["k"] < found["num_experts"])
        assert f"{found['frozen_flops']:,} FLOPs a row" in first
        assert f"{found['jaccard']['all']:.3f}" in rest[0]
        assert [line.split()[0] for line in lines] == list(found["table"])


def assert_alike(found: Any, expected: Any) -> None:
    """Numbers up to rounding; one row in a thousand may lie on the border between two experts."""
    if isinstance(expected, dict):
        assert found.keys() == expected.keys()
        for name, value in expected.items():
            assert_alike(found[name], value)
    elif isinstance(expected, float):
        assert found == pytest.approx(expected, abs=2e-3)
    else:
        assert found == expected


class TestSingleTask:
    """On the hand-made log, which has two tasks."""

    @pytest.fixture(scope="class")
    @staticmethod
    def single(open_shop: Shop) -> RunFolder:
        return train(open_shop.config(model={"gate": {"kind": "single_task"}}), open_shop.folder / "single")

    def test_is_a_run_of_its_own_for_each_task(self, single: RunFolder) -> None:
        assert [folder.name for folder in sorted((single.path / "tasks").iterdir())] == ["click", "watch"]
        for task in ("click", "watch"):
            part = RunFolder.open(single.of_task(task))
            assert part.load_config().task_names == [task]
            assert part.load_config().model.gate.kind == "shared_bottom"
            assert list(json_of(part.selection)["tasks"]) == [task]

    def test_is_told_as_one(self, single: RunFolder) -> None:
        RunFolder.open(single.path)
        each = {task: RunFolder.open(single.of_task(task)) for task in ("click", "watch")}
        parts = {task: json_of(part.selection) for task, part in each.items()}
        data = json_of(single.selection)
        assert data["kind"] == "single_task"
        assert data["per_example"] is False
        assert data["tasks"] == {"click": {"0": 1.0}, "watch": {"1": 1.0}}
        assert data["experts_used"] == [0, 1]
        assert data["flops"]["per_task"] == {task: part["flops"]["frozen"] for task, part in parts.items()}
        assert data["flops"]["frozen"] == data["flops"]["dense"] == sum(data["flops"]["per_task"].values())
        assert data["steps"] == sum(part["steps"] for part in parts.values())
        assert set(data) == set(parts["click"])

    def test_is_evaluated_as_each_task_by_itself(self, single: RunFolder) -> None:
        found = json_of(single.evaluation)
        assert list(found["tasks"]) == ["click", "watch"]
        assert found["gates"] is None
        for task, measures in found["tasks"].items():
            assert json_of(RunFolder.open(single.of_task(task)).evaluation)["tasks"] == {task: measures}
        assert json.loads(json.dumps(evaluate_all(run_scorers(single)))) == found
        assert [line.split()[0] for line in table(found).splitlines()[1:] if line] == ["task", "click", "task", "watch"]

    def test_cannot_be_frozen_whole_and_says_what_can(self, single: RunFolder, tmp_path: Path) -> None:
        with pytest.raises(BundleError, match="freeze them one by one") as caught:
            freeze_run(single.path, tmp_path / "bundle")
        assert "\n" not in str(caught.value)
        assert str(single.of_task("click")) in str(caught.value)
        assert list(tmp_path.iterdir()) == []

    def test_can_be_frozen_task_by_task(self, single: RunFolder, open_shop: Shop, tmp_path: Path) -> None:
        freeze_run(single.of_task("watch"), tmp_path / "watch")
        ranker = ranking.load(tmp_path / "watch")
        assert ranker.schema.task_names == ["watch"]
        assert ranker.objective == {"watch": 1.0}
        assert ranker.score(open_shop.table(20).drop_columns(["n", "is_click", "seconds"])).num_rows == 20

    def test_that_did_not_finish_is_no_run(self, single: RunFolder, tmp_path: Path) -> None:
        half = RunFolder.create(tmp_path / "half", single.load_config())
        half.of_task("click").mkdir(parents=True)
        with pytest.raises(LogError, match="training has not finished"):
            RunFolder.open(half.path)

    def test_that_could_not_begin_leaves_no_folder(self, shop: Shop) -> None:
        rows = shop.table(200)
        constant = pa.array([0] * rows.num_rows, pa.int64())
        shop.write(rows.set_column(rows.column_names.index("is_click"), "is_click", constant))
        for _ in range(2):
            with pytest.raises(LogError, match="is_click"):
                train(shop.config(model={"gate": {"kind": "single_task"}}), shop.folder / "run")
            assert not (shop.folder / "run").exists()
