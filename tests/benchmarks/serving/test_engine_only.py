"""Tests of the rate of the engine only."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks.serving import engine_only


class SlowBackend:
    """Backend with its own clock: a request takes 0.1 s, and every fifth 1 s."""

    def __init__(self) -> None:
        self.now, self.sizes = 0.0, []

    def scores(self, batch: Any, tasks: Any) -> None:
        self.sizes.append(len(batch))
        self.now += 1.0 if len(self.sizes) % 5 == 0 else 0.1


def test_measure_divides_all_requests_by_the_whole_duration(reference: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    backend = SlowBackend()
    monkeypatch.setattr(engine_only, "select_backend", lambda *_: backend)
    monkeypatch.setattr(engine_only.time, "perf_counter", lambda: backend.now)
    rate = engine_only.measure(reference, 10, 14.0, 1)
    assert rate == pytest.approx(1 / 0.28, rel=0.02)
    assert set(backend.sizes) == {10}
