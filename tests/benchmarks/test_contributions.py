"""Tests of the benchmark of contributions (``python -m benchmarks.contributions``)."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from benchmarks import contributions


def test_table_has_a_row_per_number_of_rows_and_tasks(
    bundle: Path, logs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = next((logs / "log").rglob("*.parquet"))
    monkeypatch.setattr(contributions, "TURNS", 1)
    monkeypatch.setattr(sys, "argv", ["contributions", str(bundle), str(file)])
    contributions.main()
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("8 tasks, ")
    rows = [line.split("|")[1:-1] for line in lines[4:]]
    assert [row[0].strip() for row in rows] == ["1", "1", "5", "5", "20", "20"]
    assert all(float(row[3]) > 0 and float(row[4]) >= 16 for row in rows)
