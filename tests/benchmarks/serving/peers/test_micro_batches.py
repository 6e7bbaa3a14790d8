"""Tests of micro-batches."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import numpy as np
import orjson
import pytest
from fastapi import FastAPI

from benchmarks.serving.peers.micro_batches import MicroBatcher
from benchmarks.serving.peers.protocol import Body, Scores


class CountingScorer:
    """Scores each candidate with its id and records the sizes of batches."""

    tasks = ("click",)

    def __init__(self) -> None:
        self.sizes: list[int] = []

    def score(self, bodies: Sequence[Body]) -> list[Scores]:
        self.sizes.append(len(bodies))
        return [np.array(body["items"]["id"], np.float32)[:, None] for body in bodies]


def best_ids(batcher: MicroBatcher, requests: Sequence[list[int]]) -> list[int]:
    async def run() -> list[bytes]:
        async with batcher.lifespan(FastAPI()):
            bodies = [orjson.dumps({"items": {"id": ids}}) for ids in requests]
            return await asyncio.gather(*map(batcher.answer, bodies))

    return [orjson.loads(data)["items"][0]["id"] for data in asyncio.run(run())]


@pytest.mark.parametrize("threads", [False, True])
def test_micro_batcher_answers_each_request_from_a_batch(threads: bool) -> None:
    scorer = CountingScorer()
    batcher = MicroBatcher(scorer, size=2, wait=0.0, threads=threads)
    assert best_ids(batcher, [[1, 5], [7, 2], [3]]) == [5, 7, 3]
    assert scorer.sizes == [2, 1]


def test_micro_batcher_waits_for_a_full_batch() -> None:
    scorer = CountingScorer()
    batcher = MicroBatcher(scorer, size=2, wait=30.0, threads=False)

    async def run() -> None:
        async with batcher.lifespan(FastAPI()):
            first = asyncio.create_task(batcher.answer(b'{"items":{"id":[1]}}'))
            await asyncio.sleep(0.05)
            assert not first.done()
            await asyncio.gather(first, batcher.answer(b'{"items":{"id":[2]}}'))

    asyncio.run(run())
    assert scorer.sizes == [2]
