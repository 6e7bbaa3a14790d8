"""The loop under disturbances: rows, sums and answers agree exactly with a ledger that the clients keep."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipelines.feature_store.counter_store import CounterStore, read_state
from pipelines.feature_store.counter_values import counters_by_root, decode_roots
from pipelines.jobs.check_counters import check_counters, describe_missing
from pipelines.jobs.follow_counters import Follower
from pipelines.jobs.followed_version import FollowOptions
from pipelines.jobs.forget import forget, forget_in_store
from pipelines.jobs.join import join
from pipelines.jobs.load_counters import load_counters
from pipelines.jobs.release import change_release
from pipelines.loop.folder_locks import lock_folders
from pipelines.loop.sources import LoopSources
from ranking.artifacts import bundle
from ranking.artifacts.feature_store_keys import DEFAULT_KEY_PREFIX, counter_key
from ranking.encoding.vocabulary import stable_hash
from ranking.errors import OutputError
from ranking.schema import Schema
from tests.support.command import ranker
from tests.support.http_client import post_json, send_request
from tests.support.processes import ServiceProcess, running_service
from tests.support.redis_server import RedisServer, redis_server
from tests.support.waiting import TIMEOUT_SECONDS, wait_until

SECONDS = float(os.environ.get("RANKER_SOAK_SECONDS", "60"))
USERS, ITEMS, CANDIDATES, CLIENTS = 400, 40, 8, 2
WINDOW = 5
"""Seconds in which feedback counts; clients send it at once."""
DURABLE = ["--appendonly", "yes", "--appendfsync", "always"]
"""Options of a Redis whose acknowledged commands survive its end."""

CONFIG = """
name = "soak"
columns = { request = "request_id" }

[logs]
path = "log.parquet"
validation_from = VALIDATION
test_from = TEST

[[counters]]
of = ["user_id"]
labels = ["click", "watch"]
delay = "5s"

[[counters]]
of = ["item_id"]
labels = ["click"]
delay = "5s"

[[counters]]
of = ["user_id", "tab"]
labels = ["click"]
delay = "8s"

[[features]]
name = "user_id"
kind = "categorical"
owner = "user"

[[features]]
name = "item_id"
kind = "categorical"
owner = "item"

[[features]]
name = "tab"
kind = "categorical"
owner = "context"

[[features]]
name = "price"
kind = "numeric"
owner = "item"

[[tasks]]
name = "click"
kind = "binary"

[[tasks]]
name = "watch"
kind = "regression"

[model]
experts = 2
expert_layers = [8]
tower_layers = [4]

[training]
epochs = 1
batch_size = 64

[evaluation]
bootstrap = 0
baselines = []
"""

Sums = Counter[Any]
"""Impressions, clicks and seconds watched by what they belong to, such as ("user", "u1", "count")."""


@dataclass(frozen=True)
class Answer:
    """An answer that a client received, and the labels that it sent."""

    user: str
    tab: str
    version: str
    items: tuple[str, ...]
    scores: dict[str, dict[str, float]]
    labels: dict[str, dict[str, float]]


@dataclass
class Ledger:
    """What the clients did.

    Attributes:
        answers: answers by request id.
        forgotten: users that were forgotten; no client uses them again.
        busy: number of requests of each user that are being sent.
    """

    answers: dict[str, Answer] = field(default_factory=dict)
    forgotten: set[str] = field(default_factory=set)
    busy: Counter[str] = field(default_factory=Counter)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @contextmanager
    def user(self, draw: Callable[[], str]) -> Iterator[str]:
        """Draw a user that is not forgotten while the caller uses it."""
        with self._lock:
            user = next(user for user in iter(draw, None) if user not in self.forgotten)
            self.busy[user] += 1
        try:
            yield user
        finally:
            with self._lock:
                self.busy[user] -= 1

    def retire(self, user: str) -> None:
        """Keep clients from a user, and wait until none uses it."""
        with self._lock:
            self.forgotten.add(user)
        wait_until(lambda: self.busy[user] == 0)

    def remaining(self) -> dict[str, Answer]:
        """Return the answers of users that were not forgotten."""
        return {name: answer for name, answer in self.answers.items() if answer.user not in self.forgotten}


class Loop:
    """A service, a store, and the folders of a loop.

    Args:
        folder: new folder.
        store: the store.
    """

    def __init__(self, folder: Path, store: RedisServer) -> None:
        self.folder, self.store, self.ledger = folder, store, Ledger()
        self.random, self.searching = np.random.default_rng(1), threading.Lock()
        self.repository, self.served, self.feedback, self.joined = (
            folder / name for name in ("repository", "served", "feedback", "joined")
        )
        self.served.mkdir()
        self.feedback.mkdir()
        self.log = write_log(folder / "log.parquet")
        self.schema = self._publish_two_versions()
        self.sources = LoopSources(self.served, self.feedback, self.repository, "soak")
        self.options = FollowOptions(self.sources, store.url, DEFAULT_KEY_PREFIX, WINDOW)

    def _publish_two_versions(self) -> Schema:
        newest = self.log["time"][-1].as_py().replace(tzinfo=None)
        config = CONFIG.replace("VALIDATION", (newest - timedelta(hours=6)).isoformat(timespec="seconds"))
        (self.folder / "ranker.toml").write_text(
            config.replace("TEST", (newest - timedelta(hours=3)).isoformat(timespec="seconds"))
        )
        for seed in (1, 2):
            run, frozen = self.folder / f"run-{seed}", self.folder / f"bundle-{seed}"
            seeded = ["--set", f"training.seed={seed}"]
            for command in (
                ["train", self.folder / "ranker.toml", "--run", run, *seeded],
                ["freeze", run, "--out", frozen],
                ["publish", frozen, self.repository],
            ):
                code, _, errors = ranker(*command)
                assert code == 0, errors
        return bundle.load(self.repository / "soak" / "1").schema

    # What clients do.

    def rank(self, service: ServiceProcess, seed: int, stop: threading.Event) -> None:
        """Rank and send feedback until stopped; every answer and every acknowledged event is in the ledger."""
        random = np.random.default_rng(seed)
        for number in itertools.count():
            if stop.is_set():
                return
            with self.ledger.user(lambda: f"u{random.integers(USERS)}") as user:
                name = f"{seed}-{number}"
                self.ledger.answers[name] = self._rank(service, name, user, random)

    def _rank(self, service: ServiceProcess, name: str, user: str, random: np.random.Generator) -> Answer:
        tab = str(random.choice(["home", "search"]))
        items = [f"v{i}" for i in random.choice(ITEMS, CANDIDATES, replace=False)]
        rows = [{"id": item, "features": {"price": round(float(random.exponential(5)), 3)}} for item in items]
        body = {"request_id": name, "user": {"id": user}, "context": {"tab": tab}, "items": rows}
        answer = post_json(f"{service.url}/v1/rank", body)
        assert answer["request_id"] == name
        ranked = tuple(item["id"] for item in answer["items"])
        labels = {
            item: {"click": 1.0, "watch": float(random.integers(1, 9))} for item in ranked if random.random() < 0.2
        }
        if labels:
            events = [{"item": item, "labels": values} for item, values in labels.items()]
            for _ in range(1 + (random.random() < 0.1)):  # a client that repeats its request changes nothing
                sent = send_request(f"{service.url}/v1/feedback", {"request_id": name, "events": events})
                assert (sent.status, sent.json()) == (202, {"accepted": len(events)})
        scores = {item["id"]: item["scores"] for item in answer["items"]}
        return Answer(user, tab, str(answer["version"]), ranked, scores, labels)

    # What operators do.

    def join(self) -> None:
        join(self.sources, self.joined, WINDOW)

    def swap(self) -> None:
        """Serve the other version, and load its counters."""
        current = change_release(self.repository, "soak", {}).version
        change_release(self.repository, "soak", {"version": 3 - current})
        self.load()

    def load(self) -> None:
        self._repeat(lambda: load_counters(self.repository, self.store.url, "soak", DEFAULT_KEY_PREFIX))

    def describe_missing(self) -> str | None:
        return describe_missing(check_counters(self.repository, self.store.url, "soak", DEFAULT_KEY_PREFIX))

    def restart_store(self) -> None:
        self.store.stop()
        self.store.start()

    def forget(self) -> None:
        """Forget a user when no client uses it and the service has finished the files with its requests."""
        known = [answer.user for answer in [*self.ledger.answers.values()] if answer.user not in self.ledger.forgotten]
        if not known:
            return
        user = known[-1]
        self.ledger.retire(user)
        unfinished = {*self.served.glob("*.part"), *self.feedback.glob("*.part")}
        wait_until(lambda: not any(file.exists() for file in unfinished))
        time.sleep(2)  # answered requests are in a file after a second
        unfinished = {*self.served.glob("*.part"), *self.feedback.glob("*.part")}
        wait_until(lambda: not any(file.exists() for file in unfinished))
        with self.searching, lock_folders([self.served, self.feedback, self.joined]):
            removed = forget(user, served=self.served, feedback=self.feedback, logs=[self.joined])
            self._repeat(lambda: forget_in_store(user, self.repository, self.store.url, "soak", DEFAULT_KEY_PREFIX))
        assert removed["served_requests"] > 0
        assert removed["unreadable"] == []

    def damage(self) -> None:
        """Tear a file of the served log, and restore it; meanwhile forget would report that it cannot search it."""
        with self.searching:
            with lock_folders([self.served]):
                files = list(self.served.glob("served-*.parquet"))
                if not files:
                    return
                file = files[int(self.random.integers(len(files)))]
                content = file.read_bytes()
                file.write_bytes(content[: len(content) // 2])
            time.sleep(1.5)
            file.write_bytes(content)

    def _repeat(self, command: Callable[[], Any]) -> None:
        """Repeat a command while the store restarts."""

        def succeeds() -> bool:
            try:
                command()
            except OutputError:
                return False
            return True

        wait_until(succeeds)

    # What the ledger says.

    def expected_rows(self) -> dict[tuple[str, str], tuple[Any, ...]]:
        return {
            (name, item): (
                answer.user,
                answer.tab,
                answer.version,
                position,
                int(item in answer.labels),
                answer.labels.get(item, {}).get("watch"),
            )
            for name, answer in self.ledger.remaining().items()
            for position, item in enumerate(answer.items)
        }

    def expected_sums(self) -> Sums:
        """Return the sums over the log and the ledger."""
        sums: Sums = Counter()
        for row in self.log.to_pylist():
            if row["user_id"] not in self.ledger.forgotten:
                add(sums, row["user_id"], row["item_id"], row["tab"], row["click"], row["watch"])
            else:  # the bundle still counts its impressions of items
                add(sums, None, row["item_id"], row["tab"], row["click"], row["watch"])
        for answer in self.ledger.remaining().values():
            for item in answer.items:
                labels = answer.labels.get(item, {})
                add(sums, answer.user, item, answer.tab, labels.get("click", 0), labels.get("watch"))
        return +sums

    def stored_sums(self) -> Sums:
        """Return the sums in the store."""
        store = CounterStore(self.store.url, DEFAULT_KEY_PREFIX, "soak")
        state = read_state(store, store.state)
        assert state is not None
        sums: Sums = Counter()
        for root, counters in counters_by_root(self.schema).items():
            ids = [f"u{i}" for i in range(USERS)] if root == "user" else [f"v{i}" for i in range(ITEMS)]
            hashes = np.array([stable_hash(name) for name in ids])
            values: Any = store.client.mget(
                [counter_key(store.start, state.generation, root, h) for h in hashes.tolist()]
            )
            for counter in counters:
                kind = "user_tab" if counter.name == "user_id_tab" else root
                for name, value, one in zip(ids, values, hashes, strict=True):
                    records = decode_roots(counters, np.array([one]), [value])[counter.name]
                    for record in records:
                        sums[kind, name, "count"] += record["count"]
                        for label, total in zip(counter.labels, record["label_sums"].tolist(), strict=True):
                            sums[kind, name, label] += total
        return +sums


def add(sums: Sums, user: str | None, item: str, tab: str, click: float, watch: float | None) -> None:
    """Add an impression to the sums of all counters; the two tabs of a user are added up."""
    if user is not None:
        sums["user", user, "count"] += 1
        sums["user", user, "click"] += click
        sums["user", user, "watch"] += watch or 0
        sums["user_tab", user, "count"] += 1
        sums["user_tab", user, "click"] += click
    sums["item", item, "count"] += 1
    sums["item", item, "click"] += click


def of_users(sums: Sums) -> Sums:
    return Counter({key: value for key, value in sums.items() if key[0] != "item"})


def write_log(path: Path) -> pa.Table:
    """Write the log on which the versions are trained: two days that ended an hour ago."""
    random, rows = np.random.default_rng(0), 800
    end = datetime.now(UTC).replace(microsecond=0) - timedelta(hours=1)
    seconds = np.sort(random.choice(2 * 86_400, rows, replace=False))[::-1]
    table = pa.table(
        {
            "time": pa.array([end - timedelta(seconds=int(s)) for s in seconds], pa.timestamp("us", "UTC")),
            "request_id": [f"log-{row}" for row in range(rows)],
            "user_id": [f"u{i}" for i in random.integers(0, USERS, rows)],
            "item_id": [f"v{i}" for i in random.integers(0, ITEMS, rows)],
            "tab": random.choice(["home", "search"], rows).tolist(),
            "price": random.exponential(5, rows),
            "click": random.integers(0, 2, rows),
            "watch": random.integers(1, 9, rows).astype(float),
        }
    )
    pq.write_table(table, path)
    return table


@contextmanager
def repeated(*commands: tuple[float, Callable[[], None]]) -> Iterator[None]:
    """Run each command in a thread of its own, again and again after so many seconds; its errors are raised."""
    stop, errors = threading.Event(), []

    def run(seconds: float, command: Callable[[], None]) -> None:
        while not stop.wait(seconds):
            try:
                command()
            except BaseException as error:  # of a thread
                errors.append(error)
                return

    threads = [threading.Thread(target=run, args=command) for command in commands]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    if errors:
        raise errors[0]


@contextmanager
def clients(loop: Loop, service: ServiceProcess) -> Iterator[None]:
    """Run the clients."""
    stop = threading.Event()
    ranking = [(0.0, lambda seed=seed: loop.rank(service, seed, stop)) for seed in range(CLIENTS)]
    with repeated(*ranking):
        try:
            yield
        finally:
            stop.set()


@contextmanager
def following(loop: Loop) -> Iterator[None]:
    """Run ``ranker counters follow``."""
    command = [sys.executable, "-m", "pipelines.cli", "counters", "follow", "--every", "1s", "--window", f"{WINDOW}s"]
    command += ["--served", loop.served, "--feedback", loop.feedback]
    command += ["--repository", loop.repository, "--model", "soak", "--to", loop.store.url]
    program = subprocess.Popen([str(part) for part in command])
    try:
        yield
        assert program.poll() is None
        program.send_signal(signal.SIGTERM)
        assert program.wait(TIMEOUT_SECONDS) == 0
    finally:
        program.kill()
        program.wait()


@pytest.mark.parametrize(
    "seconds",
    [
        pytest.param(10.0, marks=pytest.mark.system),
        pytest.param(SECONDS, marks=[pytest.mark.system, pytest.mark.nightly]),
    ],
)
def test_rows_sums_and_answers_agree_with_the_ledger(tmp_path: Path, seconds: float) -> None:
    """Protects the loop as a whole: nothing is lost, counted twice, or comes back, whatever happens meanwhile."""
    with ExitStack() as stack:
        loop = Loop(tmp_path, stack.enter_context(redis_server(*DURABLE)))
        loop.load()
        settings: dict[str, Any] = {
            "served_log": loop.served,
            "feedback_dir": loop.feedback,
            "store": loop.store.url,
            "store_timeout_ms": 1_000,
            "poll_seconds": 0.2,
            "served_log_seconds": 1,
            "feedback_max_seconds": 1,
            "workers": 2,
        }
        service = stack.enter_context(running_service(loop.repository, **settings))
        with (
            following(loop),
            repeated(
                (min(60, seconds / 5), loop.join),
                (seconds / 6, loop.swap),
                (seconds / 5, loop.load),
                (seconds / 5, loop.forget),
                (seconds / 8, loop.damage),
                (seconds / 4, loop.restart_store),
            ),
            clients(loop, service),
        ):
            time.sleep(seconds)
        service.wait_until(lambda: service.metrics()["ranker_served_requests_total"] == len(loop.ledger.answers))
        dropped = sum(v for name, v in service.metrics().items() if name.startswith("ranker_served_dropped_total"))
        assert dropped == 0
        service.process.send_signal(signal.SIGTERM)
        assert service.process.wait(TIMEOUT_SECONDS) == 0
        assert "Traceback" not in service.output()
        end = datetime.now(UTC) + timedelta(seconds=60)
        counts = join(loop.sources, loop.joined, WINDOW, end)
        assert (counts.open_requests, counts.left_out, counts.repeated_requests) == (0, (), 0)
        Follower(loop.options).step(end)
        loop.forget()
        assert Follower(loop.options).step(end)["applied"] == 0
        assert loop.describe_missing() is None
        # Items still count the impressions of users that were forgotten after the last load.
        assert of_users(loop.stored_sums()) == of_users(loop.expected_sums())
        loop.load()
        Follower(loop.options).step(end)
        rows = pq.read_table(loop.joined, partitioning=None)
        assert actual_rows(rows) == loop.expected_rows()
        assert loop.stored_sums() == loop.expected_sums()
        assert_scores(loop, rows)
        versions = Counter(answer.version for answer in loop.ledger.answers.values())
        print(f"{len(loop.ledger.answers):,} answers {dict(versions)}, {len(loop.ledger.forgotten)} forgotten users")
        assert set(versions) == {"1", "2"}
        assert loop.ledger.forgotten


def actual_rows(rows: pa.Table) -> dict[tuple[str, str], tuple[Any, ...]]:
    columns = ["user_id", "tab", "version", "position", "click", "watch"]
    values = zip(*(rows[name].to_pylist() for name in columns), strict=True)
    keys = list(zip(rows["request_id"].to_pylist(), rows["item_id"].to_pylist(), strict=True))
    assert len(set(keys)) == len(keys)
    return dict(zip(keys, values, strict=True))


def assert_scores(loop: Loop, rows: pa.Table) -> None:
    """Assert that the rows have the features that scored the answers."""
    for version in ("1", "2"):
        served = bundle.load(loop.repository / "soak" / version)
        selected = rows.filter(pa.compute.equal(rows["version"], version)).combine_chunks()
        scores: npt.NDArray[Any] = served.score_completed(selected, served.schema.tasks)[0]
        names = zip(selected["request_id"].to_pylist(), selected["item_id"].to_pylist(), strict=True)
        sent = [loop.ledger.answers[name].scores[item] for name, item in names]
        expected = [[each[task] for task in served.schema.task_names] for each in sent]
        np.testing.assert_allclose(scores, np.array(expected), atol=1e-5)
