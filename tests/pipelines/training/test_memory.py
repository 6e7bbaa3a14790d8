"""Memory while a log is surveyed and fed, measured in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import datetime, timedelta
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tomli_w

from pipelines.data.parquet import BUFFER_BYTES, CHUNK_ROWS

FIRST_DAY = datetime(2026, 1, 1)
FEATURES = 40
COLUMNS = FEATURES + 4
GROUP_ROWS = 400_000
SHUFFLE_ROWS = 32_768
READERS = 2

DECODED = 8 * COLUMNS
"""Bytes of a row as Arrow columns."""
ENCODED = 4 * FEATURES + 8 + 4 + 8 + FEATURES + 1
"""Bytes of a row as tensors: numbers, an id, a label, the user, what is missing."""


def bound() -> int:
    """Bytes that reading may take, whatever the size of the log."""
    blocks = 4 * (SHUFFLE_ROWS + CHUNK_ROWS) * ENCODED  # one used, one put together, its parts, those read ahead
    chunks = READERS * 5 * CHUNK_ROWS * DECODED  # raw, selected, completed, encoded, and what a column needs meanwhile
    buffers = READERS * COLUMNS * BUFFER_BYTES
    return blocks + chunks + buffers + (32 << 20)  # allocators and modules loaded late


def write(folder: Path, days: int) -> Path:
    """A log of one row group a day; its ranker.toml."""
    random = np.random.default_rng(0)
    columns = {name: random.integers(1000, size=GROUP_ROWS) for name in ("user_id", "item_id", "watch")}
    columns |= {f"f{i}": random.integers(100, size=GROUP_ROWS).astype(np.float64) for i in range(FEATURES)}
    for day in range(days):
        time = np.datetime64(FIRST_DAY + timedelta(days=day), "us") + np.arange(GROUP_ROWS).astype("timedelta64[us]")
        file = folder / "log" / f"date={FIRST_DAY.date() + timedelta(days=day)}" / "part-0.parquet"
        file.parent.mkdir(parents=True)
        pq.write_table(pa.table({"time": time, **columns}), file, row_group_size=GROUP_ROWS)
    features = [{"name": f"f{i}", "kind": "numeric", "owner": "context"} for i in range(FEATURES)]
    end = FIRST_DAY + timedelta(days=days)
    config = {
        "name": "large",
        "logs": {"path": "log", "validation_from": end, "test_from": end + timedelta(days=1)},
        "features": [*features, {"name": "item_id", "kind": "categorical", "owner": "item"}],
        "tasks": [{"name": "watch", "kind": "regression"}],
        "training": {"shuffle_rows": SHUFFLE_ROWS, "readers": READERS},
    }
    (folder / "ranker.toml").write_text(tomli_w.dumps(config))
    return folder / "ranker.toml"


def read(toml: Path) -> dict[str, int]:
    """What the process says that reads the log."""
    script = Path(__file__).with_name("reading_memory.py")
    done = subprocess.run([sys.executable, str(script), str(toml)], check=True, capture_output=True, text=True)
    answer: dict[str, int] = json.loads(done.stdout)
    return answer


@pytest.mark.slow
def test_stays_within_a_bound_that_knows_only_batches_and_buffers_while_the_log_grows(tmp_path: Path) -> None:
    small, large = (read(write(tmp_path / str(days), days)) for days in (2, 8))
    assert large["rows"] == 4 * small["rows"]
    assert large["rows"] * DECODED > 4 * bound()  # many times what the process may take
    for found in (small, large):
        assert 0 < found["survey"] <= found["all"] < bound(), (found, bound())
    assert large["all"] < 1.25 * small["all"]
