"""Tests of the scorers of the peers: they score like the library, alone and in batches."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from benchmarks.serving.peers.library import Library
from benchmarks.serving.peers.matrices import Matrices
from benchmarks.serving.peers.matrix_files import write_matrices
from benchmarks.serving.peers.protocol import Body, Scorer, answer
from pipelines.bench.requests import Requests
from ranking.frozen.ranker import FrozenRanker


@pytest.fixture(params=["matrices", "library"])
def scorer(request: pytest.FixtureRequest, reference: Path, tmp_path: Path) -> Scorer:
    if request.param == "library":
        return Library(reference)
    write_matrices(reference, tmp_path)
    return Matrices(reference, tmp_path)


@pytest.fixture
def bodies(ranker: FrozenRanker, reference: Path) -> list[bytes]:
    requests = Requests(ranker, reference)
    return [requests.body("ids", count).data for count in (3, 1, 20)]


def expected(ranker: FrozenRanker, body: Body) -> np.ndarray:
    ids = body["items"]["id"]
    shared = {"user_id": body["user"]["id"], **body["context"]}
    table = pa.table({"item_id": ids} | {name: [value] * len(ids) for name, value in shared.items()})
    return np.stack([column.to_numpy() for column in ranker.score(table).drop(["score"]).columns], 1)


def test_scorer_scores_a_batch_like_the_library(scorer: Scorer, bodies: list[bytes], ranker: FrozenRanker) -> None:
    parsed = [json.loads(data) for data in bodies]
    for body, scores in zip(parsed, scorer.score(parsed), strict=True):
        np.testing.assert_allclose(scores, expected(ranker, body), rtol=0, atol=1e-5)


def test_answer_lists_the_best_candidates_first(scorer: Scorer, bodies: list[bytes], ranker: FrozenRanker) -> None:
    body, items = json.loads(bodies[2]), json.loads(answer(scorer, bodies[2]))["items"]
    scores = expected(ranker, body)
    order = np.argsort(-scores[:, 0])
    assert [item["id"] for item in items] == [body["items"]["id"][i] for i in order]
    for item, row in zip(items, scores[order], strict=True):
        assert list(item["scores"].values()) == pytest.approx(row.tolist(), abs=1e-5)
        assert item["score"] == item["scores"]["task_0"]
