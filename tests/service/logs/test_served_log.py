"""The served log of a service: intervals, sampling, privacy, quota, retention, failures, and the end of the process."""

from __future__ import annotations

import logging
import os
import re
import shutil
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from fastapi.testclient import TestClient

from pipelines.jobs.publish import publish
from pipelines.jobs.release import change_release
from ranking.artifacts.user_hash import UserHash
from ranking.errors import OutputError
from service.app import create_app
from service.logs import log_thread, served_arrays, served_log
from service.logs.log_folder import LogFolder
from service.logs.served_buffer import VersionBuffer
from service.logs.served_request import ServedRequest, is_sampled
from service.logs.sink import LogUsage
from service.settings import Settings
from tests.support.metrics import metrics_of
from tests.support.rank_request import rank
from tests.support.served_files import logged_ids, served_files
from tests.support.waiting import TIMEOUT_SECONDS, wait_until

BODY = {"user": {"id": "u3"}, "items": {"id": ["v1", "v2"]}}


@contextmanager
def client_of(repository: Path, folder: Path, **settings: Any) -> Iterator[TestClient]:
    """A client of a service that logs to a folder; at the end of the context it has stopped."""
    app = create_app(Settings(repository=repository, served_log=folder, **settings))
    with TestClient(app, raise_server_exceptions=False) as client:
        yield client


def scan_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let folders be scanned at once, also after a scan that took long because the machine did not respond."""
    monkeypatch.setattr(log_thread, "SCAN_SECONDS", 0.05)
    monkeypatch.setattr(log_thread, "MAX_SCAN_SECONDS", 0.05)


def dropped(client: TestClient, reason: str) -> float:
    return metrics_of(client).get(f"ranker_served_dropped_total,reason={reason}", 0.0)


def drop_lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [message for message in caplog.messages if message.startswith("the served log drops requests")]


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time of the writer, which only the test advances: the single number in this list, in seconds."""
    now = [time.monotonic()]
    clock = SimpleNamespace(monotonic=lambda: now[0], thread_time=time.thread_time, time=time.time)
    monkeypatch.setattr(served_log, "time", clock)
    monkeypatch.setattr(log_thread, "time", clock)
    return now


def test_file_is_finished_within_the_interval_and_the_end_flushes_the_rest(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, now: list[float]
) -> None:
    monkeypatch.setattr(served_log, "COLLECT_SECONDS", 0.05)
    folder = tmp_path / "log"
    with client_of(repository, folder, served_log_seconds=3600) as client:
        started = metrics_of(client)["ranker_served_finished_timestamp_seconds"]
        rank(client, BODY, request_id="first")
        wait_until(lambda: metrics_of(client)["ranker_served_queue_rows"] == 2)
        assert not list(folder.iterdir())
        now[0] += 3600.0
        wait_until(lambda: metrics_of(client)["ranker_served_requests_total"] == 1)
        assert logged_ids(folder) == ["first"]
        values = metrics_of(client)
        assert values["ranker_served_bytes_total"] == sum(path.stat().st_size for path in folder.iterdir())
        assert values["ranker_served_finished_timestamp_seconds"] > started
        now[0] = time.monotonic()
        for number in range(40):
            rank(client, BODY, request_id=f"last-{number}")
        wait_until(lambda: metrics_of(client)["ranker_served_queue_rows"] == 80)
    assert sorted(logged_ids(folder)) == sorted(["first", *(f"last-{number}" for number in range(40))])
    assert [path.suffix for path in folder.iterdir()] == [".parquet"] * 2


def test_reached_size_finishes_a_file_early(repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(served_log, "BUFFER_BYTES", 2_000)
    with client_of(repository, tmp_path, served_log_seconds=3600) as client:
        for number in range(20):
            rank(client, BODY, request_id=f"r{number}")
        wait_until(lambda: list(tmp_path.glob("*.parquet")))


def test_without_the_setting_nothing_is_logged(repository: Path, tmp_path: Path) -> None:
    with TestClient(create_app(Settings(repository=repository))) as client:
        rank(client, BODY, request_id="r")
        assert metrics_of(client)["ranker_served_requests_total"] == 0
    assert not [thread for thread in threading.enumerate() if thread.name == "served-log"]
    assert list(tmp_path.iterdir()) == []


def test_requests_that_fail_are_not_logged(repository: Path, tmp_path: Path) -> None:
    with client_of(repository, tmp_path) as client:
        body = {"request_id": "invalid", "items": [{"id": "v1"}, {"id": "v1"}]}
        assert client.post("/v1/rank", json=body).status_code == 422
        assert client.post("/v1/rank", json={"items": [{"id": "v1"}], "deadline_ms": 0.001}).status_code == 504
        rank(client, BODY, request_id="valid")
    assert logged_ids(tmp_path) == ["valid"]


def test_canary_is_logged_with_its_version_and_a_shadow_is_not(repo: Path, bundle: Path, tmp_path: Path) -> None:
    _, third = publish(bundle, repo)
    change_release(repo, "feed", {"version": 1, "canary": {"version": 2, "weight": 0.5}, "shadow": third})
    versions = {}
    with client_of(repo, tmp_path / "log") as client:
        for number in range(30):
            body = {"request_id": f"r{number}", "user": {"id": f"u{number}"}, "items": [{"id": "v1"}]}
            versions[f"r{number}"] = client.post("/v1/rank", json=body).json()["version"]
    files = served_files(tmp_path / "log")
    logged = {row: file.metadata["version"] for file in files for row in file.table["request_id"].to_pylist()}
    assert logged == versions
    assert {file.metadata["version"] for file in files} == {"1", "2"}
    assert sum(file.table.num_rows for file in files) == 30


def test_sampling_logs_all_requests_of_a_user_or_none(repository: Path, tmp_path: Path) -> None:
    expected = []
    with client_of(repository, tmp_path, served_share=0.4) as client:
        for number in range(60):
            user = f"u{number % 20}"
            rank(client, BODY, request_id=f"r{number}", user={"id": user})
            expected += [f"r{number}"] if is_sampled(user, "", 0.4) else []
        for number in range(20):
            rank(client, BODY, request_id=f"anonymous-{number}", user={})
            expected += [f"anonymous-{number}"] if is_sampled(None, f"anonymous-{number}", 0.4) else []
    assert sorted(logged_ids(tmp_path)) == sorted(expected)
    assert 0 < len(expected) < 80


def test_user_key_replaces_user_ids_in_the_whole_file(repository: Path, tmp_path: Path) -> None:
    with client_of(repository, tmp_path, served_log_user_key="a secret") as client:
        rank(client, BODY, request_id="r", user={"id": "u-very-recognizable"})
        rank(client, BODY, request_id="nobody", user={})
    (file,) = served_files(tmp_path)
    assert file.row("r")["user_id"] == UserHash("a secret")("u-very-recognizable")
    assert file.row("nobody")["user_id"] is None
    assert file.metadata["hashed_users"] is True
    (path,) = tmp_path.iterdir()
    assert b"recognizable" not in path.read_bytes()
    assert b"a secret" not in path.read_bytes()


def test_excluded_columns_are_left_out_with_their_sources(repository: Path, tmp_path: Path) -> None:
    with client_of(repository, tmp_path, served_log_exclude="age, hour") as client:
        user = {"id": "u3", "features": {"age": 31}}
        rank(client, BODY, request_id="r", user=user, context={"hour": 9, "surface": "home"})
    (file,) = served_files(tmp_path)
    names = set(file.table.column_names)
    assert "context.surface" in names
    assert not names & {"user.age", "context.hour"}
    columns = {(column["owner"], column["name"]) for column in file.metadata["columns"]}
    assert not {("user", "age"), ("context", "hour")} & columns
    for owner in ("user", "context"):
        width = file.table.schema.field(f"source.{owner}").type.byte_width
        assert width == sum(column_owner == owner for column_owner, _ in columns)


def test_full_folder_drops_and_counts_until_files_are_collected(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    scan_often(monkeypatch)
    with client_of(repository, tmp_path, served_log_seconds=1, max_log_bytes=100_000) as client:
        (tmp_path / "served-20990101T000000Z-0123456789ab.parquet").write_bytes(b"x" * 99_999)
        rank(client, BODY, request_id="too large")
        wait_until(lambda: dropped(client, "folder_full") == 1)
        (tmp_path / "served-20990101T000000Z-0123456789ac.parquet").write_bytes(b"x")

        def is_full() -> bool:
            before = dropped(client, "folder_full")
            rank(client, BODY, request_id="not queued")
            return dropped(client, "folder_full") > before

        wait_until(is_full)
        for path in tmp_path.iterdir():
            path.unlink()

        def is_logged() -> bool:
            rank(client, BODY, request_id="logged again")  # may still be dropped before the next scan
            return "logged again" in logged_ids(tmp_path)

        wait_until(is_logged)
    assert "too large" not in logged_ids(tmp_path)
    assert len(drop_lines(caplog)) == 1, "one line per minute"
    assert "max_log_bytes is 100000" in drop_lines(caplog)[0]


def test_collected_files_make_room_a_minute_after_a_scan_that_took_long(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, now: list[float]
) -> None:
    """Protects the log against a stall of the machine, and against a folder that lists its files slowly."""
    scan = LogFolder.scan

    def slow_scan(folder: LogFolder) -> LogUsage:
        now[0] += 600.0
        return scan(folder)

    monkeypatch.setattr(LogFolder, "scan", slow_scan)
    file = tmp_path / "served-20990101T000000Z-0123456789ab.parquet"
    file.write_bytes(b"x" * 30_000)
    with client_of(repository, tmp_path, served_log_seconds=1, max_log_bytes=30_000) as client:
        rank(client, BODY, request_id="dropped")
        wait_until(lambda: dropped(client, "folder_full") == 1)
        file.unlink()
        now[0] += 60.0

        def is_logged() -> bool:
            rank(client, BODY, request_id="logged")
            return metrics_of(client)["ranker_served_queue_rows"] > 0

        wait_until(is_logged)
    assert "dropped" not in logged_ids(tmp_path)


def test_full_disk_drops_and_counts_and_ranking_goes_on(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> Path:
        raise OSError(28, "no space left on device")

    with client_of(repository, tmp_path, served_log_seconds=1) as client:
        with monkeypatch.context() as patch:
            patch.setattr(LogFolder, "write", fail)
            rank(client, BODY, request_id="lost-1")
            wait_until(lambda: dropped(client, "write_failed") == 1)
            rank(client, BODY, request_id="lost-2")
            wait_until(lambda: dropped(client, "write_failed") == 2)
        rank(client, BODY, request_id="logged")
    assert logged_ids(tmp_path) == ["logged"]
    assert drop_lines(caplog) == ["the served log drops requests: no space left on device"]


def test_removed_folder_is_created_again(repository: Path, tmp_path: Path) -> None:
    with client_of(repository, tmp_path / "log", served_log_seconds=1) as client:
        shutil.rmtree(tmp_path / "log")
        rank(client, BODY, request_id="r")
    assert logged_ids(tmp_path / "log") == ["r"]


def test_folder_removed_during_a_write_counts_the_lost_request_and_the_next_is_logged(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    folder, fsync = tmp_path / "log", os.fsync

    def remove_folder(file: int) -> None:
        monkeypatch.setattr(os, "fsync", fsync)
        shutil.rmtree(folder)
        fsync(file)

    with client_of(repository, folder, served_log_seconds=1) as client:
        monkeypatch.setattr(os, "fsync", remove_folder)
        rank(client, BODY, request_id="lost")
        wait_until(lambda: dropped(client, "lost") == 1)
        assert dropped(client, "write_failed") == 0
        rank(client, BODY, request_id="logged")
    assert logged_ids(folder) == ["logged"]
    (line,) = drop_lines(caplog)
    assert re.search(rf": {folder}/served-.*\.part was removed while it was written$", line)
    assert f"the served log folder {folder} was removed; created it again" in caplog.messages


def test_folder_replaced_by_a_file_drops_and_ranking_goes_on(
    repository: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with client_of(repository, tmp_path / "log", served_log_seconds=1) as client:
        (tmp_path / "log").rmdir()
        (tmp_path / "log").touch()
        rank(client, BODY, request_id="lost")
        wait_until(lambda: dropped(client, "write_failed") == 1)
        rank(client, BODY, request_id="also lost")
    assert len(drop_lines(caplog)) == 1


def test_defect_of_the_conversion_drops_and_does_not_end_the_thread(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise ValueError("a defect")

    with client_of(repository, tmp_path, served_log_seconds=1) as client:
        with monkeypatch.context() as patch:
            patch.setattr(VersionBuffer, "add", fail)
            rank(client, BODY, request_id="lost")
            wait_until(lambda: dropped(client, "write_failed") == 1)
        rank(client, BODY, request_id="logged")
    assert logged_ids(tmp_path) == ["logged"]
    assert drop_lines(caplog) == ["the served log drops requests: ValueError: a defect"]


@pytest.mark.parametrize("limit", ["MAX_QUEUED_CANDIDATES", "MAX_QUEUED_BYTES"])
def test_full_queue_drops_and_counts_while_the_disk_hangs(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    writing, released, write = threading.Event(), threading.Event(), LogFolder.write

    def hang(folder: LogFolder, content: memoryview) -> Path:
        writing.set()
        released.wait(TIMEOUT_SECONDS)
        return write(folder, content)

    monkeypatch.setattr(served_log, limit, 5)
    monkeypatch.setattr(LogFolder, "write", hang)
    with client_of(repository, tmp_path, served_log_seconds=1) as client:
        rank(client, BODY, request_id="written")
        assert writing.wait(TIMEOUT_SECONDS)
        for number in range(20):
            rank(client, BODY, request_id=f"r{number}")
        released.set()
        wait_until(lambda: dropped(client, "queue_full") > 0)
        assert 15 <= dropped(client, "queue_full") < 20
    assert "written" in logged_ids(tmp_path)


def test_queue_of_requests_with_long_values_is_bounded_by_bytes(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also without candidates, whose number bounds nothing then."""
    converting, released, convert = threading.Event(), threading.Event(), VersionBuffer.add

    def hang(buffer: VersionBuffer, requests: Sequence[ServedRequest]) -> None:
        converting.set()
        released.wait(TIMEOUT_SECONDS)
        convert(buffer, requests)

    monkeypatch.setattr(VersionBuffer, "add", hang)
    monkeypatch.setattr(served_log, "MAX_QUEUED_BYTES", 400_000)
    long = {"id": "u1", "features": {"interests": ["x" * 1000] * 30}}  # 30 kB, counted four times
    with client_of(repository, tmp_path, served_log_seconds=1) as client:
        rank(client, BODY, request_id="first")
        assert converting.wait(TIMEOUT_SECONDS)
        for number in range(20):
            rank(client, BODY, request_id=f"r{number}", user=long, items=[])
        released.set()
        wait_until(lambda: dropped(client, "queue_full") == 17)
    assert sorted(logged_ids(tmp_path)) == ["first", "r0", "r1", "r2"]  # Files of one second have no order.


def test_long_lists_are_left_out(repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(served_arrays, "MAX_LIST_LENGTH", 3)
    with client_of(repository, tmp_path) as client:
        for count in (3, 4):
            rank(client, BODY, request_id=f"r{count}", user={"id": "u1", "features": {"interests": ["x"] * count}})
    (file,) = served_files(tmp_path)
    assert file.row("r3")["user.interests"] == ["x"] * 3
    assert file.row("r4")["user.interests"] is None


def test_unwritable_folder_is_an_error_at_the_start(repository: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OutputError, match="served log cannot be written"):
        create_app(Settings(repository=repository, served_log=tmp_path / "file"))


def test_expired_files_are_deleted_while_the_service_runs(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scan_often(monkeypatch)
    with client_of(repository, tmp_path, served_log_days=10):
        expired = tmp_path / "served-20200101T000000Z-0123456789ab.parquet"
        expired.touch()
        wait_until(lambda: not expired.exists())


def test_values_of_strange_requests_do_not_stop_the_log(repository: Path, tmp_path: Path) -> None:
    with client_of(repository, tmp_path) as client:
        rank(client, BODY, request_id="r-ü\u0000", user={"id": "\u0000"}, items=[{"id": "ä" * 500}, {"id": "\n"}])
        rank(client, BODY, request_id="mixed", items={"id": [1, "v2", 2**62]})
        rank(client, BODY, request_id="number", user={"id": 2**63 - 1, "features": {"age": 10**15}})
        rank(client, BODY, request_id="float", user={"id": "u1", "features": {"age": 1e300}})
    assert sorted(logged_ids(tmp_path)) == sorted(["r-ü\u0000", "mixed", "number", "float"])


def test_log_of_many_concurrent_requests_is_complete(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(served_log, "BUFFER_BYTES", 50_000)
    with client_of(repository, tmp_path, served_log_seconds=1) as client:

        def send(worker: int) -> None:
            random = np.random.default_rng(worker)
            for number in range(25):
                ids = [f"v{i}" for i in random.choice(50, 1 + number, replace=False)]
                rank(client, BODY, request_id=f"{worker}-{number}", items={"id": ids}, top_n=5)

        threads = [threading.Thread(target=send, args=(worker,)) for worker in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(logged_ids(tmp_path)) == sorted(f"{worker}-{number}" for worker in range(4) for number in range(25))
    for file in served_files(tmp_path):
        lengths = [len(items) for items in file.table["item_id"].to_pylist()]
        assert max(lengths) <= 5
        for name in file.table.column_names:
            if pa.types.is_list(file.table.schema.field(name).type) and name.startswith(("item.", "source.", "score")):
                assert [len(values) for values in file.table[name].to_pylist()] == lengths, name


@pytest.fixture(autouse=True)
def _capture_errors(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR, "ranker.service")
