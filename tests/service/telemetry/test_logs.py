"""Log lines: their fields, and one line per event."""

from __future__ import annotations

import json
import logging
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextvars import copy_context
from datetime import datetime
from typing import Any

import pytest

from service.telemetry import logs


@pytest.fixture(autouse=True)
def _restore_logging() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level, hook = root.handlers[:], root.level, threading.excepthook
    root.handlers.clear()
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    threading.excepthook = hook
    logging.captureWarnings(False)


@pytest.fixture
def lines(capsys: pytest.CaptureFixture[str]) -> Callable[[], list[dict[str, Any]]]:
    return lambda: [json.loads(line) for line in capsys.readouterr().err.splitlines()]


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


def test_text_line_has_time_level_logger_message_and_fields(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure("text")
    logging.getLogger("any").info("loaded", extra={"model": "feed"})
    assert capsys.readouterr().err.endswith("Z INFO any loaded model=feed\n")


@pytest.mark.parametrize(("terminal", "is_json"), [(True, False), (False, True)])
def test_configure_without_format_writes_text_to_terminals_and_json_otherwise(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, terminal: bool, is_json: bool
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal)
    logs.configure(None)
    logging.getLogger("any").info("loaded")
    assert capsys.readouterr().err.startswith("{") == is_json
