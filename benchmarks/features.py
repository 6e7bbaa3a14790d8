"""Measure the computation of counters and histories against one training pass over the same log.

Writes a log of random impressions in 10 daily files. The users' activity and the items' popularity follow power laws.
Four counters (user, item, user and tab, tags) and one history are computed for every row in a process of its own, whose
largest resident memory is reported. A second process trains one epoch with these features on the first part of the log
(``--train-rows``), because its time is proportional to the rows; the time of a training pass is the time of its
training steps, scaled to all rows. Prints a Markdown table.

    python -m benchmarks.features --work bench [--rows 10000000] [--train-rows 500000]
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import time
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

DAYS = 10
FIRST_DAY = datetime(2026, 1, 1)
GROUP_ROWS = 131_072
TAGS = [[f"tag{i}", f"tag{7 * i % 60}"] for i in range(60)]


def document(log: Path) -> dict[str, Any]:
    """Return the configuration: a model of default size with counters and a history."""
    labels = ["click", "like"]
    ids = {"user_id": "user", "item_id": "item", "tab": "context"}
    return {
        "name": "features",
        "features": [
            *({"name": name, "kind": "categorical", "owner": owner} for name, owner in ids.items()),
            {"name": "tags", "kind": "bag", "owner": "item"},
            {"name": "seconds", "kind": "numeric", "owner": "item"},
        ],
        "counters": [
            {"of": of, "labels": labels, "delay": "1h"}
            for of in (["user_id"], ["item_id"], ["user_id", "tab"], ["tags"])
        ],
        "histories": [{"of": "item_id", "label": "click", "max_length": 20, "delay": "1h"}],
        "tasks": [{"name": name, "kind": "binary"} for name in labels],
        "logs": {
            "path": log,
            "validation_from": FIRST_DAY + timedelta(days=DAYS - 1),
            "test_from": FIRST_DAY + timedelta(days=DAYS),
        },
        "training": {"checks_per_epoch": 1},
        "model": {"experts": 8},
    }


def write_log(folder: Path, rows: int) -> None:
    """Write a log of random impressions, one file per day."""
    folder.mkdir(parents=True)
    for day in range(DAYS):
        random, size = np.random.default_rng(day), rows // DAYS
        users = (rows // 100 * random.power(0.5, size)).astype(np.int64)
        items = (rows // 200 * random.power(0.3, size)).astype(np.int64)
        start = FIRST_DAY + timedelta(days=day)
        micros = np.sort(random.integers(0, 86_400_000_000, size))
        table = pa.table(
            {
                "time": pa.array(np.datetime64(start, "us") + micros.astype("m8[us]")),
                "user_id": users,
                "item_id": items,
                "tab": random.integers(0, 8, size),
                "tags": pa.array(TAGS).take(pa.array(items % len(TAGS))),
                "seconds": random.exponential(30, size),
                "click": (random.random(size) < 0.3).astype(np.int8),
                "like": (random.random(size) < 0.02).astype(np.int8),
            }
        )
        pq.write_table(table, folder / f"day-{day}.parquet", row_group_size=GROUP_ROWS)


def compute(log: Path, folder: Path) -> float:
    """Compute the columns of a log and return the seconds."""
    from pipelines.config.config import Config
    from pipelines.counters.columns import write_joined_columns
    from pipelines.data.reader import LogReader

    schema = Config.model_validate(document(log)).training_schema
    for path in (folder / "columns", folder / "state"):
        path.mkdir(parents=True)
    start = time.perf_counter()
    write_joined_columns(LogReader(log, schema, {}), schema, folder / "columns", folder / "state")
    return time.perf_counter() - start


def train_pass(log: Path, folder: Path) -> float:
    """Train one epoch on a log and return the seconds from the first step to the last."""
    from pipelines.config.config import Config
    from pipelines.jobs.train import train
    from pipelines.training.trainer import Trainer

    seconds: list[float] = []
    fit = Trainer.fit

    def timed(trainer: Trainer) -> None:
        start = time.perf_counter()
        fit(trainer)
        seconds.append(time.perf_counter() - start)

    Trainer.fit = timed  # type: ignore[method-assign, assignment]
    train(Config.model_validate(document(log)), folder)
    return seconds[0]


def in_process(step: str, log: Path, folder: Path) -> tuple[float, float]:
    """Run a step in a process of its own; returns its seconds and its largest resident memory in GiB."""
    result = folder.with_suffix(".json")
    arguments = [sys.executable, "-m", "benchmarks.features", "--step", step, "--work", str(folder), "--log", str(log)]
    process = os.spawnv(os.P_NOWAIT, sys.executable, [*arguments, "--result", str(result)])
    _, status, usage = os.wait4(process, 0)
    if status:
        raise SystemExit(f"{step} failed")
    return json.loads(result.read_text()), usage.ru_maxrss / 2**20


def main() -> None:
    """Parse the command line, then measure or run one step."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, default=Path("bench"))
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--train-rows", type=int, default=500_000)
    parser.add_argument("--step", choices=("compute", "train"), help=argparse.SUPPRESS)
    parser.add_argument("--log", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--result", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.step is not None:
        step = compute if arguments.step == "compute" else train_pass
        arguments.result.write_text(json.dumps(step(arguments.log, arguments.work)))
        return
    work = arguments.work / "features"
    shutil.rmtree(work, ignore_errors=True)
    for name, rows in (("all", arguments.rows), ("part", arguments.train_rows)):
        write_log(work / f"log-{name}", rows)
    seconds, memory = in_process("compute", work / "log-all", work / "columns")
    part, train_memory = in_process("train", work / "log-part", work / "run")
    training = part * arguments.rows / arguments.train_rows
    print("| rows | counters and histories | peak memory | one training pass | ratio | training, peak memory |")
    print("|---|---|---|---|---|---|")
    print(
        f"| {arguments.rows:,} | {seconds:.0f} s | {memory:.1f} GiB | {training:.0f} s | {seconds / training:.2f} | "
        f"{train_memory:.1f} GiB |"
    )
    shutil.rmtree(work)


if __name__ == "__main__":
    main()
