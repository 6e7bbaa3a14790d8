"""``ranker bench``: measures a bundle, writes the results as JSON and returns them as tables."""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from pipelines.bench import report
from pipelines.bench.benchmark import PARTS, run_benchmark
from pipelines.bench.sizes import FULL, QUICK, SHORT
from ranking.artifacts.atomic_files import os_error_text
from ranking.errors import OutputError, UsageError

SHORT_PARTS = ("engines", "http", "open")
"""Parts that are measured by default: cost of scoring, latency and throughput."""


def run(arguments: argparse.Namespace) -> str:
    """Measure the requested parts; results of other parts in ``--json FILE`` are kept.

    Returns:
        Markdown tables.

    Raises:
        UsageError: the options exclude each other.
        OutputError: the file cannot be written.
        RankerError: the bundle cannot be loaded, or a measurement failed.
    """
    sizes = QUICK if arguments.quick else FULL if arguments.full else SHORT
    parts = arguments.only or (tuple(PARTS) if arguments.full else SHORT_PARTS)
    if arguments.items is not None:
        if arguments.bundle is not None:
            raise UsageError("--items sets the size of the reference model: omit it, or omit BUNDLE")
        sizes = replace(sizes, items=arguments.items)
    results = {} if arguments.json is None else read_results(arguments.json)
    for result in run_benchmark(arguments.bundle, sizes, arguments.threads, parts):
        results |= result
        if arguments.json is not None:
            write_results(arguments.json, results)
    return report.format_tables(results)


def read_results(file: Path) -> dict[str, Any]:
    """Read the results of an earlier benchmark, if the file exists."""
    results: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
    return results


def write_results(file: Path, results: dict[str, Any]) -> None:
    """Write results as JSON.

    Raises:
        OutputError: the file cannot be written.
    """
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(results, indent=1) + "\n")
    except OSError as error:
        raise OutputError(f"{error.filename}: cannot be written ({os_error_text(error)})") from None
