"""The feedback writer: replies after the write, and rejects writes when its queue is full."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from service.feedback import writer as writers
from service.feedback.files import RotatingJsonlFile
from service.feedback.writer import FeedbackQueueFullError, FeedbackWriter
from tests.support.waiting import wait_until


def test_write_returns_when_the_lines_are_in_the_file(tmp_path: Path) -> None:
    writer = FeedbackWriter(tmp_path, 1 << 20, 3600)
    asyncio.run(writer.write(b"1\n"))
    (part,) = tmp_path.iterdir()
    assert part.read_bytes() == b"1\n"
    writer.close()
    assert [file.name.endswith(".jsonl") for file in tmp_path.iterdir()] == [True]


def test_writer_finishes_an_old_file_without_further_writes(tmp_path: Path) -> None:
    writer = FeedbackWriter(tmp_path, 1 << 20, 0.05)
    asyncio.run(writer.write(b"1\n"))
    wait_until(lambda: list(tmp_path.glob("*.jsonl")), "the file is finished", timeout=10)
    writer.close()


def test_write_with_a_full_queue_is_rejected_and_queued_lines_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writers, "MAX_QUEUED_WRITES", 3)
    released = threading.Event()
    append = RotatingJsonlFile.append

    def slow_append(files: RotatingJsonlFile, lines: bytes) -> None:
        released.wait(10)
        append(files, lines)

    monkeypatch.setattr(RotatingJsonlFile, "append", slow_append)
    writer = FeedbackWriter(tmp_path, 1 << 20, 3600)

    async def scenario() -> list[BaseException | None]:
        tasks = [asyncio.create_task(writer.write(b"%d\n" % number)) for number in range(8)]
        await asyncio.sleep(0.1)
        released.set()
        return await asyncio.gather(*tasks, return_exceptions=True)

    results = asyncio.run(scenario())
    writer.close()
    rejected = [number for number, result in enumerate(results) if isinstance(result, FeedbackQueueFullError)]
    assert 4 <= len(rejected) <= 5  # three are queued, and one may be in progress
    lines = b"".join(file.read_bytes() for file in tmp_path.iterdir())
    assert lines.split() == [b"%d" % number for number in range(8) if number not in rejected]


def test_write_failure_raises_and_later_writes_succeed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing_append(*_: object) -> None:
        raise OSError(28, "no space left on device")

    writer = FeedbackWriter(tmp_path, 1 << 20, 3600)
    with monkeypatch.context() as patch:
        patch.setattr(RotatingJsonlFile, "append", failing_append)
        with pytest.raises(OSError, match="no space"):
            asyncio.run(writer.write(b"1\n"))
    asyncio.run(writer.write(b"2\n"))
    writer.close()
    assert next(tmp_path.iterdir()).read_bytes() == b"2\n"
