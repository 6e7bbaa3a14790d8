"""``ranker bench``: measures the service with a bundle, writes the results as JSON and returns them as tables."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pipelines.bench import report
from pipelines.bench.benchmark import PARTS, run_parts
from pipelines.bench.sizes import FULL, SHORT
from ranking.artifacts.atomic_files import os_error_text
from ranking.errors import OutputError


def run(folder: Path, threads: int, *, full: bool, json_file: Path | None) -> str:
    """Measure the service with a bundle; with ``json_file``, write the results after each part.

    Args:
        folder: the bundle.
        threads: cores of the measured process.
        full: measure more sizes, in three turns.
        json_file: file for the results.

    Returns:
        Markdown tables.

    Raises:
        OutputError: the file cannot be written.
        RankerError: the bundle cannot be loaded, or a measurement failed.
    """
    results: dict[str, Any] = {}
    for result in run_parts(folder, FULL if full else SHORT, threads, PARTS):
        results |= result
        if json_file is not None:
            write_results(json_file, results)
    return report.format_tables(results)


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
