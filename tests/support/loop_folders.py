"""Folders of a served log, of feedback and of published versions, written by a test."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pipelines.jobs.join import join
from pipelines.loop.join_counts import JoinCounts
from pipelines.loop.sources import LoopSources
from ranking.schema import Owner
from ranking.served_log.schema import BUNDLE, MISSING, REQUEST, ServedColumn, ServedDescription
from ranking.served_log.writer import encode_served

START = datetime(2026, 3, 1, 12, tzinfo=UTC)
HOUR = 3_600
SCHEMA: dict[str, Any] = {
    "name": "feed",
    "columns": {"time": "ts", "user": "uid", "item": "iid", "request": "rid", "weight": "w"},
    "features": [
        {"name": "uid", "kind": "categorical", "owner": "user"},
        {"name": "iid", "kind": "categorical", "owner": "item"},
        {"name": "price", "kind": "numeric", "owner": "item"},
        {"name": "tags", "kind": "bag", "owner": "item"},
        {"name": "age", "kind": "numeric", "owner": "user"},
        {"name": "tab", "kind": "categorical", "owner": "context"},
    ],
    "tasks": [
        {"name": "click", "kind": "binary", "label": "is_click"},
        {"name": "watch", "kind": "regression", "mask": "played"},
    ],
}
LISTS = pa.list_(pa.large_list(pa.string()))


def at(seconds: float) -> datetime:
    """Return a time after the start."""
    return START + timedelta(seconds=seconds)


class LoopFolders:
    """A served log, feedback, a repository and a joined log in one folder.

    Args:
        folder: new folder.
    """

    def __init__(self, folder: Path) -> None:
        self.served, self.feedback, self.log, self.repository = (
            folder / name for name in ("served", "feedback", "log", "repository")
        )
        for path in (self.served, self.feedback, self.repository):
            path.mkdir(parents=True)
        self._files = 0
        self.publish("1", SCHEMA)

    def publish(self, version: str, schema: Mapping[str, Any]) -> None:
        """Write what the join reads of a version: its schema and its table of items."""
        bundle = self.repository / "feed" / version
        bundle.mkdir(parents=True)
        (bundle / "manifest.json").write_text(json.dumps({"schema": schema}))
        items = {"iid": ["a", "b", "c"], "price": [0.1, 0.2, None], "tags": [["x"], [], None]}
        pq.write_table(pa.table(items), bundle / "items.parquet")

    def serve(
        self,
        requests: Mapping[str, tuple[float, list[Any]]],
        model: str = "feed",
        version: str = "1",
        zone: str | None = None,
    ) -> Path:
        """Write a file of the served log: for each request id, seconds after the start, and items, best first."""
        times, items = [at(t) for t, _ in requests.values()], [ids for _, ids in requests.values()]
        item_sources = {"a": bytes([REQUEST] * 2), "b": bytes([BUNDLE] * 2)}
        sources = [[item_sources.get(item, bytes([MISSING] * 2)) for item in ids] for ids in items]
        prices = [[7.25 if item == "a" else None for item in ids] for ids in items]
        ids = pa.list_(pa.int64() if isinstance(items[0][0], int) else pa.string())
        table = pa.table(
            {
                "request_id": [*requests],
                "time": pa.array(times, pa.timestamp("us", "UTC")),
                "user_id": [f"u-{name}" for name in requests],
                "item_id": pa.array(items, ids),
                "score": [[1.0] * len(ids) for ids in items],
                "user.age": pa.array([31.5] * len(items)),
                "source.user": pa.array([bytes([REQUEST])] * len(items), pa.binary(1)),
                "context.tab": pa.array(["home"] * len(items)),
                "source.context": pa.array([bytes([REQUEST])] * len(items), pa.binary(1)),
                "item.price": pa.array(prices, pa.list_(pa.float64())),
                "item.tags": pa.array([[None] * len(ids) for ids in items], LISTS),
                "source.item": pa.array(sources, pa.list_(pa.binary(2))),
            }
        )
        owners: dict[str, Owner] = {"age": "user", "tab": "context", "price": "item", "tags": "item"}
        columns = tuple(ServedColumn(name, owner, "", "", computed=False) for name, owner in owners.items())
        description = ServedDescription(model, version, self.repository, False, zone, columns)
        self._files += 1
        path = self.served / f"served-20260301T120000Z-{self._files:012x}.parquet"
        path.write_bytes(encode_served(table, description))
        return path

    def send(self, *events: tuple[str, Any, Mapping[str, float], float], suffix: str = "") -> Path:
        """Write a file of feedback: request id, item, labels, and seconds after the start, at which it arrives too."""
        self._files += 1
        path = self.feedback / f"feedback-20260301T120000Z-{self._files:012x}.jsonl{suffix}"
        lines = []
        for request_id, item, labels, seconds in events:
            time = at(seconds).isoformat()
            event = {"item": item, "labels": labels, "time": time}
            lines.append(json.dumps({"request_id": request_id, "key": None, "received": time, "events": [event]}))
        path.write_text("".join(f"{line}\n" for line in lines))
        return path

    def join(self, until: float | None = 2 * HOUR, window: int = HOUR, **options: Any) -> JoinCounts:
        """Run the join until some seconds after the start."""
        sources = LoopSources(self.served, self.feedback, **options)
        return join(sources, self.log, window, None if until is None else at(until))

    def rows(self) -> list[dict[str, Any]]:
        """Return all rows of the joined log by request and position."""
        files = sorted(self.log.glob("run-*/day=*/*.parquet"))
        rows = [row for file in files for row in pq.ParquetFile(file).read().to_pylist()]
        return sorted(rows, key=lambda row: (row["request_id"], row["position"]))

    def labels(self) -> dict[tuple[str, Any], tuple[int, float | None]]:
        """Return the labels by request and item."""
        return {(row["rid"], row["iid"]): (row["is_click"], row["watch"]) for row in self.rows()}
