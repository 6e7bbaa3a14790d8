"""Format the training results as the tables of docs/benchmarks.md."""

from __future__ import annotations

from typing import Any

from pipelines.bench.tables import cores, plural, section, spread

PHASES = {
    "all_experts": "all experts",
    "before_convergence": "before convergence",
    "after_convergence": "chosen experts",
    "all_steps": "all steps",
}
"""Key of a phase in the results → its label."""


def format_report(results: dict[str, Any]) -> str:
    """Format the tables of all measured parts."""
    tables: dict[str, Any] = {
        "libraries": _libraries,
        "chosen": _chosen,
        "rows": _rows,
        "ids": _ids,
        "score": _score,
    }
    return "\n".join(table(**results[part]) for part, table in tables.items() if part in results)


def _libraries(measured: dict[str, Any], threads: int) -> str:
    """Compare each phase of ranker with the other libraries, relative to the fastest of them in the same turn."""
    turns = measured["turns"]
    libraries = [name for name in turns[0] if not name.startswith("ranker")]
    ours = [name for name in turns[0] if name not in libraries]
    fastest = [max((turn[name]["rows_per_second"] for name in libraries), default=float("nan")) for turn in turns]
    rates = {name: [turn[name]["rows_per_second"] for turn in turns] for name in libraries}
    rates |= {
        f"{name}: {label}": [turn[name][phase] for turn in turns] for name in ours for phase, label in PHASES.items()
    }
    rows = []
    for name, values in rates.items():
        relative = [rate / best for rate, best in zip(values, fastest, strict=True)]
        rows.append((name, spread(values, ",.0f"), spread(relative, ".2f") if libraries else "–"))
    return section(
        f"Whole training loops on {measured['log']}",
        f"{cores(threads)}, {plural(len(turns), 'turn')}; median (lowest – highest).",
        ("", "rows/s", "relative to the fastest other library"),
        rows,
    )


def _chosen(measured: dict[str, Any], threads: int) -> str:
    """Compare the speedup of training the chosen experts only with its target, 0.6 times n/|union|."""
    turns = measured["turns"]
    rows = []
    for name, last in turns[-1].items():
        speedups = [turn[name]["after_convergence"] / turn[name]["all_experts"] for turn in turns]
        target = 0.6 * last["experts"] / last["experts_chosen"]
        rows.append((name, f"{last['experts_chosen']} of {last['experts']}", spread(speedups, ".2f"), f"{target:.2f}"))
    return section(
        f"Chosen experts and all experts, on {measured['log']}",
        f"{cores(threads)}, {plural(len(turns), 'turn')}; rows/s with the chosen experts divided by rows/s with all "
        "experts.",
        ("", "chosen", "rows/s, chosen / all", "target, 0.6 · n/\\|union\\|"),
        rows,
    )


def _rows(measured: list[dict[str, Any]], threads: int) -> str:
    """Show the rates by the number of rows in the log."""
    rows = [
        (
            f"{result['rows']:,}",
            *(f"{result[phase]:,.0f}" if result[phase] else "–" for phase in PHASES),
            f"{result['per_cpu_second']:,.0f}",
            f"{result['seconds_in_all']:,.0f}",
            _mebibytes(result["peak_bytes"]),
        )
        for result in measured
    ]
    rates = {key: [result[key] for result in measured] for key in ("all_steps", "per_cpu_second")}
    slowest = {key: f"{min(values) / max(values):.0%}" for key, values in rates.items()}
    return section(
        "By rows of the log",
        f"{cores(threads)}, a generated log, its default model without counters, one epoch. "
        "Seconds are of the whole run.",
        ("rows", *(f"rows/s, {label}" for label in PHASES.values()), "rows per CPU s", "s", "peak MiB"),
        rows,
        f"Slowest relative to fastest: {slowest['all_steps']} (rows/s, all steps), {slowest['per_cpu_second']} (rows "
        "per CPU second, validation included).",
    )


def _ids(measured: list[dict[str, Any]], threads: int) -> str:
    """Show the rate and the memory by the number of ids of a table."""
    rows = [
        (
            f"{result['ids']:,}",
            f"{result['all_steps']:,.0f}",
            f"{result['seconds_in_all']:,.1f}",
            _mebibytes(result["peak_bytes"]),
            _mebibytes(result["rank_peak_bytes"]),
        )
        for result in measured
    ]
    return section(
        "By ids of a table",
        f"{cores(threads)}, a feature with 16 numbers per id, one epoch of the same log. The last column is of two "
        "ranks, which divide the table.",
        ("ids", "rows/s, all steps", "s", "peak MiB", "peak MiB of a rank"),
        rows,
    )


def _score(measured: dict[str, Any], threads: int) -> str:
    """Compare ``ranker score`` with the graph only."""
    shares = [a / b for a, b in zip(measured["score"], measured["graph"], strict=True)]
    rows = [
        ("`ranker score`, Parquet to Parquet", spread(measured["score"], ",.0f"), spread(shares, ".0%")),
        ("the frozen graph only", spread(measured["graph"], ",.0f"), ""),
    ]
    header = ("", "rows/s", "relative to the graph")
    return section("Scoring", f"{cores(threads)}, {measured['rows']:,} rows.", header, rows)


def _mebibytes(size: int) -> str:
    return f"{size / 2**20:,.0f}"
