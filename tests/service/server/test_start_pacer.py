"""A batch's worth of starts a turn of the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from service.server.start_pacer import StartPacer


@pytest.mark.parametrize(
    ("rows", "turns"),
    [
        ([100, 100, 100], ["a", "ab", "abc", "abc"]),  # each a turn of its own
        ([60, 40, 30, 80], ["ab", "abc", "abcd", "abcd"]),
        ([300, 10, 10], ["a", "abc", "abc", "abc"]),  # more than a turn
        ([0] * 40, ["x" * 32, "x" * 40, "x" * 40, "x" * 40]),
    ],
)
def test_starts_in_turns(rows: Sequence[int], turns: Sequence[str]) -> None:
    names = "abcd" if len(rows) < 5 else "x" * len(rows)

    async def test() -> None:
        turnstile, started = StartPacer(100), list[str]()
        for name, size in zip(names, rows, strict=False):
            turnstile.submit(lambda name=name: started.append(name), size)  # type: ignore[misc]
        seen = []
        for _ in turns:
            seen.append("".join(started))
            await asyncio.sleep(0)
        assert seen == turns
        turnstile.submit(lambda: started.append("z"), 1)
        assert started[-1] == "z", "who comes alone starts at once"

    asyncio.run(test())
