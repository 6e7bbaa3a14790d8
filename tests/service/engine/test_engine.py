"""Concurrent requests give the same results as each request alone."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from ranking.encoding.request_batch import RequestBatch
from ranking.frozen.ranker import FrozenRanker
from service.backends.base import Scores
from service.backends.select import select_backend
from service.engine.engine import Engine
from service.engine.errors import InvalidRequestError, ScoringError
from service.engine.model import LoadedModel
from service.engine.request_encoder import RequestEncoder
from service.engine.response import RankResult
from service.telemetry.metrics import Metrics
from service.telemetry.stage_timer import StageTimer
from tests.support.direct_ranking import ParsedRequest, parse, rank_alone
from tests.support.missing_features import by_candidate

SECONDS = 30.0


class BlockingBackend:
    """Reference backend that records batches and blocks until ``go`` is set."""

    name = "torch"

    def __init__(self, ranker: FrozenRanker) -> None:
        self._reference = select_backend(ranker, "torch")
        self.batches: list[tuple[int, int, tuple[str, ...]]] = []
        self.started, self.go = threading.Event(), threading.Event()

    def scores(self, batch: RequestBatch, tasks: Sequence[str]) -> Scores:
        self.batches.append((len(batch.shared), len(batch), tuple(tasks)))
        self.started.set()
        assert self.go.wait(SECONDS)
        return self._reference.scores(batch, tasks)


class FailingBackend:
    name = "torch"

    def scores(self, batch: RequestBatch, tasks: Sequence[str]) -> Scores:
        raise MemoryError("no room")


def loaded_model(ranker: FrozenRanker, backend: Any) -> LoadedModel:
    return LoadedModel("hand", "1", ranker, RequestEncoder(ranker), backend, 0.0)


@pytest.fixture
def engine() -> Iterator[Engine]:
    engine = Engine(50, Metrics())
    yield engine
    engine.close()


def request(user: int, count: int, **options: Any) -> ParsedRequest:
    items = [{"id": (7 * user + i) % 33} for i in range(min(count, 33))] + [{"id": 1000 + i} for i in range(count - 33)]
    user_and_context = {"user": {"id": f"u{user}"}, "context": {"tab": "home", "hour": user % 24}}
    return parse(user_and_context | {"items": items} | options)


def assert_equal_to_alone(
    ranker: FrozenRanker, requests: Sequence[ParsedRequest], results: Sequence[RankResult]
) -> None:
    for parsed, ranked in zip(requests, results, strict=True):
        expected = rank_alone(ranker, parsed)
        assert ranked.ids == expected.ids
        assert by_candidate(ranked.missing) == by_candidate(expected.missing)
        np.testing.assert_allclose(ranked.scores, expected.scores, atol=1e-6)


async def rank_while_blocked(
    engine: Engine, requests: Sequence[tuple[LoadedModel, ParsedRequest]], *backends: BlockingBackend
) -> list[Any]:
    """Queue requests while the first one is being scored alone; return all results and errors in order."""
    (model, parsed), *others = requests
    first = asyncio.create_task(engine.rank(model, *parsed, StageTimer()))
    await asyncio.to_thread(backends[0].started.wait, SECONDS)
    tasks = [asyncio.create_task(engine.rank(model, *parsed, StageTimer())) for model, parsed in others]
    await asyncio.sleep(0)
    for backend in backends:
        backend.go.set()
    return await asyncio.gather(first, *tasks, return_exceptions=True)


@pytest.fixture
def backend(hand_ranker: FrozenRanker) -> BlockingBackend:
    return BlockingBackend(hand_ranker)


@pytest.fixture
def model(hand_ranker: FrozenRanker, backend: BlockingBackend) -> LoadedModel:
    return loaded_model(hand_ranker, backend)


async def test_rank_equal_tasks_share_batches(
    hand_ranker: FrozenRanker, engine: Engine, backend: BlockingBackend, model: LoadedModel
) -> None:
    requests = [request(0, 3), *(request(user, 1 + 2 * user) for user in range(1, 6)), request(9, 120)]
    requests += [
        request(user, 4, tasks=tasks) for user, tasks in enumerate((["watch", "click"], ["click", "watch"]) * 2)
    ]
    results = await rank_while_blocked(engine, [(model, parsed) for parsed in requests], backend)
    assert_equal_to_alone(hand_ranker, requests, results)
    everything = tuple(sorted(hand_ranker.schema.task_names))
    assert backend.batches == [
        (1, 3, everything),
        (6, 50, everything),  # 35 candidates of five users, and the first of the large request
        (4, 16, ("click", "watch")),  # in any order of the tasks
        *((1, rows, everything) for rows in (50, 50, 5)),
    ]


async def test_rank_different_versions_do_not_share_batches(hand_ranker: FrozenRanker, engine: Engine) -> None:
    one, other = backends = BlockingBackend(hand_ranker), BlockingBackend(hand_ranker)
    models = [loaded_model(hand_ranker, backend) for backend in backends]
    requests = [(models[0], request(0, 3)), *((models[i % 2], request(i, 2)) for i in range(6))]
    results = await rank_while_blocked(engine, requests, *backends)
    assert_equal_to_alone(hand_ranker, [parsed for _, parsed in requests], results)
    assert [rows for _, rows, _ in one.batches] == [3, 6]
    assert [rows for _, rows, _ in other.batches] == [6]


async def test_rank_no_candidates_skips_queue(engine: Engine, backend: BlockingBackend, model: LoadedModel) -> None:
    ranked = await engine.rank(model, *request(1, 0), StageTimer())
    assert (ranked.ids, ranked.scores.shape) == ([], (0, 4))
    assert backend.batches == []


async def test_rank_failing_backend_fails_only_its_requests(
    hand_ranker: FrozenRanker, engine: Engine, backend: BlockingBackend, model: LoadedModel
) -> None:
    with pytest.raises(ScoringError, match="no room"):
        await engine.rank(loaded_model(hand_ranker, FailingBackend()), *request(1, 2), StageTimer())
    backend.go.set()
    ranked = await engine.rank(model, *request(1, 2), StageTimer())
    assert ranked.ids == rank_alone(hand_ranker, request(1, 2)).ids


async def test_rank_different_columns_share_batch(
    hand_ranker: FrozenRanker, engine: Engine, backend: BlockingBackend, model: LoadedModel
) -> None:
    words = {"items": {"id": [1, 2], "features": {"genres": [["news"], None]}}}
    requests = [
        *(request(0, 3), request(1, 3), request(3, 4), request(5, 2, context={"hour": 3})),
        *(request(2, 2, items=[{"id": first}, {"id": "2"}]) for first in ("1", 1)),  # text, mixed types
        parse(words),
    ]
    results = await rank_while_blocked(engine, [(model, parsed) for parsed in requests], backend)
    assert_equal_to_alone(hand_ranker, requests, results)
    assert [rows for _, rows, _ in backend.batches] == [3, 15]


async def test_rank_invalid_request_does_not_affect_others_in_batch(
    engine: Engine, backend: BlockingBackend, model: LoadedModel
) -> None:
    def with_prices(*prices: float) -> ParsedRequest:
        items = {"id": list(range(len(prices))), "features": {"price": list(prices)}}
        return parse({"items": items})

    prices = [[1.0, 2.0], [1.0, -3.0], [4.0], [*[1.0] * 70, -3.0]]
    requests = [request(0, 3), *(with_prices(*values) for values in prices)]
    results = await rank_while_blocked(engine, [(model, parsed) for parsed in requests], backend)
    _, valid, invalid, other, invalid_in_second_batch = results
    assert isinstance(valid, RankResult)
    assert isinstance(other, RankResult)
    assert isinstance(invalid, InvalidRequestError)
    assert isinstance(invalid_in_second_batch, InvalidRequestError)
    assert invalid.field == "items[1].features.price"
    assert invalid_in_second_batch.field == "items[70].features.price"


@pytest.mark.parametrize("traced", [False, True])
async def test_rank_traces_features_only_if_asked_to(hand_ranker: FrozenRanker, traced: bool) -> None:
    engine, model = (
        Engine(50, Metrics(), traced=traced),
        loaded_model(hand_ranker, select_backend(hand_ranker, "torch")),
    )
    try:
        results = [await engine.rank(model, *request(1, count), StageTimer()) for count in (0, 3, 120)]
    finally:
        engine.close()
    for result, count in zip(results, (0, 3, 120), strict=True):
        assert (result.trace is not None) == traced
        if result.trace is not None:
            assert len(result.trace.known["item"]) == count
