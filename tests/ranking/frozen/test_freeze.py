"""Freezing: the frozen ranker reproduces the dense model with the selected experts only."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
import torch

from pipelines.config.config import Config
from pipelines.data.reader import load_tables
from pipelines.runs.run import RunFolder
from pipelines.training.model_factory import load_model
from ranking.encoding.encoder import Encoder
from ranking.encoding.torch_batch import TorchBatch
from ranking.errors import NotConvergedError
from ranking.frozen.calibration import Calibration, Floats, Isotonic, Platt, to_probabilities
from ranking.frozen.freeze import freeze
from ranking.frozen.ranker import FrozenRanker
from ranking.gates import DSelectK
from ranking.model.mmoe import MMoE
from ranking.selection import Selection
from ranking.settings.gate import GateConfig, SoftmaxConfig
from tests.support.one_model import weights_of, with_weights
from tests.support.split_rows import split_rows

MakeModel = Callable[[], MMoE]
Weight = npt.NDArray[Any]
DrawRows = Callable[[int, int], pa.Table]


@dataclass(frozen=True)
class Pair:
    """A dense model, its frozen ranker, and completed rows."""

    model: MMoE
    ranker: FrozenRanker
    rows: pa.Table

    @torch.inference_mode()
    def outputs(self) -> Floats:
        """Return the outputs of the dense model."""
        outputs: Floats = self.model(TorchBatch.from_numpy(self.ranker.encoder.encode(self.rows))).double().numpy()
        return outputs


@pytest.fixture(scope="module")
def trained(run: RunFolder, config: Config) -> Pair:
    """The model of the run with 200 rows of its validation split."""
    model, encoder = load_model(run, config)
    tables = load_tables(config.logs, config.serving_schema)
    ranker = freeze(model, encoder, tables, config.objective)
    return Pair(model, ranker, split_rows(run, "validation").slice(0, 200))


@pytest.fixture(scope="module")
def hand_made(make_model: MakeModel, hand_ranker: FrozenRanker, draw_rows: DrawRows) -> Pair:
    return Pair(make_model(), hand_ranker, hand_ranker.complete(draw_rows(300, 5)))


@pytest.fixture(params=["trained", "hand_made"])
def pair(request: pytest.FixtureRequest) -> Pair:
    model_and_ranker: Pair = request.getfixturevalue(request.param)
    return model_and_ranker


def task_subsets(tasks: list[str]) -> Iterable[tuple[str, ...]]:
    """Return each task, each pair, and all tasks in both orders."""
    return [*itertools.combinations(tasks, 1), *itertools.combinations(tasks, 2), tuple(tasks), tuple(reversed(tasks))]


# Equality with the dense model.


def test_freeze_outputs_equal_dense_model_for_every_subset_of_tasks(pair: Pair) -> None:
    ranker, outputs = pair.ranker, pair.outputs()
    schema, inputs = ranker.schema, ranker.encoder.encode(pair.rows)
    assert len(inputs) >= 100
    dense = to_probabilities(outputs, schema.tasks)
    assert outputs.std(0).min() > 1e-3, "constant outputs would make this test meaningless"
    for names in task_subsets(schema.task_names):
        columns = [schema.task_names.index(name) for name in names]
        for actual, expected in (
            (ranker.outputs(inputs, names), outputs),
            (ranker.score_completed(pair.rows, ranker.tasks(names))[0], dense),
        ):
            np.testing.assert_allclose(actual, expected[:, columns], rtol=0.0, atol=1e-5, err_msg=str(names))


def test_freeze_of_pruned_model_returns_same_weights(
    make_model: MakeModel, hand_ranker: FrozenRanker, set_codes: Callable[[DSelectK, list[list[int]]], None]
) -> None:
    dense, pruned = make_model(), make_model()
    for model in (dense, pruned):
        set_codes(model.gate, [[1, 4], [4, 3], [3, 3], [1, 3]])  # Experts 0 and 2 are removed, so positions change.
    pruned.keep_experts([1, 3, 4])
    expected, frozen = (freeze(model, hand_ranker.encoder, hand_ranker.tables, {}) for model in (dense, pruned))
    assert frozen.selection == expected.selection
    assert weights_of(frozen).keys() == weights_of(expected).keys()
    for name, weight in weights_of(expected).items():
        np.testing.assert_array_equal(weights_of(frozen)[name], weight, name, strict=True)


def test_freeze_copies_all_weights_but_the_embeddings_so_that_further_training_has_no_effect(
    make_model: MakeModel, hand_ranker: FrozenRanker, draw_rows: DrawRows
) -> None:
    model = make_model()
    scored, unscored = (freeze(model, hand_ranker.encoder, hand_ranker.tables, {}) for _ in range(2))
    before = scored.score(draw_rows(5, 1))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.add_(0.0 if name.startswith("embeddings.") else 1.0)
    for name in hand_ranker.schema.tables:  # Tables may be larger than memory.
        assert np.shares_memory(weights_of(scored)[f"embedding.{name}"], model.embeddings.weight(name).detach().numpy())
    assert scored.score(draw_rows(5, 1)).equals(before)
    assert unscored.score(draw_rows(5, 1)).equals(before)


CALIBRATION = Calibration(
    {"click": Platt(slope=0.5, shift=-1.0), "like": Isotonic(inputs=(-1.0, 0.5), outputs=(-2.0, -1.0))}
)


@pytest.mark.parametrize("per_example", [False, True])
def test_freeze_with_calibration_applies_it_in_every_subset_of_tasks(
    make_model: MakeModel,
    make_mmoe: Callable[[GateConfig], MMoE],
    hand_ranker: FrozenRanker,
    draw_rows: DrawRows,
    per_example: bool,
) -> None:
    routed = None
    model = make_model()
    if per_example:
        gate = SoftmaxConfig(kind="softmax", per_example=True)
        model = make_mmoe(gate)
        names = hand_ranker.schema.task_names
        routed = (gate, Selection(5, 5, {task: dict.fromkeys(range(5), 0.2) for task in names}, True))
    ranker = freeze(model, hand_ranker.encoder, hand_ranker.tables, {}, None, routed, CALIBRATION)
    names, tasks = ranker.schema.task_names, ranker.schema.tasks
    pair = Pair(model, ranker, ranker.complete(draw_rows(60, 5)))
    inputs, outputs = ranker.encoder.encode(pair.rows), pair.outputs()
    expected = CALIBRATION(outputs, names)
    assert np.abs(expected - outputs)[:, :2].min() > 1e-3
    np.testing.assert_array_equal(expected[:, 2:], outputs[:, 2:])
    for subset in task_subsets(names):
        columns = [names.index(name) for name in subset]
        raw = ranker.outputs(inputs, subset)
        for actual, reference in (
            (raw, outputs),
            (ranker.calibration(raw, subset), expected),
            (ranker.finished(raw, subset), to_probabilities(expected, tasks)),
            (ranker.score_completed(pair.rows, ranker.tasks(subset))[0], to_probabilities(expected, tasks)),
        ):
            np.testing.assert_allclose(actual, reference[:, columns], rtol=0.0, atol=1e-5, err_msg=str(subset))


# Selected experts only.


def test_freeze_weight_names_are_as_documented_and_exclude_unselected_experts(hand_ranker: FrozenRanker) -> None:
    expected = {
        f"embedding.{table}"
        for table in ("user_id", "item_id", "country", "tab", "genres", "words", "country_tab", "age_band", "day_part")
    }
    expected |= {f"expert.{e}.{layer}.{part}" for e in range(4) for layer in (0, 1) for part in ("weight", "bias")}
    expected |= {
        f"tower.{task}.{layer}.{part}"
        for task in hand_ranker.schema.task_names
        for layer in (0, 1)
        for part in ("weight", "bias")
    }
    assert set(weights_of(hand_ranker)) == expected
    for weight in weights_of(hand_ranker).values():
        assert weight.dtype == np.float32
        assert weight.flags.c_contiguous


def test_freeze_selection_of_hand_made_model_matches_its_codes(hand_ranker: FrozenRanker) -> None:
    selected = {task: list(weights) for task, weights in hand_ranker.selection.tasks.items()}
    assert selected == {"click": [0, 1], "like": [1, 3], "watch": [2], "rating": [0, 3]}


def with_changed_weights(ranker: FrozenRanker, prefixes: list[str], change: Callable[[Weight], Weight]) -> FrozenRanker:
    """Return the ranker with changed weights for these name prefixes."""
    weights = {
        name: change(weight) if name.startswith(tuple(prefixes)) else weight
        for name, weight in weights_of(ranker).items()
    }
    return with_weights(ranker, weights)


def fill_with_nan(weight: Weight) -> Weight:
    """Return NaN weights, which spread to every result that uses them, even with a gate weight of 0."""
    return np.full_like(weight, np.nan)


def make_empty(weight: Weight) -> Weight:
    """Return an empty array, which raises an error when it is used."""
    return np.empty(0, weight.dtype)


@pytest.mark.parametrize("change", [fill_with_nan, make_empty])
@pytest.mark.parametrize(
    "requested", [*itertools.combinations(["click", "like", "watch", "rating"], 1), ("click", "like")]
)
def test_frozen_ranker_does_not_run_experts_and_towers_of_other_tasks(
    hand_made: Pair, requested: tuple[str, ...], change: Callable[[Weight], Weight]
) -> None:
    ranker = hand_made.ranker
    inputs = ranker.encoder.encode(hand_made.rows)
    expected = ranker.outputs(inputs, requested)
    needed = ranker.selection.experts_for(requested)
    other_prefixes = [f"expert.{e}." for e in ranker.selection.experts_used if e not in needed]
    assert other_prefixes
    other_prefixes += [f"tower.{task}." for task in ranker.schema.task_names if task not in requested]
    actual = with_changed_weights(ranker, other_prefixes, change).outputs(inputs, requested)
    assert np.isfinite(actual).all()
    np.testing.assert_array_equal(actual, expected)


def test_frozen_ranker_runs_every_expert_selected_by_a_task(hand_made: Pair) -> None:
    ranker = hand_made.ranker
    inputs = ranker.encoder.encode(hand_made.rows)
    for task, selected in ranker.selection.tasks.items():
        for expert in selected:
            assert np.isnan(
                with_changed_weights(ranker, [f"expert.{expert}."], fill_with_nan).outputs(inputs, [task])
            ).all()
            with pytest.raises(RuntimeError):
                with_changed_weights(ranker, [f"expert.{expert}."], make_empty).outputs(inputs, [task])


def test_freeze_of_gate_that_has_not_converged_raises(make_model: MakeModel, hand_encoder: Encoder) -> None:
    model = make_model()
    with torch.no_grad():
        model.gate.z[1, 0, 2] = 0.3
    with pytest.raises(NotConvergedError, match=r"task 'like' selector 0 is 40\.0% of γ/2 away"):
        freeze(model, hand_encoder, {}, {})
