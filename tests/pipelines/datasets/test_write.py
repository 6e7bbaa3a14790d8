from __future__ import annotations

import tomllib
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from pipelines.config.config import load_config
from pipelines.datasets.write import feature, task, write_logs
from ranking.errors import OutputError

USERS = pa.table({"user_id": ["u0", "u1"]})
ITEMS = pa.table({"item_id": ["v0", "v1"]})


@pytest.fixture
def log() -> pa.Table:
    """Twelve rows, one per six hours from 30 December, in random order."""
    times = [datetime(2025, 12, 30) + timedelta(hours=6 * (n * 5 % 12)) for n in range(12)]
    return pa.table({"at": times, "n": range(12), "user_id": ["u0", "u1"] * 6, "item_id": ["v0"] * 12})


@pytest.fixture
def config() -> dict[str, Any]:
    return {
        "name": "shop",
        "columns": {"time": "at"},
        "logs": {"validation_from": "2025-12-31T00:00:00", "test_from": "2026-01-01T12:00:00"},
        "features": [feature("user_id", "categorical", "user", dim=4), feature("item_id", "categorical", "item")],
        "tasks": [task("n", "regression", transform="log1p")],
    }


def files(folder: Path) -> list[str]:
    return sorted(str(f.relative_to(folder)) for f in folder.rglob("*") if f.is_file())


def test_write_logs_creates_daily_partitions_side_tables_and_config(
    tmp_path: Path, log: pa.Table, config: dict[str, Any]
) -> None:
    write_logs(tmp_path / "out", config, log, users=USERS, items=ITEMS)
    assert files(tmp_path / "out") == [
        "items.parquet",
        "log/date=2025-12-30/part-0.parquet",
        "log/date=2025-12-31/part-0.parquet",
        "log/date=2026-01-01/part-0.parquet",
        "ranker.toml",
        "users.parquet",
    ]
    assert pq.read_table(tmp_path / "out" / "users.parquet") == USERS
    assert pq.read_table(tmp_path / "out" / "items.parquet") == ITEMS


def test_write_logs_keeps_every_row_and_column_in_the_partition_of_its_day(
    tmp_path: Path, log: pa.Table, config: dict[str, Any]
) -> None:
    write_logs(tmp_path / "out", config, log, users=USERS, items=ITEMS)
    written = ds.dataset(tmp_path / "out" / "log", format="parquet", partitioning="hive").to_table()
    assert written.select(log.column_names).sort_by("n").to_pylist() == log.to_pylist()
    assert all(row["at"].date().isoformat() == row["date"] for row in written.to_pylist())


def test_write_logs_replaces_date_column_by_the_partition_key(
    tmp_path: Path, log: pa.Table, config: dict[str, Any]
) -> None:
    write_logs(tmp_path / "out", config, log.append_column("date", pa.array([20251230] * 12)), users=USERS, items=ITEMS)
    file = tmp_path / "out" / "log" / "date=2026-01-01" / "part-0.parquet"
    assert pq.read_schema(file).names == log.column_names


def test_written_config_names_the_files(tmp_path: Path, log: pa.Table, config: dict[str, Any]) -> None:
    write_logs(tmp_path / "out", config, log, users=USERS, items=ITEMS)
    loaded = load_config(tmp_path / "out" / "ranker.toml")
    assert loaded.logs.path == tmp_path / "out" / "log"
    assert loaded.logs.users == tmp_path / "out" / "users.parquet"
    assert loaded.logs.items == tmp_path / "out" / "items.parquet"
    assert loaded.logs.validation_from == datetime(2025, 12, 31)
    assert loaded.logs.test_from == datetime(2026, 1, 1, 12)
    assert loaded.features[0].name == "user_id"
    assert loaded.tasks[0].transform == "log1p"


def test_written_config_keeps_other_settings_of_the_log(tmp_path: Path, log: pa.Table, config: dict[str, Any]) -> None:
    config["logs"]["allow_missing_days"] = True
    write_logs(tmp_path / "out", config, log, users=USERS, items=ITEMS)
    assert load_config(tmp_path / "out" / "ranker.toml").logs.allow_missing_days


def test_written_config_uses_relative_paths(tmp_path: Path, log: pa.Table, config: dict[str, Any]) -> None:
    write_logs(tmp_path / "out", config, log, users=USERS, items=ITEMS)
    written = tomllib.loads((tmp_path / "out" / "ranker.toml").read_text())
    assert written["logs"]["path"] == "log"
    (tmp_path / "out").rename(tmp_path / "moved")
    assert load_config(tmp_path / "moved" / "ranker.toml").logs.path == tmp_path / "moved" / "log"


def test_write_logs_creates_parent_folders(tmp_path: Path, log: pa.Table, config: dict[str, Any]) -> None:
    write_logs(tmp_path / "a" / "b" / "out", config, log, users=USERS, items=ITEMS)
    assert (tmp_path / "a" / "b" / "out" / "ranker.toml").is_file()


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_write_logs_into_existing_path_is_rejected(
    tmp_path: Path, log: pa.Table, config: dict[str, Any], kind: str
) -> None:
    out = tmp_path / "out"
    if kind == "file":
        out.write_text("mine")
    else:
        (out / "mine").mkdir(parents=True)
    with pytest.raises(OutputError, match="exists and is never overwritten: name another folder"):
        write_logs(out, config, log, users=USERS, items=ITEMS)
    assert (out.read_text() == "mine") if kind == "file" else (out / "mine").is_dir()


def test_write_logs_that_fails_leaves_no_files(
    tmp_path: Path, log: pa.Table, config: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    write = pq.write_table

    def disk_full(table: pa.Table, where: Path, **how: Any) -> None:
        if where.name == "users.parquet":
            raise OSError(28, "No space left on device")
        write(table, where, **how)

    monkeypatch.setattr(pq, "write_table", disk_full)
    with pytest.raises(OutputError, match="No space left on device"):
        write_logs(tmp_path / "out", config, log, users=USERS, items=ITEMS)
    assert list(tmp_path.iterdir()) == []


def test_unwritable_path_is_named(tmp_path: Path, log: pa.Table, config: dict[str, Any]) -> None:
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(OutputError) as caught:
        write_logs(tmp_path / "file" / "out", config, log, users=USERS, items=ITEMS)
    assert str(caught.value).startswith(f"{tmp_path}/file is a file, not a folder")
