"""Cost of contributions: time to explain rows of a log, beside the time to score them.

python -m benchmarks.contributions BUNDLE LOG.parquet
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import pyarrow as pa
import pyarrow.parquet as pq

import ranking

ROWS = (1, 5, 20)
"""Numbers of rows; the service explains at most 20 candidates."""
TURNS = 9


def milliseconds(method: Callable[[pa.Table, list[str]], object], rows: pa.Table, tasks: list[str]) -> float:
    """Return how long a method takes for these rows and tasks."""
    begin = time.perf_counter()
    method(rows, tasks)
    return (time.perf_counter() - begin) * 1000


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("log", type=Path, help="Parquet file with rows to explain")
    arguments = parser.parse_args()
    ranker = ranking.load(arguments.bundle)
    table = pq.read_table(arguments.log)
    names = ranker.schema.task_names
    print(f"{len(names)} tasks, {len(ranker.schema.features)} features, {len(ranker.selection.experts_used)} experts\n")
    print("| rows | tasks | score, ms | contributions, ms | gradients per row | largest error |")
    print("|---|---|---|---|---|---|")
    for count in ROWS:
        rows = table.slice(0, count)
        for tasks in (names[:1], names):
            result = ranker.contributions(rows, tasks)
            methods = (ranker.score, ranker.contributions)
            turns = [[milliseconds(method, rows, tasks) for method in methods] for _ in range(TURNS)]
            scored, explained = (median(column) for column in zip(*turns, strict=True))
            per_row = result.gradients / count
            print(f"| {count} | {len(tasks)} | {scored:.1f} | {explained:.1f} | {per_row:.0f} | {result.error:.2%} |")


if __name__ == "__main__":
    main()
