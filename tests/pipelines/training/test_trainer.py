from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow.compute as pc
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.optim.optimizer import register_optimizer_step_pre_hook

from pipelines.data.profile import profile_log
from pipelines.jobs.freeze import freeze_run
from pipelines.jobs.train import train
from pipelines.runs.run import RunFolder
from pipelines.training.checkpoint import dense_parameters
from pipelines.training.dataloader import BatchLoader
from pipelines.training.distributed import DistContext
from pipelines.training.labeled_batch import DeviceBatch, LabeledBatch, read_split
from pipelines.training.model_factory import build_model, load_model
from pipelines.training.trainer import Trainer
from ranking.encoding.encoder_fitter import EncoderFitter
from ranking.errors import RankerError
from ranking.gates import AttentiveGate, Gate, Softmax
from ranking.model.losses import task_losses

if TYPE_CHECKING:
    from tests.pipelines.conftest import Shop

SMALL = {"batch_size": 8, "checks_per_epoch": 10_000, "patience": 1000}
"""On 200 rows, of which 160 train: 20 steps an epoch and a check after each; the experts are chosen at step 12."""


def trained(shop: Shop, name: str = "run", model: dict[str, Any] | None = None, **training: Any) -> RunFolder:
    """A run on 200 rows."""
    if not any(shop.log.iterdir()):
        shop.write(shop.table(200))
    return train(shop.config(model=model or {}, training={**SMALL, **training}), shop.folder / name)


def metrics(run: RunFolder) -> list[dict[str, Any]]:
    return [json.loads(line) for line in run.metrics.read_text().splitlines()]


def selection(run: RunFolder) -> dict[str, Any]:
    data: dict[str, Any] = json.loads(run.selection.read_text())
    return data


@pytest.fixture(scope="module")
def finished(shared_shop: Shop) -> RunFolder:
    """One epoch: 20 steps."""
    return trained(shared_shop)


@pytest.fixture
def rates() -> Iterator[list[list[float]]]:
    """The learning rates of each optimizer step: embeddings, trunk, gates."""
    seen: list[list[float]] = []
    tables = [0.0]

    def look(optimizer: torch.optim.Optimizer, *_: object) -> None:
        rates = [group["lr"] for group in optimizer.param_groups]
        if isinstance(optimizer, torch.optim.AdamW):
            seen.append([*tables, *rates])
        else:
            tables[:] = rates[:1]  # handed to the tables' kernels before the step

    hook = register_optimizer_step_pre_hook(look)
    yield seen
    hook.remove()


class TestSteps:
    def test_are_one_a_batch_of_the_training_split_and_epoch(self, shop: Shop, rates: list[list[float]]) -> None:
        run = trained(shop, epochs=2)
        assert len(rates) == selection(run)["steps"] == 40
        assert [record["step"] for record in metrics(run)] == list(range(1, 41))
        assert metrics(run)[29]["epoch"] == 1.5

    @pytest.mark.parametrize(("batch_size", "steps"), [(159, 1), (158, 2), (53, 3), (40, 4)])
    def test_leave_out_a_last_batch_of_one_row(
        self, shop: Shop, rates: list[list[float]], batch_size: int, steps: int
    ) -> None:
        trained(shop, batch_size=batch_size, epochs=2)
        assert len(rates) == 2 * steps

    def test_are_as_many_as_planned_if_files_repeat_each_other(self, shop: Shop, rates: list[list[float]]) -> None:
        table = shop.table(200)
        for day in range(10):
            for file in range(2):
                shop.write(table.slice(20 * day, 20), f"date=2026-01-{day + 1:02d}/part-{file}.parquet")
        run = trained(shop, checks_per_epoch=1)
        assert len(rates) == selection(run)["steps"] == 20
        assert min(rate for step in rates for rate in step) > 0

    @pytest.mark.parametrize(
        "training",
        [{"batch_size": 1000}, {"batch_size": 80}, {"batch_size": 40, "convergence": {"anneal_until": 0.99}}],
        ids=["one step", "two steps", "no step after the ramp"],
    )
    def test_may_be_few(self, shop: Shop, training: dict[str, Any]) -> None:
        run = trained(shop, **training)
        assert metrics(run)[-1]["phase"] == "selected"
        assert selection(run)["converged"] is True


class TestLearningRates:
    def test_stay_until_the_experts_are_chosen_and_fall_linearly_to_zero_from_then(
        self, shop: Shop, rates: list[list[float]]
    ) -> None:
        trained(shop, learning_rate={"embeddings": 0.003, "trunk": 0.002, "gates": 0.01}, checks_per_epoch=1)
        assert rates[:12] == [[0.003, 0.002, 0.01]] * 12
        falling = [step[1] / 0.002 for step in rates[12:]]
        assert falling == pytest.approx([1 - i / 8 for i in range(8)])
        for embeddings, body, gates in rates[12:]:
            assert (embeddings, gates) == pytest.approx((1.5 * body, 5 * body))

    def test_rise_over_the_warm_up(self, shop: Shop, rates: list[list[float]]) -> None:
        trained(shop, learning_rate={"trunk": 0.002, "gates": 0.01}, warmup=0.25, checks_per_epoch=1)
        assert [step[1] / 0.002 for step in rates[:6]] == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0, 1.0])


class TestMetrics:
    def test_tell_at_each_check_where_training_stands(self, finished: RunFolder) -> None:
        keys = {"step", "epoch", "phase", "gamma", "experts", "learning_rate", "gate_weights", "rows_per_second"}
        keys |= {"train", "validation", "validation_total", "best"}
        for record in metrics(finished):
            assert set(record) == keys
            assert set(record["train"]) == set(record["validation"]) == {"click", "watch"}
            assert all(math.isfinite(loss) for loss in [*record["train"].values(), *record["validation"].values()])

    def test_tell_what_each_expert_weighs_for_each_task(self, finished: RunFolder) -> None:
        *_, last = metrics(finished)
        for task, weights in last["gate_weights"].items():
            assert sum(weights) == pytest.approx(1, abs=1e-6)
            chosen = {str(expert) for expert, weight in enumerate(weights) if weight > 0}
            assert chosen == set(selection(finished)["tasks"][task])

    def test_tell_mean_weights_of_a_batch_if_the_gate_decides_per_example(self, shop: Shop) -> None:
        run = trained(shop, model={"gate": {"kind": "top_k", "per_example": True, "k": 1}})
        for weights in metrics(run)[0]["gate_weights"].values():
            assert len(weights) == 3
            assert sum(weights) == pytest.approx(1, abs=1e-5)
            assert [8 * weight for weight in weights] == pytest.approx([round(8 * weight) for weight in weights])

    def test_are_taken_as_often_as_asked_for_and_at_the_end(self, shop: Shop) -> None:
        assert [record["step"] for record in metrics(trained(shop, checks_per_epoch=3))] == [7, 14, 20]

    def test_show_selecting_then_selected(self, finished: RunFolder) -> None:
        phases = [record["phase"] for record in metrics(finished)]
        assert phases == ["selecting"] * 11 + ["selected"] * 9

    def test_call_weights_the_best_only_once_the_experts_are_chosen(self, finished: RunFolder) -> None:
        records = metrics(finished)
        assert not any(record["best"] for record in records if record["phase"] == "selecting")
        lowest = math.inf
        for record in records:
            if record["phase"] == "selected":
                assert record["best"] == (record["validation_total"] < lowest)
                lowest = min(lowest, record["validation_total"])
        assert any(record["best"] for record in records)

    def test_show_gamma_falling_and_unused_experts_gone(self, finished: RunFolder) -> None:
        records = metrics(finished)
        gammas = [record["gamma"] for record in records]
        assert gammas == sorted(gammas, reverse=True)
        assert gammas[-1] < gammas[0]
        experts = [record["experts"] for record in records]
        assert experts == [3] * 4 + [2] * 7 + [len(selection(finished)["experts_used"])] * 9

    def test_weigh_the_tasks_in_the_total(self, shop: Shop) -> None:
        tasks = [task.model_dump() for task in shop.schema.tasks]
        tasks[1]["weight"] = 3.0
        shop.write(shop.table(200))
        for record in metrics(train(shop.config(tasks=tasks, training=SMALL), shop.folder / "run")):
            validation = record["validation"]
            assert record["validation_total"] == pytest.approx(validation["click"] + 3 * validation["watch"], rel=1e-5)

    def test_are_means_over_the_rows_of_the_validation_split_that_have_the_label(
        self, shared_shop: Shop, finished: RunFolder
    ) -> None:
        model, encoder = load_model(finished, finished.load_config())
        whole = LabeledBatch.concat(list(read_split(shared_shop.reader(), shared_shop.logs(), encoder, "validation")))
        assert np.isnan(whole.labels).any()
        batch = DeviceBatch.from_labeled(whole)
        losses = task_losses(model(batch.inputs), batch.labels, shared_shop.schema.tasks)
        best = [record for record in metrics(finished) if record["best"]][-1]["validation"]
        assert [best["click"], best["watch"]] == pytest.approx(losses.tolist(), rel=1e-4)

    @pytest.mark.parametrize(
        "penalty",
        [
            {"overlap_weight": 1e3},
            {"union_weight": 1e3},
            {"importance_weight": 1e3},
            {"surplus": "penalty", "surplus_weight": 1e3},
            {"kind": "gumbel_softmax", "sparsity_weight": 1e3},
            {"kind": "top_k", "per_example": True, "similarity_same": 1e3},
        ],
        ids=lambda penalty: next(reversed(penalty)),
    )
    def test_leave_the_penalties_of_the_gates_out_of_the_losses(self, shop: Shop, penalty: dict[str, Any]) -> None:
        name = next(reversed(penalty))
        free, penalised = (
            metrics(trained(shop, f"run{weight}", {"gate": {**penalty, name: weight}}, batch_size=20))
            for weight in (0.0, penalty[name])
        )
        assert free[0]["train"] == penalised[0]["train"]
        assert free[-1]["validation"] != penalised[-1]["validation"]

    def test_start_near_the_base_rates(self, shared_shop: Shop, finished: RunFolder) -> None:
        clicks = shared_shop.table(200)["is_click"].slice(0, 160).to_pylist()
        rate = sum(clicks) / len(clicks)
        entropy = -rate * math.log(rate) - (1 - rate) * math.log(1 - rate)
        assert metrics(finished)[0]["validation"]["click"] == pytest.approx(entropy, abs=0.1)


class TestBestWeights:
    def test_are_those_of_the_last_check_that_was_the_best(self, finished: RunFolder) -> None:
        best = max(record["step"] for record in metrics(finished) if record["best"])
        assert int(load_file(finished.best)["norm.num_batches_tracked"]) == best

    def test_leave_no_draft_beside_them(self, finished: RunFolder) -> None:
        assert [file.name for file in finished.best.parent.iterdir()] == ["best.safetensors"]

    def test_hold_only_the_chosen_experts(self, finished: RunFolder) -> None:
        weights = load_file(finished.best)
        used = selection(finished)["experts_used"]
        assert weights["active"].tolist() == used
        assert len(weights["experts.layers.0.weight"]) == len(used)

    def test_are_finite(self, finished: RunFolder) -> None:
        assert all(bool(torch.isfinite(tensor.float()).all()) for tensor in load_file(finished.best).values())


class Watched:
    """A training on the open shop's 160 rows, of which every optimizer step is watched: 20 steps, the choice at 12.

    Attributes:
        states: before each step, the names of the parameters that the optimizer has a state for.
        held: before each step, the names of the parameters that the optimizer holds.
        experts: before each step, the first layer of the experts that are there.
        gates: before each step, the gate.
    """

    def __init__(self, shop: Shop, path: Path, gate: dict[str, Any]) -> None:
        model: dict[str, Any] = {"experts": 5, "gate": gate}
        self.config = shop.config(model=model, training={**SMALL, "learning_rate": {"gates": 0.1}})
        fitter = EncoderFitter(shop.schema)
        found = profile_log(shop.reader(), shop.logs(), shop.schema, on_train=fitter.add)
        encoder = fitter.encoder()
        self.run = RunFolder.create(path, self.config)
        encoder.write(self.run.encoder)
        torch.manual_seed(0)
        self.model = build_model(self.config, encoder)
        self.states: list[set[str]] = []
        self.held: list[set[str]] = []
        self.experts: list[Tensor] = []
        self.gates: list[Gate] = []
        make = partial(LabeledBatch.from_table, encoder=encoder)
        feed = partial(BatchLoader, shop.reader(), found.index, make, shop.logs(), self.config.training)
        train, validation = feed("train"), feed("validation", shuffle=False)
        self.trainer = Trainer(self.config, self.run, DistContext(), train, validation, self.model)
        hook = register_optimizer_step_pre_hook(lambda optimizer, *_: self.look(optimizer))
        self.trainer.fit()
        hook.remove()

    def look(self, optimizer: torch.optim.Optimizer) -> None:
        if not isinstance(optimizer, torch.optim.AdamW):
            return
        names = {id(parameter): name for name, parameter in self.model.named_parameters()}
        self.states.append({names.get(id(parameter), "gone") for parameter in optimizer.state})
        self.held.append({names.get(id(p), "gone") for group in optimizer.param_groups for p in group["params"]})
        self.experts.append(self.model.experts.stack[0].weight.detach().clone())
        self.gates.append(self.model.gate)
        for parameter, state in optimizer.state.items():
            assert all(value.shape in ((), parameter.shape) for value in state.values())


GATES_WITH_BUDGET = [{"kind": "dselect_k"}, {"kind": "dselect_k", "per_example": True}, {"kind": "softmax_selectors"}]


@pytest.fixture(scope="module", params=GATES_WITH_BUDGET, ids=str)
def bounded(shared_shop: Shop, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Watched:
    return Watched(shared_shop, tmp_path_factory.mktemp("budget") / "run", {**request.param, "experts_budget": 2})


class TestBudget:
    """Of two experts, enforced after step 5."""

    def test_leaves_model_and_optimiser_exactly_its_experts(self, bounded: Watched) -> None:
        counts = [len(experts) for experts in bounded.experts]
        assert counts[:5] == [5] * 5
        assert counts[5:12] == [2] * 7
        assert set(counts[12:]) <= {1, 2}
        everything = {name for name, _ in dense_parameters(bounded.model)}
        assert all(held == everything for held in bounded.held)
        assert "gone" not in set.union(*bounded.states)
        assert bounded.model.active.tolist() == bounded.trainer.schedule.experts

    def test_keeps_the_weights_of_the_experts_that_stay(self, bounded: Watched) -> None:
        """One step of Adam apart; other experts lie much further."""
        before, after = bounded.experts[4], bounded.experts[5]
        nearest = (after.unsqueeze(1) - before).abs().amax((2, 3)).argmin(1).tolist()
        kept = sorted(set(nearest))
        assert nearest == kept
        assert len(kept) == 2
        assert set(bounded.model.active.tolist()) <= set(kept)

    def test_forgets_the_optimisers_state_of_the_gate_alone(self, bounded: Watched) -> None:
        gate = {name for name in bounded.held[0] if name.startswith("gate.")}
        assert bounded.states[4] & gate
        assert not bounded.states[5] & gate
        assert bounded.states[5] == bounded.states[4] - gate
        assert bounded.states[6] & gate

    def test_is_kept_by_the_best_weights_which_load_again(self, bounded: Watched) -> None:
        model, _ = load_model(bounded.run, bounded.config)
        assert len(model.active) <= 2
        assert model.active.tolist() == bounded.trainer.schedule.experts
        assert bool(model.gate.converged().all())

    @pytest.mark.parametrize("gate", GATES_WITH_BUDGET, ids=str)
    def test_of_all_experts_leaves_the_choice_among_them(
        self, shared_shop: Shop, tmp_path: Path, gate: dict[str, Any]
    ) -> None:
        watched = Watched(shared_shop, tmp_path / "run", {**gate, "experts_budget": 5})
        assert [len(experts) for experts in watched.experts[:12]] == [5] * 12
        kept = set.intersection(*watched.states[1:12])
        assert {name for name in kept if name.startswith("gate.")} >= {
            name for name in watched.held[0] if name in ("gate.z", "gate.w", "gate.beta")
        }


@pytest.fixture(scope="module")
def attentive(shared_shop: Shop, tmp_path_factory: pytest.TempPathFactory) -> Watched:
    return Watched(shared_shop, tmp_path_factory.mktemp("attentive") / "run", {"kind": "attentive"})


class TestAttentiveGates:
    def test_are_distilled_into_an_ordinary_one_at_the_last_step_of_the_ramp(self, attentive: Watched) -> None:
        assert [type(gate) for gate in attentive.gates] == [AttentiveGate] * 12 + [Softmax] * 8
        assert {gate.per_example for gate in attentive.gates} == {True}

    def test_leave_the_experts_as_they_are_from_there(self, attentive: Watched) -> None:
        learning = attentive.experts[:12]
        assert not any(torch.equal(after, before) for before, after in pairwise(learning))
        fixed = [*attentive.experts[12:], attentive.model.experts.stack[0].weight.detach()]
        assert all(torch.equal(experts, fixed[0]) for experts in fixed)

    def test_are_gone_from_the_optimiser_which_trains_the_new_one(self, attentive: Watched) -> None:
        assert "gate.query" in attentive.held[11]
        assert {name for name in attentive.held[12] if name.startswith("gate.")} == {
            "gate.bias",
            "gate.weight",
            "gate.hidden_weight",
            "gate.hidden_bias",
        }
        assert not {name for name in attentive.states[12] if name.startswith("gate.")}
        assert {"gate.weight", "gate.hidden_weight"} <= attentive.states[13]
        assert "gone" not in set.union(*attentive.held, *attentive.states)

    def test_leave_best_weights_of_the_ordinary_one_that_load_again(self, attentive: Watched) -> None:
        records = metrics(attentive.run)
        assert not any(record["best"] for record in records[:11])
        model, _ = load_model(attentive.run, attentive.config)
        assert isinstance(model.gate, Softmax)
        assert model.active.tolist() == list(range(5))
        best = load_file(attentive.run.best)
        assert best.keys() == model.state_dict().keys()
        assert all(torch.equal(value, best[name]) for name, value in model.state_dict().items())


class TestGatesThatNeverConclude:
    @pytest.mark.parametrize("gate", [{"kind": "top_k"}, {"kind": "softmax"}, {"kind": "shared_bottom"}], ids=str)
    def test_have_best_weights_from_the_first_check_on(self, shop: Shop, gate: dict[str, Any]) -> None:
        records = metrics(trained(shop, model={"gate": gate}))
        assert records[0]["best"]
        assert {record["phase"] for record in records} == {"selected"}
        assert len({record["experts"] for record in records}) == 1


class TestEarlyStop:
    def test_comes_after_so_many_checks_without_improvement(self, shop: Shop) -> None:
        run = trained(shop, epochs=4, patience=3, learning_rate={"trunk": 0.5})
        best = [record["best"] for record in metrics(run)]
        assert best[-4:] == [True, False, False, False]
        assert len(best) < selection(run)["steps"]

    def test_never_comes_before_the_experts_are_chosen(self, shop: Shop) -> None:
        records = metrics(trained(shop, epochs=2, patience=1, learning_rate={"trunk": 0.5}))
        totals = [record["validation_total"] for record in records if record["phase"] == "selecting"]
        assert len(totals) == 23
        assert any(total > min(totals[:i]) for i, total in enumerate(totals) if i)


class TestLossesThatAreNotFinite:
    @pytest.fixture
    def caught(self, shop: Shop) -> str:
        """What a training says whose losses explode."""
        with pytest.raises(RankerError) as caught:
            trained(shop, learning_rate={"trunk": 1e30})
        return str(caught.value)

    def test_stop_the_training_and_name_step_tasks_and_mend(self, caught: str) -> None:
        assert re.match(r"step \d+: the loss of .*(click|watch).* is not finite", caught)
        assert "lower training.learning_rate or set training.clip_norm" in caught

    def test_leave_the_batch_that_can_be_looked_at(self, shop: Shop, caught: str) -> None:
        (file,) = (shop.folder / "run").glob("bad-batch-*")
        assert caught.endswith(f"The batch is in {file}")
        batch = load_file(file)
        assert {"ids", "dense", "labels", "outputs"} <= batch.keys()
        assert len(batch["labels"]) == 8
        assert not bool(batch["outputs"].isfinite().all())

    def test_leave_its_labels_and_outputs_row_by_row(self, shop: Shop) -> None:
        """Squares of such watch times are infinite; their mean, which the outputs start from, is not."""
        table = shop.table(200)
        seconds = pc.multiply(table["seconds"], 1e25)
        shop.write(table.set_column(table.column_names.index("seconds"), "seconds", seconds))
        click, watch = shop.schema.tasks
        shop.schema = shop.schema.model_copy(update={"tasks": (click, watch.model_copy(update={"transform": "none"}))})
        with pytest.raises(RankerError, match="step 1: the loss of watch is not finite"):
            trained(shop)
        (file,) = (shop.folder / "run").glob("bad-batch-*")
        batch = load_file(file)
        for found in (batch["labels"], batch["outputs"]):
            assert (found[:, 0].abs() < 5).all()
            assert (found[:, 1].nan_to_num(1e25) > 1e20).all()

    def test_leave_no_run_that_looks_finished(self, shop: Shop, caught: str) -> None:
        assert caught
        with pytest.raises(RankerError, match="training has not finished"):
            RunFolder.open(shop.folder / "run")


class TestPrecision:
    def test_bfloat16_learns_as_well(self, shop: Shop, finished: RunFolder) -> None:
        run = trained(shop, precision="bfloat16")
        half, full = metrics(run), metrics(finished)
        assert half[-1]["validation_total"] == pytest.approx(full[-1]["validation_total"], rel=0.01)
        assert half[-1]["validation_total"] != full[-1]["validation_total"]

    def test_bfloat16_leaves_weights_in_float32_and_a_choice_that_is_exact(self, shop: Shop) -> None:
        run = trained(shop, precision="bfloat16")
        kinds = {value.dtype for name, value in load_file(run.best).items() if value.is_floating_point()}
        assert kinds == {torch.float32}
        assert selection(run)["converged"]
        freeze_run(run.path, shop.folder / "bundle")  # checks that frozen = dense


class TestClipping:
    def test_bounds_the_gradient_of_each_step(self, shop: Shop) -> None:
        norms: list[float] = []

        def look(optimizer: torch.optim.Optimizer, *_: object) -> None:
            if isinstance(optimizer, torch.optim.AdamW):
                grads = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
                norms.append(float(torch.stack([grad.norm() for grad in grads]).norm()))

        hook = register_optimizer_step_pre_hook(look)
        trained(shop)
        free, norms[:] = list(norms), []
        trained(shop, "clipped", clip_norm=0.05)
        hook.remove()
        assert max(free) > 0.05
        assert max(norms) == pytest.approx(0.05, rel=1e-3)


class TestSeeds:
    def test_the_same_gives_the_same_weights_bit_for_bit(self, shop: Shop) -> None:
        first, second = (load_file(trained(shop, name, seed=3).best) for name in ("first", "second"))
        assert first.keys() == second.keys()
        assert all(torch.equal(first[name], second[name]) for name in first)

    def test_the_same_gives_the_same_weights_with_dropout_too(self, shop: Shop) -> None:
        shop.write(shop.table(200))
        config = shop.config(model={"dropout": 0.3}, training={"batch_size": 40})
        first, second = (load_file(train(config, shop.folder / name).best) for name in ("first", "second"))
        assert all(torch.equal(first[name], second[name]) for name in first)

    def test_another_gives_other_weights(self, shared_shop: Shop, finished: RunFolder) -> None:
        other = trained(shared_shop, "other", seed=4)
        assert not torch.equal(load_file(finished.best)["output.weight"], load_file(other.best)["output.weight"])
