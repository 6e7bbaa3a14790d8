"""Every backend gives the scores of the reference, for every subset of tasks and every mix of requests."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import onnx
import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ranking.calibration import Calibration, Isotonic, Platt
from ranking.encoding import Encoder, Inputs
from ranking.errors import BundleError
from ranking.frozen import FrozenRanker
from ranking.graph import FrozenGraph
from ranking.halves import Halves, Sides
from ranking.onnx_body import onnx_body
from service.engine.runtimes import choose
from tests.ranking.test_halves import requests

DrawRows = Callable[[int, int], pa.Table]
TASKS = ["click", "like", "watch", "rating"]


def with_body(ranker: FrozenRanker) -> FrozenRanker:
    return replace(ranker, body=onnx_body(ranker.graph, ranker.encoder))


def halves_of(ranker: FrozenRanker, draw_rows: DrawRows, sizes: list[int]) -> tuple[Halves, pa.Table]:
    """Halves, and the reference's scores of all tasks for the same candidates."""
    inputs, request = requests(ranker, draw_rows, sizes)
    halves = Sides(ranker.encoder).split(inputs, request)
    return halves, choose(ranker, "torch").scores(halves, ranker.schema.task_names)


class TestParity:
    @settings(deadline=None, max_examples=40)
    @given(
        sizes=st.lists(st.integers(1, 40), min_size=1, max_size=6),
        tasks=st.permutations(TASKS),
        count=st.integers(1, 4),
    )
    def test_of_onnxruntime(
        self, hand_ranker: FrozenRanker, draw_rows: DrawRows, sizes: list[int], tasks: list[str], count: int
    ) -> None:
        halves, expected = halves_of(hand_ranker, draw_rows, sizes)
        asked = tasks[:count]
        found = choose(with_body(hand_ranker), "onnxruntime").scores(halves, asked)
        assert found.dtype == np.float32
        np.testing.assert_allclose(found, expected[:, [TASKS.index(task) for task in asked]], rtol=1e-5, atol=1e-5)

    def test_the_reference_scores_as_the_ranker_does(self, hand_ranker: FrozenRanker, draw_rows: DrawRows) -> None:
        rows = draw_rows(50, 3)
        inputs = hand_ranker.encoder.encode(hand_ranker.complete(rows))
        halves = Sides(hand_ranker.encoder).split(inputs, torch.arange(50))
        scored = hand_ranker.score(rows)
        found = choose(hand_ranker, "torch").scores(halves, TASKS)
        assert np.array_equal(found, np.stack([scored[task].to_numpy() for task in TASKS], 1))

    def test_of_calibrated_scores(self, hand_ranker: FrozenRanker, draw_rows: DrawRows) -> None:
        graph = hand_ranker.graph
        knots = Isotonic(inputs=(-1.0, 0.5), outputs=(-2.0, -1.0))
        calibration = Calibration({"click": Platt(slope=0.5, shift=-1.0), "like": knots})
        graph = FrozenGraph(graph.schema, graph.selection, graph.weights, calibration=calibration)
        calibrated = replace(hand_ranker, graph=graph)
        halves, expected = halves_of(calibrated, draw_rows, [30])
        found = choose(with_body(calibrated)).scores(halves, TASKS)
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)

    @pytest.mark.parametrize("name", ["user_id", "item_id"])
    @pytest.mark.parametrize("sizes", [[5], [2, 3]])
    def test_of_a_ranker_with_one_empty_half(
        self, hand_ranker: FrozenRanker, draw_rows: DrawRows, name: str, sizes: list[int]
    ) -> None:
        whole = hand_ranker.encoder
        features = tuple(f for f in whole.schema.features if f.name == name)
        schema = whole.schema.model_copy(update={"features": features})
        encoder = Encoder(schema, {name: whole.id_spaces[name]}, {})
        weights = {
            key: value[:4] if key.startswith("expert.") and key.endswith(".0.weight") else value
            for key, value in hand_ranker.graph.weights.items()
        }
        graph = FrozenGraph(schema, hand_ranker.selection, weights)
        narrow = FrozenRanker(schema, encoder, graph, {}, {})
        inputs, request = requests(hand_ranker, draw_rows, sizes)
        column = [f.name for f in whole.schema.categoricals].index(name)
        ids = Inputs(inputs.ids[:, [column]], (), inputs.dense[:, :0], inputs.missing[:, [0]])
        halves = Sides(encoder).split(ids, request)
        expected = choose(narrow, "torch").scores(halves, TASKS)
        assert len(np.unique(expected[:, 0])) > 1 or (name, len(sizes)) == ("user_id", 1)
        np.testing.assert_allclose(choose(with_body(narrow)).scores(halves, TASKS), expected, rtol=1e-5, atol=1e-5)

    def test_no_candidates(self, hand_ranker: FrozenRanker, draw_rows: DrawRows) -> None:
        halves, _ = halves_of(hand_ranker, draw_rows, [3])
        assert choose(with_body(hand_ranker)).scores(halves.slice(0, 0), TASKS).shape == (0, 4)


class TestWhatRuns:
    def test_experts_of_other_tasks_do_not(self, hand_ranker: FrozenRanker, draw_rows: DrawRows) -> None:
        """An expert whose weights are NaN makes every score NaN that it is evaluated for."""
        selection, graph = hand_ranker.selection, hand_ranker.graph
        halves, expected = halves_of(hand_ranker, draw_rows, [7])
        for expert in selection.experts_used:
            poisoned = {
                k: v * float("nan") if k.startswith(f"expert.{expert}.") else v for k, v in graph.weights.items()
            }
            body = onnx_body(FrozenGraph(graph.schema, selection, poisoned), hand_ranker.encoder)
            runtime = choose(replace(hand_ranker, body=body), "onnxruntime")
            for t, task in enumerate(TASKS):
                found = runtime.scores(halves, [task])
                assert np.isnan(found).all() == (expert in selection.tasks[task])
                if expert not in selection.tasks[task]:
                    np.testing.assert_allclose(found[:, 0], expected[:, t], rtol=1e-5, atol=1e-5)

    def test_the_body_holds_the_chosen_experts_alone(self, hand_ranker: FrozenRanker) -> None:
        body = onnx.load_from_string(onnx_body(hand_ranker.graph, hand_ranker.encoder) or b"")
        assert {o.name for o in body.graph.output} == {f"output.{task}" for task in TASKS}
        gemms = [node for node in body.graph.node if node.op_type == "Gemm"]
        experts, layers, towers = len(hand_ranker.selection.experts_used), 2, 2
        assert len(gemms) == experts * (layers + 1) + len(TASKS) * towers  # the first layer has two halves


class TestChoose:
    def test_takes_the_body_if_there_is_one(self, hand_ranker: FrozenRanker) -> None:
        assert choose(hand_ranker).backend == "torch"
        assert choose(with_body(hand_ranker)).backend == "onnxruntime"
        assert choose(with_body(hand_ranker), "torch").backend == "torch"

    def test_says_what_a_bundle_lacks(self, hand_ranker: FrozenRanker) -> None:
        with pytest.raises(BundleError, match=r"'hand' carries no body\.onnx .* serve it with the torch backend"):
            choose(hand_ranker, "onnxruntime")
