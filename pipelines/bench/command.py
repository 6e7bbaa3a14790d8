"""From arguments to measurements, tables, JSON and a picture."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pipelines.bench import capacity, plots, report
from pipelines.bench.bench import bench
from pipelines.bench.sizes import FULL, QUICK
from pipelines.bench.tables import replace_part
from ranking.artifacts.atomic_files import os_error_text
from ranking.errors import OutputError, UsageError

PART = "serving"
"""Of docs/benchmarks.md, and the name of its files."""


def run(arguments: argparse.Namespace) -> str:
    """Measures, writes what is asked for, and returns the tables.

    Raises:
        UsageError: options that exclude each other.
        OutputError: a file cannot be written.
        RankerError: the bundle cannot be loaded, or a measurement failed.
    """
    sizes = QUICK if arguments.quick else FULL
    if arguments.items is not None:
        if arguments.bundle is not None:
            raise UsageError("--items is of the reference model: leave it out, or leave out BUNDLE")
        sizes = replace(sizes, items=arguments.items)
    files = _files(arguments)
    results = _earlier(files)
    for found in bench(arguments.bundle, sizes, arguments.threads, arguments.only):
        results |= found
        _keep(results, files, arguments.docs)
    return report.text(results)


def _keep(results: dict[str, Any], files: Sequence[Path], docs: Path | None) -> None:
    try:
        for file in files:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(json.dumps(results, indent=1) + "\n")
        if docs is not None:
            _document(docs, results, report.text(results))
    except OSError as error:
        raise OutputError(f"{error.filename}: cannot be written ({os_error_text(error)})") from None


def _document(docs: Path, results: dict[str, Any], tables: str) -> None:
    """Tables, a picture of them if there is something to draw, and what a load takes."""
    if "open" in results:
        (docs / "results" / f"{PART}.svg").write_text(plots.latency(results["open"]["measured"]))
        tables += f"\n![latency against load](results/{PART}.svg)\n"
    replace_part(docs / "benchmarks.md", PART, tables)
    if results.keys() & {"http", "engines"}:
        replace_part(docs / "scaling.md", capacity.PART, capacity.text(results))


def _files(arguments: argparse.Namespace) -> list[Path]:
    files = [] if arguments.json is None else [arguments.json]
    return files if arguments.docs is None else [*files, arguments.docs / "results" / f"{PART}.json"]


def _earlier(files: Sequence[Path]) -> dict[str, Any]:
    for file in files:
        if file.exists():
            found: dict[str, Any] = json.loads(file.read_text())
            return found
    return {}
