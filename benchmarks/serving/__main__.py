"""Measure scoring and serving of the reference model and write the results to the documentation.

    python -m benchmarks.serving

In addition to the parts of ``ranker bench``, it compares the frozen model with the dense one and with the roofline of
the processor, and the service with other ways to serve the bundle. It measures the CPU time of a request by area and
compares the results with performance targets. Writes results/serving.json, results/serving.svg, and the generated parts
of benchmarks.md and scaling.md. What is not installed (requirements/bench.lock) is omitted.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.document import replace_part
from benchmarks.serving import budget, capacity, latency_plot, peer_comparison, report
from pipelines.bench import benchmark
from pipelines.bench.command import read_results, write_results
from pipelines.bench.sizes import FULL, QUICK
from ranking.errors import RankerError

DOCS = Path(__file__).parents[2] / "docs"
PARTS = (*benchmark.PARTS, peer_comparison.PART, budget.PART)
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
        default=PARTS,
        metavar="PART",
        help=f"parts to measure, of {', '.join(PARTS)} (default: all)",
    )
    parser.add_argument("--threads", type=int, default=1, help="cores of the measured process (default: 1)")
    parser.add_argument("--items", type=int, help="items of the reference model (default: 1000000)")
    parser.add_argument("--quick", action="store_true", help="measure tiny sizes, to test the benchmark itself")
    arguments = parser.parse_args(argv)
    sizes, effort = (QUICK, peer_comparison.QUICK) if arguments.quick else (FULL, peer_comparison.FULL)
    if arguments.items is not None:
        sizes = replace(sizes, items=arguments.items)
    parts: dict[str, benchmark.Part] = {
        **benchmark.PARTS,
        "engines": partial(benchmark.measure_engines, module="benchmarks.serving.engines"),
        peer_comparison.PART: partial(peer_comparison.compare, effort=effort),
        budget.PART: budget.measure_budget,
    }
    file = arguments.docs / "results" / f"{NAME}.json"
    results = read_results(file)
    try:
        for result in benchmark.run_benchmark(None, sizes, arguments.threads, arguments.only, parts):
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
