"""Requests that could come for a bundle, in every form that a service takes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pipelines.bench.connection import Body
from ranking.encoding.request_batch import RequestBatch, SharedItemSplitter
from ranking.frozen.ranker import FrozenRanker
from ranking.schema import Owner, Schema
from service.http.media_types import ARROW

DIFFERENT = 8
"""Requests that are sent by turns, so that not the same rows are looked up each time."""
MADE_UP = 1_000_000
"""Ids to draw from where a bundle has no table."""


class Requests:
    """Draws requests: a user, a context, and candidates from the tables of the bundle.

    What a bundle has no table for is drawn from its golden rows.

    Args:
        ranker: the bundle.
        folder: where it lies.
        seed: of the draws.
    """

    def __init__(self, ranker: FrozenRanker, folder: Path, seed: int = 0) -> None:
        self._ranker, self._random = ranker, np.random.default_rng(seed)
        golden = pq.read_table(folder / "golden.parquet", columns=["inputs"])["inputs"]
        self._golden = pa.Table.from_struct_array(golden.combine_chunks())
        self._bodies: dict[tuple[str, int], tuple[Body, ...]] = {}

    @property
    def schema(self) -> Schema:
        """The bundle's."""
        return self._ranker.schema

    @property
    def most(self) -> int:
        """The most candidates of one request: as many as there are items."""
        table = self._ranker.tables.get("item")
        return MADE_UP if table is None else table.table.num_rows

    def candidates(self, count: int) -> pa.Table:
        """One request's candidates with all their features, one row each, no item twice."""
        schema = self._ranker.schema
        one = self._golden.take(np.full(count, self._random.integers(len(self._golden))))
        columns = {name: one[name] for name in one.column_names}
        draws = self._golden.take(self._random.integers(len(self._golden), size=count))
        columns |= {name: draws[name] for name in schema.columns_of("item")}
        columns[schema.columns.user] = self._ids("user", 1).take(np.zeros(count, np.int64))
        columns[schema.columns.item] = self._ids("item", count)
        for owner in self._ranker.tables:
            columns = {name: value for name, value in columns.items() if name not in schema.columns_of(owner)}
        return self._ranker.complete(pa.table(columns))

    def halves(self, count: int) -> RequestBatch:
        """One request, encoded."""
        encoder = self._ranker.encoder
        inputs = encoder.encode(self.candidates(count))
        return SharedItemSplitter(encoder).split(inputs, np.zeros(count, np.int64))

    def item_ids(self, count: int) -> list[Any]:
        """Ids of one request's candidates."""
        ids: list[Any] = self._ids("item", count).to_pylist()
        return ids

    def body(self, form: str, count: int) -> Body:
        """One request in a form of FORMS."""
        return FORMS[form](self, self.candidates(count))

    def bodies(self, form: str, count: int) -> tuple[Body, ...]:
        """Different requests, the same at each call."""
        if (form, count) not in self._bodies:
            self._bodies[form, count] = tuple(self.body(form, count) for _ in range(DIFFERENT))
        return self._bodies[form, count]

    def features(self, table: pa.Table, owner: Owner) -> dict[str, list[Any]]:
        """Values of an owner's features."""
        columns = self._ranker.schema.columns_of(owner)
        return {column: table[column].to_pylist() for column in columns}

    def shared(self, table: pa.Table, *, by_id: bool) -> dict[str, Any]:
        """The parts of a request that its candidates share, the user's features left out if they are looked up."""
        schema = self._ranker.schema
        user: dict[str, Any] = {"id": table[schema.columns.user][0].as_py()}
        if not (by_id and "user" in self._ranker.tables):
            user["features"] = _first(self.features(table, "user"))
        return {"user": user, "context": _first(self.features(table, "context"))}

    def items(self, table: pa.Table) -> list[Any]:
        """Ids of the candidates."""
        ids: list[Any] = table[self._ranker.schema.columns.item].to_pylist()
        return ids

    def _ids(self, owner: Owner, count: int) -> pa.Array:
        """Distinct ids: of the owner's table, else numbers."""
        table = self._ranker.tables.get(owner)
        rows = self._random.choice(MADE_UP if table is None else table.table.num_rows, count, replace=False)
        return pa.array(rows) if table is None else table.table[table.key].combine_chunks().take(pa.array(rows))


def _ids(requests: Requests, table: pa.Table) -> Body:
    return _json(requests.shared(table, by_id=True) | {"items": {"id": requests.items(table)}})


def _columns(requests: Requests, table: pa.Table) -> Body:
    items = {"id": requests.items(table), "features": requests.features(table, "item")}
    return _json(requests.shared(table, by_id=False) | {"items": items})


def _rows(requests: Requests, table: pa.Table) -> Body:
    features = requests.features(table, "item")
    items = [
        {"id": id_, "features": {name: values[i] for name, values in features.items()}}
        for i, id_ in enumerate(requests.items(table))
    ]
    return _json(requests.shared(table, by_id=False) | {"items": items})


def _arrow(requests: Requests, table: pa.Table) -> Body:
    rest = {"request": json.dumps(requests.shared(table, by_id=False))}
    schema = requests.schema
    items = table.select([schema.columns.item, *schema.columns_of("item")]).replace_schema_metadata(rest)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, items.schema) as writer:
        writer.write_table(items)
    return Body(sink.getvalue().to_pybytes(), ARROW)


FORMS: dict[str, Callable[[Requests, pa.Table], Body]] = {
    "ids": _ids,
    "columns": _columns,
    "rows": _rows,
    "arrow": _arrow,
}
"""Form → how candidates are written in it."""


def _json(document: dict[str, Any]) -> Body:
    return Body(json.dumps(document).encode())


def _first(features: dict[str, list[Any]]) -> dict[str, Any]:
    return {name: values[0] for name, values in features.items()}
