"""Measure the cost of growing work: more rows in the log, or more ids in a vocabulary.

    python -m benchmarks.training.growth rows FOLDER ROWS
    python -m benchmarks.training.growth ids FOLDER IDS ROWS
    python -m benchmarks.training.growth log FOLDER ROWS

Trains the default model without counters on generated logs for one epoch, in batches of 2,048. With ``rows``, logs of
all lengths have the same numbers of users and items. With ``ids``, the log stays the same and its item ids are hashed
into an embedding table of the given number of rows, which training keeps in memory with the optimizer's state. ``log``
only writes a log.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.training import ours, shape
from pipelines.config.config import load_config
from pipelines.datasets.synthetic import generate

USERS, ITEMS = 50_000, 10_000
SETTINGS = (f"training.batch_size={shape.BATCH}", *shape.WITHOUT_COUNTERS)


def measure_rows(folder: Path, rows: int) -> dict[str, Any]:
    """Train one epoch on a log of the given number of rows."""
    command = [sys.executable, "-m", "benchmarks.training.growth", "log", str(folder / "log"), str(rows)]
    subprocess.run(command, check=True)  # A separate process, so that its memory does not count.
    return ours.main(folder / "log" / "ranker.toml", folder / "run", 1, *SETTINGS)


def measure_ids(folder: Path, ids: int, rows: int) -> dict[str, Any]:
    """Train one epoch with the given number of rows in the embedding table of items."""
    generate(folder / "log", rows)
    config = load_config(folder / "log" / "ranker.toml", list(SETTINGS))
    features = [f.model_copy(update={"hash_buckets": ids}) if f.name == "item_id" else f for f in config.features]
    config.model_copy(update={"features": tuple(features)}).write(folder / "ranker.toml")
    return ours.main(folder / "ranker.toml", folder / "run", 1)


if __name__ == "__main__":
    kind, path, *numbers = sys.argv[1:]
    if kind == "log":
        generate(Path(path), int(numbers[0]), users=USERS, items=ITEMS)
    else:
        sizes = [int(number) for number in numbers]
        result = measure_rows(Path(path), *sizes) if kind == "rows" else measure_ids(Path(path), *sizes)
        print(json.dumps(result))
