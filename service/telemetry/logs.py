"""Log formatting: JSON or text lines with the id of the request that they belong to."""

from __future__ import annotations

import json
import logging
import os
import select
import sys
import threading
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any, Literal

LogFormat = Literal["json", "text"]

request_id: ContextVar[str] = ContextVar("request_id")
"""Id of the request that the current context handles. Set when the request arrives."""

STDERR = 2
"""File descriptor of stderr."""

_STANDARD_ATTRIBUTES = {*vars(logging.makeLogRecord({})), "message", "asctime", "color_message"}
"""Attributes that are not fields passed with ``extra``. Uvicorn's ``color_message`` repeats the message."""


class JsonFormatter(logging.Formatter):
    """Format records as one JSON object per line.

    Each object has ``time`` (RFC 3339), ``level``, ``logger`` and ``message``; if applicable also ``request_id``, the
    fields passed with ``extra``, and ``exception``.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return the line without a trailing newline."""
        line = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **_fields(record),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


class TextFormatter(logging.Formatter):
    """Format records as text: fields as ``name=value``, an exception on the following lines."""

    def format(self, record: logging.LogRecord) -> str:
        """Return one line, or several if the record has an exception."""
        fields = "".join(f" {name}={value}" for name, value in _fields(record).items())
        line = f"{_time(record)} {record.levelname} {record.name} {record.getMessage()}{fields}"
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


class StderrHandler(logging.Handler):
    """Writes lines to stderr without waiting, and loses those that cannot be written.

    A full disk, a closed pipe or a reader that has stopped must not fail or delay requests. Once lines can be written
    again, the first one states how many were lost.
    """

    def __init__(self) -> None:
        super().__init__()
        self._lost = 0
        self._cut = False  # whether only a part of the previous line was written

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record."""
        if self._lost:
            message = f"{self._lost} log lines were lost because stderr could not be written"
            notice = {"name": "ranker.service", "levelno": logging.WARNING, "levelname": "WARNING", "msg": message}
            if self._write(logging.makeLogRecord(notice)):
                self._lost = 0
        if self._lost or not self._write(record):
            self._lost += 1

    def _write(self, record: logging.LogRecord) -> bool:
        """Write a line and return whether it was written as a whole."""
        try:
            line = self.format(record)
        except Exception as error:  # such as arguments that do not match the message
            line = f"a log line of {record.name} cannot be formatted: {error!r}, message {record.msg!r}"
        data = memoryview((b"\n" if self._cut else b"") + line.encode(errors="backslashreplace") + b"\n")
        begin = 0
        try:
            poll = select.poll()
            poll.register(STDERR, select.POLLOUT)
            while begin < len(data) and poll.poll(0):  # then a pipe takes this many bytes at once
                begin += os.write(STDERR, data[begin : begin + select.PIPE_BUF])
        except OSError:
            pass
        self._cut = begin < len(data) and (begin > 0 or self._cut)
        return begin == len(data)


def configure(log_format: LogFormat | None) -> None:
    """Send the process's log records, warnings and uncaught exceptions of threads to stderr.

    Args:
        log_format: format of the lines; None selects text if stderr is a terminal, otherwise JSON.
    """
    # If stderr was closed before the process started, its descriptor may belong to any other file.
    handler = logging.NullHandler() if sys.__stderr__ is None else StderrHandler()
    text = log_format == "text" or (log_format is None and os.isatty(STDERR))
    handler.setFormatter(TextFormatter() if text else JsonFormatter())
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
    logging.captureWarnings(True)
    threading.excepthook = _log_thread_failure


def _log_thread_failure(args: threading.ExceptHookArgs) -> None:
    if args.exc_value is not None:
        exc_info = args.exc_type, args.exc_value, args.exc_traceback
        logging.getLogger("ranker.service").critical("a thread failed with an exception", exc_info=exc_info)


def _time(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    current = request_id.get(None)
    extra = {name: value for name, value in vars(record).items() if name not in _STANDARD_ATTRIBUTES}
    return extra if current is None else {"request_id": current} | extra
