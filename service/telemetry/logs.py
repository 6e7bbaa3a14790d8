"""Log lines: an object of JSON each, for machines, or text, for people; each with the id of its request."""

from __future__ import annotations

import json
import logging
import sys
import threading
from contextvars import ContextVar
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Literal

LogFormat = Literal["json", "text"]

request_id: ContextVar[str] = ContextVar("request_id")
"""Of the request that is being answered; set once it arrives, each has a context of its own."""

_PLAIN = {*vars(logging.makeLogRecord({})), "message", "asctime", "color_message"}
"""What every record has; everything else was given with ``extra``. (Uvicorn's coloured message is no news.)"""


class JsonLines(logging.Formatter):
    """An object a line: time (RFC 3339), level, logger, message; request_id, fields and exception if there are any."""

    def format(self, record: logging.LogRecord) -> str:
        """The line, without its end."""
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


class TextLines(logging.Formatter):
    """The same as text: fields as ``name=value``, an exception on lines of its own."""

    def format(self, record: logging.LogRecord) -> str:
        """The line, or lines if there is an exception."""
        fields = "".join(f" {name}={value}" for name, value in _fields(record).items())
        line = f"{_time(record)} {record.levelname} {record.name} {record.getMessage()}{fields}"
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


def configure(form: LogFormat | None) -> None:
    """Makes all loggers of the process write to stderr, and warnings and what ends a thread go through them.

    Args:
        form: of the lines; None: text if a terminal shows them, else JSON.
    """
    handler = logging.StreamHandler()
    text = form == "text" or (form is None and sys.stderr.isatty())
    handler.setFormatter(TextLines() if text else JsonLines())
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
    logging.captureWarnings(True)
    threading.excepthook = lambda end: _ended(end.exc_type, end.exc_value, end.exc_traceback)


def _ended(kind: type[BaseException], error: BaseException | None, trace: TracebackType | None) -> None:
    if error is not None:
        logging.getLogger("ranker.service").critical("a thread ended", exc_info=(kind, error, trace))


def _time(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    current = request_id.get(None)
    given = {name: value for name, value in vars(record).items() if name not in _PLAIN}
    return given if current is None else {"request_id": current} | given
