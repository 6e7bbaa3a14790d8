"""What the tables and the picture say of results, and whether aims are reached."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from pipelines.bench import aims, plots, report
from pipelines.bench.engines import LOOK_UP

ROOT = Path(__file__).parents[3]
STAGES = {"parse": 0.1, "look-up": 0.2, "queue": 5.0, "forward": 2.0, "write": 0.3}


def load(rate: float, p50: float = 2.0, p99: float = 4.0, failed: int = 0, sent: int = 110) -> dict[str, Any]:
    return {
        "per_second": rate,
        "p50": p50,
        "p99": p99,
        "stages": STAGES,
        "failed": {"429": failed} if failed else {},
        "bytes": 2048.0,
        "requests": 100,
        "failed_p99": {"429": 12.0} if failed else {},
        "sent": sent,
        "cpu": 1.5,
        "client_cpu": 0.2,
    }


def results() -> dict[str, Any]:
    """Two turns of everything."""
    spent = {
        "dense, eager": [0.040, 0.050],
        "frozen, onnxruntime": [0.008, 0.010],
        "dense, onnxruntime": [0.014, 0.016],
        "one task, onnxruntime": [0.004, 0.005],
        "no split, onnxruntime": [0.0096, 0.011],
        LOOK_UP: [0.0001, 0.0002],
        "roofline": [0.006, 0.005],
        "roofline, no split": [0.008, 0.007],
    }
    forms, sizes, clients = ["ids", "columns", "rows"], [100, 500], [1, 64]
    http = {f"{form} {size} {n}": load(80.0) for form in forms for size in sizes for n in clients}
    shares = {f"100 {share}": load(50 * share, 2.0, 5.0) for share in (0.3, 0.7)} | {"100 most": 50.0}
    cases = [
        {
            "candidates": n,
            "cores": cores,
            "tuned": {"max_batch_size": 32, "batch_timeout": 0.002, "fast_queue": True, "workers": cores},
            "turns": [{"ranker": load(300.0, p99=3.0), "litserve": load(100.0, p99=6.0)}] * 2,
        }
        for cores in (1, 2)
        for n in (10, 100)
    ]
    crowd = {"alone": load(100.0), "crowd": load(90.0, 5.0, 10.0, failed=880, sent=1100), "after": load(95.0)}
    attack = {
        "slow": {"before": load(100.0), "during": load(90.0, p99=6.0)},
        "idle": dict.fromkeys(("before", "during"), load(9)),
    }
    measured = {
        "engines": {"sizes": {"100": spent, "500": spent}},
        "http": {"forms": forms, "candidates": sizes, "clients": clients, "turns": [http] * 2},
        "bare": {"candidates": 100, "clients": 64, "turns": [{"service": load(80.0), "engine": 100.0}] * 2},
        "open": {"form": "ids", "candidates": [100], "shares": [0.3, 0.7], "turns": [shares] * 2},
        "batching": {
            "candidates": 10,
            "clients": 32,
            "turns": [{"batches": load(150.0), "no batches": load(60.0, failed=3)}] * 2,
        },
        "overload": {
            "candidates": 300,
            "clients": 32,
            "times": 5,
            "admitted": 50,
            "turns": [{**crowd, "grown": grown} for grown in (1.0, 1.02)],
        },
        "attacks": {"candidates": 300, "clients": 4, "turns": [attack] * 2},
        "rival": {"clients": 32, "form": "ids", "cases": cases},
    }
    about = {"threads": 1, "model": "reference", "machine": {"litserve": "0.2.19"}}
    return {part: {**copy.deepcopy(about), "measured": found} for part, found in measured.items()}


def parts() -> dict[str, Any]:
    return {part: found["measured"] for part, found in results().items()}


@pytest.mark.parametrize(
    ("what", "found", "bound"),
    [
        ("frozen / dense eager, 500 candidates", "5.00 (5.00 – 5.00)", "≥ 4"),
        ("frozen / dense in the same runtime, 500", "1.68 (1.60 – 1.75)", "≥ 1.6"),
        ("one task only / all tasks, 500", "2.00 (2.00 – 2.00)", "≥ 1.5"),
        ("of the roofline, 500", "0.62 (0.50 – 0.75)", "≥ 0.6"),
        ("look-up of 500 ids / frozen", "0.016 (0.013 – 0.020)", "≤ 0.03"),
        ("user/item split / no split, 500", "1.15 (1.10 – 1.20)", "≥ 1.08"),
        ("HTTP / bare engine, ids, 100 candidates, 64 clients", "0.80 (0.80 – 0.80)", "≥ 0.65"),
        ("batching / no batching, 10 candidates, 32 clients", "2.50 (2.50 – 2.50)", "≥ 1.5"),
        ("requests/s of LitServe's, one core, 100 candidates, 32 clients", "3.00 (3.00 – 3.00)", "≥ 1.3"),
        ("p99 of LitServe's, two cores, 10 candidates, 32 clients", "0.50 (0.50 – 0.50)", "≤ 0.75"),
        ("p99 / p50 at 70 % of the most, ids, 100 candidates", "2.50 (2.50 – 2.50)", "≤ 4"),
        ("answers/s at five times the most, of the most", "0.90 (0.90 – 0.90)", "≥ 0.8"),
        ("p99 of those answers, of that at the most", "2.50 (2.50 – 2.50)", "≤ 3"),
        ("p99 of a refusal there, milliseconds", "12.00 (12.00 – 12.00)", "≤ 50"),
        ("memory after it, of that before", "1.01 (1.00 – 1.02)", "≤ 1.05"),
        ("answers/s after it, of those before", "0.95 (0.95 – 0.95)", "≥ 0.8"),
        ("p99 beside the worst of four attacks, of that before it", "1.50 (1.50 – 1.50)", "≤ 2"),
    ],
)
def test_an_aim_is_reached(what: str, found: str, bound: str) -> None:
    assert (what, found, bound, "reached") in aims.lines(parts())


def test_an_aim_is_not_reached() -> None:
    line = ("parse + look-up + write / forward, columns, 500", "0.30 (0.30 – 0.30)", "≤ 0.25", "**not reached**")
    assert line in aims.lines(parts())


def test_the_median_decides_and_not_the_best_turn() -> None:
    slow = parts()
    slow["batching"]["turns"] = [{"batches": load(rate), "no batches": load(100.0)} for rate in (140.0, 145.0, 300.0)]
    (line,) = (line for line in aims.lines(slow) if line[0].startswith("batching"))
    assert line[1:] == ("1.45 (1.40 – 3.00)", "≥ 1.5", "**not reached**")


def test_what_is_not_measured_is_said() -> None:
    some = parts()
    del some["rival"], some["engines"]["sizes"]["500"]
    lines = {line[0]: line[1:] for line in aims.lines(some)}
    assert lines["of the roofline, 500"] == ("–", "≥ 0.6", "not measured")
    assert lines["p99 of LitServe's, two cores, 100 candidates, 32 clients"] == ("–", "≤ 0.75", "not measured")
    assert lines["of the roofline, 100"][2] == "reached"


def test_every_part_has_its_table() -> None:
    text = report.text(results())
    assert "| frozen, onnxruntime | 9 | 9 |" in text
    assert "| ids | 100 | 80, 2 / 4 | 80, 2 / 4 |" in text
    assert "| rows | 500 | 0.1 | 0.2 | 5 | 2 | 0.3 | 1.5 | 2 |" in text
    assert "| 100 | 70% | 35 | 2 | 5 | 2.5 (2.5 – 2.5) |" in text
    assert "| no batches | 60, 2 / 4 (6 failed) |" in text
    assert "| 5 times that | 90 | 5 | 10 | 80% | 12 | 0 |" in text
    assert "| after it | 95 | 2 | 4 | 0% | – | 0 |" in text
    assert "| slow | 100, 2 / 4 | 90, 2 / 6 | 1.50 (1.50 – 1.50) |" in text
    assert "| 2 | 10 | 300, 2 / 3 | 100, 2 / 6 | 3.00 (3.00 – 3.00) | batches of 32, 2 ms, ZeroMQ |" in text
    assert "LitServe 0.2.19, 32 clients" in text


def test_only_the_reference_model_has_aims() -> None:
    found = results()
    assert report.text(found).startswith("### Aims")
    for part in found.values():
        part["model"] = "mine"
    assert "### Aims" not in report.text(found)


def test_parts_that_are_not_there_are_left_out() -> None:
    text = report.text({"batching": results()["batching"]})
    assert text.count("### ") == 2


def test_the_picture_has_a_panel_for_each_number_of_candidates_and_a_line_for_each_quantile() -> None:
    measured = parts()["open"]
    measured["candidates"] = [100, 500]
    for turn in measured["turns"]:
        turn |= {f"500 {share}": load(10 * share, 20.0, 50.0) for share in (0.3, 0.7)}
    picture = ElementTree.fromstring(plots.latency(measured))
    space = {"svg": "http://www.w3.org/2000/svg"}
    panels = picture.findall("svg:svg", space)
    assert len(panels) == 2
    for panel in panels:
        lines = [path for path in panel.findall("svg:path", space) if "line" in path.attrib["class"].split()]
        assert [line.find("svg:title", space).text for line in lines] == ["p99", "p50"]  # type: ignore[union-attr]
    titles = [text.text for text in picture.findall("svg:text", space)]
    assert titles[:2] == ["100 candidates", "500 candidates"]


@pytest.mark.skipif(not (ROOT / "docs/results/serving.json").exists(), reason="nothing is published yet")
def test_published_tables_are_those_of_the_published_results() -> None:
    found = json.loads((ROOT / "docs/results/serving.json").read_text())
    assert report.text(found) in (ROOT / "docs/benchmarks.md").read_text()
