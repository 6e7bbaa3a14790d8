"""A real Redis, and the ranker made by hand as two repositories: one whose bundle has tables, one whose has none."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipelines.jobs.publish import publish
from ranking import FrozenRanker
from ranking.artifacts import bundle
from tests.support.redis_server import RedisServer, redis_server


@pytest.fixture(scope="session")
def server() -> Iterator[RedisServer]:
    with redis_server() as running:
        yield running


@pytest.fixture
def empty(server: RedisServer) -> RedisServer:
    """The server, holding nothing."""
    server.client.flushall()
    return server


@pytest.fixture(scope="session")
def with_tables(
    hand_ranker: FrozenRanker, draw_rows: Callable[[int, int], pa.Table], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """A repository; beside it lie the tables as users.parquet and items.parquet."""
    folder = tmp_path_factory.mktemp("with_tables")
    for owner, table in hand_ranker.tables.items():
        pq.write_table(table.table, folder / f"{owner}s.parquet")
    return published(hand_ranker, hand_ranker.complete(draw_rows(20, 5)), folder)


@pytest.fixture(scope="session")
def without_tables(
    hand_ranker: FrozenRanker, draw_rows: Callable[[int, int], pa.Table], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """The same model; what it knows by id can only come from a store."""
    bare = dataclasses.replace(hand_ranker, tables={})
    return published(bare, hand_ranker.complete(draw_rows(20, 5)), tmp_path_factory.mktemp("without_tables"))


def published(ranker: FrozenRanker, golden: pa.Table, folder: Path) -> Path:
    bundle.write_bundle(ranker, golden, folder / "bundle")
    publish(folder / "bundle", folder / "repository", "feed")
    return folder / "repository"
