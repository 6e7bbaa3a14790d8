"""Measure the cost of growing work: more rows in the log, or more ids in a vocabulary.

    python -m benchmarks.training.growth rows FOLDER ROWS
    python -m benchmarks.training.growth ids FOLDER IDS ROWS
    python -m benchmarks.training.growth log FOLDER ROWS

Trains the default model without counters on generated logs for one epoch, in batches of 2,048. With ``rows``, logs of
all lengths have the same numbers of users and items. With ``ids``, the log stays the same and its item ids are hashed
into an embedding table of the given number of rows, which training keeps in memory with the optimizer's state; then two
ranks that torchrun starts train the same, and the peak memory of the larger one is printed, too. ``log`` only writes a
log, and ``rank`` is one of the ranks.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.training import ours, shape
from pipelines.config.config import load_config
from pipelines.datasets.synthetic import generate
from pipelines.jobs.train import train

USERS, ITEMS = 50_000, 10_000
RANKS = 2
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
    single = ours.main(folder / "ranker.toml", folder / "run", 1)
    shutil.rmtree(folder / "run")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={RANKS}"]
    command += ["-m", "--", "benchmarks.training.growth", "rank", str(folder)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    peaks = [int((folder / f"{rank}.txt").read_text()) for rank in range(RANKS)]
    return {**single, "rank_peak_bytes": max(peaks)}


def train_as_rank(folder: Path) -> None:
    """Train as one of the ranks that torchrun started, and write the peak memory of this one in bytes."""
    train(load_config(folder / "ranker.toml"), folder / "run")
    (folder / f"{os.environ['RANK']}.txt").write_text(str(ours.peak_bytes()))


if __name__ == "__main__":
    kind, path, *numbers = sys.argv[1:]
    if kind == "log":
        generate(Path(path), int(numbers[0]), users=USERS, items=ITEMS)
    elif kind == "rank":
        train_as_rank(Path(path))
    else:
        sizes = [int(number) for number in numbers]
        result = measure_rows(Path(path), *sizes) if kind == "rows" else measure_ids(Path(path), *sizes)
        print(json.dumps(result))
