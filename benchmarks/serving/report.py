"""Format the serving results of docs/benchmarks.md: targets, the tables of ``ranker bench``, and LitServe."""

from __future__ import annotations

from typing import Any

from benchmarks.serving import litserve_comparison, targets
from pipelines.bench import report
from pipelines.bench.report import caption_of_turns, rate_and_latencies
from pipelines.bench.tables import section, spread


def format_report(results: dict[str, Any]) -> str:
    """Format all tables, the targets first."""
    measured = {part: result["measured"] for part, result in results.items()}
    tables = report.TABLES | {litserve_comparison.PART: _litserve}
    return _targets(measured) + "\n" + report.format_tables(results, tables)


def _targets(measured: dict[str, Any]) -> str:
    caption = "Ratios are computed within a turn. Cells show median (lowest – highest). The median decides."
    return section("Targets", caption, ("", "measured", "target", ""), targets.rows(measured))


def _litserve(measured: dict[str, Any], about: dict[str, Any]) -> str:
    rows = []
    for case in measured["cases"]:
        turns, tuned = case["turns"], case["tuned"]
        ratios = [turn["ranker"]["per_second"] / turn["litserve"]["per_second"] for turn in turns]
        queue = "ZeroMQ" if tuned["fast_queue"] else "multiprocessing"
        rows.append(
            (
                str(case["cores"]),
                str(case["candidates"]),
                rate_and_latencies([turn["ranker"] for turn in turns]),
                rate_and_latencies([turn["litserve"] for turn in turns]),
                spread(ratios, ".2f"),
                f"batches of {tuned['max_batch_size']}, {tuned['batch_timeout'] * 1000:g} ms, {queue}",
            )
        )
    return section(
        "LitServe",
        f"LitServe {about['machine']['litserve']} and ranker on the same cores: {measured['clients']} clients, closed "
        f"loop, ids. {caption_of_turns(measured['cases'][0]['turns'])} Requests/s, then p50 / p99 in milliseconds.",
        ("cores", "candidates", "ranker", "LitServe", "ranker / LitServe", "best settings of LitServe"),
        rows,
    )
