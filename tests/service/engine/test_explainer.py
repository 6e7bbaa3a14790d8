"""Waiting explanations: one is computed at a time, and requests that give up leave no work behind."""

from __future__ import annotations

import asyncio
import math
import threading
import time
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any

import pytest

from service.engine import explainer
from service.engine.errors import DeadlineExceededError, TooManyExplanationsError
from service.engine.explainer import MAX_WAITING, Explainer
from service.telemetry.metrics import Metrics

RESULT: Any = SimpleNamespace(order=[0])
NONE: Any = None


async def test_requests_that_give_up_leave_no_work_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    started, release = threading.Event(), threading.Event()
    computed = []

    def compute(graph: str, *_: Any) -> str:
        computed.append(graph)
        started.set()
        assert release.wait(30)
        return graph

    monkeypatch.setattr(explainer, "_contributions", compute)
    monkeypatch.setattr(explainer, "replace", lambda _, contributions: contributions)
    explain = Explainer(Metrics().queue_explanations)

    def start(name: Any, deadline: float = math.inf) -> asyncio.Task[Any]:
        return asyncio.create_task(explain.explain(name, NONE, RESULT, deadline))

    first, disconnected = start("first"), start("disconnected")
    await asyncio.to_thread(started.wait, 30)
    late = start("late", time.monotonic() + 0.1)
    with pytest.raises(DeadlineExceededError, match="before the explanation started"):
        await late
    first.cancel()  # while the thread computes its explanation
    disconnected.cancel()
    last = start("last")
    await asyncio.wait([first, disconnected])
    assert computed == ["first"]
    release.set()
    assert await last == "last"
    assert computed == ["first", "last"]
    explain.close()


def test_reserve_beyond_the_limit_raises_until_a_place_is_free() -> None:
    explain = Explainer(Metrics().queue_explanations)
    with ExitStack() as places:
        for _ in range(MAX_WAITING):
            places.enter_context(explain.reserve())
        with pytest.raises(TooManyExplanationsError):
            places.enter_context(explain.reserve())
    with explain.reserve():
        pass
    explain.close()
