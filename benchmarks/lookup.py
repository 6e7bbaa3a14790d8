"""Measure feature indexes: the lookup time of 500 ids, and the memory of two processes that open the same index.

Builds indexes of the reference model's item features (15 categorical, 10 numeric) with integer ids, with text ids, and
with text ids, a bag and a part of a cross. Times ``rows`` and ``take`` of 500 random ids, which differ in each turn.
Then two processes at a time open the largest index of integer ids, as the service does with ``copy_tables`` false and
true, and look up every id. ``/proc/self/smaps_rollup`` tells what each adds to the memory of the machine. Prints two
Markdown tables.

    python -m benchmarks.lookup --work bench [--rows 1000000 10000000]
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from ranking.encoding.encoder import Encoder, Scale
from ranking.encoding.feature_table import FeatureTable
from ranking.encoding.vocabulary import HashBuckets, Vocabulary
from ranking.lookup.feature_index import FeatureIndex, write_feature_index
from ranking.schema import Schema

CANDIDATES, TURNS = 500, 500
CATEGORIES = 1000
WARMUP_TURNS = TURNS // 5
KINDS = ("integers", "text", "text, bag, cross")
"""Kinds of ids and features, as in the tables."""


def schema_of(kind: str) -> Schema:
    """Return a schema of item features; the last kind adds a bag and a cross with a context feature."""
    features: list[dict[str, Any]] = [{"name": f"c{i}", "kind": "categorical", "owner": "item"} for i in range(15)]
    features += [{"name": f"x{i}", "kind": "numeric", "owner": "item"} for i in range(10)]
    if kind == KINDS[2]:
        features += [
            {"name": "tags", "kind": "bag", "owner": "item"},
            {"name": "tab", "kind": "categorical", "owner": "context"},
            {"name": "c0_tab", "kind": "cross", "of": ["c0", "tab"], "hash_buckets": 1000},
        ]
    return Schema.model_validate(
        {"name": "items", "features": features, "tasks": [{"name": "click", "kind": "binary"}]}
    )


def encoder_of(schema: Schema) -> Encoder:
    """Return an encoder whose vocabularies contain all categories."""
    vocabulary = Vocabulary(pa.array(range(CATEGORIES)))
    id_mappings = {name: HashBuckets(1000) if name == "c0_tab" else vocabulary for name in schema.tables}
    return Encoder(
        schema, id_mappings, {n.name: Scale(0.0, 1.0, 0.0, has_missing_indicator=False) for n in schema.numerics}
    )


def table_of(schema: Schema, kind: str, rows: int) -> FeatureTable:
    """Return random features of the ids 0 … rows − 1."""
    random = np.random.default_rng(0)
    ids = pa.array(np.arange(rows))
    columns: dict[str, pa.Array] = {"item_id": ids if kind == KINDS[0] else text_ids(ids)}
    for feature in schema.inputs:
        if feature.kind == "categorical" and feature.owner == "item":
            columns[feature.name] = pa.array(random.integers(CATEGORIES, size=rows, dtype=np.int16))
        elif feature.kind == "numeric":
            columns[feature.name] = pa.array(random.random(rows, np.float32))
        elif feature.kind == "bag":
            values = pa.array(random.integers(CATEGORIES, size=3 * rows, dtype=np.int16))
            columns[feature.name] = pa.FixedSizeListArray.from_arrays(values, 3)
    return FeatureTable(pa.table(columns), "item_id")


def text_ids(numbers: pa.Array) -> pa.Array:
    """Return text ids such as item-0001234."""
    return pa.array([f"item-{number:07}" for number in numbers.to_pylist()])


def size_of(folder: Path) -> int:
    """Return the total size of the files of an index in bytes."""
    return sum(file.stat().st_size for file in folder.iterdir())


def time_lookups(index: FeatureIndex, kind: str) -> tuple[list[float], list[float]]:
    """Return the microseconds of ``rows`` and of ``take`` in each turn. Ids are a Python list, as in a request."""
    random = np.random.default_rng(1)
    rows_times, take_times = [], []
    for _ in range(TURNS):
        numbers = pa.array(random.integers(len(index), size=CANDIDATES))
        ids = (numbers if kind == KINDS[0] else text_ids(numbers)).to_pylist()
        start = time.perf_counter()
        rows = index.rows(ids)
        middle = time.perf_counter()
        index.take(rows)
        rows_times.append(1e6 * (middle - start))
        take_times.append(1e6 * (time.perf_counter() - middle))
        assert rows.min() >= 0
    return rows_times[WARMUP_TURNS:], take_times[WARMUP_TURNS:]


WORKER = """
import sys
import time
from pathlib import Path

import numpy as np

from benchmarks.lookup import KINDS, encoder_of, schema_of
from ranking.lookup.feature_index import FeatureIndex
from ranking.ids.npy import map_file
from service.models.sealed_copy import copy_file


def memory():  # proportional set size in MiB
    (size,) = (line.split()[1] for line in open("/proc/self/smaps_rollup") if line.startswith("Pss:"))
    return int(size) / 1024


encoder = encoder_of(schema_of(KINDS[0]))
before, start = memory(), time.perf_counter()
index = FeatureIndex.open(Path(sys.argv[1]), encoder, "item", copy_file if sys.argv[2] == "copied" else map_file)
seconds = time.perf_counter() - start
step = len(index) // 500
for first in range(step):
    index.take(index.rows(np.arange(first, len(index), step)))
print(seconds, flush=True)
sys.stdin.readline()
print(memory() - before, flush=True)
sys.stdin.readline()
"""


def measure_processes(folder: Path, tables: str) -> tuple[float, float]:
    """Let two processes look up all ids of an index.

    Returns:
        Seconds in which the second opened it, and by how much both together enlarge the memory in use, in MiB.
    """
    processes = []
    for _ in range(2):
        command = [sys.executable, "-c", WORKER, str(folder), tables]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        seconds = float(process.stdout.readline())
        processes.append(process)
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    total = 0.0
    for process in processes:
        assert process.stdout is not None
        total += float(process.stdout.readline())
    for process in processes:
        process.communicate()
    return seconds, total


def measure(folder: Path, kind: str, rows: int) -> str:
    """Return a row of the first table. Builds the index unless an earlier run has built it."""
    schema = schema_of(kind)
    encoder, build_seconds = encoder_of(schema), "before"
    if not folder.exists():
        table = table_of(schema, kind, rows)
        folder.parent.mkdir(parents=True, exist_ok=True)
        start = time.perf_counter()
        write_feature_index(table, encoder, "item", folder)
        build_seconds = f"{time.perf_counter() - start:.1f}"
    start = time.perf_counter()
    index = FeatureIndex.open(folder, encoder, "item")
    open_seconds = time.perf_counter() - start
    rows_times, take_times = time_lookups(index, kind)
    p50, p99 = np.quantile(np.add(rows_times, take_times), [0.5, 0.99])
    return (
        f"| {kind} | {rows:,} | {size_of(folder) / 2**20:,.0f} | {build_seconds} | {1e3 * open_seconds:.1f} "
        f"| {statistics.median(rows_times):.0f} | {statistics.median(take_times):.0f} | {p50:.0f} | {p99:.0f} |"
    )


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True, help="folder of the indexes, which later runs reuse")
    parser.add_argument("--rows", type=int, nargs="+", default=[1_000_000, 10_000_000], help="ids per index")
    arguments = parser.parse_args()
    print("| ids | rows | size, MiB | build, s | open, ms | rows(), µs | take(), µs | both, p50 | both, p99 |")
    print("|---|---:|---:|---:|---:|---:|---:|---:|---:|")
    for rows in arguments.rows:
        for number, kind in enumerate(KINDS):
            print(measure(arguments.work / f"items-{rows}-{number}", kind, rows), flush=True)
    folder = arguments.work / f"items-{max(arguments.rows)}-0"
    size = size_of(folder) / 2**20
    print("\n| tables | second process opens, s | memory of both, MiB | share of the index |")
    print("|---|---:|---:|---:|")
    for tables in ("mapped", "copied"):
        seconds, total = measure_processes(folder, tables)
        print(f"| {tables} | {seconds:.2f} | {total:,.0f} | {total / size:.0%} |", flush=True)


if __name__ == "__main__":
    main()
