"""Log lines: their fields, and one line per event."""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from contextvars import copy_context
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from service.telemetry import logs


@pytest.fixture(autouse=True)
def _no_handlers() -> None:
    logging.getLogger().handlers.clear()


@pytest.fixture
def lines(capfd: pytest.CaptureFixture[str]) -> Callable[[], list[dict[str, Any]]]:
    return lambda: [json.loads(line) for line in capfd.readouterr().err.splitlines()]


def test_json_line_has_time_level_logger_message_and_fields(lines: Callable[[], Any]) -> None:
    logs.configure("json")
    logging.getLogger("ranker.service").warning("slow %s", "request", extra={"status": 200, "stages": {"parse": 0.5}})
    (line,) = lines()
    time = line.pop("time")
    assert line == {
        "level": "warning",
        "logger": "ranker.service",
        "message": "slow request",
        "status": 200,
        "stages": {"parse": 0.5},
    }
    assert time.endswith("Z")
    assert len(time) == len("2026-01-01T00:00:00.000Z")
    assert abs(datetime.fromisoformat(time).timestamp() - datetime.now().timestamp()) < 60


def test_json_line_within_a_request_has_its_request_id(lines: Callable[[], Any]) -> None:
    logs.configure("json")

    def handle_request() -> None:
        logs.request_id.set("r-1")
        logging.getLogger("any").info("within")

    copy_context().run(handle_request)
    logging.getLogger("any").info("outside")
    within, outside = lines()
    assert within["request_id"] == "r-1"
    assert "request_id" not in outside


def test_json_line_with_exception_has_the_traceback_in_one_field(lines: Callable[[], Any]) -> None:
    logs.configure("json")
    try:
        raise ValueError("with two\nlines \ud800")
    except ValueError:
        logging.getLogger("any").exception("failed")
    (line,) = lines()
    assert line["exception"].startswith("Traceback")
    assert "with two\nlines" in line["exception"]


@pytest.mark.filterwarnings("always:old")
def test_configure_logs_uvicorn_warnings_and_thread_failures_as_json(lines: Callable[[], Any]) -> None:
    logs.configure("json")
    logging.getLogger("uvicorn.error").info("Started", extra={"color_message": "Started in color"})
    warnings.warn("old", DeprecationWarning, stacklevel=1)
    thread = threading.Thread(target=lambda: 1 / 0)
    thread.start()
    thread.join()
    started, warning, failure = lines()
    assert started["message"] == "Started"
    assert "color_message" not in started
    assert "DeprecationWarning: old" in warning["message"]
    assert (failure["level"], failure["message"]) == ("critical", "a thread failed with an exception")
    assert "ZeroDivisionError" in failure["exception"]


def test_text_line_has_time_level_logger_message_and_fields(capfd: pytest.CaptureFixture[str]) -> None:
    logs.configure("text")
    logging.getLogger("any").info("loaded", extra={"model": "feed"})
    assert capfd.readouterr().err.endswith("Z INFO any loaded model=feed\n")


@pytest.mark.parametrize(("terminal", "is_json"), [(True, False), (False, True)])
def test_configure_without_format_writes_text_to_terminals_and_json_otherwise(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, terminal: bool, is_json: bool
) -> None:
    monkeypatch.setattr(os, "isatty", lambda _: terminal)
    logs.configure(None)
    logging.getLogger("any").info("loaded")
    assert capfd.readouterr().err.startswith("{") == is_json


@pytest.fixture
def unread_pipe(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """The reading end of a full pipe in place of stderr."""
    reader, writer = os.pipe()
    monkeypatch.setattr(logs, "STDERR", writer)
    os.set_blocking(writer, False)
    with suppress(BlockingIOError):
        while True:
            os.write(writer, b"x" * 4096)
    os.set_blocking(writer, True)
    yield reader
    os.close(reader)
    os.close(writer)


def test_stderr_handler_with_an_unread_pipe_neither_waits_nor_loses_count(unread_pipe: int) -> None:
    logs.configure("text")
    for _ in range(3):
        logging.getLogger("any").info("x" * 10_000)
    capacity = os.read(unread_pipe, 1 << 20)
    assert set(capacity) == set(b"x")
    logging.getLogger("any").info("again")
    lost, again = os.read(unread_pipe, 1 << 20).decode().splitlines()
    assert "WARNING ranker.service 3 log lines were lost because stderr could not be written" in lost
    assert again.endswith("INFO any again")


def test_stderr_handler_with_a_full_disk_raises_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    with Path("/dev/full").open("wb") as full:
        monkeypatch.setattr(logs, "STDERR", full.fileno())
        logs.configure("json")
        logging.getLogger("any").error("lost")


def test_stderr_handler_with_a_closed_pipe_raises_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    monkeypatch.setattr(logs, "STDERR", writer)
    logs.configure("json")
    logging.getLogger("any").error("lost")
    os.close(writer)


def test_stderr_handler_ends_a_line_that_was_cut_by_a_full_pipe(unread_pipe: int) -> None:
    logs.configure("text")
    os.read(unread_pipe, 2 * 4096)
    logging.getLogger("any").info("y" * 20_000)  # longer than what is free
    os.read(unread_pipe, 1 << 20)
    logging.getLogger("any").info("again")
    _, lost, again = os.read(unread_pipe, 1 << 20).decode().split("\n", 2)
    assert "1 log lines were lost" in lost
    assert again.endswith("INFO any again\n")


def test_stderr_handler_record_that_cannot_be_formatted_is_logged_with_the_reason(
    capfd: pytest.CaptureFixture[str],
) -> None:
    logs.configure("text")
    logging.getLogger("any").info("%d rows", "many")
    line = capfd.readouterr().err
    assert "a log line of any cannot be formatted: TypeError" in line
    assert "'%d rows'" in line


def test_configure_without_stderr_writes_to_no_other_file(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "__stderr__", None)  # as Python does if descriptor 2 was closed
    logs.configure("text")
    logging.getLogger("any").error("lost")
    assert capfd.readouterr().err == ""
