"""Tests of the attribution of stacks to areas."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.serving import stacks

ROOT = Path(__file__).parents[3]
OURS = [place for place, _ in stacks.RULES if place.startswith(("service/", "ranking/"))]


def test_rules_name_existing_files() -> None:
    assert not [place for place in OURS if not (ROOT / place).exists()]


@pytest.mark.parametrize(
    ("frames", "area"),
    [
        (["run (/a/asyncio/runners.py:118)"], stacks.SOCKETS),
        (["run (/a/asyncio/runners.py:118)", "rank (/b/service/http/rank_handler.py:7)"], stacks.LAYERS),
        (["rank (/b/service/http/rank_handler.py:7)", "encode (/b/service/http/encode.py:40)"], stacks.JSON),
        (
            ["scores (/b/service/backends/onnx.py:66)", "concatenate (/a/numpy/_core/multiarray.py:3)"],
            stacks.FORWARD,
        ),
        (["main (/b/main.py:1)", "<genexpr> (<string>:1)"], stacks.OTHER),
        ([], stacks.OTHER),
    ],
)
def test_area_of_is_that_of_the_innermost_known_frame(frames: list[str], area: str) -> None:
    assert stacks.area_of(frames) == area


def test_seconds_by_area_distributes_the_cpu_time_of_each_thread() -> None:
    text = """\
thread (7): MainThread;run (/a/asyncio/runners.py:118) 30
thread (7): MainThread;run (/a/asyncio/runners.py:118);_rows (/b/service/http/encode.py:90) 10
thread (9): scorer (1);scores (/b/service/backends/onnx.py:66) 400
"""
    seconds = stacks.seconds_by_area(text, {7: 2.0, 9: 6.0, 11: 0.5})
    assert {area: value for area, value in seconds.items() if value} == {
        stacks.SOCKETS: 1.5,
        stacks.JSON: 0.5,
        stacks.FORWARD: 6.0,
        stacks.OTHER: 0.5,
    }
