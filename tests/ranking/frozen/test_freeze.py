"""Freezing: the dense model's numbers from the chosen experts alone."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
import torch

from pipelines.config.config import Config
from pipelines.data.reader import LogReader, load_tables
from pipelines.data.splits import split_range
from pipelines.runs.run import RunFolder
from pipelines.training.model_factory import load_model
from ranking.encoding.encoder import Encoder
from ranking.encoding.torch_batch import TorchBatch
from ranking.errors import NotConvergedError
from ranking.frozen.calibration import Calibration, Floats, Isotonic, Platt, to_probabilities
from ranking.frozen.freeze import freeze
from ranking.frozen.ranker import FrozenRanker
from ranking.gates import DSelectK
from ranking.gates.config import GateConfig, SoftmaxConfig
from ranking.model.mmoe import MMoE
from ranking.selection import Selection

MakeModel = Callable[[], MMoE]
Weight = npt.NDArray[Any]
DrawRows = Callable[[int, int], pa.Table]


@dataclass(frozen=True)
class Pair:
    """A dense model, what it was frozen to, and completed rows."""

    model: MMoE
    ranker: FrozenRanker
    rows: pa.Table

    @torch.inference_mode()
    def outputs(self) -> Floats:
        """The dense model's."""
        outputs: Floats = self.model(TorchBatch.from_numpy(self.ranker.encoder.encode(self.rows))).double().numpy()
        return outputs


@pytest.fixture(scope="module")
def trained(run: RunFolder, config: Config) -> Pair:
    """The run's model, and some rows of its validation split."""
    model, encoder = load_model(run, config)
    tables = load_tables(config.logs, config.serving_schema)
    ranker = freeze(model, encoder, tables, config.objective)
    reader = LogReader(config.logs.path, config.serving_schema, tables)
    rows = pa.concat_tables(cleaned.rows for cleaned in reader.scan(split_range(config.logs, "validation")))
    return Pair(model, ranker, rows.slice(0, 200))


@pytest.fixture(scope="module")
def by_hand(make_model: MakeModel, hand_ranker: FrozenRanker, draw_rows: DrawRows) -> Pair:
    return Pair(make_model(), hand_ranker, hand_ranker.complete(draw_rows(300, 5)))


@pytest.fixture(params=["trained", "by_hand"])
def pair(request: pytest.FixtureRequest) -> Pair:
    found: Pair = request.getfixturevalue(request.param)
    return found


def subsets(tasks: list[str]) -> Iterable[tuple[str, ...]]:
    """Each task, each pair, and all, forwards and backwards."""
    return [
        *itertools.combinations(tasks, 1),
        *itertools.combinations(tasks, 2),
        tuple(tasks),
        tuple(reversed(tasks)),
    ]


# The same numbers.


def test_frozen_is_dense_for_every_subset_of_tasks(pair: Pair) -> None:
    ranker, outputs = pair.ranker, pair.outputs()
    schema, inputs = ranker.schema, ranker.encoder.encode(pair.rows)
    assert len(inputs) >= 100
    dense = to_probabilities(outputs, schema.tasks)
    assert outputs.std(0).min() > 1e-3, "a constant would prove nothing"
    for names in subsets(schema.task_names):
        columns = [schema.task_names.index(name) for name in names]
        for found, expected in (
            (ranker.outputs(inputs, names), outputs),
            (ranker.score_completed(pair.rows, ranker.tasks(names))[0], dense),
        ):
            np.testing.assert_allclose(found, expected[:, columns], rtol=0.0, atol=1e-5, err_msg=str(names))


def test_a_pruned_model_freezes_to_the_same_graph(
    make_model: MakeModel, hand_ranker: FrozenRanker, set_codes: Callable[[DSelectK, list[list[int]]], None]
) -> None:
    dense, pruned = make_model(), make_model()
    for model in (dense, pruned):
        set_codes(model.gate, [[1, 4], [4, 3], [3, 3], [1, 3]])  # experts 0 and 2 are dropped: positions move
    pruned.keep_experts([1, 3, 4])
    expected, found = (freeze(model, hand_ranker.encoder, hand_ranker.tables, {}) for model in (dense, pruned))
    assert found.selection == expected.selection
    assert found.weights.keys() == expected.weights.keys()
    for name, weight in expected.weights.items():
        np.testing.assert_array_equal(found.weights[name], weight, name, strict=True)


def test_training_on_does_not_change_what_was_frozen(
    make_model: MakeModel, hand_ranker: FrozenRanker, draw_rows: DrawRows
) -> None:
    model = make_model()
    scored, unscored = (freeze(model, hand_ranker.encoder, hand_ranker.tables, {}) for _ in range(2))
    before = scored.score(draw_rows(5, 1))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1.0)
    assert scored.score(draw_rows(5, 1)).equals(before)
    assert unscored.score(draw_rows(5, 1)).equals(before)


CALIBRATION = Calibration(
    {"click": Platt(slope=0.5, shift=-1.0), "like": Isotonic(inputs=(-1.0, 0.5), outputs=(-2.0, -1.0))}
)


@pytest.mark.parametrize("per_example", [False, True])
def test_a_calibration_is_applied_to_its_tasks_in_every_subset(
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
    for some in subsets(names):
        columns = [names.index(name) for name in some]
        found = ranker.outputs(inputs, some)
        for one, other in (
            (found, outputs),
            (ranker.calibration(found, some), expected),
            (ranker.finished(found, some), to_probabilities(expected, tasks)),
            (ranker.score_completed(pair.rows, ranker.tasks(some))[0], to_probabilities(expected, tasks)),
        ):
            np.testing.assert_allclose(one, other[:, columns], rtol=0.0, atol=1e-5, err_msg=str(some))


# Only what was chosen.


def test_weights_are_named_as_documented_and_experts_that_nobody_chose_do_not_exist(hand_ranker: FrozenRanker) -> None:
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
    assert set(hand_ranker.weights) == expected
    for weight in hand_ranker.weights.values():
        assert weight.dtype == np.float32
        assert weight.flags.c_contiguous


def test_the_hand_made_selection_is_what_its_codes_say(hand_ranker: FrozenRanker) -> None:
    chosen = {task: list(weights) for task, weights in hand_ranker.selection.tasks.items()}
    assert chosen == {"click": [0, 1], "like": [1, 3], "watch": [2], "rating": [0, 3]}


def changed(ranker: FrozenRanker, prefixes: list[str], change: Callable[[Weight], Weight]) -> FrozenRanker:
    """The ranker with every weight changed whose name starts so."""
    weights = {
        name: change(weight) if name.startswith(tuple(prefixes)) else weight for name, weight in ranker.weights.items()
    }
    return replace(ranker, weights=weights)


def poison(weight: Weight) -> Weight:
    """Spoils every number that it has a part in, even with a weight of 0."""
    return np.full_like(weight, np.nan)


def break_(weight: Weight) -> Weight:
    """Raises where it is used."""
    return np.empty(0, weight.dtype)


@pytest.mark.parametrize("change", [poison, break_])
@pytest.mark.parametrize("asked", [*itertools.combinations(["click", "like", "watch", "rating"], 1), ("click", "like")])
def test_what_no_asked_for_task_needs_does_not_run(
    by_hand: Pair, asked: tuple[str, ...], change: Callable[[Weight], Weight]
) -> None:
    ranker = by_hand.ranker
    inputs = ranker.encoder.encode(by_hand.rows)
    expected = ranker.outputs(inputs, asked)
    needed = ranker.selection.experts_for(asked)
    others = [f"expert.{e}." for e in ranker.selection.experts_used if e not in needed]
    assert others
    others += [f"tower.{task}." for task in ranker.schema.task_names if task not in asked]
    found = changed(ranker, others, change).outputs(inputs, asked)
    assert np.isfinite(found).all()
    np.testing.assert_array_equal(found, expected)


def test_an_expert_that_a_task_chose_does_run(by_hand: Pair) -> None:
    ranker = by_hand.ranker
    inputs = ranker.encoder.encode(by_hand.rows)
    for task, chosen in ranker.selection.tasks.items():
        for expert in chosen:
            assert np.isnan(changed(ranker, [f"expert.{expert}."], poison).outputs(inputs, [task])).all()
            with pytest.raises(RuntimeError):
                changed(ranker, [f"expert.{expert}."], break_).outputs(inputs, [task])


def test_freezing_refuses_a_gate_that_has_not_converged(make_model: MakeModel, hand_encoder: Encoder) -> None:
    model = make_model()
    with torch.no_grad():
        model.gate.z[1, 0, 2] = 0.3
    with pytest.raises(NotConvergedError, match=r"task 'like' selector 0 is 40\.0% of γ/2 away"):
        freeze(model, hand_encoder, {}, {})
