"""``StartPacer``: how many requests start per iteration of the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from service.server.context import StartPacer


@pytest.mark.parametrize(
    ("rows", "started_by_iteration"),
    [
        ([100, 100, 100], ["a", "ab", "abc", "abc"]),
        ([60, 40, 30, 80], ["ab", "abc", "abcd", "abcd"]),
        ([300, 10, 10], ["a", "abc", "abc", "abc"]),
        ([0] * 40, ["x" * 32, "x" * 40, "x" * 40, "x" * 40]),
    ],
    ids=["one batch each", "mixed sizes", "larger than a batch", "no rows"],
)
def test_start_pacer_starts_at_most_a_batch_per_iteration(
    rows: Sequence[int], started_by_iteration: Sequence[str]
) -> None:
    names = "abcd" if len(rows) < 5 else "x" * len(rows)

    async def run() -> None:
        pacer, started = StartPacer(100), list[str]()
        for name, count in zip(names, rows, strict=False):
            pacer.submit(lambda name=name: started.append(name), count)  # type: ignore[misc]
        observed = []
        for _ in started_by_iteration:
            observed.append("".join(started))
            await asyncio.sleep(0)
        assert observed == started_by_iteration
        pacer.submit(lambda: started.append("z"), 1)
        assert started[-1] == "z", "a single request starts at once"

    asyncio.run(run())
