"""The engine alone is the service's, and counts what it did in all of the time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pipelines.bench import bare


class Clocked:
    """Takes a tenth of a second for a request, and a whole one for every fifth."""

    def __init__(self) -> None:
        self.now, self.asked = 0.0, []

    def scores(self, halves: Any, tasks: Any) -> None:
        self.asked.append((len(halves), tuple(tasks)))
        self.now += 1.0 if len(self.asked) % 5 == 0 else 0.1


def test_slow_requests_count_as_much_as_they_take(reference: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Clocked()
    monkeypatch.setattr(bare, "select_backend", lambda *_: engine)
    monkeypatch.setattr(bare.time, "perf_counter", lambda: engine.now)
    found = bare.measure(reference, 10, 14.0, 1)
    assert found == pytest.approx(1 / 0.28, rel=0.02)
    assert {size for size, _ in engine.asked} == {10}
