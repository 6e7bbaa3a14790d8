"""The feedback writer: replies after the write, bounds its queue, keeps the quotas, and survives failures."""

from __future__ import annotations

import asyncio
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

from service.logs import feedback_log, log_thread, rotating_files
from service.logs.feedback_log import FeedbackLog, FeedbackQueueFullError, FeedbackRecord
from service.logs.log_folder import LogFolder
from service.logs.quota import FolderFullError, KeyQuotaError
from service.logs.rotating_files import RotatingFiles
from service.logs.sink import LogUsage
from service.settings import Settings
from service.telemetry.metrics import Metrics
from tests.support.metrics import samples
from tests.support.waiting import TIMEOUT_SECONDS, wait_until


@contextmanager
def started_writer(folder: Path, metrics: Metrics | None = None, **settings: Any) -> Iterator[FeedbackLog]:
    """A writer that is closed at the end."""
    values = Settings(repository=folder, feedback_dir=folder, **settings)
    writer = FeedbackLog.from_settings(values, metrics or Metrics())
    assert writer is not None
    try:
        yield writer
    finally:
        writer.close()


def scan_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let folders be scanned at once, also after a scan that took long because the machine did not respond."""
    monkeypatch.setattr(log_thread, "SCAN_SECONDS", 0.05)
    monkeypatch.setattr(log_thread, "MAX_SCAN_SECONDS", 0.05)


def record(line: bytes) -> FeedbackRecord:
    return FeedbackRecord(line, 1, {})


async def write(writer: FeedbackLog, line: bytes, key: str | None = None) -> FeedbackRecord:
    return await writer.write(key, len(line), partial(record, line))


def contents(folder: Path) -> bytes:
    return b"".join(file.read_bytes() for file in sorted(folder.iterdir()))


class SlowDisk(NamedTuple):
    """A disk that blocks each write until an event is set.

    Attributes:
        entered: set when a write begins.
        released: the event.
    """

    entered: threading.Event
    released: threading.Event


@pytest.fixture
def slow_disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[SlowDisk]:
    entered, released = threading.Event(), threading.Event()
    write = RotatingFiles.write

    def slow_write(files: RotatingFiles, content: bytes, key: str | None = None) -> None:
        entered.set()
        released.wait(TIMEOUT_SECONDS)
        write(files, content, key)

    monkeypatch.setattr(RotatingFiles, "write", slow_write)
    yield SlowDisk(entered, released)
    released.set()


def test_write_returns_when_the_line_is_in_the_file(tmp_path: Path) -> None:
    with started_writer(tmp_path) as writer:
        asyncio.run(write(writer, b"1\n"))
        (part,) = tmp_path.iterdir()
        assert part.read_bytes() == b"1\n"
    assert [file.name.endswith(".jsonl") for file in tmp_path.iterdir()] == [True]


def test_writes_of_different_keys_go_to_different_files(tmp_path: Path) -> None:
    with started_writer(tmp_path) as writer:
        for line, key in [(b"1\n", "shop"), (b"2\n", "app"), (b"3\n", "shop")]:
            asyncio.run(write(writer, line, key))
    assert {file.name.split("-", 3)[-1]: file.read_bytes() for file in tmp_path.iterdir()} == {
        "shop.jsonl": b"1\n3\n",
        "app.jsonl": b"2\n",
    }


def test_writer_with_more_keys_than_open_files_finishes_the_oldest_early(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rotating_files, "MAX_OPEN_FILES", 3)
    with started_writer(tmp_path) as writer:
        for number in range(8):
            asyncio.run(write(writer, b"%d\n" % number, f"key{number}"))
        assert len(list(tmp_path.glob("*.part"))) == 3
        assert len(list(tmp_path.glob("*.jsonl"))) == 5


def test_writer_finishes_an_old_file_without_further_writes(tmp_path: Path) -> None:
    with started_writer(tmp_path, feedback_max_seconds=0.05) as writer:
        asyncio.run(write(writer, b"1\n"))
        wait_until(lambda: list(tmp_path.glob("*.jsonl")), "the file is finished")


def test_writer_finishes_an_old_file_while_its_queue_is_never_empty(tmp_path: Path) -> None:
    async def keep_writing(writer: FeedbackLog) -> None:
        while not list(tmp_path.glob("*.jsonl")):
            await asyncio.gather(*(write(writer, b"1\n") for _ in range(50)))

    with started_writer(tmp_path, feedback_max_seconds=0.05) as writer:
        asyncio.run(asyncio.wait_for(keep_writing(writer), TIMEOUT_SECONDS))


def test_write_with_a_full_queue_is_rejected_and_queued_lines_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, slow_disk: SlowDisk
) -> None:
    monkeypatch.setattr(feedback_log, "MAX_QUEUED_WRITES", 3)

    async def scenario(writer: FeedbackLog) -> list[Any]:
        tasks = [asyncio.create_task(write(writer, b"%d\n" % number)) for number in range(8)]
        await asyncio.sleep(0.1)
        slow_disk.released.set()
        return await asyncio.gather(*tasks, return_exceptions=True)

    with started_writer(tmp_path) as writer:
        results = asyncio.run(scenario(writer))
    rejected = [number for number, result in enumerate(results) if isinstance(result, FeedbackQueueFullError)]
    assert rejected == [3, 4, 5, 6, 7]
    assert contents(tmp_path).split() == [b"0", b"1", b"2"]


def test_queue_is_bounded_by_bytes_and_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, slow_disk: SlowDisk
) -> None:
    monkeypatch.setattr(feedback_log, "MAX_QUEUED_BYTES", 1_000)
    metrics = Metrics()

    async def scenario(writer: FeedbackLog) -> None:
        tasks = [asyncio.create_task(write(writer, b"x" * 299 + b"\n")) for _ in range(3)]
        await asyncio.sleep(0)
        writer.check(None, 100)
        with pytest.raises(FeedbackQueueFullError):
            writer.check(None, 101)
        with pytest.raises(FeedbackQueueFullError):
            await write(writer, b"x" * 101)
        assert samples(metrics.exposition().decode())["ranker_feedback_queue_bytes"] == 900
        slow_disk.released.set()
        await asyncio.gather(*tasks)

    with started_writer(tmp_path, metrics) as writer:
        asyncio.run(scenario(writer))
        writer.check(None, 10_000)  # one request of any size may wait
    assert samples(metrics.exposition().decode())["ranker_feedback_queue_bytes"] == 0


def test_one_key_takes_at_most_half_of_the_queue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, slow_disk: SlowDisk
) -> None:
    monkeypatch.setattr(feedback_log, "MAX_QUEUED_WRITES", 10)

    async def scenario(writer: FeedbackLog) -> list[Any]:
        tasks = [asyncio.create_task(write(writer, b"%d\n" % number, "flood")) for number in range(8)]
        await asyncio.sleep(0)
        tasks += [asyncio.create_task(write(writer, b"other\n", "other")) for _ in range(3)]
        await asyncio.sleep(0)
        slow_disk.released.set()
        return await asyncio.gather(*tasks, return_exceptions=True)

    with started_writer(tmp_path) as writer:
        results = asyncio.run(scenario(writer))
    assert [isinstance(result, FeedbackQueueFullError) for result in results] == [False] * 5 + [True] * 3 + [False] * 3


def test_requests_that_arrive_during_a_write_are_written_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, slow_disk: SlowDisk
) -> None:
    write_slowly, writes = RotatingFiles.write, []

    def counted_write(files: RotatingFiles, content: bytes, key: str | None = None) -> None:
        writes.append(content)
        write_slowly(files, content, key)

    async def scenario(writer: FeedbackLog) -> None:
        first = asyncio.create_task(write(writer, b"first\n"))
        await asyncio.to_thread(slow_disk.entered.wait, TIMEOUT_SECONDS)
        later = [asyncio.create_task(write(writer, b"%d\n" % number)) for number in range(20)]
        await asyncio.sleep(0)
        slow_disk.released.set()
        await asyncio.gather(first, *later)

    monkeypatch.setattr(RotatingFiles, "write", counted_write)
    with started_writer(tmp_path) as writer:
        asyncio.run(scenario(writer))
    assert writes == [b"first\n", b"".join(b"%d\n" % number for number in range(20))]
    assert contents(tmp_path) == b"".join(writes)


def test_write_to_a_hung_disk_fails_in_time_and_is_not_written_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, slow_disk: SlowDisk, caplog: pytest.LogCaptureFixture
) -> None:
    metrics = Metrics()

    async def scenario(writer: FeedbackLog) -> list[Any]:
        first = asyncio.create_task(write(writer, b"0\n"))
        await asyncio.to_thread(slow_disk.entered.wait, TIMEOUT_SECONDS)
        return await asyncio.gather(first, write(writer, b"1\n"), write(writer, b"2\n"), return_exceptions=True)

    with started_writer(tmp_path, metrics) as writer:
        with monkeypatch.context() as patch:
            patch.setattr(feedback_log, "WRITE_SECONDS", 0.2)
            results = asyncio.run(scenario(writer))
        assert all(isinstance(result, TimeoutError) for result in results)
        slow_disk.released.set()
        asyncio.run(write(writer, b"later\n"))
    *earlier, last = contents(tmp_path).split()
    assert last == b"later"
    assert set(earlier) <= {b"0"}, "only the first can have been in progress; the others were queued"
    assert caplog.messages.count("feedback cannot be written: not within 0.2 s") == 1
    assert samples(metrics.exposition().decode())["ranker_feedback_failures_total,operation=write"] == 3


def test_write_failure_raises_is_counted_and_later_writes_succeed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def failing_write(*_: object) -> None:
        raise OSError(28, "no space left on device")

    metrics = Metrics()
    with started_writer(tmp_path, metrics) as writer:
        with monkeypatch.context() as patch:
            patch.setattr(RotatingFiles, "write", failing_write)
            for _ in range(5):
                with pytest.raises(OSError, match="no space"):
                    asyncio.run(write(writer, b"1\n"))
        asyncio.run(write(writer, b"2\n"))
    assert contents(tmp_path) == b"2\n"
    assert caplog.messages.count("feedback cannot be written: no space left on device") == 1, "one line per minute"
    values = samples(metrics.exposition().decode())
    assert values["ranker_feedback_failures_total,operation=write"] == 5
    assert values["ranker_feedback_events_total,outcome=rejected,reason=not_written"] == 5
    assert values["ranker_feedback_events_total,outcome=accepted,reason="] == 1
    assert values["ranker_feedback_bytes_total"] == 2


def test_defect_of_the_destination_reaches_the_caller_and_the_thread_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def failing(method: str) -> Callable[..., None]:
        def fail(*_: object, **__: object) -> None:
            raise ZeroDivisionError(f"a defect of {method}")

        return fail

    monkeypatch.setattr(log_thread, "LOG_SECONDS", 0.0)
    with started_writer(tmp_path) as writer:
        for method in ("write", "maintain"):
            with monkeypatch.context() as patch:
                patch.setattr(RotatingFiles, method, failing(method))
                with pytest.raises(ZeroDivisionError) if method == "write" else nullcontext():
                    asyncio.run(write(writer, b"1\n"))
                message = f"feedback cannot be written: ZeroDivisionError: a defect of {method}"
                wait_until(lambda message=message: message in caplog.messages)
        with monkeypatch.context() as patch:
            patch.setattr(FeedbackLog, "_scan_if_nearly_full", failing("scan"))
            patch.setattr(feedback_log, "WRITE_SECONDS", 0.2)
            with pytest.raises(TimeoutError):
                asyncio.run(write(writer, b"3\n"))
        asyncio.run(write(writer, b"2\n"))
        writer.check(None, feedback_log.MAX_QUEUED_BYTES + 1)  # nothing waits
    assert contents(tmp_path) == b"1\n2\n"


def test_group_of_several_keys_that_exceeds_the_quota_together_is_measured_before_it_is_rejected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, slow_disk: SlowDisk
) -> None:
    monkeypatch.setattr(log_thread, "SCAN_SECONDS", 3600.0)
    monkeypatch.setattr(log_thread, "MAX_SCAN_SECONDS", 3600.0)
    monkeypatch.setattr(log_thread, "MIN_SCAN_SECONDS", 0.0)
    file = tmp_path / "feedback-20260110T090000Z-0123456789ab.jsonl"
    file.write_bytes(b"x" * 800)

    async def scenario(writer: FeedbackLog) -> None:
        first = asyncio.create_task(write(writer, b"x" * 9 + b"\n"))
        await asyncio.to_thread(slow_disk.entered.wait, TIMEOUT_SECONDS)
        later = [asyncio.create_task(write(writer, b"x" * 99 + b"\n", f"key{number}")) for number in range(5)]
        await asyncio.sleep(0)
        file.unlink()
        slow_disk.released.set()
        await asyncio.gather(first, *later)

    with started_writer(tmp_path, max_log_bytes=1_000) as writer:
        asyncio.run(scenario(writer))
    assert len(contents(tmp_path)) == 510


def test_error_of_the_decoder_reaches_the_caller_and_the_thread_continues(tmp_path: Path) -> None:
    def fail() -> FeedbackRecord:
        raise ZeroDivisionError

    with started_writer(tmp_path) as writer:
        with pytest.raises(ZeroDivisionError):
            asyncio.run(writer.write(None, 1, fail))
        asyncio.run(write(writer, b"1\n"))
    assert contents(tmp_path) == b"1\n"


def fill(writer: FeedbackLog, error: type[Exception], key: str | None) -> int:
    """Write lines of 100 bytes until an error is raised; return the number of lines."""
    for number in range(1_000):
        try:
            asyncio.run(write(writer, b"x" * 99 + b"\n", key))
        except error:
            return number
    raise AssertionError("no error")


@pytest.mark.parametrize(("key", "error", "lines"), [(None, FolderFullError, 20), ("shop", KeyQuotaError, 10)])
def test_write_beyond_a_quota_is_rejected_until_the_files_are_collected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str | None, error: type[Exception], lines: int
) -> None:
    scan_often(monkeypatch)
    monkeypatch.setattr(feedback_log, "FILE_BYTES", 200)
    with started_writer(tmp_path, max_log_bytes=2_000) as writer:
        assert fill(writer, error, key) == lines
        assert len(contents(tmp_path)) == lines * 100
        with pytest.raises(error):
            writer.check(key, 1)
        for file in tmp_path.glob("*.jsonl"):
            file.unlink()
        wait_until(lambda: _passes(lambda: writer.check(key, 1)), "the quota is free")
        asyncio.run(write(writer, b"1\n", key))


def test_quota_includes_the_files_of_earlier_and_other_processes(tmp_path: Path) -> None:
    (tmp_path / "feedback-20260110T090000Z-0123456789ab-shop.jsonl").write_bytes(b"x" * 450)
    with started_writer(tmp_path, max_log_bytes=1_000) as writer:
        assert fill(writer, KeyQuotaError, "shop") == 0
        assert fill(writer, FolderFullError, "app") == 5


def test_several_writers_keep_the_quota_of_the_folder_approximately(tmp_path: Path) -> None:
    quotas = {"max_log_bytes": 200_000, "workers": 2}
    line = b"x" * 999 + b"\n"

    async def flood(writer: FeedbackLog) -> None:
        for _ in range(1_000):
            await write(writer, line)

    async def scenario(*writers: FeedbackLog) -> None:
        errors = await asyncio.gather(*map(flood, writers), return_exceptions=True)
        assert all(isinstance(error, FolderFullError) for error in errors)

    with started_writer(tmp_path, **quotas) as first, started_writer(tmp_path, **quotas) as second:
        asyncio.run(scenario(first, second))
    assert 100_000 <= len(contents(tmp_path)) <= 400_000


def test_idle_writer_creates_a_removed_folder_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scan_often(monkeypatch)
    folder, metrics = tmp_path / "feedback", Metrics()
    with started_writer(folder, metrics) as writer:
        asyncio.run(write(writer, b"1\n"))
        shutil.rmtree(folder)
        wait_until(folder.is_dir, "the folder exists again")
        wait_until(lambda: "lost" in metrics.exposition().decode(), "the loss is counted")


def test_scan_sets_the_metrics_of_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scan_often(monkeypatch)
    metrics = Metrics()

    def value(name: str) -> float:
        return samples(metrics.exposition().decode())[f"ranker_feedback_{name}"]

    assert value("unfinished_since_timestamp_seconds") == float("inf")
    assert value("folder_limit_bytes") == 0
    with started_writer(tmp_path, metrics, max_log_bytes=5_000) as writer:
        asyncio.run(write(writer, b"x" * 100))
        wait_until(lambda: value("folder_bytes") == 100, "the folder is measured")
        assert 0 < value("unfinished_since_timestamp_seconds") < float("inf")
        assert value("folder_limit_bytes") == 5_000


def test_collected_files_free_their_quota_a_minute_after_a_scan_that_took_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Protects feedback against a stall of the machine, and against a folder that lists its files slowly."""
    now, scan = [1000.0], LogFolder.scan

    def slow_scan(folder: LogFolder) -> LogUsage:
        now[0] += 600.0
        return scan(folder)

    def fail() -> FeedbackRecord:
        raise ZeroDivisionError

    clock = SimpleNamespace(monotonic=lambda: now[0], thread_time=time.thread_time)
    monkeypatch.setattr(log_thread, "time", clock)
    monkeypatch.setattr(LogFolder, "scan", slow_scan)
    file = tmp_path / "feedback-20260110T090000Z-0123456789ab.jsonl"
    file.write_bytes(b"x" * 100)
    with started_writer(tmp_path, max_log_bytes=100) as writer:
        file.unlink()
        now[0] += 60.0
        assert not _passes(lambda: writer.check(None, 1))
        with pytest.raises(ZeroDivisionError):
            asyncio.run(writer.write(None, 1, fail))  # wakes the thread, whose clock does not advance
        wait_until(lambda: _passes(lambda: writer.check(None, 1)), "the quota is free")


def _passes(check: Callable[[], None]) -> bool:
    try:
        check()
    except (FolderFullError, KeyQuotaError):
        return False
    return True
