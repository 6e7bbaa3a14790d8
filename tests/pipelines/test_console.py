from __future__ import annotations

import io
import sys
import time
from collections.abc import Iterator

import pytest

from pipelines.console import LINE_INTERVAL_SECONDS, Progress, print_status


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Clock:
    """A clock that only the test advances."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[Clock]:
    with monkeypatch.context() as patch:
        clock = Clock()
        patch.setattr(time, "monotonic", clock)
        yield clock


def test_print_status_writes_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    print_status("half way")
    assert capsys.readouterr() == ("", "half way\n")


# Progress without terminal.


def test_close_without_summary_prints_nothing(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    progress = Progress("reading", unit="rows")
    progress.advance(7)
    progress.close(summary=False)
    assert capsys.readouterr().err == ""


def test_close_without_terminal_prints_count_and_duration(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    progress = Progress("reading", unit="rows")
    progress.advance(1200)
    clock.now += 2.5
    progress.advance(34)
    progress.close()
    assert capsys.readouterr() == ("", "reading: 1,234 rows in 2.5 s\n")


def test_advance_without_terminal_prints_a_line_per_interval(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    progress = Progress("training", unit="steps", total=2000)
    for _ in range(10):
        clock.now += LINE_INTERVAL_SECONDS / 4
        progress.advance(100, "loss 0.5")
    lines = capsys.readouterr().err.splitlines()
    assert lines == ["training: 400 of 2,000 steps loss 0.5", "training: 800 of 2,000 steps loss 0.5"]


def test_advance_without_total_and_note_prints_only_the_count(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    progress = Progress("reading", unit="rows")
    clock.now += LINE_INTERVAL_SECONDS
    progress.advance(7)
    assert capsys.readouterr().err == "reading: 7 rows\n"


def test_advance_within_the_interval_prints_nothing(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    progress = Progress("reading", unit="rows")
    for _ in range(1000):
        progress.advance(1)
    assert capsys.readouterr() == ("", "")


# Progress on terminal.


def test_progress_on_terminal_draws_a_bar_and_a_final_line(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    progress = Progress("training", unit="steps", total=10)
    assert "training:   0%" in terminal.getvalue()
    progress.advance(10, "loss 0.5")
    progress.close()
    assert "training: 10 steps in " in terminal.getvalue().splitlines()[-1]


def test_print_status_on_terminal_prints_above_the_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    progress = Progress("training", unit="steps", total=10)
    print_status("the gates chose 3 experts")
    progress.close()
    before, after = terminal.getvalue().split("the gates chose 3 experts\n")
    assert before.endswith("\r")
    assert "training:   0%" in before
    assert "training:   0%" in after


@pytest.mark.parametrize(("rank", "expected"), [("0", "done\n"), ("1", "")])
def test_print_status_prints_only_on_the_first_rank(
    rank: str, expected: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RANK", rank)
    print_status("done")
    assert capsys.readouterr().err == expected
