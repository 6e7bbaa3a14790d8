"""The benchmark of store addresses reads the same values from each kind of store."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from benchmarks import store_addresses
from tests.support.redis_cluster import monitored_redis, redis_cluster


def test_compare_has_a_row_for_each_number_of_keys_and_reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_addresses, "TURNS", 2)
    (tmp_path / "sentinel").mkdir()
    with redis_cluster(tmp_path) as cluster, monitored_redis(tmp_path / "sentinel") as monitored:
        rows = asyncio.run(store_addresses.compare([monitored.primary.url, cluster.url, monitored.url]))
    assert len(rows) == 4 * len(store_addresses.COUNTS)
    assert all(row.endswith("| 1.00 | 1.00 |") for row in rows[::4])
    assert sum("pipeline of redis-py" in row for row in rows) == len(store_addresses.COUNTS)
