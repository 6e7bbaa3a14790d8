"""Measure scoring and serving of the reference model and write the results to the documentation.

    python -m benchmarks.serving

In addition to the loads of ``ranker bench``, it measures overload, attacks and the served log. It compares the frozen
model with the dense one and with the roofline of the processor, and the service with other ways to serve the bundle. It
measures the CPU time of a request by area and compares the results with performance targets. Writes
results/serving.json, results/serving.svg, and the generated parts of benchmarks.md and scaling.md. What is not
installed (requirements/bench.lock) is omitted.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.document import replace_part
from benchmarks.serving import budget, capacity, latency_plot, peer_comparison, report
from benchmarks.serving.batching import measure_batching
from benchmarks.serving.engine_only import measure_engine_only
from benchmarks.serving.engines import measure_engines
from benchmarks.serving.overload import measure_attacks, measure_overload
from benchmarks.serving.reference import write_reference
from benchmarks.serving.served_log import measure_served_log
from benchmarks.serving.sizes import FULL, QUICK
from pipelines.bench import benchmark
from pipelines.bench.command import write_results
from ranking.errors import RankerError
from ranking.temporary_folders import temporary_folder

DOCS = Path(__file__).parents[2] / "docs"
PARTS: dict[str, benchmark.Part] = {
    "engines": measure_engines,
    "http": benchmark.measure_http,
    "bare": measure_engine_only,
    "open": benchmark.measure_open_loop,
    "batching": measure_batching,
    "overload": measure_overload,
    "attacks": measure_attacks,
    "served": measure_served_log,
    peer_comparison.PART: partial(peer_comparison.compare, effort=peer_comparison.FULL),
    budget.PART: budget.measure_budget,
}
"""Part → its measurement."""
REFERENCE = "reference"
"""Name of the reference model in the results."""
NAME = "serving"
"""Name of the generated part of benchmarks.md and of the result files."""


def main(argv: Sequence[str] | None = None) -> int:
    """Measure the requested parts and write the documents after each; results of other parts are kept.

    Returns:
        Exit code: 0, or 1 if a measurement failed.
    """
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.serving", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--docs", type=Path, default=DOCS, metavar="DIR", help="folder of the results (default: docs)")
    parser.add_argument(
        "--only",
        choices=PARTS,
        nargs="+",
        default=tuple(PARTS),
        metavar="PART",
        help=f"parts to measure, of {', '.join(PARTS)} (default: all)",
    )
    parser.add_argument("--threads", type=int, default=1, help="cores of the measured process (default: 1)")
    parser.add_argument("--items", type=int, help="items of the reference model (default: 1000000)")
    parser.add_argument("--quick", action="store_true", help="measure tiny sizes, to test the benchmark itself")
    arguments = parser.parse_args(argv)
    sizes = QUICK if arguments.quick else FULL
    if arguments.items is not None:
        sizes = replace(sizes, items=arguments.items)
    parts = {part: PARTS[part] for part in arguments.only}
    if arguments.quick and peer_comparison.PART in parts:
        parts[peer_comparison.PART] = partial(peer_comparison.compare, effort=peer_comparison.QUICK)
    file = arguments.docs / "results" / f"{NAME}.json"
    results: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
    try:
        with temporary_folder("bench") as work:
            write_reference(work / REFERENCE, sizes.items, sizes.users)
            for result in benchmark.run_parts(work / REFERENCE, sizes, arguments.threads, parts):
                results |= result
                write_results(file, results)
                write_documents(arguments.docs, results)
    except RankerError as error:
        print(f"benchmarks.serving: {error}", file=sys.stderr)
        return 1
    print(report.format_report(results))
    return 0


def write_documents(docs: Path, results: dict[str, Any]) -> None:
    """Write the tables, the plot of open loops, and the capacity tables, as far as the results contain them."""
    text = report.format_report(results)
    if "open" in results:
        (docs / "results" / f"{NAME}.svg").write_text(latency_plot.plot_latency(results["open"]["measured"]))
        text += f"\n![latency against load](results/{NAME}.svg)\n"
    replace_part(docs / "benchmarks.md", NAME, text)
    if results.keys() & {"http", "engines"}:
        replace_part(docs / "scaling.md", capacity.PART, capacity.format_capacity(results))


if __name__ == "__main__":
    sys.exit(main())
