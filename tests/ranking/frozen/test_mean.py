"""Rankers that average the outputs of several models."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ranking
from ranking.artifacts import bundle, checksums
from ranking.encoding.encoder import Encoder
from ranking.encoding.feature_table import FeatureTable
from ranking.encoding.torch_batch import TorchBatch
from ranking.errors import BundleError
from ranking.frozen.calibration import Calibration, Platt
from ranking.frozen.freeze import freeze
from ranking.frozen.onnx_export import onnx_body
from ranking.frozen.ranker import FrozenRanker
from ranking.model.mmoe import MMoE
from ranking.schema import Owner
from ranking.selection import Selection
from ranking.settings.gate import SoftmaxConfig

DrawRows = Callable[[int, int], pa.Table]
TASKS = ["click", "like", "watch", "rating"]


def parts_of(ranker: FrozenRanker) -> list[FrozenRanker]:
    """One ranker for each model of a ranker."""
    return [replace(ranker, models=(model,)) for model in ranker.models]


@given(tasks=st.lists(st.sampled_from(TASKS), min_size=1, unique=True))
def test_outputs_are_the_mean_of_the_models(mean_ranker: FrozenRanker, draw_rows: DrawRows, tasks: list[str]) -> None:
    inputs = mean_ranker.encoder.encode(mean_ranker.complete(draw_rows(20, 4)))
    outputs = [part.outputs(inputs, tasks) for part in parts_of(mean_ranker)]
    assert np.abs(outputs[0] - outputs[1]).max() > 0.01
    np.testing.assert_allclose(mean_ranker.outputs(inputs, tasks), np.mean(outputs, 0), rtol=1e-12)


def test_scores_calibrate_the_mean_of_the_outputs(mean_ranker: FrozenRanker, draw_rows: DrawRows) -> None:
    rows = draw_rows(20, 4)
    calibrated = replace(mean_ranker, calibration=Calibration({"click": Platt(slope=0.5, shift=-1.0)}))
    logits = mean_ranker.outputs(mean_ranker.encoder.encode(mean_ranker.complete(rows)), ["click"])
    expected = 1 / (1 + np.exp(-(0.5 * logits[:, 0] - 1.0)))
    np.testing.assert_allclose(calibrated.score(rows)["click"].to_numpy(), expected, rtol=1e-6)


def test_experts_are_numbered_one_model_after_the_other(mean_ranker: FrozenRanker, draw_rows: DrawRows) -> None:
    selection = mean_ranker.selection
    assert (selection.num_experts, selection.k) == (15, 6)
    assert selection.experts_for(["watch"]) == [2, 7, 12]
    assert selection.experts_used == [0, 1, 2, 3, 5, 6, 7, 8, 10, 11, 12, 13]
    for weights in selection.tasks.values():
        assert sum(weights.values()) == pytest.approx(1.0)
    inputs = mean_ranker.encoder.encode(mean_ranker.complete(draw_rows(3, 4)))
    assert mean_ranker.explain(inputs, ["watch"]) == {"watch": selection.tasks["watch"]}


def test_selection_of_one_model_is_its_own(hand_ranker: FrozenRanker) -> None:
    assert hand_ranker.selection is hand_ranker.models[0].selection
    other = Selection(2, 1, {task: {1: 1.0} for task in TASKS}, reading="scaled")
    joined = Selection.joined([hand_ranker.selection, other])
    assert (joined.num_experts, joined.k, joined.reading) == (7, 3, "sum")
    assert joined.tasks["watch"] == {2: 0.5, 6: 0.5}


def test_contributions_are_the_mean_of_the_models(mean_ranker: FrozenRanker, draw_rows: DrawRows) -> None:
    rows = draw_rows(10, 4)
    result = mean_ranker.contributions(rows)
    parts = [part.contributions(rows) for part in parts_of(mean_ranker)]
    np.testing.assert_allclose(result.values, np.mean([part.values for part in parts], 0), atol=1e-3)
    np.testing.assert_allclose(result.baseline, np.mean([part.baseline for part in parts], 0), rtol=1e-6)
    np.testing.assert_allclose(result.baseline + result.values.sum(2), result.outputs, rtol=1e-6)
    assert result.gradients == sum(part.gradients for part in parts)


def test_bundle_of_several_models_has_a_format_of_its_own_and_the_same_scores(
    mean_ranker: FrozenRanker, draw_rows: DrawRows, tmp_path: Path
) -> None:
    """A service of an earlier version, which would run only the first model, must reject it."""
    folder, rows = tmp_path / "bundle", draw_rows(50, 12)
    bundle.write_bundle(mean_ranker, mean_ranker.complete(draw_rows(16, 11)), folder)
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["format"] == 6
    assert "gate" not in manifest
    loaded = ranking.load(folder)
    assert [model.selection for model in loaded.models] == [model.selection for model in mean_ranker.models]
    for tasks in (None, ["watch"], ["rating", "click"]):
        assert loaded.score(rows, tasks).equals(mean_ranker.score(rows, tasks))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda manifest: manifest["models"].pop(),
            "weights.safetensors does not contain 'embedding|score differently",
        ),
        (lambda manifest: manifest["models"].append(manifest["models"][0]), "does not contain 'embedding"),
        (lambda manifest: manifest.pop("models"), "'models'"),
        (lambda manifest: manifest["models"][1]["selection"]["tasks"].pop("click"), "tasks of the selection"),
    ],
)
def test_inconsistent_bundle_of_several_models_is_rejected(
    mean_ranker: FrozenRanker,
    draw_rows: DrawRows,
    tmp_path: Path,
    change: Callable[[dict[str, Any]], object],
    message: str,
) -> None:
    folder = tmp_path / "bundle"
    bundle.write_bundle(mean_ranker, mean_ranker.complete(draw_rows(16, 11)), folder)
    manifest = json.loads((folder / "manifest.json").read_text())
    change(manifest)
    (folder / "manifest.json").write_text(json.dumps(manifest))
    checksums.write_checksums(folder)
    with pytest.raises(BundleError, match=message):
        ranking.load(folder)


def test_onnx_body_of_several_models_has_inputs_for_each(mean_ranker: FrozenRanker) -> None:
    body = onnx.load_from_string(onnx_body(mean_ranker, ["click", "rating"]))
    onnx.checker.check_model(body, full_check=True)
    inputs = [value.name for value in body.graph.input]
    assert inputs == ["0/shared", "0/items", "1/shared", "1/items", "2/shared", "2/items", "request"]
    assert [value.name for value in body.graph.output] == ["output.click", "output.rating"]


def test_mean_with_a_per_example_gate_weighs_every_expert_by_row(
    mean_ranker: FrozenRanker,
    make_mmoe: Callable[..., MMoE],
    hand_encoder: Encoder,
    hand_tables: dict[Owner, FeatureTable],
    draw_rows: DrawRows,
) -> None:
    """A static and a per-example gate together: only the reference backend runs them."""
    gate = SoftmaxConfig(kind="softmax", per_example=True)
    model = make_mmoe(gate)
    means = Selection(5, 5, {task: dict.fromkeys(range(5), 0.2) for task in TASKS}, per_example=True)
    routed = freeze(model.eval(), hand_encoder, hand_tables, {}, routed=(gate, means))
    ranker = replace(mean_ranker, models=(*mean_ranker.models[:1], *routed.models))
    assert ranker.backends == ["torch"]
    assert ranker.contributions_graph is None
    inputs = ranker.encoder.encode(ranker.complete(draw_rows(20, 4)))
    routing = ranker.graph.routing(TorchBatch.from_numpy(inputs)).numpy()
    assert routing.shape == (20, 4, 10)
    np.testing.assert_allclose(routing.sum(2), 1.0, rtol=1e-6)
    explained = ranker.explain(inputs, ["watch"])["watch"]
    assert explained[2] == pytest.approx(0.5)
    assert explained.keys() == {2, 5, 6, 7, 8, 9}
    outputs = [part.outputs(inputs, TASKS) for part in parts_of(ranker)]
    np.testing.assert_allclose(ranker.outputs(inputs, TASKS), np.mean(outputs, 0), rtol=1e-12)
