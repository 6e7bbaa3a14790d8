"""Requests that are ranked at the same time, held against each of them alone."""

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
from service.engine.errors import DeadlineExceededError, InvalidRequestError, ScoringError
from service.engine.model import LoadedModel
from service.engine.request_encoder import RequestEncoder
from service.engine.response import RankResult, prepare, sort_candidates
from service.engine.validation import ParsedRequest
from service.protocol.messages import RankRequest
from service.telemetry.metrics import Metrics
from service.telemetry.stage_timer import StageTimer
from tests.support.missing_features import by_candidate

SECONDS = 30.0


class Held:
    """The reference, which notes batches and begins none before ``go``."""

    backend = "torch"

    def __init__(self, ranker: FrozenRanker) -> None:
        self._reference = select_backend(ranker, "torch")
        self.batches: list[tuple[int, int, tuple[str, ...]]] = []
        self.began, self.go = threading.Event(), threading.Event()

    def scores(self, halves: RequestBatch, tasks: Sequence[str]) -> Scores:
        self.batches.append((len(halves.shared), len(halves), tuple(tasks)))
        self.began.set()
        assert self.go.wait(SECONDS)
        return self._reference.scores(halves, tasks)


class Broken:
    backend = "torch"

    def scores(self, halves: RequestBatch, tasks: Sequence[str]) -> Scores:
        raise MemoryError("no room")


def served(ranker: FrozenRanker, runtime: Any) -> LoadedModel:
    return LoadedModel("hand", "1", ranker, RequestEncoder(ranker), runtime, 0.0)


@pytest.fixture
def engine() -> Iterator[Engine]:
    engine = Engine(50, Metrics())
    yield engine
    engine.close()


def request(user: int, count: int, **options: Any) -> ParsedRequest:
    items = [{"id": (7 * user + i) % 33} for i in range(min(count, 33))] + [{"id": 1000 + i} for i in range(count - 33)]
    user_and_context = {"user": {"id": f"u{user}"}, "context": {"tab": "home", "hour": user % 24}}
    return ParsedRequest.from_message(RankRequest.model_validate(user_and_context | {"items": items} | options), {})


FIRST = request(0, 3)


def alone(ranker: FrozenRanker, asked: ParsedRequest) -> RankResult:
    encoder = RequestEncoder(ranker)
    prepared = prepare(ranker, encoder, asked)
    halves = encoder(prepared.request)
    (missing,) = encoder.missing(halves, prepared.request.counts)
    return sort_candidates(
        prepared, select_backend(ranker, "torch").scores(halves, [task.name for task in prepared.tasks]), missing
    )


def assert_as_alone(ranker: FrozenRanker, asked: Sequence[ParsedRequest], answers: Sequence[RankResult]) -> None:
    for each, ranked in zip(asked, answers, strict=True):
        expected = alone(ranker, each)
        assert ranked.ids == expected.ids
        assert by_candidate(ranked.missing) == by_candidate(expected.missing)
        np.testing.assert_allclose(ranked.scores, expected.scores, atol=1e-6)


def run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(test, SECONDS))


def ask(engine: Engine, model: LoadedModel, asked: ParsedRequest, waited: float = 0.0) -> asyncio.Task[RankResult]:
    stages = StageTimer()
    stages.arrived -= waited
    return asyncio.create_task(engine.rank(model, asked, stages))


async def ask_while_held(
    engine: Engine, runtime: Held, model: LoadedModel, asked: Sequence[tuple[LoadedModel, ParsedRequest, float]]
) -> list[asyncio.Task[RankResult]]:
    """The first candidates are being scored, alone; all that is asked stands in the queue."""
    first = ask(engine, model, FIRST)
    await asyncio.to_thread(runtime.began.wait, SECONDS)
    tasks = [ask(engine, *each) for each in asked]
    await asyncio.sleep(0)
    return [first, *tasks]


def test_requests_of_the_same_tasks_share_batches_and_get_their_own_scores(
    hand_ranker: FrozenRanker, engine: Engine
) -> None:
    runtime = Held(hand_ranker)
    model = served(hand_ranker, runtime)
    asked = [request(user, 1 + 2 * user) for user in range(1, 6)] + [request(9, 120)]
    asked += [request(user, 4, tasks=tasks) for user, tasks in enumerate((["watch", "click"], ["click", "watch"]) * 2)]

    async def test() -> None:
        tasks = await ask_while_held(engine, runtime, model, [(model, each, 0.0) for each in asked])
        runtime.go.set()
        assert_as_alone(hand_ranker, [FIRST, *asked], await asyncio.gather(*tasks))

    run(test())
    everything = tuple(sorted(hand_ranker.schema.task_names))
    assert runtime.batches == [
        (1, 3, everything),
        (6, 50, everything),  # 35 candidates of five users, and the first of the large request
        (4, 16, ("click", "watch")),  # in whichever order they were asked for
        (1, 50, everything),
        (1, 50, everything),
        (1, 5, everything),
    ]


def test_versions_do_not_share_batches(hand_ranker: FrozenRanker, engine: Engine) -> None:
    one, other = Held(hand_ranker), Held(hand_ranker)

    async def test() -> None:
        models = [served(hand_ranker, one), served(hand_ranker, other)]
        asked = [(models[i % 2], request(i, 2), 0.0) for i in range(6)]
        tasks = await ask_while_held(engine, one, models[0], asked)
        one.go.set()
        other.go.set()
        await asyncio.gather(*tasks)

    run(test())
    assert [rows for _, rows, _ in one.batches] == [3, 6]
    assert [rows for _, rows, _ in other.batches] == [6]


def test_a_deadline_that_passes_in_the_queue_is_504_and_costs_no_scoring(
    hand_ranker: FrozenRanker, engine: Engine
) -> None:
    runtime = Held(hand_ranker)
    model = served(hand_ranker, runtime)

    async def test() -> None:
        asked = [(model, request(2, 4, deadline_ms=20), 1.0), (model, request(3, 5, deadline_ms=1e6), 1.0)]
        first, late, punctual = await ask_while_held(engine, runtime, model, asked)
        runtime.go.set()
        with pytest.raises(
            DeadlineExceededError, match=r"^deadline_ms = 20 passed before scoring started \(\d{4,5}\.\d ms\)$"
        ):
            await late
        await asyncio.gather(first, punctual)

    run(test())
    assert [rows for _, rows, _ in runtime.batches] == [3, 5]


def test_no_candidates_do_not_queue(hand_ranker: FrozenRanker, engine: Engine) -> None:
    runtime = Held(hand_ranker)

    async def test() -> None:
        ranked = await engine.rank(served(hand_ranker, runtime), request(1, 0), StageTimer())
        assert (ranked.ids, ranked.scores.shape) == ([], (0, 4))

    run(test())
    assert runtime.batches == []


def test_a_runtime_that_fails_fails_its_own_requests_only(hand_ranker: FrozenRanker, engine: Engine) -> None:
    async def test() -> None:
        with pytest.raises(ScoringError, match="no room"):
            await engine.rank(served(hand_ranker, Broken()), request(1, 2), StageTimer())
        runtime = Held(hand_ranker)
        runtime.go.set()
        ranked = await engine.rank(served(hand_ranker, runtime), request(1, 2), StageTimer())
        assert ranked.ids == alone(hand_ranker, request(1, 2)).ids

    run(test())


def test_requests_that_say_different_things_share_a_batch(hand_ranker: FrozenRanker, engine: Engine) -> None:
    runtime = Held(hand_ranker)
    model = served(hand_ranker, runtime)
    words = {"items": {"id": [1, 2], "features": {"genres": [["news"], None]}}}
    asked = [
        request(1, 3),
        request(2, 2, items=[{"id": "1"}, {"id": "2"}]),  # text
        request(3, 4),
        ParsedRequest.from_message(RankRequest.model_validate(words), {}),
        request(4, 2, items=[{"id": 1}, {"id": "2"}]),  # a mixture
        request(5, 2, context={"hour": 3}),
    ]

    async def test() -> None:
        tasks = await ask_while_held(engine, runtime, model, [(model, each, 0.0) for each in asked])
        runtime.go.set()
        assert_as_alone(hand_ranker, [FIRST, *asked], await asyncio.gather(*tasks))

    run(test())
    assert [rows for _, rows, _ in runtime.batches] == [3, 15]


def test_a_request_that_cannot_be_encoded_spoils_no_other(hand_ranker: FrozenRanker, engine: Engine) -> None:
    runtime = Held(hand_ranker)
    model = served(hand_ranker, runtime)

    def priced(*prices: float) -> ParsedRequest:
        items = {"id": list(range(len(prices))), "features": {"price": list(prices)}}
        return ParsedRequest.from_message(RankRequest.model_validate({"items": items}), {})

    async def test() -> None:
        many = [1.0] * 70
        asked = [priced(1.0, 2.0), priced(1.0, -3.0), priced(4.0), priced(*many, -3.0)]
        tasks = await ask_while_held(engine, runtime, model, [(model, each, 0.0) for each in asked])
        runtime.go.set()
        _, good, bad, other, late = await asyncio.gather(*tasks, return_exceptions=True)
        assert isinstance(good, RankResult)
        assert isinstance(other, RankResult)
        assert isinstance(bad, InvalidRequestError)
        assert isinstance(late, InvalidRequestError)
        assert bad.field == "items[1].features.price"
        assert late.field == "items[70].features.price"

    run(test())
