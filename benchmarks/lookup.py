"""Look-up: how long 500 ids take in encoded tables of items, and what a second process pays for a table.

Makes tables of the reference model's item half (15 categorical and 10 numeric features), with integer and with text
ids, and with a bag and a part of a cross besides. Times ``rows`` and ``take`` of 500 random ids, each time others.
Then two processes open the largest table of integers and look up every id, the second while the first still holds its
map: private memory (``/proc/self/smaps_rollup``) is what the second one costs. Prints two Markdown tables.

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

from ranking.encoding.columns import FeatureTable
from ranking.encoding.encoder import Encoder, Scale
from ranking.encoding.vocabulary import HashBuckets, Vocabulary
from ranking.lookup.feature_index import FeatureIndex, write_feature_index
from ranking.schema import Schema

CANDIDATES, TURNS = 500, 500
CATEGORIES = 1000
KINDS = ("integers", "text", "text, bag, cross")


def schema_of(kind: str) -> Schema:
    """Item features; of the last kind also a bag and a cross with the context."""
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
    """An encoder that knows all categories."""
    known = Vocabulary(pa.array(range(CATEGORIES)))
    spaces = {name: HashBuckets(1000) if name == "c0_tab" else known for name in schema.tables}
    return Encoder(schema, spaces, {n.name: Scale(0.0, 1.0, 0.0, has_missing_indicator=False) for n in schema.numerics})


def table_of(schema: Schema, kind: str, rows: int) -> FeatureTable:
    """Random features of ids 0 … rows − 1."""
    random = np.random.default_rng(0)
    numbers = pa.array(np.arange(rows))
    columns: dict[str, pa.Array] = {"item_id": numbers if kind == KINDS[0] else item_names(numbers)}
    for feature in schema.inputs:
        if feature.kind == "categorical" and feature.owner == "item":
            columns[feature.name] = pa.array(random.integers(CATEGORIES, size=rows, dtype=np.int16))
        elif feature.kind == "numeric":
            columns[feature.name] = pa.array(random.random(rows, np.float32))
        elif feature.kind == "bag":
            values = pa.array(random.integers(CATEGORIES, size=3 * rows, dtype=np.int16))
            columns[feature.name] = pa.FixedSizeListArray.from_arrays(values, 3)
    return FeatureTable(pa.table(columns), "item_id")


def item_names(numbers: pa.Array) -> pa.Array:
    """Text ids, such as item-0001234."""
    return pa.array([f"item-{number:07}" for number in numbers.to_pylist()])


def size_of(folder: Path) -> int:
    """Bytes of a table's files."""
    return sum(file.stat().st_size for file in folder.iterdir())


def look_up(table: FeatureIndex, kind: str) -> tuple[list[float], list[float]]:
    """Microseconds of ``rows`` and of ``take`` for each turn's ids, a Python list as a request has them."""
    random = np.random.default_rng(1)
    finding, taking = [], []
    for _ in range(TURNS):
        numbers = pa.array(random.integers(len(table), size=CANDIDATES))
        ids = (numbers if kind == KINDS[0] else item_names(numbers)).to_pylist()
        start = time.perf_counter()
        rows = table.rows(ids)
        found = time.perf_counter()
        table.take(rows)
        finding.append(1e6 * (found - start))
        taking.append(1e6 * (time.perf_counter() - found))
        assert rows.min() >= 0
    return finding[TURNS // 5 :], taking[TURNS // 5 :]


WORKER = """
import sys
from pathlib import Path

import numpy as np

from benchmarks.lookup import KINDS, encoder_of, schema_of
from ranking.lookup.feature_index import EncodedTable


def memory():
    lines = (line.split() for line in open("/proc/self/smaps_rollup"))
    size = {words[0]: int(words[1]) / 1024 for words in lines if words[-1] == "kB"}
    return np.array([size["Private_Clean:"] + size["Private_Dirty:"], size["Pss:"], size["Rss:"]])


encoder = encoder_of(schema_of(KINDS[0]))
before = memory()
table = EncodedTable.open(Path(sys.argv[1]), encoder, "item")
opened = memory()
step = len(table) // 500
for first in range(step):
    table.take(table.rows(np.arange(first, len(table), step)))
print(*(opened - before), *(memory() - before), flush=True)
sys.stdin.read()
"""


def worker(folder: Path) -> tuple[subprocess.Popen[str], list[float]]:
    """A process that opened the table and looked up all of it: growth in MiB, then it waits."""
    process = subprocess.Popen(
        [sys.executable, "-c", WORKER, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    return process, [float(word) for word in process.stdout.readline().split()]


def measured(folder: Path, kind: str, count: int) -> str:
    """A line of the first table; the encoded table is built unless an earlier run left it."""
    schema = schema_of(kind)
    encoder, built = encoder_of(schema), "before"
    if not folder.exists():
        table = table_of(schema, kind, count)
        folder.parent.mkdir(parents=True, exist_ok=True)
        start = time.perf_counter()
        write_feature_index(table, encoder, "item", folder)
        built = f"{time.perf_counter() - start:.1f}"
    start = time.perf_counter()
    encoded = FeatureIndex.open(folder, encoder, "item")
    opened = time.perf_counter() - start
    finding, taking = look_up(encoded, kind)
    p50, p99 = np.quantile(np.add(finding, taking), [0.5, 0.99])
    return (
        f"| {kind} | {count:,} | {size_of(folder) / 2**20:,.0f} | {built} | {1e3 * opened:.1f} "
        f"| {statistics.median(finding):.0f} | {statistics.median(taking):.0f} | {p50:.0f} | {p99:.0f} |"
    )


def main() -> None:
    """Prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True, help="folder for the tables; kept for the next time")
    parser.add_argument("--rows", type=int, nargs="+", default=[1_000_000, 10_000_000])
    args = parser.parse_args()
    print("| ids | rows | size, MiB | built, s | opened, ms | rows(), µs | take(), µs | both, p50 | both, p99 |")
    print("|---|---:|---:|---:|---:|---:|---:|---:|---:|")
    for count in args.rows:
        for number, kind in enumerate(KINDS):
            print(measured(args.work / f"items-{count}-{number}", kind, count), flush=True)
    folder = args.work / f"items-{max(args.rows)}-0"
    size = size_of(folder) / 2**20
    print("\n| worker | opened: private, MiB | all looked up: private, MiB | of the table | Pss, MiB | RSS, MiB |")
    print("|---|---:|---:|---:|---:|---:|")
    workers = []
    for name in ("first", "second"):
        process, (opened, _, _, private, pss, rss) = worker(folder)
        workers.append(process)
        print(f"| {name} | {opened:.1f} | {private:.1f} | {private / size:.1%} | {pss:,.0f} | {rss:,.0f} |", flush=True)
    for process in workers:
        process.communicate()


if __name__ == "__main__":
    main()
