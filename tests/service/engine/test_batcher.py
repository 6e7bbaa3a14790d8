"""Batching of concurrent requests on the inference thread."""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import contextmanager
from queue import Queue
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.engine import batcher as batcher_module
from service.engine.batcher import MAX_ESTIMATES, Batcher
from service.engine.errors import DeadlineExceededError, ScoringError
from service.engine.request import FeatureRequest, RawFeatures
from service.engine.request_encoder import MissingFeatures
from service.engine.scheduler import QueueEntry
from service.engine.scoring import RequestScores
from service.telemetry.stage_timer import StageTimer

T = TypeVar("T")
Result = npt.NDArray[np.float32]
KEY: Any = "k"
NONE = MissingFeatures((), (), (), np.empty(0, np.bool_), np.empty((0, 0), np.bool_))
SECONDS = 30.0
"""Timeout of a test; only failing tests reach it."""


def numbers(values: Sequence[int]) -> FeatureRequest:
    """Return a request whose scores identify its candidates."""
    return FeatureRequest({"item": RawFeatures(np.asarray(values, np.int64), {})}, [len(values)])


def values_of(entry: QueueEntry) -> Any:
    return entry.batch_features.owners["item"].ids


def expected(values: Sequence[int], key: str) -> Result:
    return np.stack([np.asarray(values), np.full(len(values), len(key))], axis=1).astype(np.float32)


class Scorer:
    """Records every batch; with ``held``, scores a batch only after ``let_go``."""

    def __init__(self, held: bool = False) -> None:
        self.batches: list[tuple[str, list[int]]] = []
        self.started: Queue[list[int]] = Queue()
        self._held = held
        self._permits = threading.Semaphore(0)

    def __call__(self, key: Any, batch: Sequence[QueueEntry]) -> list[RequestScores | Exception]:
        values = np.concatenate([values_of(entry) for entry in batch]).tolist()
        self.batches.append((key, values))
        self.started.put(values)
        if self._held:
            assert self._permits.acquire(timeout=SECONDS)
        if -1 in values:
            raise ArithmeticError("minus one")
        return [
            LookupError("minus two") if -2 in ids else RequestScores(expected(ids, key), NONE, 0, 0, None)
            for ids in map(values_of, batch)
        ]

    def let_go(self, batches: int = 1) -> None:
        self._permits.release(batches)

    async def next_batch(self) -> list[int]:
        """Wait until the thread scores the next batch, and return its values."""
        return await asyncio.to_thread(self.started.get, timeout=SECONDS)


@contextmanager
def running_batcher(scorer: Any, max_rows: int) -> Any:
    batcher = Batcher(scorer, max_rows)
    try:
        yield batcher
    finally:
        batcher.close()


def run(test: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(asyncio.wait_for(test, SECONDS))


@pytest.fixture
def scorer() -> Scorer:
    return Scorer(held=True)


@pytest.fixture
def batcher(scorer: Scorer) -> Iterator[Batcher]:
    """A batcher of at most 10 rows per batch."""
    with running_batcher(scorer, 10) as batcher:
        yield batcher


def submit(batcher: Batcher, values: Sequence[int], key: Any = "k", deadline: float = math.inf) -> asyncio.Task[Result]:
    async def whole() -> Result:
        parts = await batcher.submit(key, numbers(values), StageTimer(), deadline)
        return np.concatenate([part.scores for part in parts])

    return asyncio.ensure_future(whole())


async def test_batcher_requests_during_scoring_form_next_batch(scorer: Scorer, batcher: Batcher) -> None:
    first = submit(batcher, [1, 2])
    assert await scorer.next_batch() == [1, 2]
    others = [submit(batcher, [10 * i, 10 * i + 1]) for i in range(1, 4)]
    await asyncio.sleep(0)  # now they are queued
    scorer.let_go(2)
    np.testing.assert_array_equal(await first, expected([1, 2], "k"))
    for i, other in enumerate(others, start=1):
        np.testing.assert_array_equal(await other, expected([10 * i, 10 * i + 1], "k"))
    assert scorer.batches == [("k", [1, 2]), ("k", [10, 11, 20, 21, 30, 31])]


async def test_batcher_failed_batch_fails_only_its_requests(scorer: Scorer, batcher: Batcher) -> None:
    before = submit(batcher, [1])
    await scorer.next_batch()
    bad, beside, large = submit(batcher, [-1]), submit(batcher, [2]), submit(batcher, [3] * 25)
    other = submit(batcher, [4], key="other")
    await asyncio.sleep(0)
    scorer.let_go(10)
    results = await asyncio.gather(before, other, bad, beside, large, return_exceptions=True)
    np.testing.assert_array_equal(results[0], expected([1], "k"))
    np.testing.assert_array_equal(results[1], expected([4], "other"))
    errors = results[2:]
    assert [(type(error), str(error)) for error in errors] == [(ScoringError, "minus one")] * 3
    assert all(isinstance(error.__cause__, ArithmeticError) for error in errors if isinstance(error, Exception))
    assert len(set(map(id, errors))) == 3
    np.testing.assert_array_equal(await submit(batcher, [5]), expected([5], "k"))  # the thread survives
    batcher.close()
    assert sum(values.count(3) for _, values in scorer.batches) == 8, "the rest of a failed request was scored"


async def test_batcher_error_of_one_work_fails_only_that_request(scorer: Scorer, batcher: Batcher) -> None:
    before = submit(batcher, [0])
    await scorer.next_batch()
    bad, beside = submit(batcher, [1, -2]), submit(batcher, [2])
    await asyncio.sleep(0)
    scorer.let_go(2)
    results = await asyncio.gather(before, bad, beside, return_exceptions=True)
    assert (type(results[1]), str(results[1])) == (LookupError, "minus two")
    np.testing.assert_array_equal(results[2], expected([2], "k"))
    assert scorer.batches == [("k", [0]), ("k", [1, -2, 2])] or scorer.batches == [("k", [0]), ("k", [2, 1, -2])]


def test_batcher_failed_work_is_not_scored_further() -> None:
    scorer = Scorer()
    with running_batcher(scorer, 10) as batcher, pytest.raises(LookupError, match="minus two"):
        run(batcher.submit(KEY, numbers([-2] * 25), StageTimer()))
    assert len(scorer.batches) == 1


def test_batcher_too_few_results_raise_scoring_error() -> None:
    with running_batcher(lambda key, works: [], 10) as batcher, pytest.raises(ScoringError, match="shorter"):
        run(batcher.submit(KEY, numbers([1, 2]), StageTimer()))


async def test_batcher_requests_of_one_loop_iteration_share_batch(scorer: Scorer, batcher: Batcher) -> None:
    scorer.let_go(8)
    await asyncio.gather(*(submit(batcher, [i]) for i in range(8)))
    assert scorer.batches == [("k", list(range(8)))]


async def test_batcher_cancelled_request_is_not_scored(scorer: Scorer, batcher: Batcher) -> None:
    large = submit(batcher, range(100, 125))
    assert await scorer.next_batch() == list(range(100, 110))
    waiting, staying = submit(batcher, [1, 2]), submit(batcher, [3])
    await asyncio.sleep(0)
    large.cancel()
    waiting.cancel()
    assert await asyncio.gather(large, waiting, return_exceptions=True) != []
    assert large.cancelled()
    assert waiting.cancelled()
    scorer.let_go(2)
    np.testing.assert_array_equal(await staying, expected([3], "k"))
    batcher.close()
    assert [values for _, values in scorer.batches] == [list(range(100, 110)), [3]]


async def test_batcher_cancellation_during_scoring_does_not_affect_others(scorer: Scorer, batcher: Batcher) -> None:
    first = submit(batcher, [0])
    await scorer.next_batch()
    leaving, staying = submit(batcher, [1]), submit(batcher, [2])
    await asyncio.sleep(0)
    scorer.let_go()
    await first
    assert await scorer.next_batch() == [1, 2]
    leaving.cancel()
    await asyncio.wait([leaving])
    scorer.let_go()
    np.testing.assert_array_equal(await staying, expected([2], "k"))


async def test_batcher_deadline_exceeded_in_queue_raises_without_scoring(scorer: Scorer, batcher: Batcher) -> None:
    first = submit(batcher, [1])
    await scorer.next_batch()
    expired = submit(batcher, [2], deadline=time.monotonic() - 1)
    in_time = submit(batcher, [3], deadline=time.monotonic() + 2 * SECONDS)
    await asyncio.sleep(0)
    scorer.let_go(2)
    with pytest.raises(DeadlineExceededError):
        await expired
    await asyncio.gather(first, in_time)
    batcher.close()
    assert [values for _, values in scorer.batches] == [[1], [3]]


async def test_batcher_close_scores_queue_and_rejects_new_work(scorer: Scorer, batcher: Batcher) -> None:
    queued = [submit(batcher, range(start, start + 15)) for start in (0, 100, 200)]
    await scorer.next_batch()
    closing = asyncio.ensure_future(asyncio.to_thread(batcher.close))
    scorer.let_go(10)
    await closing
    for start, task in zip((0, 100, 200), queued, strict=True):
        np.testing.assert_array_equal(await task, expected(range(start, start + 15), "k"))
    with pytest.raises(RuntimeError, match="closed"):
        await batcher.submit(KEY, numbers([1]), StageTimer())


async def test_batcher_wakes_event_loop_once_per_batch(
    scorer: Scorer, batcher: Batcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    wake_ups: list[Any] = []
    first = submit(batcher, [0])
    await scorer.next_batch()
    loop = asyncio.get_running_loop()
    wake = loop.call_soon_threadsafe
    others = [submit(batcher, [i]) for i in range(1, 9)]
    await asyncio.sleep(0)
    monkeypatch.setattr(loop, "call_soon_threadsafe", lambda *call: (wake_ups.append(call), wake(*call)))
    scorer.let_go(2)
    await asyncio.gather(first, *others)
    monkeypatch.undo()
    assert len(wake_ups) == 2


def test_batcher_closed_event_loop_does_not_stop_thread(scorer: Scorer, batcher: Batcher) -> None:
    async def abandon() -> None:
        abandoned = submit(batcher, [1])
        await scorer.next_batch()
        abandoned.cancel()

    run(abandon())
    scorer.let_go(2)
    (result,) = run(batcher.submit(KEY, numbers([2]), StageTimer()))
    np.testing.assert_array_equal(result.scores, expected([2], "k"))


@pytest.fixture
def short_seconds(monkeypatch: pytest.MonkeyPatch) -> float:
    """A limit of short batches that other work on the machine does not reach."""
    monkeypatch.setattr(batcher_module, "SHORT_SECONDS", 0.1)
    return 0.1


class ThreadRecorder(Scorer):
    """Records which thread scores each batch, and takes ``seconds`` of CPU time for it."""

    def __init__(self, seconds: float = 0.0) -> None:
        super().__init__()
        self.threads: list[int] = []
        self.seconds = seconds

    def __call__(self, key: Any, batch: Sequence[QueueEntry]) -> list[RequestScores | Exception]:
        self.threads.append(threading.get_ident())
        end = time.thread_time() + self.seconds
        while time.thread_time() < end:
            pass
        return super().__call__(key, batch)


def test_batcher_scores_a_short_request_that_is_alone_on_the_event_loop(short_seconds: float) -> None:
    scorer = ThreadRecorder()

    async def test() -> None:
        for rows in (5, 5, 3, 6, 6):
            np.testing.assert_array_equal(await submit(batcher, range(rows)), expected(range(rows), "k"))
        await submit(batcher, [1], key="other")
        with pytest.raises(ScoringError, match="minus one"):
            await submit(batcher, [-1])
        with pytest.raises(LookupError, match="minus two"):
            await submit(batcher, [-2])

    with running_batcher(scorer, 10) as batcher:
        run(test())
    own = [thread == threading.get_ident() for thread in scorer.threads]
    assert own == [False, True, True, False, True, False, True, True]


def test_batcher_hands_requests_that_take_long_or_are_not_alone_to_the_thread(short_seconds: float) -> None:
    scorer = ThreadRecorder()

    async def test() -> None:
        await submit(batcher, range(5))
        await asyncio.gather(submit(batcher, [1]), submit(batcher, [2]))
        scorer.seconds = 2 * short_seconds
        await submit(batcher, range(5))
        scorer.seconds = 0.0
        await submit(batcher, range(5))

    with running_batcher(scorer, 10) as batcher:
        run(test())
    assert [thread == threading.get_ident() for thread in scorer.threads] == [False, False, True, False]


def test_batcher_scores_requests_that_arrive_during_scoring_on_the_event_loop(short_seconds: float) -> None:
    scorer = Scorer()
    later: list[asyncio.Task[Result]] = []

    def score(key: Any, batch: Sequence[QueueEntry]) -> list[RequestScores | Exception]:
        if len(scorer.batches) == 1:
            later.append(submit(batcher, [7]))
        return scorer(key, batch)

    async def test() -> None:
        for _ in range(2):
            await submit(batcher, [1])
        np.testing.assert_array_equal(await later[0], expected([7], "k"))

    with running_batcher(score, 10) as batcher:
        run(test())


def test_batcher_remembers_the_duration_of_a_bounded_number_of_keys() -> None:
    async def test() -> None:
        for number in range(2 * MAX_ESTIMATES):
            await submit(batcher, [1], key=f"k{number}")

    with running_batcher(Scorer(), 10) as batcher:
        run(test())
        assert len(batcher._short_rows) <= MAX_ESTIMATES


requests = st.lists(
    st.tuples(
        st.integers(1, 60),  # rows
        st.sampled_from(["click", "like it", "both"]),
        st.integers(0, 3),  # event loop iterations before it arrives
        st.booleans(),  # is cancelled
    ),
    max_size=30,
)


@given(requests, st.integers(1, 40))
def test_batcher_any_requests_get_their_own_rows_in_order(
    requests: list[tuple[int, str, int, bool]], max_rows: int
) -> None:
    scorer = Scorer()

    async def test() -> None:
        tasks = []
        for i, (rows, key, iterations, cancelled) in enumerate(requests):
            for _ in range(iterations):
                await asyncio.sleep(0)
            tasks.append(submit(batcher, range(1000 * i, 1000 * i + rows), key))
            if cancelled:
                await asyncio.sleep(0)
                tasks[-1].cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        for i, ((rows, key, _, cancelled), result) in enumerate(zip(requests, results, strict=True)):
            if isinstance(result, asyncio.CancelledError):
                assert cancelled
            else:
                np.testing.assert_array_equal(result, expected(range(1000 * i, 1000 * i + rows), key))

    with running_batcher(scorer, max_rows) as batcher:
        run(test())
    scored = [value for _, values in scorer.batches for value in values]
    assert len(set(scored)) == len(scored), "a row was scored twice"
    for key, values in scorer.batches:
        assert 0 < len(values) <= max_rows
        assert {requests[value // 1000][1] for value in values} == {key}
