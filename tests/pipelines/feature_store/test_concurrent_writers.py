"""Commands that write counters at the same time, are killed, or find an older store lose and repeat nothing."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import redis

from pipelines.feature_store.counter_store import CounterStore, read_state
from pipelines.feature_store.counter_values import counters_by_root, decode_roots
from pipelines.jobs import follow_counters
from pipelines.jobs.apply_counters import apply_log
from pipelines.jobs.check_counters import check_counters, describe_missing
from pipelines.jobs.follow_counters import Follower
from pipelines.jobs.followed_version import FollowOptions
from pipelines.jobs.load_counters import load_counters
from ranking.artifacts import bundle
from ranking.artifacts.feature_store_keys import DEFAULT_KEY_PREFIX, counter_key
from ranking.counters.combine import within_window
from ranking.encoding.vocabulary import stable_hash
from ranking.errors import OutputError
from ranking.schema import Schema
from tests.support.counted_loop import ROUNDS, CountedLoop
from tests.support.counted_ranker import COUNTED, NOW, ZONE, draw_events, item_ids, user_ids
from tests.support.redis_server import RedisServer, redis_server

Sums = dict[tuple[str, str], list[tuple[int, int, float]]]
END = ROUNDS[4]


def every_step(first: int) -> pytest.MarkDecorator:
    """Return numbers of the commands to the store before which something happens: some that start with one, or all.

    A command to the counters repeats rounds of seven or eight of them, so that 31 later is another place of a round.
    """
    steps = [range(first, 1_000, 31), pytest.param(range(1, 1_000), marks=pytest.mark.nightly)]
    return pytest.mark.parametrize("steps", steps, ids=["some", "all"])


class Killed(BaseException):
    """The end of a process, which no code handles."""


@contextmanager
def interrupted(step: int, action: Callable[[], object], *, after: bool = False) -> Iterator[list[bool]]:
    """Run an action before or after the command of this number is sent to the store; yield whether that happened."""
    send = redis.connection.AbstractConnection.send_packed_command
    happened: list[bool] = []
    sent = 0

    def count(self: Any, *arguments: Any, **options: Any) -> None:
        nonlocal sent
        sent += 1
        if sent == step:
            happened.append(True)
        if sent == step and not after:
            action()
        send(self, *arguments, **options)
        if sent == step and after:
            self.disconnect()
            action()

    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(redis.connection.AbstractConnection, "send_packed_command", count)
        yield happened


class Store:
    """A store, and the commands that write to it."""

    def __init__(self, loop: CountedLoop, log: Path) -> None:
        self.loop, self._log = loop, log
        self.store = CounterStore(loop.url, DEFAULT_KEY_PREFIX, "counted")

    def load(self) -> None:
        load_counters(self.loop.folder / "repository", self.loop.url, "counted", DEFAULT_KEY_PREFIX)

    def apply(self) -> dict[str, Any]:
        return apply_log(str(self._log), self.loop.folder / "repository", self.loop.url, "counted", DEFAULT_KEY_PREFIX)

    def follow(self) -> None:
        Follower(FollowOptions(self.loop.sources, self.loop.url, DEFAULT_KEY_PREFIX, 600)).step(END)

    def finish(self) -> Sums:
        """Repeat the commands that add impressions, and return the sums of all users and items."""
        self.apply()
        self.follow()
        assert describe_missing(self.check()) is None
        return self.sums()

    def check(self) -> dict[str, Any]:
        return check_counters(self.loop.folder / "repository", self.loop.url, "counted", DEFAULT_KEY_PREFIX)

    def sums(self) -> Sums:
        state = read_state(self.store, self.store.state)
        assert state is not None
        sums: Sums = {}
        for root, counters in counters_by_root(Schema.model_validate(COUNTED)).items():
            ids = user_ids(text=True) if root == "user" else item_ids(text=True)
            hashes = np.array([stable_hash(name) for name in ids])
            keys = [counter_key(self.store.start, state.generation, root, name) for name in hashes.tolist()]
            values: Any = self.store.client.mget(keys)
            stored = decode_roots(counters, hashes, values)
            for counter in counters:
                # Values that were not written lately also have impressions before the window.
                records = within_window(counter, stored[counter.name], state.until, ZONE)
                rows = [(int(r["root"]), int(r["key"] ^ r["bucket"]), round(float(r["count"]), 6)) for r in records]
                sums[root, counter.name] = sorted(rows)
        return sums


@pytest.fixture(autouse=True)
def _without_locks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let two followers run at the same time, as on a filesystem without locks or with two copies of the logs."""
    monkeypatch.setattr(follow_counters, "lock_folders", lambda _: nullcontext())


@pytest.fixture(scope="module", autouse=True)
def _versions_loaded_once() -> Iterator[None]:
    """Keep the loaded version, which hundreds of commands would load again."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bundle, "load", cache(bundle.load))
        yield


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with redis_server() as server:
        yield server


@pytest.fixture(scope="module")
def store(server: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Store:
    folder = tmp_path_factory.mktemp("loop")
    loop = CountedLoop(folder, server.url)
    log = folder / "log.parquet"
    pq.write_table(draw_events(60, 8, text=True, end=NOW + 5 * 86_400_000_000), log, row_group_size=20)
    server.client.flushall()
    for moment in ROUNDS[:2]:
        loop.serve(moment, 3)
    return Store(loop, log)


@pytest.fixture(scope="module")
def expected(server: RedisServer, store: Store) -> Sums:
    """The sums after all commands, one after the other."""
    server.client.flushall()
    store.load()
    loaded = store.sums()
    expected = store.finish()
    assert store.finish() == expected != loaded
    return expected


@every_step(20)  # within a transaction of each command
@pytest.mark.parametrize("other", ["load", "apply", "follow"])
@pytest.mark.parametrize("command", ["load", "apply", "follow"])
def test_two_commands_at_the_same_time_lose_nothing_and_count_nothing_twice(
    server: RedisServer, store: Store, expected: Sums, command: str, other: str, steps: range
) -> None:
    """Protects the sums: runs the other command before what the first one sends to the store."""
    for step in steps:
        server.client.flushall()
        store.load()
        completed = False
        with interrupted(step, getattr(store, other)) as happened, suppress(OutputError):
            getattr(store, command)()
            completed = True
        if not happened:
            break
        if (command, other) == ("apply", "load") and completed:
            assert store.apply()["applied"] == 0, step
        assert store.finish() == expected, step
    assert step > 5


@every_step(22)  # the end of a transaction, or later than the first
@pytest.mark.parametrize("command", ["load", "apply", "follow"])
@pytest.mark.parametrize(("end", "after"), [(Killed, False), (redis.ConnectionError, True)], ids=["killed", "no reply"])
def test_command_that_is_killed_or_gets_no_reply_can_be_repeated(
    server: RedisServer, store: Store, expected: Sums, command: str, end: type[BaseException], after: bool, steps: range
) -> None:
    def kill() -> None:
        raise end

    for step in steps:
        server.client.flushall()
        store.load()
        with interrupted(step, kill, after=after) as happened, suppress(Killed, OutputError):
            getattr(store, command)()
        if not happened:
            break
        assert store.finish() == expected, step
    assert step > 5


def test_store_restored_from_a_snapshot_gets_what_it_lacks(server: RedisServer, store: Store, expected: Sums) -> None:
    server.client.flushall()
    store.load()
    store.apply()
    snapshot = {key: server.client.dump(key) for key in server.client.scan_iter()}
    assert store.finish() == expected
    server.client.flushall()
    for key, value in snapshot.items():
        server.client.restore(key, 0, value)
    assert store.finish() == expected


@every_step(22)
def test_follower_continues_after_a_lost_reply(server: RedisServer, store: Store, expected: Sums, steps: range) -> None:
    def disconnect() -> None:
        raise redis.ConnectionError

    for step in steps:
        server.client.flushall()
        store.load()
        follower = Follower(FollowOptions(store.loop.sources, store.loop.url, DEFAULT_KEY_PREFIX, 600))
        with interrupted(step, disconnect, after=True) as happened, suppress(OutputError):
            follower.step(END)
        if not happened:
            break
        follower.step(END)
        assert store.finish() == expected, step
    assert step > 5


def test_failed_load_leaves_the_counters_in_use_and_no_values(
    server: RedisServer, store: Store, expected: Sums
) -> None:
    server.client.flushall()
    store.load()
    assert store.finish() == expected
    keys = {*server.client.scan_iter()}
    server.client.config_set("maxmemory", server.client.info("memory")["used_memory"] + 1)
    try:
        with pytest.raises(OutputError, match="the counters in use are unchanged"):
            store.load()
    finally:
        server.client.config_set("maxmemory", 0)
    assert {*server.client.scan_iter()} == keys
    assert store.sums() == expected


def test_values_of_a_load_that_has_ended_are_removed_by_the_next_one(server: RedisServer, store: Store) -> None:
    server.client.flushall()
    store.load()
    keys = len([*server.client.scan_iter()])
    generation = time.time_ns() + 10**12
    server.client.set(store.store.loading(generation), "", ex=600)
    server.client.set(f"{store.store.start}{generation:x}:user:1", "")
    store.load()
    assert len([*server.client.scan_iter()]) == keys + 2
    server.client.delete(store.store.loading(generation))  # as after ten minutes
    store.load()
    assert len([*server.client.scan_iter()]) == keys


def test_load_after_one_of_a_machine_whose_clock_is_ahead_takes_effect(
    server: RedisServer, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.client.flushall()
    with monkeypatch.context() as clock:
        clock.setattr(time, "time_ns", lambda: 2**62)
        store.load()
    before = read_state(store.store, store.store.state)
    store.load()
    after = read_state(store.store, store.store.state)
    assert before is not None
    assert after is not None
    assert after.generation > before.generation
    assert describe_missing(store.check()) is None


def test_running_follower_notices_a_restored_and_an_emptied_store(
    server: RedisServer, store: Store, expected: Sums
) -> None:
    server.client.flushall()
    store.load()
    follower = Follower(FollowOptions(store.loop.sources, store.loop.url, DEFAULT_KEY_PREFIX, 600))
    snapshot = {key: server.client.dump(key) for key in server.client.scan_iter()}
    added = follower.step(END)["applied"]
    server.client.flushall()
    for key, value in snapshot.items():
        server.client.restore(key, 0, value)
    assert follower.step(END)["applied"] == added > 0
    server.client.flushall()
    assert follower.step(END)["applied"] == added
    store.apply()
    assert store.sums() == expected
