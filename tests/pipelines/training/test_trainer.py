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
import pyarrow as pa
import pyarrow.compute as pc
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.optim.optimizer import register_optimizer_step_pre_hook

from pipelines.inspection.profile import profile_log
from pipelines.jobs.freeze import freeze_run
from pipelines.jobs.train import train
from pipelines.runs.run import RunFolder
from pipelines.training.best_weights import load_best
from pipelines.training.checkpoint import dense_parameters
from pipelines.training.dataloader import BatchLoader
from pipelines.training.distributed import DistContext
from pipelines.training.id_dropout import IdDropout
from pipelines.training.labeled_batch import DeviceBatch, LabeledBatch, read_split
from pipelines.training.model_factory import build_model, load_model
from pipelines.training.trainer import Trainer
from ranking.encoding.encoder_fitter import EncoderFitter
from ranking.errors import RankerError
from ranking.gates import AttentiveGate, Gate, Softmax
from ranking.model.losses import task_losses
from tests.pipelines.conftest import Shop

if TYPE_CHECKING:
    from tests.conftest import Once

SMALL = {"batch_size": 8, "checks_per_epoch": 10_000, "patience": 1000}
"""With 160 rows: 20 steps per epoch with a check after each; the selection is at step 12."""


def train_160_rows(shop: Shop, name: str = "run", model: dict[str, Any] | None = None, **training: Any) -> RunFolder:
    """Train on 160 rows, validate on 20 and return the run, which is not evaluated because no row is for testing."""
    if not any(shop.log.iterdir()):
        shop.write(shop.table(200).slice(0, 180))
    return train(shop.config(model=model or {}, training={**SMALL, **training}), shop.folder / name)


def metrics(run: RunFolder) -> list[dict[str, Any]]:
    return [json.loads(line) for line in run.metrics.read_text().splitlines()]


def selection(run: RunFolder) -> dict[str, Any]:
    data: dict[str, Any] = json.loads(run.selection.read_text())
    return data


@pytest.fixture(scope="module")
def finished(once: Once) -> RunFolder:
    """One epoch: 20 steps; read only."""
    return RunFolder.open(once("training of 20 steps", lambda folder: train_160_rows(Shop(folder))) / "run")


def train_with_three_checks(shop: Shop, **training: Any) -> RunFolder:
    """Train for one epoch with three checks and a weight of 3 for the task watch."""
    click, watch = shop.schema.tasks
    shop.schema = shop.schema.model_copy(update={"tasks": (click, watch.model_copy(update={"weight": 3.0}))})
    return train_160_rows(shop, checks_per_epoch=3, **training)


@pytest.fixture(scope="module")
def checked_three_times(once: Once) -> RunFolder:
    """A run of ``train_with_three_checks``; read only."""
    return RunFolder.open(
        once("training with three checks", lambda folder: train_with_three_checks(Shop(folder))) / "run"
    )


@pytest.fixture(scope="module")
def stopped_early(once: Once) -> RunFolder:
    """A run with a patience of 3 checks and a learning rate that is too large; read only."""

    def make(folder: Path) -> None:
        train_160_rows(Shop(folder), patience=3, learning_rate={"trunk": 0.5})

    return RunFolder.open(once("training that stops early", make) / "run")


@pytest.fixture(scope="module")
def half(once: Once) -> RunFolder:
    """One epoch in bfloat16 with a check at its end; read only."""

    def make(folder: Path) -> None:
        train_160_rows(Shop(folder), precision="bfloat16", checks_per_epoch=1)

    return RunFolder.open(once("training in bfloat16", make) / "run")


@pytest.fixture
def rates() -> Iterator[list[list[float]]]:
    """Learning rates of each optimizer step: embeddings, trunk, gates."""
    seen: list[list[float]] = []
    tables = [0.0]

    def record(optimizer: torch.optim.Optimizer, *_: object) -> None:
        rates = [group["lr"] for group in optimizer.param_groups]
        if isinstance(optimizer, torch.optim.AdamW):
            seen.append([*tables, *rates])
        else:
            tables[:] = rates[:1]  # the optimizer of the tables runs before AdamW

    hook = register_optimizer_step_pre_hook(record)
    yield seen
    hook.remove()


def test_train_takes_one_step_per_batch_and_epoch(shop: Shop, rates: list[list[float]]) -> None:
    run = train_160_rows(shop, epochs=2, batch_size=40)
    assert len(rates) == selection(run)["steps"] == 8
    assert [record["step"] for record in metrics(run)] == list(range(1, 9))
    assert metrics(run)[5]["epoch"] == 1.5


@pytest.mark.parametrize(("batch_size", "steps"), [(159, 1), (158, 2), (53, 3), (40, 4)])
def test_train_drops_a_last_batch_of_one_row(shop: Shop, rates: list[list[float]], batch_size: int, steps: int) -> None:
    train_160_rows(shop, batch_size=batch_size, epochs=2, checks_per_epoch=1)
    assert len(rates) == 2 * steps


def test_train_with_duplicate_files_takes_the_planned_steps(shop: Shop, rates: list[list[float]]) -> None:
    table = shop.table(200)
    for part in range(3):
        for file in range(2):
            shop.write(table.slice(60 * part, 60), f"part={part}/part-{file}.parquet")
    run = train_160_rows(shop, checks_per_epoch=1)
    assert len(rates) == selection(run)["steps"] == 20
    assert min(rate for step in rates for rate in step) > 0


@pytest.mark.parametrize(
    "training",
    [{"batch_size": 1000}, {"batch_size": 80}, {"batch_size": 40, "convergence": {"anneal_until": 0.99}}],
    ids=["one step", "two steps", "no step after the ramp"],
)
def test_train_with_very_few_steps_converges(shop: Shop, training: dict[str, Any]) -> None:
    run = train_160_rows(shop, **training)
    assert metrics(run)[-1]["phase"] == "selected"
    assert selection(run)["converged"] is True


def test_learning_rates_are_constant_until_the_selection_then_decay_linearly(
    shop: Shop, rates: list[list[float]]
) -> None:
    train_160_rows(shop, learning_rate={"embeddings": 0.003, "trunk": 0.002, "gates": 0.01}, checks_per_epoch=1)
    assert rates[:12] == [[0.003, 0.002, 0.01]] * 12
    falling = [step[1] / 0.002 for step in rates[12:]]
    assert falling == pytest.approx([1 - i / 8 for i in range(8)])
    for embeddings, body, gates in rates[12:]:
        assert (embeddings, gates) == pytest.approx((1.5 * body, 5 * body))


def test_learning_rates_grow_linearly_during_warmup(shop: Shop, rates: list[list[float]]) -> None:
    train_160_rows(shop, learning_rate={"trunk": 0.002, "gates": 0.01}, warmup=0.25, checks_per_epoch=1)
    assert [step[1] / 0.002 for step in rates[:6]] == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0, 1.0])


def test_metrics_lines_have_all_documented_keys(finished: RunFolder) -> None:
    keys = {"step", "epoch", "phase", "gamma", "experts", "learning_rate", "gate_weights", "rows_per_second"}
    keys |= {"train", "validation", "validation_total", "best"}
    for record in metrics(finished):
        assert set(record) == keys
        assert set(record["train"]) == set(record["validation"]) == {"click", "watch"}
        assert all(math.isfinite(loss) for loss in [*record["train"].values(), *record["validation"].values()])


def test_metrics_gate_weights_match_the_selection(finished: RunFolder) -> None:
    *_, last = metrics(finished)
    for task, weights in last["gate_weights"].items():
        assert sum(weights) == pytest.approx(1, abs=1e-6)
        chosen = {str(expert) for expert, weight in enumerate(weights) if weight > 0}
        assert chosen == set(selection(finished)["tasks"][task])


def test_metrics_gate_weights_of_a_per_example_gate_are_batch_means(shop: Shop) -> None:
    run = train_160_rows(shop, model={"gate": {"kind": "top_k", "per_example": True, "k": 1}}, checks_per_epoch=1)
    for weights in metrics(run)[0]["gate_weights"].values():
        assert len(weights) == 3
        assert sum(weights) == pytest.approx(1, abs=1e-5)
        assert [8 * weight for weight in weights] == pytest.approx([round(8 * weight) for weight in weights])


def test_metrics_are_written_checks_per_epoch_times_and_at_the_end(checked_three_times: RunFolder) -> None:
    assert [record["step"] for record in metrics(checked_three_times)] == [7, 14, 20]


def test_metrics_phase_is_selecting_then_selected(finished: RunFolder) -> None:
    phases = [record["phase"] for record in metrics(finished)]
    assert phases == ["selecting"] * 11 + ["selected"] * 9


def test_metrics_best_is_false_before_the_selection(finished: RunFolder) -> None:
    records = metrics(finished)
    assert not any(record["best"] for record in records if record["phase"] == "selecting")
    lowest = math.inf
    for record in records:
        if record["phase"] == "selected":
            assert record["best"] == (record["validation_total"] < lowest)
            lowest = min(lowest, record["validation_total"])
    assert any(record["best"] for record in records)


def test_metrics_show_decreasing_gamma_and_removed_experts(finished: RunFolder) -> None:
    records = metrics(finished)
    gammas = [record["gamma"] for record in records]
    assert gammas == sorted(gammas, reverse=True)
    assert gammas[-1] < gammas[0]
    experts = [record["experts"] for record in records]
    assert experts == [3] * 4 + [2] * 7 + [len(selection(finished)["experts_used"])] * 9


def test_metrics_validation_total_is_weighted_by_task(checked_three_times: RunFolder) -> None:
    for record in metrics(checked_three_times):
        validation = record["validation"]
        assert record["validation_total"] == pytest.approx(validation["click"] + 3 * validation["watch"], rel=1e-5)


def test_metrics_validation_losses_are_means_over_labeled_rows(shared_shop: Shop, finished: RunFolder) -> None:
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
        pytest.param({"kind": "gumbel_softmax", "sparsity_weight": 1e3}, marks=pytest.mark.nightly),
        {"kind": "top_k", "per_example": True, "similarity_same": 1e3},
    ],
    ids=lambda penalty: next(reversed(penalty)),
)
def test_metrics_losses_exclude_the_gate_penalties(shop: Shop, penalty: dict[str, Any]) -> None:
    name = next(reversed(penalty))
    free, penalised = (
        metrics(train_160_rows(shop, f"run{weight}", {"gate": {**penalty, name: weight}}, batch_size=20))
        for weight in (0.0, penalty[name])
    )
    assert free[0]["train"] == penalised[0]["train"]
    assert free[-1]["validation"] != penalised[-1]["validation"]


def test_metrics_first_loss_is_near_that_of_the_base_rate(shared_shop: Shop, finished: RunFolder) -> None:
    clicks = shared_shop.table(200)["is_click"].slice(0, 160).to_pylist()
    rate = sum(clicks) / len(clicks)
    entropy = -rate * math.log(rate) - (1 - rate) * math.log(1 - rate)
    assert metrics(finished)[0]["validation"]["click"] == pytest.approx(entropy, abs=0.1)


def test_best_weights_are_those_of_the_last_best_check(finished: RunFolder) -> None:
    best = max(record["step"] for record in metrics(finished) if record["best"])
    assert int(load_file(finished.best)["norm.num_batches_tracked"]) == best


def test_best_weights_leave_no_draft_file(finished: RunFolder) -> None:
    assert [file.name for file in finished.best.parent.iterdir()] == ["best.safetensors"]


def test_best_weights_contain_only_the_selected_experts(finished: RunFolder) -> None:
    weights = load_file(finished.best)
    used = selection(finished)["experts_used"]
    assert weights["active"].tolist() == used
    assert len(weights["experts.layers.0.weight"]) == len(used)


def test_best_weights_are_finite(finished: RunFolder) -> None:
    assert all(bool(torch.isfinite(tensor.float()).all()) for tensor in load_file(finished.best).values())


class ObservedTraining:
    """A training on the shared log's 160 rows that records every optimizer step: 20 steps, the selection at step 12.

    Attributes:
        states: names of the parameters with optimizer state, before each step.
        optimized: names of the parameters in the optimizer, before each step.
        experts: first layer of the remaining experts, before each step.
        gates: the gate, before each step.
    """

    def __init__(self, shop: Shop, path: Path, gate: dict[str, Any], **training: Any) -> None:
        model: dict[str, Any] = {"experts": 5, "gate": gate}
        self.config = shop.config(model=model, training={**SMALL, "learning_rate": {"gates": 0.1}, **training})
        fitter = EncoderFitter(shop.schema)
        profile = profile_log(shop.reader(), shop.logs(), shop.schema, fitters=[fitter])
        encoder = fitter.encoder()
        self.run = RunFolder.create(path, self.config)
        encoder.write(self.run.encoder)
        torch.manual_seed(0)
        self.model = build_model(self.config, encoder)
        self.states: list[set[str]] = []
        self.optimized: list[set[str]] = []
        self.experts: list[Tensor] = []
        self.gates: list[Gate] = []
        encode_rows = partial(LabeledBatch.from_table, encoder=encoder)
        loader = partial(BatchLoader, shop.reader(), profile.index, encode_rows, shop.logs(), self.config.training)
        train, validation = loader("train"), loader("validation", shuffle=False)
        self.trainer = Trainer(
            self.config,
            self.run,
            DistContext(),
            train,
            validation,
            self.model,
            IdDropout(encoder, {}, self.config.training),
        )
        hook = register_optimizer_step_pre_hook(lambda optimizer, *_: self.record(optimizer))
        self.trainer.fit()
        hook.remove()

    def record(self, optimizer: torch.optim.Optimizer) -> None:
        if not isinstance(optimizer, torch.optim.AdamW):
            return
        names = {id(parameter): name for name, parameter in self.model.named_parameters()}
        self.states.append({names.get(id(parameter), "removed") for parameter in optimizer.state})
        self.optimized.append(
            {names.get(id(p), "removed") for group in optimizer.param_groups for p in group["params"]}
        )
        self.experts.append(self.model.experts.stack[0].weight.detach().clone())
        self.gates.append(self.model.gate)
        for parameter, state in optimizer.state.items():
            assert all(value.shape in ((), parameter.shape) for value in state.values())


GATES_WITH_BUDGET = [{"kind": "dselect_k"}, {"kind": "dselect_k", "per_example": True}, {"kind": "softmax_selectors"}]


@pytest.fixture(scope="module", params=GATES_WITH_BUDGET, ids=str)
def budgeted(
    shared_shop: Shop, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> ObservedTraining:
    gate = {**request.param, "experts_budget": 2}
    return ObservedTraining(shared_shop, tmp_path_factory.mktemp("budget") / "run", gate, checks_per_epoch=4)


def test_budget_removes_experts_from_model_and_optimizer(budgeted: ObservedTraining) -> None:
    counts = [len(experts) for experts in budgeted.experts]
    assert counts[:5] == [5] * 5
    assert counts[5:12] == [2] * 7
    assert set(counts[12:]) <= {1, 2}
    everything = {name for name, _ in dense_parameters(budgeted.model)}
    assert all(optimized == everything for optimized in budgeted.optimized)
    assert "removed" not in set.union(*budgeted.states)
    assert budgeted.model.active.tolist() == budgeted.trainer.schedule.experts


def test_budget_keeps_the_weights_of_the_remaining_experts(budgeted: ObservedTraining) -> None:
    """The weights differ by one step of Adam; those of other experts differ much more."""
    before, after = budgeted.experts[4], budgeted.experts[5]
    nearest = (after.unsqueeze(1) - before).abs().amax((2, 3)).argmin(1).tolist()
    kept = sorted(set(nearest))
    assert nearest == kept
    assert len(kept) == 2
    assert set(budgeted.model.active.tolist()) <= set(kept)


def test_budget_resets_only_the_optimizer_state_of_the_gate(budgeted: ObservedTraining) -> None:
    gate = {name for name in budgeted.optimized[0] if name.startswith("gate.")}
    assert budgeted.states[4] & gate
    assert not budgeted.states[5] & gate
    assert budgeted.states[5] == budgeted.states[4] - gate
    assert budgeted.states[6] & gate


def test_budget_holds_for_the_best_weights_when_loaded(budgeted: ObservedTraining) -> None:
    model, _ = load_model(budgeted.run, budgeted.config)
    assert len(model.active) <= 2
    assert model.active.tolist() == budgeted.trainer.schedule.experts
    assert bool(model.gate.converged().all())


@pytest.mark.parametrize("gate", GATES_WITH_BUDGET, ids=str)
def test_budget_of_all_experts_removes_none_before_the_selection(
    shared_shop: Shop, tmp_path: Path, gate: dict[str, Any]
) -> None:
    observed = ObservedTraining(shared_shop, tmp_path / "run", {**gate, "experts_budget": 5}, checks_per_epoch=1)
    assert [len(experts) for experts in observed.experts[:12]] == [5] * 12
    kept = set.intersection(*observed.states[1:12])
    assert {name for name in kept if name.startswith("gate.")} >= {
        name for name in observed.optimized[0] if name in ("gate.z", "gate.w", "gate.beta")
    }


@pytest.fixture(scope="module")
def attentive(shared_shop: Shop, tmp_path_factory: pytest.TempPathFactory) -> ObservedTraining:
    return ObservedTraining(shared_shop, tmp_path_factory.mktemp("attentive") / "run", {"kind": "attentive"})


def test_attentive_gate_is_distilled_at_the_last_annealing_step(attentive: ObservedTraining) -> None:
    assert [type(gate) for gate in attentive.gates] == [AttentiveGate] * 12 + [Softmax] * 8
    assert {gate.per_example for gate in attentive.gates} == {True}


def test_attentive_gate_freezes_experts_after_distillation(attentive: ObservedTraining) -> None:
    learning = attentive.experts[:12]
    assert not any(torch.equal(after, before) for before, after in pairwise(learning))
    fixed = [*attentive.experts[12:], attentive.model.experts.stack[0].weight.detach()]
    assert all(torch.equal(experts, fixed[0]) for experts in fixed)


def test_attentive_gate_is_replaced_in_the_optimizer(attentive: ObservedTraining) -> None:
    assert "gate.query" in attentive.optimized[11]
    assert {name for name in attentive.optimized[12] if name.startswith("gate.")} == {
        "gate.bias",
        "gate.weight",
        "gate.hidden_weight",
        "gate.hidden_bias",
    }
    assert not {name for name in attentive.states[12] if name.startswith("gate.")}
    assert {"gate.weight", "gate.hidden_weight"} <= attentive.states[13]
    assert "removed" not in set.union(*attentive.optimized, *attentive.states)


def test_attentive_gate_best_weights_load_as_the_distilled_gate(attentive: ObservedTraining) -> None:
    records = metrics(attentive.run)
    assert not any(record["best"] for record in records[:11])
    model, _ = load_model(attentive.run, attentive.config)
    assert isinstance(model.gate, Softmax)
    assert model.active.tolist() == list(range(5))
    best = load_best(attentive.run)
    assert best.keys() == model.state_dict().keys()
    assert all(torch.equal(value, best[name]) for name, value in model.state_dict().items())


@pytest.mark.parametrize("gate", [{"kind": "top_k"}, {"kind": "softmax"}, {"kind": "shared_bottom"}], ids=str)
def test_gate_without_final_selection_saves_best_weights_from_the_first_check(shop: Shop, gate: dict[str, Any]) -> None:
    records = metrics(train_160_rows(shop, model={"gate": gate}, batch_size=40))
    assert records[0]["best"]
    assert {record["phase"] for record in records} == {"selected"}
    assert len({record["experts"] for record in records}) == 1


def test_early_stopping_after_patience_checks_without_improvement(stopped_early: RunFolder) -> None:
    best = [record["best"] for record in metrics(stopped_early)]
    assert best[-4:] == [True, False, False, False]
    assert len(best) < 20


def test_early_stopping_never_happens_before_the_selection(stopped_early: RunFolder) -> None:
    records = metrics(stopped_early)
    totals = [record["validation_total"] for record in records if record["phase"] == "selecting"]
    assert len(totals) == 11
    assert any(min(totals[i : i + 3]) > min(totals[:i]) for i in range(1, 9)), "three checks without improvement"


@pytest.fixture(scope="module")
def diverged(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The folder of a training whose losses diverge, and its error message; read only."""
    shop = Shop(tmp_path_factory.mktemp("diverged") / "shop")
    with pytest.raises(RankerError) as caught:
        train_160_rows(shop, learning_rate={"trunk": 1e30})
    return shop.folder / "run", str(caught.value)


def test_infinite_loss_raises_an_error_with_step_tasks_and_fix(diverged: tuple[Path, str]) -> None:
    _, message = diverged
    assert re.match(r"step \d+: the loss of .*(click|watch).* is not finite", message)
    assert "lower training.learning_rate or set training.clip_norm" in message


def test_infinite_loss_saves_the_batch(diverged: tuple[Path, str]) -> None:
    folder, message = diverged
    (file,) = folder.glob("bad-batch-*")
    assert f"The batch is in {file}. " in message
    assert message.endswith("with --overwrite")
    batch = load_file(file)
    assert {"ids", "dense", "labels", "outputs"} <= batch.keys()
    assert len(batch["labels"]) == 8
    assert not bool(batch["outputs"].isfinite().all())


def without_transform(shop: Shop, scale: float) -> pa.Table:
    """Return 200 rows with scaled watch times, and make the shop train on them without transform."""
    table = shop.table(200)
    click, watch = shop.schema.tasks
    shop.schema = shop.schema.model_copy(update={"tasks": (click, watch.model_copy(update={"transform": "none"}))})
    seconds = pc.multiply(table["seconds"], scale)
    return table.set_column(table.column_names.index("seconds"), "seconds", seconds)


def test_infinite_loss_of_weighted_rows_names_the_weights_and_saves_rows_in_order(shop: Shop) -> None:
    """The weighted squares of these watch times overflow; their mean, the initial output, does not."""
    table = without_transform(shop, 1e12).append_column("weight", pa.array([1e13] * 200))
    columns = shop.schema.columns.model_copy(update={"weight": "weight"})
    shop.schema = shop.schema.model_copy(update={"columns": columns})
    shop.write(table)
    with pytest.raises(RankerError, match="step 1: the loss of watch is not finite; sample weights in column 'weight'"):
        train(shop.config(training={"batch_size": 8}), shop.folder / "run")
    (file,) = (shop.folder / "run").glob("bad-batch-*")
    batch = load_file(file)
    for values in (batch["labels"], batch["outputs"]):
        assert (values[:, 0].abs() < 5).all()
        assert (values[:, 1].nan_to_num(1e12) > 1e8).all()


def test_infinite_loss_of_large_labels_names_label_and_max(shop: Shop) -> None:
    shop.write(without_transform(shop, 1e12))
    with pytest.raises(RankerError) as caught:
        train(shop.config(training={"batch_size": 8, "learning_rate": {"trunk": 1e30}}), shop.folder / "run")
    assert "label 'seconds' of task 'watch' reaches " in str(caught.value)
    assert "set a smaller max" in str(caught.value)
    assert "learning_rate" not in str(caught.value)


def test_infinite_loss_leaves_an_unfinished_run(diverged: tuple[Path, str]) -> None:
    folder, _ = diverged
    with pytest.raises(RankerError, match="training has not finished"):
        RunFolder.open(folder)


def test_bfloat16_reaches_a_similar_validation_loss(half: RunFolder, finished: RunFolder) -> None:
    rounded, full = metrics(half)[-1]["validation_total"], metrics(finished)[-1]["validation_total"]
    assert rounded == pytest.approx(full, rel=0.01)
    assert rounded != full


def test_bfloat16_saves_float32_weights_and_an_exact_selection(half: RunFolder, tmp_path: Path) -> None:
    kinds = {value.dtype for name, value in load_file(half.best).items() if value.is_floating_point()}
    assert kinds == {torch.float32}
    assert selection(half)["converged"]
    freeze_run(half.path, tmp_path / "bundle")  # checks that frozen = dense


def test_clip_norm_bounds_the_gradient_norm_of_each_step(shop: Shop) -> None:
    norms: list[float] = []

    def record(optimizer: torch.optim.Optimizer, *_: object) -> None:
        if isinstance(optimizer, torch.optim.AdamW):
            grads = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
            norms.append(float(torch.stack([grad.norm() for grad in grads]).norm()))

    hook = register_optimizer_step_pre_hook(record)
    train_160_rows(shop, batch_size=40, checks_per_epoch=1)
    free, norms[:] = list(norms), []
    train_160_rows(shop, "clipped", clip_norm=0.05, batch_size=40, checks_per_epoch=1)
    hook.remove()
    assert max(free) > 0.05
    assert max(norms) == pytest.approx(0.05, rel=1e-3)


def test_same_seed_gives_identical_weights(shop: Shop, checked_three_times: RunFolder) -> None:
    first, second = (load_file(run.best) for run in (checked_three_times, train_with_three_checks(shop)))
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_same_seed_with_dropout_gives_identical_weights(shop: Shop) -> None:
    shop.write(shop.table(200).slice(0, 180))
    config = shop.config(model={"dropout": 0.3}, training={"batch_size": 40, "checks_per_epoch": 1})
    first, second = (load_file(train(config, shop.folder / name).best) for name in ("first", "second"))
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_different_seeds_give_different_weights(shop: Shop, checked_three_times: RunFolder) -> None:
    first, second = (load_file(run.best) for run in (checked_three_times, train_with_three_checks(shop, seed=4)))
    assert not torch.equal(first["output.weight"], second["output.weight"])
