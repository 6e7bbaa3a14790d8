"""One start a turn of the event loop."""

from __future__ import annotations

import asyncio

from service.turnstile import Turnstile


def test_the_first_starts_at_once_and_each_other_in_a_turn_of_its_own() -> None:
    async def test() -> None:
        turnstile, started = Turnstile(), list[str]()
        for name in "abc":
            turnstile.enter(lambda name=name: started.append(name))  # type: ignore[misc]
        seen = []
        for _ in range(4):
            seen.append("".join(started))
            await asyncio.sleep(0)
        assert seen == ["a", "ab", "abc", "abc"]
        turnstile.enter(lambda: started.append("d"))
        assert started == list("abcd")

    asyncio.run(test())
