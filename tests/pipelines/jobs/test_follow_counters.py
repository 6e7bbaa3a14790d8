"""``ranker counters follow`` with a real service and a real Redis, in simulated time."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import urllib.request
from collections import Counter
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import redis
from fastapi.testclient import TestClient

from pipelines.data.reader import LogReader
from pipelines.features.joined import write_joined_columns
from pipelines.jobs.counter_store import CounterStore
from pipelines.jobs.counter_values import counters_by_root, decode_roots
from pipelines.jobs.follow_counters import Follower, FollowMetrics, FollowOptions, follow
from pipelines.jobs.forget import forget, forget_in_store
from pipelines.jobs.join import JoinSources, join
from pipelines.jobs.load_counters import load_counters
from pipelines.jobs.publish import publish
from ranking.artifacts import bundle
from ranking.artifacts.feature_store_keys import DEFAULT_KEY_PREFIX, counter_key
from ranking.counters.stored_sums import StateValue
from ranking.encoding.vocabulary import stable_hash
from ranking.errors import LogError, OutputError
from ranking.schema import Schema
from service.app import create_app
from service.settings import Settings
from tests.support.command import ranker
from tests.support.counted_ranker import (
    COUNTED,
    NOW,
    USERS,
    ZONE,
    draw_events,
    item_ids,
    make_counted_ranker,
    make_tables,
    user_ids,
)
from tests.support.ports import free_port
from tests.support.redis_server import RedisServer
from tests.support.waiting import TIMEOUT_SECONDS, wait_until

START = datetime.fromtimestamp(NOW / 1e6, ZoneInfo(ZONE)).replace(hour=0, minute=0, second=0, microsecond=0)
"""Midnight before the last impression of the loaded state: 15 June 2025 in Berlin."""
ROUNDS = [START + timedelta(hours=hours) for hours in (26, 33, 47, 48.5, 56, 73, 74.5)]
"""Times at which requests are ranked: on the days after the loaded state, also shortly before and after midnight."""


class Loop:
    """A service that logs to a folder, and a command that follows it.

    Args:
        folder: folder of everything.
        url: address of the store.
    """

    def __init__(self, folder: Path, url: str) -> None:
        self.folder, self.url = folder, url
        counted = make_counted_ranker(folder / "counters", text=True)
        bundle.write_bundle(counted, counted.complete(draw_events(16, 3, text=True)), folder / "bundle")
        publish(folder / "bundle", folder / "repository")
        for name in ("served", "feedback"):
            (folder / name).mkdir()
        self.sources = JoinSources(folder / "served", folder / "feedback", folder / "repository", "counted")
        self.random = np.random.default_rng(0)
        self.requests = 0

    def load(self) -> None:
        load_counters(self.folder / "repository", self.url, "counted", DEFAULT_KEY_PREFIX)

    def follower(self) -> Follower:
        return Follower(FollowOptions(self.sources, self.url, DEFAULT_KEY_PREFIX, self.folder / "state", 600))

    def serve(self, time: datetime, requests: int = 5, user: str | None = None, **options: Any) -> None:
        """Rank at a time with the counters of the store, log it, and write feedback of two minutes later.

        Args:
            time: time of the requests.
            requests: their number.
            user: their user; None: another one each time.
            options: settings of the service.
        """
        settings = Settings(
            repository=self.folder / "repository",
            store=self.url,
            store_timeout_ms=5_000,
            served_log=self.folder / "served",
            **options,
        )
        lines = []
        with TestClient(create_app(settings)) as client:
            for _ in range(requests):
                self.requests += 1
                time += timedelta(seconds=1)
                items = self.random.choice(item_ids(text=True), 6, replace=False).tolist()
                body = {
                    "request_id": f"r{self.requests}",
                    "user": {"id": user or str(self.random.choice(user_ids(text=True)))},
                    "context": {"tab": str(self.random.choice(["home", "search"]))},
                    "time": time.isoformat(),
                    "items": [{"id": item} for item in items],
                }
                answer = client.post("/v1/rank", json=body)
                assert (answer.status_code, answer.json()["degraded"]) == (200, False)
                clicked = (time + timedelta(minutes=2)).isoformat()
                labels = [{"click": 1.0, "watch": float(watch)} for watch in self.random.exponential(2.0, 2)]
                events = [
                    {"item": item, "labels": label, "time": clicked} for item, label in zip(items, labels, strict=False)
                ]
                lines.append({"request_id": body["request_id"], "key": None, "received": clicked, "events": events})
        file = self.folder / "feedback" / f"feedback-{time:%Y%m%dT%H%M%S}Z-000000000000.jsonl"
        file.write_text("".join(json.dumps(line) + "\n" for line in lines))


@pytest.fixture
def loop(tmp_path: Path, empty_redis: RedisServer) -> Loop:
    return Loop(tmp_path, empty_redis.url)


def computed_values(loop: Loop, log: pa.Table) -> list[dict[str, Any]]:
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


def test_served_counters_equal_those_computed_offline(loop: Loop) -> None:
    loop.load()
    follower = loop.follower()
    for time in ROUNDS:
        follower.step(time)
        loop.serve(time)
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


def test_follow_after_a_crash_counts_every_impression_once(loop: Loop, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_counters_that_are_loaded_again_get_the_impressions_again(loop: Loop) -> None:
    loop.load()
    follower = loop.follower()
    loop.serve(ROUNDS[0])
    assert follower.step(ROUNDS[4])["applied"] == 60  # once per rule
    assert follower.step(ROUNDS[4])["applied"] == 0
    loop.load()
    assert follower.step(ROUNDS[4])["applied"] == 60


def counts_of(loop: Loop, user: str) -> dict[str, float]:
    """Return the impressions of each counter in the value of a user in the store."""
    store = CounterStore(loop.url, DEFAULT_KEY_PREFIX, "counted")
    (counters,) = (c for root, c in counters_by_root(Schema.model_validate(COUNTED)).items() if root == "user")
    root = stable_hash(user)
    value: Any = store.client.get(counter_key(store.start, "user", root))
    state = StateValue.decode(store.client.get(store.state))  # type: ignore[arg-type]
    sums = decode_roots(counters, np.array([root]), [value], state.generation)
    return {name: records["count"].sum() for name, records in sums.items() if len(records)}


def test_forgotten_user_does_not_come_back_and_nothing_counts_twice(loop: Loop) -> None:
    loop.load()
    loop.serve(ROUNDS[0], 20)
    assert loop.follower().step(ROUNDS[4])["applied"] == 2 * 120
    served = pq.read_table(loop.folder / "served", partitioning=None)["user_id"].to_pylist()
    known = [name for name, _ in Counter(served).most_common() if int(name[1:]) < USERS - 3]  # the bundle has these
    user, other = known[:2]
    assert counts_of(loop, user)["user_id"] > 6 * served.count(user)  # also those of the bundle
    others = counts_of(loop, other)
    options = {"served": loop.folder / "served", "feedback": loop.folder / "feedback", "logs": [loop.folder / "state"]}
    removed = forget(user, **options)
    assert removed["log_rows"] == {str(loop.folder / "state"): 2 * 6 * served.count(user)}
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
    lost.client.delete(counter_key(lost.start, "user", stable_hash(user)))
    loop.follower().step(ROUNDS[6])
    assert counts_of(loop, user)["user_id"] == 30


def test_days_in_the_loaded_state_are_removed(loop: Loop) -> None:
    loop.load()
    follower = loop.follower()
    loop.serve(ROUNDS[0])
    follower.step(ROUNDS[4])
    assert list((loop.folder / "state").glob("*/run-*/day=*"))
    state = CounterStore(loop.url, DEFAULT_KEY_PREFIX, "counted")
    value = StateValue.decode(state.client.get(state.state))  # type: ignore[arg-type]
    later = replace(value, generation=value.generation + 1, loaded_until=NOW + 3 * 86_400_000_000)
    state.client.set(state.state, later.encode())
    follower.step(ROUNDS[4])
    assert not list((loop.folder / "state").glob("*/run-*/day=*"))


def test_damaged_input_is_left_out_and_reported_once(loop: Loop, capsys: pytest.CaptureFixture[str]) -> None:
    loop.load()
    loop.serve(ROUNDS[0])
    torn = loop.folder / "served" / "served-20990101T000000Z-000000000000.parquet"
    torn.write_bytes(b"PAR1")
    (feedback,) = (loop.folder / "feedback").iterdir()
    feedback.write_text(feedback.read_text() + "torn\n")
    assert len(loop.follower().step(ROUNDS[4])["left_out"]) == 2
    metrics, stop = FollowMetrics(None), threading.Event()
    options = FollowOptions(loop.sources, loop.url, DEFAULT_KEY_PREFIX, loop.folder / "state", 600)
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


def test_follow_without_loaded_counters_names_the_command(loop: Loop) -> None:
    with pytest.raises(OutputError, match="holds no counters of this model: run 'ranker counters load' first"):
        loop.follower().step(ROUNDS[0])


def test_follow_rejects_hashed_user_ids(loop: Loop) -> None:
    loop.load()
    loop.serve(ROUNDS[0], 1, served_log_user_key="secret")
    with pytest.raises(LogError, match="holds hashes of user ids"):
        loop.follower().step(ROUNDS[1])


def test_command_follows_until_it_is_stopped(loop: Loop) -> None:
    loop.load()
    loop.serve(ROUNDS[0], 2)
    folders = ["--served", loop.folder / "served", "--feedback", loop.folder / "feedback"]
    folders += ["--repository", loop.folder / "repository", "--state", loop.folder / "state"]
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


def test_follow_reports_failures_once_and_continues(
    loop: Loop, empty_redis: RedisServer, capsys: pytest.CaptureFixture[str]
) -> None:
    options = FollowOptions(loop.sources, loop.url, DEFAULT_KEY_PREFIX, loop.folder / "state", 600)
    port = free_port()
    metrics, stop = FollowMetrics(port), threading.Event()
    thread = threading.Thread(target=follow, args=(options, 0.05, metrics, stop))
    thread.start()
    try:
        wait_until(lambda: exposed(port)["ranker_counters_failures_total"] >= 3)
        loop.load()
        wait_until(lambda: exposed(port)["ranker_counters_followed_timestamp_seconds"] > 0)
    finally:
        stop.set()
        thread.join()
    assert capsys.readouterr().err.count("holds no counters of this model") == 1


def exposed(port: int) -> dict[str, float]:
    """Return the metrics on a port."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as response:
        text = response.read().decode()
    return {line.split()[0]: float(line.split()[1]) for line in text.splitlines() if not line.startswith("#")}
