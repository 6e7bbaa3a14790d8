"""The memory of answers: what it finds, what it forgets, and how processes share it."""

from __future__ import annotations

import multiprocessing
import random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from service.logs.answered_requests import MIN_SEGMENT_BYTES, AnsweredRequests
from service.settings import Settings
from tests.support.waiting import TIMEOUT_SECONDS


@pytest.fixture
def answers() -> AnsweredRequests:
    answers = AnsweredRequests(MIN_SEGMENT_BYTES)
    answers.claim()
    return answers


@pytest.mark.parametrize(
    ("items", "expected"),
    [
        (["v1", 'ü"\n'], {"v1", 'ü"\n'}),
        ([7, -(2**63)], {7, -(2**63)}),
        ([7, "7"], {7, "7"}),
        (np.array([3, 1, 2], np.int64)[::-1], {1, 2, 3}),
        (pa.array(["a", "b"]), {"a", "b"}),
        ([], set()),
    ],
)
def test_find_returns_the_items_of_an_answer(answers: AnsweredRequests, items: Any, expected: set[Any]) -> None:
    answers.add("r-1", items)
    assert answers.find("r-1") == [expected]
    assert answers.find("r-2") == []


def test_find_returns_all_answers_to_requests_with_one_id(answers: AnsweredRequests) -> None:
    answers.add("r-1", ["v1"])
    answers.add("r-2", ["v2"])
    answers.add("r-1", ["v3"])
    assert answers.find("r-1") == [{"v3"}, {"v1"}]


def test_large_answer_is_remembered_without_its_items(answers: AnsweredRequests) -> None:
    answers.add("r-1", [f"item {number}" for number in range(5_000)])
    assert answers.find("r-1") == [None]


def test_memory_keeps_the_newest_answers_and_forgets_the_oldest(answers: AnsweredRequests) -> None:
    generator = random.Random(0)
    written = []
    for number in range(20_000):
        items = [generator.randrange(10**9) for _ in range(generator.randrange(30))]
        answers.add(f"r-{number}", items)
        written.append(set(items))
        if number % 97 == 0:
            for recent in range(max(0, number - 100), number + 1):
                assert answers.find(f"r-{recent}") == [written[recent]]
    found = [number for number in range(20_000) if answers.find(f"r-{number}")]
    assert found == list(range(found[0], 20_000)), "exactly the newest answers are remembered"
    assert 200 < len(found) < 2_000
    assert all(answers.find(f"r-{number}") == [written[number]] for number in found)


def test_request_id_with_half_of_a_surrogate_pair_is_found(answers: AnsweredRequests) -> None:
    answers.add("\ud800", ["v1"])
    assert answers.find("\ud800") == [{"v1"}]


def test_process_without_a_segment_remembers_nothing() -> None:
    answers = AnsweredRequests(MIN_SEGMENT_BYTES)
    answers.add("r-1", ["v1"])
    assert answers.find("r-1") == []


def test_settings_without_feedback_create_none(tmp_path: Any) -> None:
    assert AnsweredRequests.from_settings(Settings(repository=tmp_path)) is None


def add_answers(answers: AnsweredRequests, name: str, barrier: Any) -> None:
    """Claim a segment, wait until every process has one, and remember answers."""
    answers.claim()
    barrier.wait(TIMEOUT_SECONDS)
    for number in range(100):
        answers.add(f"{name}-{number}", [name, number])


def test_processes_find_the_answers_of_each_other_and_a_replacement_continues(
    caplog: pytest.LogCaptureFixture,
) -> None:
    context = multiprocessing.get_context("spawn")
    answers = AnsweredRequests(2 * MIN_SEGMENT_BYTES, 2)

    def run(*names: str) -> None:
        barrier = context.Barrier(len(names))
        processes = [context.Process(target=add_answers, args=(answers, name, barrier)) for name in names]
        for process in processes:
            process.start()
        for process in processes:
            process.join(TIMEOUT_SECONDS)
            assert process.exitcode == 0

    run("a", "b")
    run("c")
    for name in "abc":
        for number in range(100):
            assert answers.find(f"{name}-{number}") == [{name, number}]
    assert not caplog.messages
