"""Counters in a real Redis: ``ranker counters load`` and ``apply``, and what the service reads."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import redis
from fastapi.testclient import TestClient

import ranking
from pipelines.cli.main import main
from pipelines.data.reader import LogReader
from pipelines.feature_store.bundle_sums import BundleSums
from pipelines.feature_store.counter_store import CounterStore
from pipelines.feature_store.counter_writer import CounterWriter
from pipelines.feature_store.positions import Positions
from pipelines.jobs import load_counters
from pipelines.jobs.publish import publish
from ranking.artifacts import bundle
from ranking.artifacts.feature_store_keys import counter_key, counter_prefix, counter_state_key
from ranking.counters.features import CounterFeatures
from ranking.counters.keys import PartHashes
from ranking.counters.stored_sums import StateValue, StoredSums, decode_value, definition
from ranking.encoding.vocabulary import stable_hash
from ranking.frozen.ranker import FrozenRanker
from service.app import create_app
from service.feature_store.redis import RedisStore
from service.settings import Settings
from tests.support.counted_ranker import NOW, ZONE, draw_events, item_ids, make_counted_ranker, make_tables, write_state
from tests.support.rank_request import rank
from tests.support.redis_cluster import RedisCluster
from tests.support.redis_server import RedisServer

TIME = "2025-06-20T15:06:40Z"
AT = NOW + 5 * 86_400_000_000
"""The time of the requests, in microseconds: five days after ``NOW``."""
TOLERANCE = 1e-6
START = counter_prefix("ranker", "counted", clustered=False)
STATE_KEY = counter_state_key(START)


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("counted")
    ranker = make_counted_ranker(folder / "counters", text=True)
    bundle.write_bundle(ranker, ranker.complete(draw_events(16, 3, text=True)), folder / "bundle")
    publish(folder / "bundle", folder / "repository")
    return folder / "repository"


@pytest.fixture
def later(tmp_path: Path) -> Path:
    """A log of two files, most of whose impressions are newer than the state."""
    folder = tmp_path / "later"
    folder.mkdir()
    events = draw_events(300, 8, text=True, end=NOW + 5 * 86_400_000_000)
    pq.write_table(events.slice(0, 200), folder / "a.parquet", row_group_size=64)
    pq.write_table(events.slice(200), folder / "b.parquet")
    return folder


def run(*arguments: object) -> int:
    return main([str(argument) for argument in arguments])


def counters(
    *arguments: object, server: RedisServer | RedisCluster, capsys: pytest.CaptureFixture[str]
) -> dict[str, Any]:
    """Run ``ranker counters`` and return its result."""
    assert run("counters", *arguments, "--to", server.url) == 0
    result: dict[str, Any] = json.loads(capsys.readouterr().out)
    return result


@contextmanager
def service(repository: Path, url: str) -> Iterator[TestClient]:
    settings = Settings(repository=repository, store=url, store_timeout_ms=2_000)
    with TestClient(create_app(settings)) as client:
        yield client


def body_of(user: str) -> dict[str, Any]:
    items = [{"id": item} for item in item_ids(text=True)]
    return {"user": {"id": user}, "context": {"tab": "home"}, "time": TIME, "items": items}


def scores(document: dict[str, Any]) -> np.ndarray[Any, Any]:
    by_id = {item["id"]: [item["scores"]["click"], item["scores"]["watch"]] for item in document["items"]}
    return np.array([by_id[item] for item in item_ids(text=True)])


def library_scores(ranker: FrozenRanker, user: str) -> np.ndarray[Any, Any]:
    items = item_ids(text=True)
    time = pa.array([AT] * len(items), pa.timestamp("us", ZONE))
    table = pa.table({"time": time, "user_id": [user] * len(items), "item_id": items, "tab": ["home"] * len(items)})
    result = ranker.score(table)
    return np.stack([result[task].to_numpy() for task in ranker.schema.task_names], 1)


def applied_ranker(repository: Path, later: Path, folder: Path) -> FrozenRanker:
    """The ranker with the state after its own impressions and the newer ones of the later log."""
    ranker = ranking.load(repository / "counted" / "1")
    first = draw_events(400, 0, text=True)
    until = first["time"].cast(pa.int64()).to_numpy().max()
    rows = pq.read_table(later)
    newer = rows.filter(pa.array(rows["time"].cast(pa.int64()).to_numpy() > until)).select(first.column_names)
    write_state(folder, ranker.schema, pa.concat_tables([first, newer.cast(first.schema)]), make_tables(text=True))
    assert ranker.counter_features is not None
    counter_features = CounterFeatures.open(folder, ranker.schema)
    return replace(ranker, counter_features=replace(counter_features, histories=ranker.counter_features.histories))


def test_loaded_counters_give_the_scores_of_the_bundle(
    repository: Path, empty_redis: RedisServer, capsys: pytest.CaptureFixture[str]
) -> None:
    loaded = counters("load", repository, server=empty_redis, capsys=capsys)
    assert loaded["values"] + 3 == len(empty_redis.client.keys("ranker:counted:counters:*"))
    ranker = ranking.load(repository / "counted" / "1")
    with service(repository, empty_redis.url) as client:
        for user in ("u1", "new"):
            answer = rank(client, body_of(user))
            assert not answer["degraded"]
            np.testing.assert_allclose(scores(answer), library_scores(ranker, user), rtol=0, atol=TOLERANCE)
            assert answer["counters_as_of"] == loaded["counters_as_of"]


def test_counters_of_a_cluster_are_on_one_server_and_give_the_scores_of_a_new_state(
    repository: Path, later: Path, empty_cluster: RedisCluster, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    loaded = counters("load", repository, server=empty_cluster, capsys=capsys)
    keys = [len(server.client.keys("*")) for server in empty_cluster.servers]
    assert sorted(keys) == [0, 0, loaded["values"] + 3]
    applied = counters("apply", later, "--repository", repository, server=empty_cluster, capsys=capsys)
    assert applied["applied"] > 200
    repeated = counters("apply", later, "--repository", repository, server=empty_cluster, capsys=capsys)
    assert (repeated["applied"], repeated["repeated"]) == (0, 300)
    ranker = applied_ranker(repository, later, tmp_path / "state")
    with service(repository, empty_cluster.url) as client:
        for user in ("u1", "new"):
            answer = rank(client, body_of(user))
            assert not answer["degraded"]
            np.testing.assert_allclose(scores(answer), library_scores(ranker, user), rtol=0, atol=TOLERANCE)
    again = counters("load", repository, server=empty_cluster, capsys=capsys)
    assert sum(len(server.client.keys("*")) for server in empty_cluster.servers) == again["values"] + 3


def test_applied_impressions_change_the_scores_as_a_new_state_would(
    repository: Path, later: Path, empty_redis: RedisServer, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    counters("load", repository, server=empty_redis, capsys=capsys)
    applied = counters("apply", later, "--repository", repository, server=empty_redis, capsys=capsys)
    assert applied["applied"] > 200
    assert applied["applied"] + applied["old"] == 300
    ranker = applied_ranker(repository, later, tmp_path / "state")
    before = ranking.load(repository / "counted" / "1")
    with service(repository, empty_redis.url) as client:
        for user in ("u1", "u7", "new"):
            answer = rank(client, body_of(user))
            np.testing.assert_allclose(scores(answer), library_scores(ranker, user), rtol=0, atol=TOLERANCE)
            assert not np.allclose(scores(answer), library_scores(before, user))
            assert answer["counters_as_of"] == applied["counters_as_of"] > "2025-06-20T1"


def test_service_uses_the_live_counters_until_a_load_has_finished(
    repository: Path,
    later: Path,
    empty_redis: RedisServer,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    counters("load", repository, server=empty_redis, capsys=capsys)
    counters("apply", later, "--repository", repository, server=empty_redis, capsys=capsys)
    live, loaded = applied_ranker(repository, later, tmp_path / "state"), ranking.load(repository / "counted" / "1")
    switch, reads = load_counters._switch, []

    def rank_first(*arguments: Any) -> None:
        assert_scores(live)
        switch(*arguments)

    def assert_scores(expected: FrozenRanker) -> None:
        answer = rank(client, body_of("u1"))
        assert not answer["degraded"]
        np.testing.assert_allclose(scores(answer), library_scores(expected, "u1"), rtol=0, atol=TOLERANCE)

    read = RedisStore.read

    async def count(self: RedisStore, keys: list[str]) -> list[bytes | None]:
        reads.append(len(keys))
        return await read(self, keys)

    monkeypatch.setattr(RedisStore, "read", count)
    monkeypatch.setattr(load_counters, "_switch", rank_first)
    with service(repository, empty_redis.url) as client:
        assert_scores(live)
        assert len(reads) == 2  # the generation is unknown at first
        counters("load", repository, server=empty_redis, capsys=capsys)
        assert len(reads) == 3
        assert_scores(loaded)
        assert_scores(loaded)
    assert len(reads) == 6


def test_log_applied_twice_counts_once(
    repository: Path, later: Path, empty_redis: RedisServer, capsys: pytest.CaptureFixture[str]
) -> None:
    counters("load", repository, server=empty_redis, capsys=capsys)
    counters("apply", later, "--repository", repository, server=empty_redis, capsys=capsys)
    before = dump(empty_redis)
    again = counters("apply", later, "--repository", repository, server=empty_redis, capsys=capsys)
    assert (again["applied"], again["repeated"]) == (0, 300)
    assert dump(empty_redis) == before


def test_apply_continues_after_a_crash(
    repository: Path,
    later: Path,
    empty_redis: RedisServer,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    counters("load", repository, server=empty_redis, capsys=capsys)
    expected_before = dump(empty_redis)
    execute, calls = redis.client.Pipeline.execute, []

    def crash(self: Any, raise_on_error: bool = True) -> Any:
        calls.append(self)
        if len(calls) == 3:
            raise redis.ConnectionError("killed")
        return execute(self, raise_on_error)

    monkeypatch.setattr(redis.client.Pipeline, "execute", crash)
    assert run("counters", "apply", later, "--repository", repository, "--to", empty_redis.url) == 1
    assert "then repeat the command" in capsys.readouterr().err
    monkeypatch.undo()
    result = counters("apply", later, "--repository", repository, server=empty_redis, capsys=capsys)
    assert result["repeated"] == 128
    interrupted = dump(empty_redis)
    empty_redis.client.flushall()
    counters("load", repository, server=empty_redis, capsys=capsys)
    assert dump(empty_redis) == expected_before
    counters("apply", later, "--repository", repository, server=empty_redis, capsys=capsys)
    assert dump(empty_redis) == interrupted


def state_of(server: RedisServer) -> StateValue:
    """Return the sums over all keys in the store."""
    return StateValue.decode(server.client.get(STATE_KEY))


def dump(server: RedisServer) -> dict[bytes, Any]:
    """Return all keys and values, with 0 instead of the generation."""
    client = server.client
    generation = f"{state_of(server).generation:x}".encode()
    positions = client.hgetall(f"{START}positions")
    positions.pop(b"token", None)
    strings = {key: client.get(key) for key in client.scan_iter() if not key.endswith(b":positions")}
    for key in (STATE_KEY, f"{START}loaded"):
        strings[key.encode()] = replace(StateValue.decode(strings[key.encode()]), generation=0)
    return {**{key.replace(generation, b"0"): value for key, value in strings.items()}, b"positions": positions}


def test_second_load_replaces_all_values(
    repository: Path, empty_redis: RedisServer, capsys: pytest.CaptureFixture[str]
) -> None:
    first = counters("load", repository, server=empty_redis, capsys=capsys)
    earlier_versions = [f"{START}{name}" for name in ("user:abc", "item:-1f", "state", "applied")]
    for key in earlier_versions:
        empty_redis.client.set(key, "")
    second = counters("load", repository, server=empty_redis, capsys=capsys)
    assert (first["removed"], second["removed"]) == (0, first["values"] + len(earlier_versions))
    assert second["values"] == first["values"]
    assert len(empty_redis.client.keys()) == second["values"] + 3


def test_store_that_fails_degrades_to_the_bundle(
    repository: Path, later: Path, server: RedisServer, capsys: pytest.CaptureFixture[str]
) -> None:
    server.client.flushall()
    counters("load", repository, server=server, capsys=capsys)
    counters("apply", later, "--repository", repository, server=server, capsys=capsys)
    ranker = ranking.load(repository / "counted" / "1")
    with service(repository, server.url) as client:
        assert not rank(client, body_of("u1"))["degraded"]
        server.stop()
        try:
            answer = rank(client, body_of("u1"))
        finally:
            server.start()
        assert answer["degraded"]
        assert all(item["missing"] == [] or "user_id_count" not in item["missing"] for item in answer["items"])
        np.testing.assert_allclose(scores(answer), library_scores(ranker, "u1"), rtol=0, atol=TOLERANCE)


def test_damaged_value_degrades_to_the_bundle(
    repository: Path, empty_redis: RedisServer, capsys: pytest.CaptureFixture[str]
) -> None:
    counters("load", repository, server=empty_redis, capsys=capsys)
    for key in empty_redis.client.scan_iter("*:user:*"):
        empty_redis.client.set(key, b"\x01damaged")
    ranker = ranking.load(repository / "counted" / "1")
    with service(repository, empty_redis.url) as client:
        answer = rank(client, body_of("u1"))
        assert answer["degraded"]
        np.testing.assert_allclose(scores(answer), library_scores(ranker, "u1"), rtol=0, atol=TOLERANCE)


def with_number(value: bytes, number: float) -> bytes:
    """Return the value of a root whose last number is replaced."""
    return value[:-8] + struct.pack("<d", number)


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(lambda value: value[:-1], id="short", marks=pytest.mark.nightly),
        pytest.param(lambda value: value[: len(value) // 2], id="half"),
        pytest.param(lambda value: with_number(value, math.nan), id="nan"),
        pytest.param(lambda value: with_number(value, math.inf), id="inf", marks=pytest.mark.nightly),
        pytest.param(lambda value: with_number(value, -1e308), id="huge"),
    ],
)
def test_damaged_value_of_a_user_costs_only_the_user_the_store(
    repository: Path, empty_redis: RedisServer, capsys: pytest.CaptureFixture[str], damage: Callable[[bytes], bytes]
) -> None:
    """Protects other requests of the batch: each is answered as if it were alone."""
    counters("load", repository, server=empty_redis, capsys=capsys)
    key = counter_key(START, state_of(empty_redis).generation, "user", stable_hash("u1"))
    empty_redis.client.set(key, damage(empty_redis.client.get(key)))
    ranker = ranking.load(repository / "counted" / "1")
    with service(repository, empty_redis.url) as client, ThreadPoolExecutor(8) as pool:
        users = ["u1", "u2", "u3"] * 4
        for user, answer in zip(users, pool.map(lambda user: rank(client, body_of(user)), users), strict=True):
            assert answer["degraded"] == (user == "u1")
            np.testing.assert_allclose(scores(answer), library_scores(ranker, user), rtol=0, atol=TOLERANCE)
        assert client.get("/v2/health/ready").status_code == 200


@pytest.mark.parametrize("number", [math.nan, pytest.param(math.inf, marks=pytest.mark.nightly), 1e308])
def test_damaged_state_degrades_to_the_bundle(
    repository: Path, empty_redis: RedisServer, capsys: pytest.CaptureFixture[str], number: float
) -> None:
    counters("load", repository, server=empty_redis, capsys=capsys)
    state = state_of(empty_redis)
    ranker = ranking.load(repository / "counted" / "1")
    counter = ranker.schema.counters[0]
    base = dict(state.base) | {definition(counter): with_number(state.base[definition(counter)], number)}
    for damaged in (replace(state, base=base), replace(state, until=2**62)):
        empty_redis.client.set(STATE_KEY, damaged.encode())
        with service(repository, empty_redis.url) as client:
            answer = rank(client, body_of("u1"))
            assert answer["degraded"]
            np.testing.assert_allclose(scores(answer), library_scores(ranker, "u1"), rtol=0, atol=TOLERANCE)


def test_store_older_than_the_bundle_is_not_used(
    repository: Path, empty_redis: RedisServer, capsys: pytest.CaptureFixture[str]
) -> None:
    counters("load", repository, server=empty_redis, capsys=capsys)
    state = state_of(empty_redis)
    empty_redis.client.set(STATE_KEY, replace(state, until=state.until - 1).encode())
    for key in empty_redis.client.scan_iter("*:user:*"):
        empty_redis.client.set(key, b"\x01damaged")
    with service(repository, empty_redis.url) as client:
        assert not rank(client, body_of("u1"))["degraded"]


@pytest.mark.parametrize("loss", ["absent", "damaged", "misaligned"])
def test_applied_impressions_of_a_lost_value_are_added_to_those_of_the_bundle(
    repository: Path, later: Path, empty_redis: RedisServer, capsys: pytest.CaptureFixture[str], loss: str
) -> None:
    """Protects users whose value was evicted, deleted or damaged: they do not start again from zero."""
    counters("load", repository, server=empty_redis, capsys=capsys)
    client = empty_redis.client
    for key in client.scan_iter(f"{START}*:*:*"):
        if loss == "absent":
            client.delete(key)
        else:
            client.set(key, b"\x02" if loss == "damaged" else client.get(key)[:-4])
    assert run("counters", "apply", later, "--repository", repository, "--to", empty_redis.url) == 0
    assert ("values of counters are damaged" in capsys.readouterr().err) == (loss != "absent")
    lost = dump(empty_redis)
    client.flushall()
    counters("load", repository, server=empty_redis, capsys=capsys)
    counters("apply", later, "--repository", repository, server=empty_redis, capsys=capsys)
    whole = dump(empty_redis)
    assert len(lost) > 10
    assert lost == {key: value for key, value in whole.items() if key in lost}


def test_store_that_evicts_counters_is_rejected(
    repository: Path, later: Path, empty_redis: RedisServer, capsys: pytest.CaptureFixture[str]
) -> None:
    counters("load", repository, server=empty_redis, capsys=capsys)
    empty_redis.client.config_set("maxmemory", 2**40)
    empty_redis.client.config_set("maxmemory-policy", "allkeys-lru")
    try:
        for command in (["load", repository], ["apply", later, "--repository", repository]):
            assert run("counters", *command, "--to", empty_redis.url) == 1
            assert "maxmemory-policy is allkeys-lru" in capsys.readouterr().err
        empty_redis.client.config_set("maxmemory-policy", "volatile-lru")  # counters have no time to live
        counters("apply", later, "--repository", repository, server=empty_redis, capsys=capsys)
    finally:
        empty_redis.client.config_set("maxmemory-policy", "noeviction")
        empty_redis.client.config_set("maxmemory", 0)


def test_apply_without_loaded_counters_fails(
    repository: Path, later: Path, empty_redis: RedisServer, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("counters", "apply", later, "--repository", repository, "--to", empty_redis.url) == 1
    assert "holds no counters of this model: run 'ranker counters load' first" in capsys.readouterr().err


def test_model_without_counters_is_a_usage_error(
    repository_with_tables: Path, server: RedisServer, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("counters", "load", repository_with_tables, "--to", server.url) == 2
    assert "version 1 of feed has no counters" in capsys.readouterr().err


def test_replay_in_the_order_of_time_gives_point_in_time_values(empty_redis: RedisServer, tmp_path: Path) -> None:
    ranker = make_counted_ranker(tmp_path / "fitted", text=True)
    events = draw_events(60, 6, text=True)
    write_state(tmp_path / "empty", ranker.schema, events.slice(0, 0), make_tables(text=True))
    counter_features = CounterFeatures.open(tmp_path / "empty", ranker.schema)
    store = CounterStore(empty_redis.url, "ranker", "counted")
    writer = CounterWriter(store, ranker.schema, ZONE, BundleSums(counter_features), Positions(store))
    store.client.set(store.state, StateValue(1, 0, 0, dict.fromkeys(definitions(ranker), b"")).encode())
    pq.write_table(events, tmp_path / "events.parquet", row_group_size=1)
    actual, times = [], events["time"].cast(pa.int64()).to_numpy()
    for position, chunk in enumerate(
        LogReader(str(tmp_path / "events.parquet"), ranker.schema.logged, dict(ranker.tables)).scan()
    ):
        hashes = PartHashes.from_table(chunk.rows, ranker.schema)
        now = times[position : position + 1]
        actual.append(counter_features.numbers(hashes, now, ranker.schema.counters, stored_sums(empty_redis))[0])
        writer.add(chunk.rows, chunk.file, 1, "log", str(position), None, "")
    expected = naive_values(ranker, events)
    np.testing.assert_array_equal(np.stack(actual).astype(np.float32), expected.astype(np.float32))


def definitions(ranker: FrozenRanker) -> list[int]:
    return [definition(counter) for counter in ranker.schema.counters]


def stored_sums(server: RedisServer) -> StoredSums:
    """Read all values of the store."""
    sums = StoredSums(state_of(server))
    for root in ("user", "item", "key"):
        for key in server.client.scan_iter(f"{START}{sums.state.generation:x}:{root}:*"):
            sums.roots.setdefault(root, []).append(int(key.decode().rpartition(":")[2], 16))  # type: ignore[arg-type]
            for identifier, data in decode_value(server.client.get(key)):
                sums.sections.setdefault(identifier, []).append(data)
    return sums


def naive_values(ranker: FrozenRanker, events: pa.Table) -> np.ndarray[Any, Any]:
    """Values of all counters for each event from the events before it, computed one by one."""
    rows = events.to_pylist()
    sides = {owner: {row[table.key]: row for row in table.table.to_pylist()} for owner, table in ranker.tables.items()}
    for row in rows:
        row |= sides["user"][row["user_id"]] | sides["item"][row["item_id"]]
    values = []
    for i, row in enumerate(rows):
        values.append([value for counter in ranker.schema.counters for value in naive_counter(counter, row, rows[:i])])
    return np.array(values, np.float64)


def keys_of(counter: Any, row: dict[str, Any]) -> set[tuple[Any, ...]]:
    keys: set[tuple[Any, ...]] = {()}
    for name in counter.of:
        elements = row[name] if isinstance(row[name], list) else [row[name]]
        keys = {(*key, element) for key in keys for element in elements if element is not None}
    return keys


def naive_counter(counter: Any, row: dict[str, Any], earlier: list[dict[str, Any]]) -> list[float]:
    def weight(event: dict[str, Any]) -> float:
        if counter.buckets is not None:
            return float((row["time"].date() - event["time"].date()).days < counter.buckets)
        if counter.half_life_seconds is not None:
            seconds = (row["time"] - event["time"]).total_seconds()
            return float(2.0 ** (-seconds / counter.half_life_seconds))
        return 1.0

    pairs = [(event, key) for key in keys_of(counter, row) for event in earlier if key in keys_of(counter, event)]
    pairs = [(event, key) for event, key in pairs if weight(event) > 0]
    known = [event for event in earlier if weight(event) > 0]
    result = []
    for label in counter.labels:
        base = sum(weight(e) * e[label] for e in known) / sum(map(weight, known)) if known else np.nan
        total, count = sum(weight(e) * e[label] for e, _ in pairs), sum(weight(e) for e, _ in pairs)
        result.append((total + counter.prior * base) / (count + counter.prior))
    last = max((event["time"] for event, _ in pairs), default=None)
    age = np.nan if last is None else (row["time"] - last).total_seconds()
    return [*result, sum(weight(event) for event, _ in pairs), age]
