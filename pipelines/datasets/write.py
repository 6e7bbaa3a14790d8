"""Output of every adapter: a log partitioned by day, its side tables and a ranker.toml that describes them."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import tomli_w

from ranking.artifacts.atomic_files import atomic_directory

ROW_GROUP_SIZE = 131_072
"""Rows per row group: fewer than the shuffle buffer of training, so that each group is decoded once per pass."""


def feature(name: str, kind: str, owner: str, **options: Any) -> dict[str, Any]:
    """Return a ``[[features]]`` entry."""
    return {"name": name, "kind": kind, "owner": owner, **options}


def task(name: str, kind: str, **options: Any) -> dict[str, Any]:
    """Return a ``[[tasks]]`` entry."""
    return {"name": name, "kind": kind, **options}


def counter(of: list[str], labels: list[str], **options: Any) -> dict[str, Any]:
    """Return a ``[[counters]]`` entry."""
    return {"of": of, "labels": labels, **options}


def write_logs(out: Path, config: dict[str, Any], log: pa.Table, **sides: pa.Table) -> None:
    """Write ``ranker.toml``, ``log/date=YYYY-MM-DD/part-0.parquet`` and the side tables.

    Args:
        out: new or empty folder; it is created atomically.
        config: content of the ranker.toml without the paths; in ``logs``, split bounds as ISO 8601 text.
        log: one row per impression, with the time column that the configuration names.
        sides: features by id: ``users`` and ``items``, each written to a file of this name.

    Raises:
        OutputError: ``out`` is not empty, or cannot be written.
    """
    settings = {k: datetime.fromisoformat(v) if isinstance(v, str) else v for k, v in config["logs"].items()}
    paths = {"path": "log"} | {side: f"{side}.parquet" for side in sides}
    log = log.drop_columns([c for c in ("date",) if c in log.column_names])
    day = pc.strftime(log[config["columns"]["time"]], "%Y-%m-%d")
    with atomic_directory(out) as draft:
        (draft / "ranker.toml").write_text(tomli_w.dumps({**config, "logs": {**paths, **settings}}))
        for date in sorted(pc.unique(day).to_pylist()):
            folder = draft / "log" / f"date={date}"
            folder.mkdir(parents=True)
            rows = log.filter(pc.equal(day, date))
            pq.write_table(rows, folder / "part-0.parquet", row_group_size=ROW_GROUP_SIZE)
        for side, table in sides.items():
            pq.write_table(table, draft / paths[side])
