"""``ranker counters follow`` with a real service and a real Redis, in simulated time."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import redis

from pipelines.counters.columns import write_joined_columns
from pipelines.data.reader import LogReader
from pipelines.feature_store.counter_store import CounterStore, read_state
from pipelines.feature_store.counter_values import counters_by_root, decode_roots
from pipelines.feature_store.positions import RULES
from pipelines.jobs.follow_counters import Follower, FollowMetrics, follow
from pipelines.jobs.followed_version import FollowOptions, midnight
from pipelines.jobs.forget import forget, forget_in_store
from pipelines.jobs.join import join
from pipelines.jobs.publish import publish
from ranking.artifacts.feature_store_keys import DEFAULT_KEY_PREFIX, counter_key
from ranking.artifacts.remote_repository import RemoteRepository
from ranking.artifacts.repository import list_versions
from ranking.counters.stored_sums import decode_records, definition, encode_records
from ranking.encoding.vocabulary import stable_hash
from ranking.errors import BundleError, LogError, OutputError
from ranking.schema import Schema
from tests.support.command import ranker
from tests.support.counted_loop import ROUNDS, CountedLoop
from tests.support.counted_ranker import (
    COUNTED,
    USERS,
    draw_events,
    make_tables,
)
from tests.support.ports import HOST, free_port
from tests.support.redis_server import RedisServer
from tests.support.waiting import TIMEOUT_SECONDS, wait_until


@pytest.fixture
def loop(tmp_path: Path, empty_redis: RedisServer) -> CountedLoop:
    return CountedLoop(tmp_path, empty_redis.url)


def computed_values(loop: CountedLoop, log: pa.Table) -> list[dict[str, Any]]:
    """Return the offline values of the counters for the rows of a joined log that follows the first impressions."""
    schema = Schema.model_validate(COUNTED)
    first = draw_events(400, 0, text=True)
    names = first.column_names
    folder = loop.folder / "offline"
    folder.mkdir()
    rows = pa.concat_tables([first, log.select(names).cast(first.schema)])
    pq.write_table(rows, folder / "log.parquet")
    reader = LogReader(folder / "log.parquet", schema, make_tables(text=True))
    (folder / "columns").mkdir()
    joined = write_joined_columns(reader, schema, folder / "columns")
    columns = [column for counter in schema.counters for column in counter.columns]
    values: list[dict[str, Any]] = pq.read_table(joined.file("log.parquet")).select(columns).slice(400).to_pylist()
    return values


def test_served_counters_equal_those_computed_offline(loop: CountedLoop) -> None:
    loop.load()
    follower = loop.follower()
    for moment in ROUNDS:
        follower.step(moment)
        loop.serve(moment)
    join(loop.sources, loop.folder / "log", 86_400, ROUNDS[-1] + timedelta(days=2))
    log = pq.read_table(loop.folder / "log", partitioning=None).sort_by("time")
    assert log.num_rows == 6 * loop.requests
    expected = computed_values(loop, log)
    served = log.select(list(expected[0])).to_pylist()
    changes = 0
    for row, (values, reference) in enumerate(zip(served, expected, strict=True)):
        known = {name: value for name, value in reference.items() if value is not None}
        assert {name: value for name, value in values.items() if value is not None} == pytest.approx(known, rel=1e-6)
        changes += values != served[row - 1]
    assert changes > 10


def test_follow_after_a_crash_counts_every_impression_once(loop: CountedLoop, monkeypatch: pytest.MonkeyPatch) -> None:
    loop.load()
    loop.follower().step(ROUNDS[0])
    loop.serve(ROUNDS[0])
    execute, transactions = redis.client.Pipeline.execute, 0

    def crash(pipeline: redis.client.Pipeline, *arguments: Any, **options: Any) -> Any:
        nonlocal transactions
        transactions += 1
        if transactions == 2:
            raise KeyboardInterrupt
        return execute(pipeline, *arguments, **options)

    monkeypatch.setattr(redis.client.Pipeline, "execute", crash)
    with pytest.raises(KeyboardInterrupt):
        loop.follower().step(ROUNDS[4])
    monkeypatch.undo()
    result = loop.follower().step(ROUNDS[4])
    assert result["applied"] == 30  # the other rule's impressions were applied before the crash
    assert loop.follower().step(ROUNDS[4])["applied"] == 0


def test_counters_that_are_loaded_again_get_the_impressions_again(loop: CountedLoop) -> None:
    loop.load()
    follower = loop.follower()
    loop.serve(ROUNDS[0])
    assert follower.step(ROUNDS[4])["applied"] == 60  # once per rule
    assert follower.step(ROUNDS[4])["applied"] == 0
    loop.load()
    assert follower.step(ROUNDS[4])["applied"] == 60


def counts_of(loop: CountedLoop, user: str) -> dict[str, float]:
    """Return the impressions of each counter in the value of a user in the store."""
    store = CounterStore(loop.url, DEFAULT_KEY_PREFIX, "counted")
    (counters,) = (c for root, c in counters_by_root(Schema.model_validate(COUNTED)).items() if root == "user")
    value: Any = store.client.get(key_of(store, user))
    sums = decode_roots(counters, np.array([stable_hash(user)]), [value])
    return {name: records["count"].sum() for name, records in sums.items() if len(records)}


def key_of(store: CounterStore, user: str) -> str:
    """Return the key of the sums of a user."""
    state = read_state(store, store.state)
    assert state is not None
    return counter_key(store.start, state.generation, "user", stable_hash(user))


def test_forgotten_user_does_not_come_back_and_nothing_counts_twice(loop: CountedLoop) -> None:
    loop.load()
    loop.serve(ROUNDS[0], 20)
    assert loop.follower().step(ROUNDS[4])["applied"] == 2 * 120
    served = pq.read_table(loop.folder / "served", partitioning=None)["user_id"].to_pylist()
    known = [name for name, _ in Counter(served).most_common() if int(name[1:]) < USERS - 3]  # the bundle has these
    user, other = known[:2]
    assert counts_of(loop, user)["user_id"] > 6 * served.count(user)  # also those of the bundle
    others = counts_of(loop, other)
    removed = forget(user, served=loop.folder / "served", feedback=loop.folder / "feedback")
    assert removed["served_requests"] == served.count(user)
    store = loop.folder / "repository", loop.url, None, DEFAULT_KEY_PREFIX
    assert forget_in_store(user, *store) == 1
    assert forget_in_store(user, *store) == 0
    assert loop.follower().step(ROUNDS[4])["applied"] == 0
    assert (counts_of(loop, user), counts_of(loop, other)) == ({}, others)
    loop.load()
    assert counts_of(loop, user) == {}
    assert loop.follower().step(ROUNDS[4])["applied"] == 2 * 6 * (20 - served.count(user))
    assert (counts_of(loop, user), counts_of(loop, other)) == ({}, others)
    loop.serve(ROUNDS[4], user=user)
    rows = pq.read_table(loop.folder / "served", partitioning=None)
    assert rows.filter(pc.equal(rows["user_id"], user))["user.user_id_count"].to_pylist() == [0.0] * 5
    lost = CounterStore(loop.url, DEFAULT_KEY_PREFIX, "counted")
    lost.client.delete(key_of(lost, user))
    loop.follower().step(ROUNDS[6])
    assert counts_of(loop, user)["user_id"] == 30


def test_damaged_input_is_left_out_and_reported_once(loop: CountedLoop, capsys: pytest.CaptureFixture[str]) -> None:
    loop.load()
    loop.serve(ROUNDS[0])
    torn = loop.folder / "served" / "served-20990101T000000Z-000000000000.parquet"
    torn.write_bytes(b"PAR1")
    (feedback,) = (loop.folder / "feedback").iterdir()
    feedback.write_text(feedback.read_text() + "torn\n")
    assert len(loop.follower().step(ROUNDS[4])["left_out"]) == 2
    metrics, stop = FollowMetrics(None), threading.Event()
    options = FollowOptions(loop.sources, loop.url, DEFAULT_KEY_PREFIX, 600)
    thread = threading.Thread(target=follow, args=(options, 0.01, metrics, stop))
    thread.start()
    wait_until(lambda: metrics.registry.get_sample_value("ranker_counters_damaged_files") == 2)
    torn.unlink()
    wait_until(lambda: metrics.registry.get_sample_value("ranker_counters_damaged_files") == 1)
    feedback.write_text(feedback.read_text().replace("torn\n", ""))
    wait_until(lambda: metrics.registry.get_sample_value("ranker_counters_damaged_files") == 0)
    stop.set()
    thread.join()
    assert capsys.readouterr().err.count(f"left out: {torn}: is damaged") == 1


def test_follow_loads_counters_that_the_store_does_not_have(
    loop: CountedLoop, capsys: pytest.CaptureFixture[str]
) -> None:
    loop.serve(ROUNDS[0])
    assert loop.follower().step(ROUNDS[4])["applied"] == 60
    assert "loading counters: 33 values" in capsys.readouterr().err


def test_follow_copies_the_released_version_from_object_storage(loop: CountedLoop, location: str) -> None:
    source = RemoteRepository(location, print)
    source.push(loop.folder / "repository")
    sources = replace(loop.sources, repository=loop.folder / "copy")
    follower = Follower(FollowOptions(sources, loop.url, DEFAULT_KEY_PREFIX, 600, RemoteRepository(location, print)))
    loop.serve(ROUNDS[0])
    assert follower.step(ROUNDS[4])["applied"] == 60
    publish(loop.folder / "bundle", loop.folder / "repository")
    source.push(loop.folder / "repository")
    follower.step(ROUNDS[4])
    assert list_versions(loop.folder / "copy", "counted") == [1, 2]


def test_follow_continues_with_its_copy_while_object_storage_fails(
    loop: CountedLoop, location: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    remote = RemoteRepository(location, print)
    sources = replace(loop.sources, repository=loop.folder / "copy")
    options = FollowOptions(sources, loop.url, DEFAULT_KEY_PREFIX, 600, remote)
    remote.push(loop.folder / "repository")
    follower = Follower(options)
    loop.serve(ROUNDS[0])

    def fail(*_: object, **__: object) -> None:
        raise BundleError("s3://shop is away")

    monkeypatch.setattr(remote, "pull", fail)
    assert follower.step(ROUNDS[4])["applied"] == 60
    follower.step(ROUNDS[4])
    assert capsys.readouterr().err.count("s3://shop is away; continuing with the copy in") == 1
    with pytest.raises(BundleError, match="s3://shop is away"):
        Follower(replace(options, sources=replace(sources, repository=loop.folder / "empty")))


def test_follow_of_a_version_with_other_delays_loads_the_counters_again(loop: CountedLoop) -> None:
    """Protects from adding impressions again, or never, when a counter changes its delay."""
    loop.load()
    loop.serve(ROUNDS[0])
    assert loop.follower().step(ROUNDS[4])["applied"] == 60
    store = CounterStore(loop.url, DEFAULT_KEY_PREFIX, "counted")
    counts, generation = counts_of(loop, "u1"), read_state(store, store.state)
    store.client.hset(store.positions, RULES, "other delays")
    assert loop.follower().step(ROUNDS[4])["applied"] == 60
    assert (counts_of(loop, "u1"), read_state(store, store.state) != generation) == (counts, True)


def test_follow_adds_to_richer_counters_that_a_version_must_not_replace(
    loop: CountedLoop, capsys: pytest.CaptureFixture[str]
) -> None:
    loop.load()
    store = CounterStore(loop.url, DEFAULT_KEY_PREFIX, "counted")
    state = read_state(store, store.state)
    assert state is not None
    counter = Schema.model_validate(COUNTED).counters[0]
    records = decode_records(counter, state.base[definition(counter)])
    records["count"] *= 1e6
    base = dict(state.base) | {definition(counter): encode_records(counter, records).tobytes()}
    richer = replace(state, base=base, loaded_until=state.loaded_until - 1)
    for name in (store.state, store.loaded):
        store.client.set(name, richer.encode())
    loop.serve(ROUNDS[0])
    follower = loop.follower()
    assert follower.step(ROUNDS[4])["applied"] == 60
    assert follower.step(ROUNDS[4])["applied"] == 0
    assert capsys.readouterr().err.count("impressions are added to the counters in the store") == 1


@pytest.mark.parametrize(
    ("now", "zone", "start"),
    [
        ("2025-06-15T22:30:00", "Europe/Berlin", "2025-06-15T22:00:00"),
        ("2025-03-30T12:00:00", "Europe/Berlin", "2025-03-29T23:00:00"),  # the clocks change at 1:00
        ("2025-06-15T22:30:00", "+05:30", "2025-06-15T18:30:00"),
        ("2025-06-15T22:30:00", "UTC", "2025-06-15T00:00:00"),
    ],
)
def test_midnight_is_that_of_the_time_zone(now: str, zone: str, start: str) -> None:
    present = datetime.fromisoformat(now).replace(tzinfo=UTC)
    assert midnight(present, zone).astimezone(UTC) == datetime.fromisoformat(start).replace(tzinfo=UTC)


def test_midnight_without_a_time_zone_is_that_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    try:
        start = midnight(datetime(2025, 3, 30, 12, tzinfo=UTC), None).astimezone(UTC)
    finally:
        monkeypatch.undo()
        time.tzset()
    assert start == datetime(2025, 3, 29, 23, tzinfo=UTC)


def test_port_of_another_program_is_an_error() -> None:
    with socket.create_server((HOST, 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(OutputError, match=rf"^port {port} of {HOST}: cannot be opened \(.*\); choose another one"):
            FollowMetrics(port)


def test_follow_rejects_hashed_user_ids(loop: CountedLoop) -> None:
    loop.load()
    loop.serve(ROUNDS[0], 1, served_log_user_key="secret")
    with pytest.raises(LogError, match="holds hashes of user ids"):
        loop.follower().step(ROUNDS[1])


@pytest.mark.system
def test_command_follows_until_it_is_stopped(loop: CountedLoop) -> None:
    loop.load()
    loop.serve(ROUNDS[0], 2)
    folders = ["--served", loop.folder / "served", "--feedback", loop.folder / "feedback"]
    folders += ["--repository", loop.folder / "repository"]
    arguments = ["counters", "follow", *folders, "--to", loop.url]
    code, out, err = ranker(*arguments, "--once")
    assert code == 0, err
    assert json.loads(out)["applied"] == 24
    command = [sys.executable, "-m", "pipelines.cli", *map(str, arguments), "--every", "1s"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        loop.serve(ROUNDS[1], 1)
        assert process.stderr is not None
        line = next(line for line in process.stderr if "applied" in line)
        process.send_signal(signal.SIGTERM)
        assert process.wait(TIMEOUT_SECONDS) == 0
    assert "12 impressions applied; counters as of 2025-06-16T07:00:01Z, followed until" in line
    code, _, err = ranker(*arguments, "--every", "0s")
    assert (code, "--every 0s" in err) == (2, True)


def test_follow_reports_failures_once_and_continues(loop: CountedLoop, capsys: pytest.CaptureFixture[str]) -> None:
    options = FollowOptions(loop.sources, loop.url, DEFAULT_KEY_PREFIX, 600)
    port, feedback = free_port(), loop.folder / "feedback"
    feedback.rmdir()
    metrics, stop = FollowMetrics(port), threading.Event()
    thread = threading.Thread(target=follow, args=(options, 0.05, metrics, stop))
    thread.start()
    try:
        wait_until(lambda: exposed(port)["ranker_counters_failures_total"] >= 3)
        feedback.mkdir()
        wait_until(lambda: exposed(port)["ranker_counters_followed_timestamp_seconds"] > 0)
    finally:
        stop.set()
        thread.join()
    assert capsys.readouterr().err.count(f"{feedback}: cannot be read (No such file or directory)") == 1


def exposed(port: int) -> dict[str, float]:
    """Return the metrics on a port."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as response:
        text = response.read().decode()
    return {line.split()[0]: float(line.split()[1]) for line in text.splitlines() if not line.startswith("#")}
