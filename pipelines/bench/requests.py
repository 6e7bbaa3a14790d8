"""Generate requests for a bundle in every form that the service accepts."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pipelines.bench.connection import RequestBody
from ranking.encoding.request_batch import RequestBatch, SharedItemSplitter
from ranking.frozen.ranker import FrozenRanker
from ranking.schema import Owner
from service.http.media_types import ARROW

DISTINCT_REQUESTS = 8
"""Number of requests sent in rotation, so that different rows are looked up."""
SYNTHETIC_IDS = 1_000_000
"""Ids are drawn from 0 to this number for an entity without a feature table."""


class Requests:
    """Generates requests with a user, a context and candidates from the feature tables of a bundle.

    Features without a table are drawn from the golden rows of the bundle.

    Args:
        ranker: the loaded bundle.
        folder: folder of the bundle.
        seed: seed of the random draws.
    """

    def __init__(self, ranker: FrozenRanker, folder: Path, seed: int = 0) -> None:
        self.ranker, self._random = ranker, np.random.default_rng(seed)
        golden = pq.read_table(folder / "golden.parquet", columns=["inputs"])["inputs"]
        self._golden = pa.Table.from_struct_array(golden.combine_chunks())
        self._bodies: dict[tuple[str, int], tuple[RequestBody, ...]] = {}

    @property
    def max_candidates(self) -> int:
        """Maximum number of candidates per request: the number of items."""
        table = self.ranker.tables.get("item")
        return SYNTHETIC_IDS if table is None else table.table.num_rows

    def candidates(self, count: int) -> pa.Table:
        """Return the distinct candidates of one request with all their features, one row per candidate."""
        schema = self.ranker.schema
        shared = self._golden.take(np.full(count, self._random.integers(len(self._golden))))
        columns = {name: shared[name] for name in shared.column_names}
        items = self._golden.take(self._random.integers(len(self._golden), size=count))
        columns |= {name: items[name] for name in schema.columns_of("item")}
        columns[schema.columns.user] = self._draw_ids("user", 1).take(np.zeros(count, np.int64))
        columns[schema.columns.item] = self._draw_ids("item", count)
        for owner in self.ranker.tables:
            columns = {name: value for name, value in columns.items() if name not in schema.columns_of(owner)}
        return self.ranker.complete(pa.table(columns))

    def encoded(self, count: int) -> RequestBatch:
        """Return one encoded request."""
        encoder = self.ranker.encoder
        inputs = encoder.encode(self.candidates(count))
        return SharedItemSplitter(encoder).split(inputs, np.zeros(count, np.int64))

    def item_ids(self, count: int) -> list[Any]:
        """Return distinct item ids."""
        ids: list[Any] = self._draw_ids("item", count).to_pylist()
        return ids

    def body(self, form: str, count: int) -> RequestBody:
        """Return the body of one request in a form of ``FORMS``."""
        return FORMS[form](self, self.candidates(count))

    def bodies(self, form: str, count: int) -> tuple[RequestBody, ...]:
        """Return the bodies of ``DISTINCT_REQUESTS`` requests, which are the same at each call."""
        if (form, count) not in self._bodies:
            self._bodies[form, count] = tuple(self.body(form, count) for _ in range(DISTINCT_REQUESTS))
        return self._bodies[form, count]

    def features(self, table: pa.Table, owner: Owner) -> dict[str, list[Any]]:
        """Return the values of an owner's features by column."""
        return {column: table[column].to_pylist() for column in self.ranker.schema.columns_of(owner)}

    def user_and_context(self, table: pa.Table, *, by_id: bool) -> dict[str, Any]:
        """Return the user and the context of a request; with ``by_id``, without user features that are looked up."""
        user: dict[str, Any] = {"id": table[self.ranker.schema.columns.user][0].as_py()}
        if not (by_id and "user" in self.ranker.tables):
            user["features"] = _first_row(self.features(table, "user"))
        return {"user": user, "context": _first_row(self.features(table, "context"))}

    def candidate_ids(self, table: pa.Table) -> list[Any]:
        """Return the item ids of the candidates."""
        ids: list[Any] = table[self.ranker.schema.columns.item].to_pylist()
        return ids

    def _draw_ids(self, owner: Owner, count: int) -> pa.Array:
        """Draw distinct ids from the owner's table, or integers if there is no table."""
        table = self.ranker.tables.get(owner)
        rows = self._random.choice(SYNTHETIC_IDS if table is None else table.table.num_rows, count, replace=False)
        return pa.array(rows) if table is None else table.table[table.key].combine_chunks().take(pa.array(rows))


def _ids(requests: Requests, table: pa.Table) -> RequestBody:
    items = {"id": requests.candidate_ids(table)}
    return _json_body(requests.user_and_context(table, by_id=True) | {"items": items})


def _columns(requests: Requests, table: pa.Table) -> RequestBody:
    items = {"id": requests.candidate_ids(table), "features": requests.features(table, "item")}
    return _json_body(requests.user_and_context(table, by_id=False) | {"items": items})


def _rows(requests: Requests, table: pa.Table) -> RequestBody:
    features = requests.features(table, "item")
    items = [
        {"id": item_id, "features": {name: values[i] for name, values in features.items()}}
        for i, item_id in enumerate(requests.candidate_ids(table))
    ]
    return _json_body(requests.user_and_context(table, by_id=False) | {"items": items})


def _arrow(requests: Requests, table: pa.Table) -> RequestBody:
    metadata = {"request": json.dumps(requests.user_and_context(table, by_id=False))}
    schema = requests.ranker.schema
    items = table.select([schema.columns.item, *schema.columns_of("item")]).replace_schema_metadata(metadata)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, items.schema) as writer:
        writer.write_table(items)
    return RequestBody(sink.getvalue().to_pybytes(), ARROW)


FORMS: dict[str, Callable[[Requests, pa.Table], RequestBody]] = {
    "ids": _ids,
    "columns": _columns,
    "rows": _rows,
    "arrow": _arrow,
}
"""Form of a request → function that writes its body."""


def _json_body(document: dict[str, Any]) -> RequestBody:
    return RequestBody(json.dumps(document).encode())


def _first_row(features: dict[str, list[Any]]) -> dict[str, Any]:
    return {name: values[0] for name, values in features.items()}
