"""Results as the tables of docs/benchmarks.md."""

from __future__ import annotations

from typing import Any

from pipelines.bench.tables import cores, section, spread

PHASES = {
    "all_experts": "all experts",
    "before_convergence": "before convergence",
    "after_convergence": "chosen experts",
    "all_steps": "all steps",
}


def text(results: dict[str, Any]) -> str:
    """All tables."""
    parts = {"rivals": rivals, "chosen": chosen, "rows": rows, "ids": ids, "score": score}
    return "\n".join(table(**results[part]) for part, table in parts.items() if part in results)


def rivals(measured: dict[str, Any], threads: int) -> str:
    """Each phase of ranker beside the rivals; ratios to the fastest rival of the same turn."""
    turns = measured["turns"]
    names = [name for name in turns[0] if not name.startswith("ranker")]
    fastest = [max((turn[name]["rows_per_second"] for name in names), default=float("nan")) for turn in turns]
    found = {name: [turn[name]["rows_per_second"] for turn in turns] for name in names}
    ours = [name for name in turns[0] if name not in names]
    found |= {
        f"{name}: {label}": [turn[name][phase] for turn in turns] for name in ours for phase, label in PHASES.items()
    }
    lines = [
        (
            name,
            spread(rates, ",.0f"),
            spread([a / b for a, b in zip(rates, fastest, strict=True)], ".2f") if names else "–",
        )
        for name, rates in found.items()
    ]
    return section(
        f"Whole training loops on {measured['log']}",
        f"{cores(threads)}, {len(turns)} turns; median (lowest – highest).",
        ("", "rows/s", "of the fastest rival"),
        lines,
    )


def chosen(measured: dict[str, Any], threads: int) -> str:
    """What training the chosen experts alone gains, beside 0.6 of what it would gain if experts were all there is."""
    turns = measured["turns"]
    lines = []
    for name, last in turns[-1].items():
        gained = [turn[name]["after_convergence"] / turn[name]["all_experts"] for turn in turns]
        aim = 0.6 * last["experts"] / last["experts_chosen"]
        of = f"{last['experts_chosen']} of {last['experts']}"
        lines.append((name, of, spread(gained, ".2f"), f"{aim:.2f}"))
    return section(
        f"Chosen experts against all, on {measured['log']}",
        f"{cores(threads)}, {len(turns)} turns; rows/s after the choice over those with all experts.",
        ("", "chosen", "rows/s, chosen / all", "0.6 · n/\\|union\\|"),
        lines,
    )


def rows(measured: list[dict[str, Any]], threads: int) -> str:
    """Against the log's length."""
    lines = [
        (
            f"{found['rows']:,}",
            *(f"{found[phase]:,.0f}" if found[phase] else "–" for phase in PHASES),
            f"{found['per_cpu_second']:,.0f}",
            f"{found['seconds_in_all']:,.0f}",
            mib(found),
        )
        for found in measured
    ]
    flat = {key: [found[key] for found in measured] for key in ("all_steps", "per_cpu_second")}
    slowest = {key: f"{min(rates) / max(rates):.0%}" for key, rates in flat.items()}
    return section(
        "Against the rows of the log",
        f"{cores(threads)}, a generated log with its default model, one epoch. Seconds are of all.",
        ("rows", *(f"rows/s, {label}" for label in PHASES.values()), "rows per CPU s", "s", "peak MiB"),
        lines,
        f"Slowest of fastest: {slowest['all_steps']} of rows/s, all steps; {slowest['per_cpu_second']} of rows per CPU "
        "second, validation included.",
    )


def ids(measured: list[dict[str, Any]], threads: int) -> str:
    """Against the vocabulary."""
    lines = [
        (f"{found['ids']:,}", f"{found['all_steps']:,.0f}", f"{found['seconds_in_all']:,.1f}", mib(found))
        for found in measured
    ]
    return section(
        "Against the ids of a vocabulary",
        f"{cores(threads)}, one feature of 16 numbers an id, one epoch of the same log.",
        ("ids", "rows/s, all steps", "s", "peak MiB"),
        lines,
    )


def score(measured: dict[str, Any], threads: int) -> str:
    """The command beside the graph."""
    shares = [a / b for a, b in zip(measured["score"], measured["graph"], strict=True)]
    lines = [
        ("`ranker score`, Parquet to Parquet", spread(measured["score"], ",.0f"), spread(shares, ".0%")),
        ("the frozen graph alone", spread(measured["graph"], ",.0f"), ""),
    ]
    return section("Scoring", f"{cores(threads)}, {measured['rows']:,} rows.", ("", "rows/s", "of the graph"), lines)


def mib(found: dict[str, Any]) -> str:
    """Peak memory."""
    return f"{found['peak_bytes'] / 2**20:,.0f}"
