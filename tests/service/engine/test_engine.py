"""Concurrent requests give the same results as each request alone."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterator, Sequence
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
from service.engine.response import RankResult, prepare, sort_candidates
from service.engine.validation import ParsedRequest
from service.protocol.messages import RankRequest
from service.telemetry.metrics import Metrics
from service.telemetry.stage_timer import StageTimer
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
    return ParsedRequest.from_message(RankRequest.model_validate(user_and_context | {"items": items} | options), {})


FIRST_REQUEST = request(0, 3)


def rank_alone(ranker: FrozenRanker, parsed: ParsedRequest) -> RankResult:
    """Rank a request without the engine."""
    encoder = RequestEncoder(ranker)
    prepared = prepare(ranker, encoder, parsed)
    batch = encoder(prepared.request)
    (missing,) = encoder.missing(batch, prepared.request.counts)
    return sort_candidates(
        prepared, select_backend(ranker, "torch").scores(batch, [task.name for task in prepared.tasks]), missing
    )


def assert_equal_to_alone(
    ranker: FrozenRanker, requests: Sequence[ParsedRequest], results: Sequence[RankResult]
) -> None:
    for parsed, ranked in zip(requests, results, strict=True):
        expected = rank_alone(ranker, parsed)
        assert ranked.ids == expected.ids
        assert by_candidate(ranked.missing) == by_candidate(expected.missing)
        np.testing.assert_allclose(ranked.scores, expected.scores, atol=1e-6)


def run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(test, SECONDS))


def submit(engine: Engine, model: LoadedModel, parsed: ParsedRequest, waited: float = 0.0) -> asyncio.Task[RankResult]:
    timer = StageTimer()
    timer.arrived -= waited
    return asyncio.create_task(engine.rank(model, parsed, timer))


async def submit_while_blocked(
    engine: Engine,
    backend: BlockingBackend,
    model: LoadedModel,
    requests: Sequence[tuple[LoadedModel, ParsedRequest, float]],
) -> list[asyncio.Task[RankResult]]:
    """Queue requests while the first request is being scored alone."""
    first = submit(engine, model, FIRST_REQUEST)
    await asyncio.to_thread(backend.started.wait, SECONDS)
    tasks = [submit(engine, *arguments) for arguments in requests]
    await asyncio.sleep(0)
    return [first, *tasks]


def test_rank_equal_tasks_share_batches(hand_ranker: FrozenRanker, engine: Engine) -> None:
    backend = BlockingBackend(hand_ranker)
    model = loaded_model(hand_ranker, backend)
    requests = [request(user, 1 + 2 * user) for user in range(1, 6)] + [request(9, 120)]
    requests += [
        request(user, 4, tasks=tasks) for user, tasks in enumerate((["watch", "click"], ["click", "watch"]) * 2)
    ]

    async def test() -> None:
        tasks = await submit_while_blocked(engine, backend, model, [(model, parsed, 0.0) for parsed in requests])
        backend.go.set()
        assert_equal_to_alone(hand_ranker, [FIRST_REQUEST, *requests], await asyncio.gather(*tasks))

    run(test())
    everything = tuple(sorted(hand_ranker.schema.task_names))
    assert backend.batches == [
        (1, 3, everything),
        (6, 50, everything),  # 35 candidates of five users, and the first of the large request
        (4, 16, ("click", "watch")),  # in any order of the tasks
        (1, 50, everything),
        (1, 50, everything),
        (1, 5, everything),
    ]


def test_rank_different_versions_do_not_share_batches(hand_ranker: FrozenRanker, engine: Engine) -> None:
    one, other = BlockingBackend(hand_ranker), BlockingBackend(hand_ranker)

    async def test() -> None:
        models = [loaded_model(hand_ranker, one), loaded_model(hand_ranker, other)]
        requests = [(models[i % 2], request(i, 2), 0.0) for i in range(6)]
        tasks = await submit_while_blocked(engine, one, models[0], requests)
        one.go.set()
        other.go.set()
        await asyncio.gather(*tasks)

    run(test())
    assert [rows for _, rows, _ in one.batches] == [3, 6]
    assert [rows for _, rows, _ in other.batches] == [6]


def test_rank_no_candidates_skips_queue(hand_ranker: FrozenRanker, engine: Engine) -> None:
    backend = BlockingBackend(hand_ranker)

    async def test() -> None:
        ranked = await engine.rank(loaded_model(hand_ranker, backend), request(1, 0), StageTimer())
        assert (ranked.ids, ranked.scores.shape) == ([], (0, 4))

    run(test())
    assert backend.batches == []


def test_rank_failing_backend_fails_only_its_requests(hand_ranker: FrozenRanker, engine: Engine) -> None:
    async def test() -> None:
        with pytest.raises(ScoringError, match="no room"):
            await engine.rank(loaded_model(hand_ranker, FailingBackend()), request(1, 2), StageTimer())
        backend = BlockingBackend(hand_ranker)
        backend.go.set()
        ranked = await engine.rank(loaded_model(hand_ranker, backend), request(1, 2), StageTimer())
        assert ranked.ids == rank_alone(hand_ranker, request(1, 2)).ids

    run(test())


def test_rank_different_columns_share_batch(hand_ranker: FrozenRanker, engine: Engine) -> None:
    backend = BlockingBackend(hand_ranker)
    model = loaded_model(hand_ranker, backend)
    words = {"items": {"id": [1, 2], "features": {"genres": [["news"], None]}}}
    requests = [
        request(1, 3),
        request(2, 2, items=[{"id": "1"}, {"id": "2"}]),  # text
        request(3, 4),
        ParsedRequest.from_message(RankRequest.model_validate(words), {}),
        request(4, 2, items=[{"id": 1}, {"id": "2"}]),  # mixed types
        request(5, 2, context={"hour": 3}),
    ]

    async def test() -> None:
        tasks = await submit_while_blocked(engine, backend, model, [(model, parsed, 0.0) for parsed in requests])
        backend.go.set()
        assert_equal_to_alone(hand_ranker, [FIRST_REQUEST, *requests], await asyncio.gather(*tasks))

    run(test())
    assert [rows for _, rows, _ in backend.batches] == [3, 15]


def test_rank_invalid_request_does_not_affect_others_in_batch(hand_ranker: FrozenRanker, engine: Engine) -> None:
    backend = BlockingBackend(hand_ranker)
    model = loaded_model(hand_ranker, backend)

    def with_prices(*prices: float) -> ParsedRequest:
        items = {"id": list(range(len(prices))), "features": {"price": list(prices)}}
        return ParsedRequest.from_message(RankRequest.model_validate({"items": items}), {})

    async def test() -> None:
        many = [1.0] * 70
        requests = [with_prices(1.0, 2.0), with_prices(1.0, -3.0), with_prices(4.0), with_prices(*many, -3.0)]
        tasks = await submit_while_blocked(engine, backend, model, [(model, parsed, 0.0) for parsed in requests])
        backend.go.set()
        _, valid, invalid, other, invalid_in_second_batch = await asyncio.gather(*tasks, return_exceptions=True)
        assert isinstance(valid, RankResult)
        assert isinstance(other, RankResult)
        assert isinstance(invalid, InvalidRequestError)
        assert isinstance(invalid_in_second_batch, InvalidRequestError)
        assert invalid.field == "items[1].features.price"
        assert invalid_in_second_batch.field == "items[70].features.price"

    run(test())
