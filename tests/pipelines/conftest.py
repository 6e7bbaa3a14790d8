"""A small hand-made log whose expected results can be written down in a test."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tomli_w

from pipelines.config.config import Config, LogsConfig
from pipelines.data.reader import LogReader, ScannedChunk
from ranking.encoding.feature_table import FeatureTable
from ranking.errors import LogError
from ranking.schema import Owner, Schema
from tests.conftest import RAW_SCHEMA

FIRST_DAY = datetime(2026, 1, 1)
DAYS = 10
QUICK: dict[str, Any] = {"training": {"batch_size": 4096}, "evaluation": {"bootstrap": 2}}
"""Settings of a run whose quality does not matter."""


class Shop:
    """A log with the schema of tests/conftest.py that covers ten days: eight train, one validates, one tests."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.schema = Schema.model_validate(RAW_SCHEMA)
        self.log = folder / "log"
        self.log.mkdir(parents=True)

    def table(self, rows: int, seed: int = 0) -> pa.Table:
        """Return rows in order of time, evenly distributed over the ten days; column ``n`` is the row number."""
        random = np.random.default_rng(seed)
        step = timedelta(days=DAYS) / rows
        tags = [["red", "new"], ["red"], [], None]
        return pa.table(
            {
                "n": pa.array(range(rows), pa.int64()),
                "time": pa.array([FIRST_DAY + i * step for i in range(rows)], pa.timestamp("us")),
                "user_id": [f"u{u}" for u in random.integers(20, size=rows)],
                "item_id": [f"v{v}" for v in random.integers(30, size=rows)],
                "age": pa.array(random.integers(18, 80, rows).astype(float), mask=random.random(rows) < 0.1),
                "price": random.exponential(10, rows),
                "tags": pa.array([tags[t] for t in random.integers(4, size=rows)], pa.list_(pa.string())),
                "tab": random.integers(5, size=rows),
                "is_click": pa.array(random.random(rows) < 0.4).cast(pa.int8()),
                "seconds": pa.array(random.exponential(20, rows), mask=random.random(rows) < 0.2),
            }
        )

    def write(self, table: pa.Table, name: str = "part-0.parquet", **options: Any) -> Path:
        """Write a file of the log."""
        file = self.log / name
        file.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(table, file, **options)
        return file

    def reader(self, *, labels: bool = True, tables: dict[Owner, FeatureTable] | None = None) -> LogReader:
        """Return a reader of the files written so far."""
        return LogReader(self.log, self.schema, tables or {}, labels=labels)

    def logs(self, validation_from: datetime | None = None, test_from: datetime | None = None) -> LogsConfig:
        """Return the log and its splits; by default 9 January validates and 10 January tests."""
        return LogsConfig(
            path=self.log,
            validation_from=validation_from or FIRST_DAY + timedelta(days=8),
            test_from=test_from or FIRST_DAY + timedelta(days=9),
        )

    @staticmethod
    def with_value(table: pa.Table, column: str, row: int, value: Any) -> pa.Table:
        """Return the table with one value replaced."""
        values = table[column].to_pylist()
        values[row] = value
        kind = table.schema.field(column).type
        return table.set_column(table.column_names.index(column), column, pa.array(values, kind, from_pandas=False))

    def config(self, **sections: Any) -> Config:
        """Return a configuration with a tiny model that trains on this log in a moment."""
        training = {"batch_size": 32, "checks_per_epoch": 4, **sections.pop("training", {})}
        model = {"experts": 3, "expert_layers": [8], "tower_layers": [4], **sections.pop("model", {})}
        logs = {**self.logs().model_dump(exclude_none=True), **sections.pop("logs", {})}
        document = {**self.schema.model_dump(exclude_none=True), "logs": logs, "model": model, "training": training}
        return Config.model_validate({**document, **sections})

    def write_config(self, **sections: Any) -> Path:
        """Write the settings of ``config`` that differ from defaults, which a command may override."""
        file = self.folder / "ranker.toml"
        file.write_text(tomli_w.dumps(self.config(**sections).model_dump(mode="json", exclude_unset=True)))
        return file


def row_numbers(chunks: Iterable[ScannedChunk]) -> list[int]:
    """Return column ``n`` of the usable rows."""
    return [n for chunk in chunks for n in chunk.rows["n"].to_pylist()]


def scan_error(shop: Shop) -> str:
    """Return the message of the error that scanning the whole log raises; it must be one line."""
    with pytest.raises(LogError) as caught:
        list(shop.reader().scan())
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return Shop(tmp_path / "shop")


@pytest.fixture(scope="module")
def shared_shop(tmp_path_factory: pytest.TempPathFactory) -> Shop:
    """A log of 200 rows that the tests of a module share; read only."""
    shop = Shop(tmp_path_factory.mktemp("shop") / "shop")
    shop.write(shop.table(200))
    return shop
