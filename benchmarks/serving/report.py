"""Format the serving results of docs/benchmarks.md: targets, the tables of ``ranker bench``, and other servers."""

from __future__ import annotations

from typing import Any

from benchmarks.serving import budget, peer_comparison, targets
from benchmarks.serving.batching import format_batching
from benchmarks.serving.engine_only import format_engine_only
from benchmarks.serving.engines import format_engines
from benchmarks.serving.overload import format_attacks, format_overload
from benchmarks.serving.served_log import format_served_log
from pipelines.bench import report
from pipelines.bench.report import Table, caption_of_turns, rate_and_latencies
from pipelines.bench.tables import plural, section, spread

RATIOS = ("per_second", "p50", "p99", "cpu")
"""Values of a load that the service and a peer are compared by."""


def format_report(results: dict[str, Any]) -> str:
    """Format all tables, the targets first."""
    measured = {part: result["measured"] for part, result in results.items()}
    return _targets(measured) + "\n" + report.format_tables(results, TABLES)


def _targets(measured: dict[str, Any]) -> str:
    caption = "Ratios are computed within a turn. Cells show median (lowest – highest). The median decides."
    return section("Targets", caption, ("", "measured", "target", ""), targets.rows(measured))


def _peers(measured: dict[str, Any], about: dict[str, Any]) -> str:
    """Format one table per case."""
    return "\n".join(_peer_case(case, measured["peers"], about["machine"]["load"]) for case in measured["cases"])


def _peer_case(case: dict[str, int], peers: list[dict[str, Any]], load: float) -> str:
    key = f"{case['candidates']} {case['clients']}"
    turns = {peer["name"]: [turn[key] for turn in peer["turns"]] for peer in peers}
    service = [turn["ranker"] for loads in turns.values() for turn in loads]
    rows = [("ranker", rate_and_latencies(service), *[""] * len(RATIOS), "default")]
    for peer in peers:
        loads = turns[peer["name"]]
        settings = ", ".join(f"{name} {value}" for name, value in peer["tuned"][key].items())
        rows.append(
            (
                peer["name"] if peer["version"] is None else f"{peer['name']} ({peer['version']})",
                rate_and_latencies([turn["peer"] for turn in loads]),
                *(spread([turn["ranker"][value] / turn["peer"][value] for turn in loads], ".2f") for value in RATIOS),
                settings,
            )
        )
    return section(
        f"Other ways to serve the bundle: {case['candidates']} candidates, {plural(case['clients'], 'client')}",
        f"1 thread on 1 core, closed loop, ids. {caption_of_turns(peers[0]['turns'])} Requests/s, then p50 / p99 in "
        f"milliseconds. Ratios are ranker / peer; CPU is the CPU time per request. Load average before: {load:.1f}.",
        ("", "requests/s, p50 / p99", "requests/s", "p50", "p99", "CPU", "settings"),
        rows,
    )


TABLES: dict[str, Table] = {
    "engines": format_engines,
    "http": report.TABLES["http"],
    "bare": format_engine_only,
    "open": report.TABLES["open"],
    "batching": format_batching,
    "overload": format_overload,
    "attacks": format_attacks,
    "served": format_served_log,
    peer_comparison.PART: _peers,
    budget.PART: budget.format_budget,
}
"""Part → formatter of its table."""
