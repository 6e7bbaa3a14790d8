"""The thread that writes feedback: answers when lines are written, and refuses what it cannot keep up with."""

from __future__ import annotations

import asyncio
import threading
import time
from pathlib import Path

import pytest

from service.feedback import writer as writers
from service.feedback.files import RotatingJsonlFile
from service.feedback.writer import FeedbackWriter, FullError


def test_lines_are_in_the_file_when_it_answers(tmp_path: Path) -> None:
    writer = FeedbackWriter(tmp_path, 1 << 20, 3600)
    asyncio.run(writer.write(b"1\n"))
    (part,) = tmp_path.iterdir()
    assert part.read_bytes() == b"1\n"
    writer.close()
    assert [file.name.endswith(".jsonl") for file in tmp_path.iterdir()] == [True]


def test_an_old_file_is_finished_though_nothing_comes(tmp_path: Path) -> None:
    writer = FeedbackWriter(tmp_path, 1 << 20, 0.05)
    asyncio.run(writer.write(b"1\n"))
    deadline = time.monotonic() + 10
    while not list(tmp_path.glob("*.jsonl")):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    writer.close()


def test_a_full_queue_refuses_and_what_waited_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writers, "WAITING", 3)
    goes_on = threading.Event()
    append = RotatingJsonlFile.append

    def slow(files: RotatingJsonlFile, lines: bytes) -> None:
        goes_on.wait(10)
        append(files, lines)

    monkeypatch.setattr(RotatingJsonlFile, "append", slow)
    writer = FeedbackWriter(tmp_path, 1 << 20, 3600)

    async def scenario() -> list[BaseException | None]:
        tasks = [asyncio.create_task(writer.write(b"%d\n" % number)) for number in range(8)]
        await asyncio.sleep(0.1)
        goes_on.set()
        return await asyncio.gather(*tasks, return_exceptions=True)

    answers = asyncio.run(scenario())
    writer.close()
    refused = [number for number, answer in enumerate(answers) if isinstance(answer, FullError)]
    assert 4 <= len(refused) <= 5  # three wait, and one is or is not being written
    lines = b"".join(file.read_bytes() for file in tmp_path.iterdir())
    assert lines.split() == [b"%d" % number for number in range(8) if number not in refused]


def test_what_cannot_be_written_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise OSError(28, "no space left on device")

    writer = FeedbackWriter(tmp_path, 1 << 20, 3600)
    with monkeypatch.context() as patch:
        patch.setattr(RotatingJsonlFile, "append", broken)
        with pytest.raises(OSError, match="no space"):
            asyncio.run(writer.write(b"1\n"))
    asyncio.run(writer.write(b"2\n"))
    writer.close()
    assert next(tmp_path.iterdir()).read_bytes() == b"2\n"
