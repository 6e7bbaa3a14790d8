"""Compare the lookup of text ids in bundle formats 2 (text of the ids) and 3 (hashes), beside integers and a model.

Builds indexes of the same features with integer ids and with text ids of 8, 16 and 36 characters, the latter in both
formats. The indexes take turns, one call each. Cold turns draw other ids and overwrite the caches of the CPU before
each call; warm turns repeat a call with the same ids. The last row is the forward pass of the reference model for 500
candidates in the same turns. Prints a Markdown table of the median CPU time in microseconds.

    python -m benchmarks.text_lookup --work bench [--rows 1000000]
"""

from __future__ import annotations

import argparse
import itertools
import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import xxhash

from benchmarks.lookup import KINDS, encoder_of, schema_of, table_of
from benchmarks.serving.reference import write_reference
from pipelines.bench.requests import Requests
from ranking.artifacts import bundle
from ranking.ids.index import write_id_index
from ranking.ids.text import WORD_SIZE
from ranking.lookup.feature_index import FeatureIndex, write_feature_index
from service.backends.select import select_backend

LENGTHS = (8, 16, 36)
"""Numbers of characters of the text ids."""
CANDIDATES = (10, 100, 500)
TURNS = {"cold": 60, "warm": 200}
CACHE_BYTES = 64 * 2**20
"""Number of bytes that are overwritten before each cold call."""
REFERENCE_IDS = 1_000
"""Number of users and of items of the reference model, whose tables do not affect the forward pass."""


def write_text_index(ids: pa.Array, folder: Path) -> npt.NDArray[np.int64]:
    """Write the index of text ids of bundle format 2: ``keys.npy``, ``starts.npy``, ``text.npy`` and ``ends.npy``.

    Args:
        ids: text without nulls or duplicates.
        folder: an existing folder.

    Returns:
        Position in ``ids`` of the id of each row [rows].
    """
    texts = ids.view(pa.binary()).to_pylist()
    keys = np.fromiter(map(xxhash.xxh3_64_intdigest, texts), np.uint64, len(texts))
    order = np.argsort(keys, kind="stable")
    bits = max(len(texts) - 1, 1).bit_length()
    prefixes = (keys[order] >> np.uint64(64 - bits)).astype(np.int64)
    np.save(folder / "keys.npy", np.append(keys[order], np.uint64(2**64 - 1)))
    np.save(folder / "starts.npy", np.searchsorted(prefixes, np.arange(2**bits)).astype(np.uint32))
    ordered = [texts[position] for position in order]
    np.save(folder / "text.npy", np.frombuffer(b"".join([*ordered, bytes(WORD_SIZE)]), np.uint8))
    np.save(folder / "ends.npy", np.cumsum([0, *map(len, ordered)]))
    return order


def texts_of(numbers: npt.NDArray[np.int64], length: int) -> list[str]:
    """Return an id of this length for each number [n]."""
    return [f"{number:0{length}}" for number in numbers.tolist()]


def index_size(folder: Path) -> float:
    """Return the size of the files that map ids to rows in MiB."""
    files = (folder / f"{name}.npy" for name in ("keys", "starts", "checks", "text", "ends"))
    return sum(file.stat().st_size for file in files if file.exists()) / 2**20


def write_indexes(work: Path, rows: int) -> dict[str, Path]:
    """Write the indexes unless an earlier run has; return name → folder. All share the files of their features."""
    schema = schema_of(KINDS[0])
    folders = {"integers": work / f"integers-{rows}"}
    if not folders["integers"].exists():
        work.mkdir(parents=True, exist_ok=True)
        write_feature_index(table_of(schema, KINDS[0], rows), encoder_of(schema), "item", folders["integers"])
    for length in LENGTHS:
        for text_format, write in ((2, write_text_index), (3, write_id_index)):
            name = f"{length} characters, format {text_format}"
            folders[name] = work / f"text-{length}-{text_format}-{rows}"
            if not folders[name].exists():
                folders[name].mkdir()
                write(pa.array(texts_of(np.arange(rows), length)), folders[name])
                for file in ("rows.npy", "values.npy"):
                    os.link(folders["integers"] / file, folders[name] / file)
    return folders


def time_turns(
    calls: dict[str, Callable[[list[Any]], object]], draw: dict[str, Callable[[], list[Any]]], state: str
) -> dict[str, float]:
    """Return name → median CPU time of a call with drawn ids, in microseconds; the calls take turns."""
    cache = np.zeros(CACHE_BYTES, np.uint8)
    times: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(TURNS[state]):
        for name, call in calls.items():
            ids = draw[name]()
            if state == "cold":
                cache += np.uint8(turn & 1)
            else:
                call(ids)
            start = time.thread_time()
            call(ids)
            times[name].append(1e6 * (time.thread_time() - start))
    return {name: float(np.median(values)) for name, values in times.items()}


def compare(folders: dict[str, Path], rows: int, count: int, state: str, forward: Callable[[], object]) -> list[float]:
    """Return the times of ``rows`` and ``take`` of each index, and of the forward pass of 500 candidates."""
    random, encoder = np.random.default_rng(0), encoder_of(schema_of(KINDS[0]))
    calls: dict[str, Callable[[list[Any]], object]] = {}
    draw: dict[str, Callable[[], list[Any]]] = {}
    for name, folder in folders.items():
        index = FeatureIndex.open(folder, encoder, "item")
        length = 0 if name == "integers" else int(name.split()[0])

        def draw_ids(length: int = length) -> list[Any]:
            numbers = random.integers(rows, size=count)
            return texts_of(numbers, length) if length else numbers.tolist()

        def take(ids: list[Any], index: FeatureIndex = index) -> object:
            return index.take(index.rows(ids))

        draw[name] = draw_ids if state == "cold" else partial(list, draw_ids())
        calls[name] = take
    calls["forward"], draw["forward"] = lambda _: forward(), list
    return list(time_turns(calls, draw, state).values())


def forward_of(work: Path) -> Callable[[], object]:
    """Return a function that scores 500 candidates for all tasks with the reference model on one thread."""
    folder = work / "reference"
    if not folder.exists():
        write_reference(folder, REFERENCE_IDS, REFERENCE_IDS)
    ranker = bundle.load(folder)
    requests = Requests(ranker, folder)
    batches = itertools.cycle([requests.encoded(max(CANDIDATES)) for _ in range(8)])
    backend = select_backend(ranker, "onnxruntime", 1)
    return lambda: backend.scores(next(batches), ranker.schema.task_names)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True, help="folder of the indexes, which later runs reuse")
    parser.add_argument("--rows", type=int, default=1_000_000, help="ids per index")
    arguments = parser.parse_args()
    folders, forward = write_indexes(arguments.work, arguments.rows), forward_of(arguments.work)
    cells = [(count, state) for count in CANDIDATES for state in TURNS]
    columns = [compare(folders, arguments.rows, count, state, forward) for count, state in cells]
    print("| ids | index, MiB |" + "".join(f" {count}, {state} |" for count, state in cells))
    print("|---|---:|" + "---:|" * len(cells))
    for number, (name, folder) in enumerate(folders.items()):
        print(f"| {name} | {index_size(folder):.1f} |" + "".join(f" {times[number]:.0f} |" for times in columns))
    print("| forward, 500 candidates | |" + "".join(f" {times[-1]:.0f} |" for times in columns))
    for number, name in enumerate(folders):
        print(f"{name}: {columns[-1][number] / columns[-1][-1]:.1%} of the forward at 500 candidates, warm")


if __name__ == "__main__":
    main()
