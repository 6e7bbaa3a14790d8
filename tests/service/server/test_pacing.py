"""Pacing: how many requests start per iteration of the event loop, and how long connections pause."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from service.protocol.problems import RETRY_AFTER_SECONDS
from service.server.pacing import EARLY_SECONDS, RESUMED_PER_SECOND, Pacer, RejectionPacer, StartPacer


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


def test_pacer_pauses_add_up_to_the_rate_until_the_maximum() -> None:
    pacer = Pacer(rate=10, max_pause=3)
    assert [pacer.next_pause(amount, now=5.0) for amount in (1, 19, 5, 100)] == pytest.approx([0.1, 2.0, 2.5, 3.0])
    assert pacer.next_pause(5, now=6.0) == pytest.approx(2.5), "one second of the pauses has passed"
    assert pacer.next_pause(5, now=60.0) == pytest.approx(0.5), "an idle pacer saves nothing up"


def test_rejection_pacer_single_connection_pauses_briefly() -> None:
    pacer = RejectionPacer()
    assert all(pacer.next_pause(now) <= 1 / RESUMED_PER_SECOND + 1e-9 for now in (10.0, 11.0, 12.0))


def test_rejection_pacer_many_connections_pause_for_less_than_an_early_retry_and_not_alike() -> None:
    pacer = RejectionPacer()
    pauses = [pacer.next_pause(10.0) for _ in range(2_500)]
    assert pauses[0] < 0.01
    assert max(pauses) < EARLY_SECONDS < RETRY_AFTER_SECONDS
    crowded = pauses[RESUMED_PER_SECOND:]
    assert min(crowded) > RETRY_AFTER_SECONDS / 3
    assert len(set(crowded)) == len(crowded)
    assert pacer.next_pause(20.0) <= 1 / RESUMED_PER_SECOND + 1e-9, "the crowd is over"
