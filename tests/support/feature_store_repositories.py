"""A Redis server, and repositories of a small ranker with and without feature tables."""

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
from tests.support.redis_cluster import RedisCluster, redis_cluster
from tests.support.redis_server import RedisServer, redis_server


@pytest.fixture(scope="session")
def server() -> Iterator[RedisServer]:
    with redis_server() as server:
        yield server


@pytest.fixture
def empty_redis(server: RedisServer) -> RedisServer:
    """The Redis server without keys."""
    server.client.flushall()
    return server


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisCluster]:
    with redis_cluster(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


@pytest.fixture
def empty_cluster(cluster: RedisCluster) -> RedisCluster:
    """The Redis Cluster without keys."""
    cluster.clear()
    return cluster


@pytest.fixture(scope="session")
def repository_with_tables(
    hand_ranker: FrozenRanker, draw_rows: Callable[[int, int], pa.Table], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """A repository whose bundle has feature tables, next to these tables as users.parquet and items.parquet."""
    folder = tmp_path_factory.mktemp("repository_with_tables")
    for owner, table in hand_ranker.tables.items():
        pq.write_table(table.table, folder / f"{owner}s.parquet")
    return publish_ranker(hand_ranker, hand_ranker.complete(draw_rows(20, 5)), folder)


@pytest.fixture(scope="session")
def repository_without_tables(
    hand_ranker: FrozenRanker, draw_rows: Callable[[int, int], pa.Table], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """A repository of the same model without feature tables: features by id can only come from a store."""
    ranker_without_tables = dataclasses.replace(hand_ranker, tables={})
    return publish_ranker(
        ranker_without_tables,
        hand_ranker.complete(draw_rows(20, 5)),
        tmp_path_factory.mktemp("repository_without_tables"),
    )


def publish_ranker(ranker: FrozenRanker, golden: pa.Table, folder: Path) -> Path:
    bundle.write_bundle(ranker, golden, folder / "bundle")
    publish(folder / "bundle", folder / "repository", "feed")
    return folder / "repository"
