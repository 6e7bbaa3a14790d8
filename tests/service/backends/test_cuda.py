"""Captured CUDA graphs; these tests need a GPU, and test_parity.py then runs the cuda backend on it, too."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
import torch

from ranking.frozen.ranker import FrozenRanker
from service.backends import cuda
from service.backends.cuda import CudaBackend
from tests.service.backends.test_parity import TASKS, DrawRows, encode_requests

pytestmark = pytest.mark.usefixtures("gpu")


@contextmanager
def repeated(*functions: object) -> Iterator[list[BaseException]]:
    """Call each function in a thread of its own until the block ends; yields the list of their errors."""
    stopped, errors = threading.Event(), list[BaseException]()

    def repeat(function: object) -> None:
        try:
            while not stopped.is_set():
                function()  # type: ignore[operator]
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=repeat, args=(function,)) for function in functions]
    for thread in threads:
        thread.start()
    try:
        yield errors
    finally:
        stopped.set()
        for thread in threads:
            thread.join()


def test_scores_while_other_threads_load_versions_match(hand_ranker: FrozenRanker, draw_rows: DrawRows) -> None:
    batch, expected = encode_requests(hand_ranker, draw_rows, [3, 1, 20])
    device = torch.device("cuda")

    def load() -> None:
        CudaBackend(hand_ranker, device).scores(batch, TASKS)

    def allocate() -> None:
        torch.zeros(1 << 22, device=device).sum().item()
        torch.cuda.empty_cache()

    with repeated(load, load, allocate) as errors:
        for _ in range(20):
            backend = CudaBackend(hand_ranker, device)
            for _ in range(3):
                np.testing.assert_allclose(backend.scores(batch, TASKS), expected, rtol=1e-5, atol=1e-5)
    assert not errors


def test_evictions_while_other_threads_capture_do_not_disturb_scores(
    hand_ranker: FrozenRanker, draw_rows: DrawRows, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Protects requests while a version is loaded; captures many graphs."""
    monkeypatch.setattr(cuda, "CACHED_GRAPHS", 2)
    device = torch.device("cuda")
    batches = [encode_requests(hand_ranker, draw_rows, sizes) for sizes in ([3], [20], [40], [80, 1], [5, 5])]

    def load() -> None:
        CudaBackend(hand_ranker, device).scores(batches[0][0], TASKS)

    backend = CudaBackend(hand_ranker, device)
    with repeated(load, load) as errors:
        for _ in range(20):
            for batch, expected in batches:
                np.testing.assert_allclose(backend.scores(batch, TASKS), expected, rtol=1e-5, atol=1e-5)
    assert not errors


def test_scores_of_any_bucket_do_not_change_those_of_another(hand_ranker: FrozenRanker, draw_rows: DrawRows) -> None:
    backend = CudaBackend(hand_ranker, torch.device("cuda"))
    batches = [encode_requests(hand_ranker, draw_rows, sizes) for sizes in ([200], [3], [40, 5], [1, 1, 1], [500, 70])]
    for _ in range(3):
        results = [backend.scores(batch, TASKS) for batch, _ in batches]
        for scores, (_, expected) in zip(results, batches, strict=True):
            np.testing.assert_allclose(scores, expected, rtol=1e-5, atol=1e-5)


def test_scores_shares_weights_between_buckets(hand_ranker: FrozenRanker, draw_rows: DrawRows) -> None:
    backend = CudaBackend(hand_ranker, torch.device("cuda"))
    for sizes in ([1], [20], [40], [3, 3]):
        backend.scores(encode_requests(hand_ranker, draw_rows, sizes)[0], TASKS)
    assert len(backend._bodies) == 1
    backend.scores(encode_requests(hand_ranker, draw_rows, [1])[0], TASKS[:1])
    assert len(backend._bodies) == 2
