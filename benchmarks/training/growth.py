"""Cost as work grows: rows/s against the rows of a log, seconds a step and memory against the ids of a vocabulary.

    python -m benchmarks.training.growth rows FOLDER ROWS
    python -m benchmarks.training.growth ids FOLDER IDS ROWS
    python -m benchmarks.training.growth log FOLDER ROWS

Generated logs, their default model, batches of 2048, one epoch. For ``rows`` there are as many users and items in a
short log as in a long one. For ``ids`` the log stays as it is and its item ids are hashed into so many rows of an
embedding table, which training holds, with what its optimiser keeps for each of them.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.training import ours, shape
from pipelines.config.config import load
from pipelines.datasets.synthetic import generate

USERS, ITEMS = 50_000, 10_000
BATCH = f"training.batch_size={shape.BATCH}"


def against_rows(folder: Path, rows: int) -> dict[str, Any]:
    """One epoch over so many rows."""
    write = [sys.executable, "-m", "benchmarks.training.growth", "log", str(folder / "log"), str(rows)]
    subprocess.run(write, check=True)  # its memory is not that of training
    return ours.main(folder / "log" / "ranker.toml", folder / "run", 1, BATCH)


def against_ids(folder: Path, ids: int, rows: int) -> dict[str, Any]:
    """One epoch with so many rows in the items' embedding table."""
    generate(folder / "log", rows)
    config = load(folder / "log" / "ranker.toml", [BATCH])
    features = [f.model_copy(update={"hash_buckets": ids}) if f.name == "item_id" else f for f in config.features]
    config.model_copy(update={"features": tuple(features)}).write(folder / "ranker.toml")
    return ours.main(folder / "ranker.toml", folder / "run", 1)


if __name__ == "__main__":
    kind, where, *numbers = sys.argv[1:]
    if kind == "log":
        generate(Path(where), int(numbers[0]), users=USERS, items=ITEMS)
    else:
        measure = {"rows": against_rows, "ids": against_ids}[kind]
        print(json.dumps(measure(Path(where), *map(int, numbers))))
