"""The benchmark of sessions checks the scores of each contender and measures it."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import onnx_sessions
from benchmarks.serving.reference import write_reference


def test_contenders_give_the_scores_of_the_service_and_are_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(onnx_sessions, "SECONDS", 0.0)
    write_reference(tmp_path / "reference", items=20, users=5)
    times = onnx_sessions.compare(tmp_path / "reference", candidates=10, turns=2)
    assert times[onnx_sessions.SERVICE] == [1.0, 1.0]
    assert {onnx_sessions.BINDING, *onnx_sessions.OPTIONS, *onnx_sessions.ENTRIES} < times.keys()
    assert all(min(ratios) > 0 for ratios in times.values())
