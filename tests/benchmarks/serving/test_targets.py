"""Tests of the performance targets."""

from __future__ import annotations

from benchmarks.serving import targets
from tests.support.bench_results import load, measured_values

MET = {
    ("speedup: frozen over dense eager, 500 candidates", "5.00 (5.00 – 5.00)", "≥ 4"),
    ("speedup: frozen over dense in the same runtime, 500 candidates", "1.68 (1.60 – 1.75)", "≥ 1.6"),
    ("speedup: one task over all tasks, 500 candidates", "2.00 (2.00 – 2.00)", "≥ 1.5"),
    ("share of the roofline, 500 candidates", "0.62 (0.50 – 0.75)", "≥ 0.6"),
    ("time: look-up of 500 ids / frozen", "0.016 (0.013 – 0.020)", "≤ 0.03"),
    ("speedup: user/item split over no split, 500 candidates", "1.15 (1.10 – 1.20)", "≥ 1.08"),
    ("requests/s: HTTP / engine only, ids, 100 candidates, 64 clients", "0.80 (0.80 – 0.80)", "≥ 0.75"),
    ("requests/s: batching / no batching, 10 candidates, 32 clients", "2.50 (2.50 – 2.50)", "≥ 1.5"),
    ("requests/s: ranker / hand-written app, 500 candidates, 32 clients", "3.00 (3.00 – 3.00)", "≥ 1.05"),
    ("p99: ranker / hand-written app, 100 candidates, 32 clients", "0.50 (0.50 – 0.50)", "≤ 1"),
    ("p50: ranker / hand-written app, 10 candidates, 1 client", "1.00 (1.00 – 1.00)", "≤ 1.2"),
    ("requests/s: ranker / LitServe, 100 candidates, 32 clients", "3.00 (3.00 – 3.00)", "≥ 1.3"),
    ("p99: ranker / LitServe, 10 candidates, 32 clients", "0.50 (0.50 – 0.50)", "≤ 0.75"),
    ("p99 / p50 at 70 % of peak, ids, 100 candidates", "2.50 (2.50 – 2.50)", "≤ 4"),
    ("responses/s: at 5× peak / at peak", "0.90 (0.90 – 0.90)", "≥ 0.8"),
    ("p99 of responses: at 5× peak / at peak", "2.50 (2.50 – 2.50)", "≤ 3"),
    ("p99 of rejections at 5× peak, milliseconds", "12.00 (12.00 – 12.00)", "≤ 50"),
    ("memory: after / before overload", "1.01 (1.00 – 1.02)", "≤ 1.05"),
    ("responses/s: after / before overload", "0.95 (0.95 – 0.95)", "≥ 0.8"),
    ("requests/s: served log on / off, ids, 100 candidates, 32 clients", "0.96 (0.96 – 0.96)", "≥ 0.95"),
    ("CPU time: thread of the served log / the service", "0.025 (0.025 – 0.025)", "≤ 0.03"),
    ("p99: during / before the worst attack", "1.50 (1.50 – 1.50)", "≤ 2"),
}
"""Label, value and bound of the targets that the made-up results meet."""


def test_rows_show_targets_that_are_met() -> None:
    rows = set(targets.rows(measured_values()))
    assert not {(*row, "met") for row in MET} - rows


def test_rows_show_a_target_that_is_missed() -> None:
    label = "time: parse + look-up + write / forward, columns, 500 candidates"
    assert (label, "0.30 (0.30 – 0.30)", "≤ 0.25", "**missed**") in targets.rows(measured_values())


def test_rows_compare_the_median_and_not_the_best_turn() -> None:
    results = measured_values()
    results["batching"]["turns"] = [
        {"batches": load(rate), "no batches": load(100.0)} for rate in (140.0, 145.0, 300.0)
    ]
    (row,) = (row for row in targets.rows(results) if "batching" in row[0])
    assert row[1:] == ("1.45 (1.40 – 3.00)", "≥ 1.5", "**missed**")


def test_rows_show_targets_that_were_not_measured() -> None:
    results = measured_values()
    del results["peers"]["peers"][3], results["engines"]["sizes"]["500"]
    rows = {row[0]: row[1:] for row in targets.rows(results)}
    assert rows["share of the roofline, 500 candidates"] == ("–", "≥ 0.6", "not measured")
    assert rows["p99: ranker / LitServe, 100 candidates, 32 clients"] == ("–", "≤ 0.75", "not measured")
    assert rows["share of the roofline, 100 candidates"][2] == "met"
