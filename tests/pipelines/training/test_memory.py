"""Peak memory of profiling and reading a log, as the allocators of a process of its own count it."""

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
FEATURES = 8
COLUMNS = FEATURES + 4
GROUP_ROWS = 125_000
SHUFFLE_ROWS = 8_192
READERS = 2

DECODED_ROW_BYTES = 8 * COLUMNS
"""Bytes per row as Arrow columns."""
ENCODED_ROW_BYTES = 4 * FEATURES + 8 + 4 + 8 + FEATURES + 1
"""Bytes per row as arrays: numbers, one id, one label, the user, missing flags."""


def memory_bound() -> int:
    """Return the maximum memory of reading in bytes, which does not depend on the size of the log."""
    # The block in use, the block being assembled, its parts, and batches read ahead.
    blocks = 4 * (SHUFFLE_ROWS + CHUNK_ROWS) * ENCODED_ROW_BYTES
    # A chunk as raw, selected, completed and encoded rows, and temporary columns.
    chunks = READERS * 5 * CHUNK_ROWS * DECODED_ROW_BYTES
    buffers = READERS * COLUMNS * BUFFER_BYTES
    return blocks + chunks + buffers


def write_log(folder: Path, days: int) -> Path:
    """Write a log with one row group per day; return its ranker.toml."""
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


@pytest.mark.nightly(
    short="tests/pipelines/training/test_dataloader.py::test_epoch_decodes_a_row_group_larger_than_a_block_once"
)
def test_peak_memory_when_the_log_grows_fourfold_stays_within_a_constant_bound(tmp_path: Path) -> None:
    """Takes about 15 s: protects trainings on logs that are larger than memory.

    Both logs have a file for each reader: with one file, only one reader would hold chunks.
    """
    script = Path(__file__).with_name("measure_memory.py")
    logs = [str(write_log(tmp_path / str(days), days)) for days in (READERS, 4 * READERS)]
    process = subprocess.run([sys.executable, str(script), *logs], check=True, capture_output=True, text=True)
    small, large = json.loads(process.stdout)
    assert large["rows"] == 4 * small["rows"]
    assert large["rows"] * DECODED_ROW_BYTES > 2 * memory_bound(), "the log must be larger than the bound"
    for name in ("profile", "read"):
        assert 0 < large[name] < memory_bound(), (small, large, memory_bound())
        assert large[name] < 1.25 * small[name], (small, large)
