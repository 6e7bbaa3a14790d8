"""What every adapter writes: a partitioned log, its side tables, and a ranker.toml that reads them."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import tomli_w

from ranking.artifacts.atomic_files import atomic_directory

GROUP_ROWS = 131_072
"""Rows of a row group: fewer than a training shuffles together, so that each group is decoded once a pass."""


def feature(name: str, kind: str, owner: str, **more: Any) -> dict[str, Any]:
    """One ``[[features]]`` entry."""
    return {"name": name, "kind": kind, "owner": owner, **more}


def task(name: str, kind: str, **more: Any) -> dict[str, Any]:
    """One ``[[tasks]]`` entry."""
    return {"name": name, "kind": kind, **more}


def write_logs(out: Path, config: dict[str, Any], log: pa.Table, users: pa.Table, items: pa.Table) -> None:
    """Writes ``ranker.toml``, ``log/date=YYYY-MM-DD/part-0.parquet``, ``users.parquet`` and ``items.parquet``.

    Args:
        out: new or empty folder; appears whole or not at all.
        config: the ranker.toml without the paths; datetimes as ISO text.
        log: one row an impression, with the time column that the configuration names.
        users: features by user id.
        items: features by item id.

    Raises:
        OutputError: ``out`` holds something already, or cannot be written.
    """
    splits = {key: datetime.fromisoformat(value) for key, value in config["logs"].items()}
    paths = {"path": "log", "users": "users.parquet", "items": "items.parquet"}
    log = log.drop_columns([c for c in ("date",) if c in log.column_names])
    day = pc.strftime(log[config["columns"]["time"]], "%Y-%m-%d")
    with atomic_directory(out) as draft:
        (draft / "ranker.toml").write_text(tomli_w.dumps({**config, "logs": {**paths, **splits}}))
        for date in sorted(pc.unique(day).to_pylist()):
            folder = draft / "log" / f"date={date}"
            folder.mkdir(parents=True)
            rows = log.filter(pc.equal(day, date))
            pq.write_table(rows, folder / "part-0.parquet", row_group_size=GROUP_ROWS)
        pq.write_table(users, draft / "users.parquet")
        pq.write_table(items, draft / "items.parquet")
