"""Contributions of features: they add up, agree with automatic differentiation, and cover every kind of feature."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import get_args

import numpy as np
import pyarrow as pa
import pytest
import torch
from pydantic import TypeAdapter

from ranking.encoding.encoder import Encoder
from ranking.encoding.feature_table import FeatureTable
from ranking.encoding.torch_batch import TorchBatch
from ranking.errors import InvalidInputError, RankerError
from ranking.frozen import contributions, line_gradients
from ranking.frozen.calibration import Calibration, Isotonic, Platt
from ranking.frozen.embedding_rows import encoded
from ranking.frozen.freeze import freeze
from ranking.frozen.graph import FrozenGraph
from ranking.frozen.ranker import FrozenRanker
from ranking.gates.base import mean_selection
from ranking.model.mmoe import MMoE
from ranking.schema import Owner
from ranking.selection import Reading
from ranking.settings.gate import GateConfig
from tests.support.one_model import weights_of, with_weights

OLD_BUNDLE = Path(__file__).parents[2] / "fixtures" / "version_0_1"
TASKS = ("like", "click")


@pytest.fixture(scope="module", params=get_args(Reading))
def ranker(
    request: pytest.FixtureRequest,
    make_mmoe: Callable[..., MMoE],
    hand_encoder: Encoder,
    hand_tables: dict[Owner, FeatureTable],
) -> FrozenRanker:
    """A frozen random model with large weights, so that its logits differ and its ReLUs change on the line."""
    model = make_mmoe(TypeAdapter(GateConfig).validate_python({"k": 2}), request.param)
    model.gate.finalize()
    model.keep_experts(list(range(5)))
    frozen = freeze(model.eval(), hand_encoder, hand_tables, {"click": 1.0}, {})
    scaled = {name: weight * (30.0 if "embedding" in name else 2.0) for name, weight in weights_of(frozen).items()}
    return with_weights(frozen, scaled)


@pytest.fixture(scope="module")
def rows(draw_rows: Callable[[int, int], pa.Table]) -> pa.Table:
    return draw_rows(40, 5)


def logits(ranker: FrozenRanker, rows: pa.Table, tasks: tuple[str, ...]) -> np.ndarray:
    outputs = ranker.outputs(ranker.encoder.encode(ranker.complete(rows)), tasks)
    return np.asarray(ranker.calibration(outputs, tasks))


def assert_adds_up(result: contributions.Contributions, expected: np.ndarray) -> None:
    np.testing.assert_allclose(result.outputs, expected, rtol=1e-5, atol=1e-5)
    difference = expected - result.baseline
    np.testing.assert_allclose(result.values.sum(2), difference, rtol=1e-4, atol=1e-4)
    assert result.error <= 0.01


def test_contributions_add_up_to_the_logits_of_the_frozen_graph(ranker: FrozenRanker, rows: pa.Table) -> None:
    tasks = tuple(ranker.schema.task_names)
    result = ranker.contributions(rows)
    assert result.tasks == list(tasks)
    assert sorted(result.features) == sorted(feature.name for feature in ranker.schema.features)
    assert result.values.shape == (40, len(tasks), len(result.features))
    assert np.abs(result.values).max() > 0.01
    assert_adds_up(result, logits(ranker, rows, tasks))


def test_contributions_with_int8_embeddings_add_up_to_the_logits(hand_ranker: FrozenRanker, rows: pa.Table) -> None:
    compact = with_weights(hand_ranker, encoded(weights_of(hand_ranker), "int8"))
    tasks = tuple(compact.schema.task_names)
    assert_adds_up(compact.contributions(rows), logits(compact, rows, tasks))


@pytest.mark.parametrize(
    "calibration",
    [
        Platt(slope=0.5, shift=-1.0),
        Isotonic(inputs=[-0.1, 0.0, 0.2], outputs=[-3.0, -1.0, 4.0]),
    ],
)
def test_contributions_with_a_calibration_add_up_to_calibrated_logits(
    ranker: FrozenRanker, rows: pa.Table, calibration: Platt | Isotonic
) -> None:
    calibrated = replace(ranker, calibration=Calibration({"like": calibration}))
    assert_adds_up(calibrated.contributions(rows, TASKS), logits(calibrated, rows, TASKS))


def test_contributions_equal_gradients_of_torch(ranker: FrozenRanker, rows: pa.Table) -> None:
    graph = FrozenGraph(ranker.encoder, ranker.models[0])
    inputs = ranker.encoder.encode(ranker.complete(rows))
    computed = contributions.ContributionsGraph(ranker.encoder, ranker.models, ranker.calibration)
    nulls = pa.table({name: pa.nulls(1) for name in {feature.column for feature in ranker.schema.inputs}})
    start = graph._embed(TorchBatch.from_numpy(ranker.encoder.encode(nulls)))
    stop, steps = graph._embed(TorchBatch.from_numpy(inputs)), 2048
    columns = [f.name for f in ranker.schema.sparse for _ in range(f.dim)] + [n.name for n in ranker.schema.numerics]
    scales = ranker.encoder.scales
    columns += [n.name for n in ranker.schema.numerics if scales[n.name].has_missing_indicator]
    columns += [n.name for n in ranker.schema.numerics for _ in scales[n.name].edges[1:]]
    total = torch.zeros_like(stop)
    for step in range(steps):
        x = (start + (step + 0.5) / steps * (stop - start)).requires_grad_()
        hidden = {e: graph._expert(e, x) for e in ranker.selection.experts_for(["like"])}
        mixed = graph._mix(hidden, graph.factors["like"])
        (gradient,) = torch.autograd.grad(graph._tower("like", mixed).sum(), x)
        total += gradient / steps
    attributions = ((stop - start) * total).detach().numpy()
    expected = np.stack([attributions[:, [c == name for c in columns]].sum(1) for name in computed.features], 1)
    actual = computed(inputs, ["like"]).values[:, 0]
    np.testing.assert_allclose(actual, expected, atol=0.02 * np.abs(expected).max())


def test_contributions_of_a_row_without_features_are_zero(ranker: FrozenRanker) -> None:
    nulls = pa.table({feature.column: pa.nulls(1) for feature in ranker.schema.inputs})
    graph = ranker.contributions_graph
    assert graph is not None
    result = graph(ranker.encoder.encode(nulls), TASKS)
    assert not result.values.any()
    np.testing.assert_array_equal(result.outputs[0], result.baseline)


def test_contributions_of_missing_features_are_zero(ranker: FrozenRanker, rows: pa.Table) -> None:
    feature = next(feature for feature in ranker.schema.inputs if feature.column in rows.column_names)
    position = rows.column_names.index(feature.column)
    hidden = rows.set_column(position, feature.column, pa.nulls(len(rows), rows.schema.field(position).type))
    result = ranker.contributions(hidden, TASKS)
    assert not result.values[:, :, result.features.index(feature.name)].any()


def test_contributions_do_not_depend_on_other_rows(
    ranker: FrozenRanker, rows: pa.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = ranker.contributions(rows, TASKS).values
    monkeypatch.setattr(line_gradients, "MAX_LINES", 3)
    np.testing.assert_allclose(ranker.contributions(rows, TASKS).values, expected, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(ranker.contributions(rows[3:4], TASKS).values, expected[3:4], rtol=1e-9, atol=1e-12)


def test_contributions_halve_each_segment_a_limited_number_of_times(
    ranker: FrozenRanker, rows: pa.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contributions, "SEGMENT_TOLERANCE", 0.0)
    monkeypatch.setattr(line_gradients, "MAX_HALVINGS", 3)
    assert ranker.contributions(rows, TASKS).gradients <= len(rows) * line_gradients.SEGMENTS * (1 + 2 + 4 + 8)


def test_contributions_of_no_rows_are_empty(ranker: FrozenRanker, rows: pa.Table) -> None:
    result = ranker.contributions(rows[:0], TASKS)
    assert result.values.shape == (0, 2, len(result.features))
    assert result.error == 0


def test_contributions_of_an_unknown_task_are_rejected(ranker: FrozenRanker, rows: pa.Table) -> None:
    with pytest.raises(InvalidInputError, match="unknown task 'share'"):
        ranker.contributions(rows, ["share"])


def test_contributions_of_a_per_example_gate_are_rejected(
    make_mmoe: Callable[[GateConfig], MMoE],
    hand_encoder: Encoder,
    hand_tables: dict[Owner, FeatureTable],
    rows: pa.Table,
) -> None:
    config = TypeAdapter(GateConfig).validate_python({"kind": "softmax", "per_example": True})
    model = make_mmoe(config)
    model.gate.finalize()
    tasks = hand_encoder.schema.task_names
    selection = mean_selection(torch.full((len(tasks), 5), 0.2), tasks, model.gate.k, list(range(5)))
    routed = freeze(model.eval(), hand_encoder, hand_tables, {"click": 1.0}, {}, (config, selection))
    assert routed.contributions_graph is None
    with pytest.raises(RankerError, match=re.escape("has a per-example gate")):
        routed.contributions(rows)
