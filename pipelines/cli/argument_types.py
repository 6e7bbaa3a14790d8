"""Types of command-line arguments: each function converts text and rejects invalid values."""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Callable
from datetime import date, datetime
from pathlib import Path
from typing import Any

from pipelines.tuning.database_address import DatabaseAddress
from ranking.artifacts.kafka_address import SCHEME, KafkaAddress
from ranking.artifacts.log_address import parse_log_address
from ranking.artifacts.object_store import FORMS, ObjectLocation, check_location
from ranking.artifacts.store_address import check_address

MIN_LOG_ROWS = 2000
"""Minimum number of rows of a generated log, so that its rarest label (1 in 200) occurs in the training split."""
MAX_DAYS = 36_500
"""Maximum lifetime of an API key in days: a century."""


def positive_int(text: str) -> int:
    """Convert a whole number from 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1")
    return int(text)


def non_negative_int(text: str) -> int:
    """Convert a whole number from 0."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 0")
    return int(text)


def log_rows(text: str) -> int:
    """Convert a number of rows of a generated log."""
    if not text.isdecimal() or int(text) < MIN_LOG_ROWS:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a whole number from {MIN_LOG_ROWS}; "
            "with fewer rows, a rare label can be constant in the training split"
        )
    return int(text)


def days(text: str) -> int:
    """Convert a number of days up to ``MAX_DAYS``."""
    if not text.isdecimal() or not 1 <= int(text) <= MAX_DAYS:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1 to {MAX_DAYS}")
    return int(text)


def fraction(text: str) -> float:
    """Convert a number from 0 to 1."""
    return _number(text, lambda number: 0 <= number <= 1, "from 0 to 1")


def share(text: str) -> float:
    """Convert a number above 0, at most 1."""
    return _number(text, lambda number: 0 < number <= 1, "above 0, at most 1")


def _number(text: str, is_valid: Callable[[float], bool], bounds: str) -> float:
    """Convert a number that is valid."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not is_valid(number):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number {bounds}")
    return number


def remote_location(text: str) -> str:
    """Check a location in object storage."""
    try:
        return check_location(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} {error}") from None


def port(text: str) -> int:
    """Convert a TCP port."""
    if not text.isdecimal() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port from 0 to 65535")
    return int(text)


def day(text: str) -> date:
    """Convert a date from 1970 on, to which days can be added."""
    try:
        value = date.fromisoformat(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a date such as 2026-01-11") from None
    if not 1970 <= value.year < date.max.year:
        raise argparse.ArgumentTypeError(f"{text!r} is not a date from 1970 to {date.max.year - 1}")
    return value


def moment(text: str) -> datetime:
    """Convert a time with a time zone."""
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        time = None
    if time is None or time.tzinfo is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a time with a time zone, such as 2026-01-31T09:30:00Z")
    return time


def duration(text: str) -> int:
    """Convert a duration such as 90s, 30m, 24h or 7d to seconds."""
    from ranking.schema.counters import seconds_of

    if not re.fullmatch(r"\d{1,6}[smhd]", text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a duration: write a number and s, m, h or d, such as 24h")
    return seconds_of(text)


def canary(text: str) -> dict[str, Any]:
    """Convert N=WEIGHT to a version and its share of the users."""
    version, equals, weight = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"{text!r} is not N=WEIGHT, such as 4=0.1")
    return {"version": positive_int(version), "weight": fraction(weight)}


def log_source(text: str) -> KafkaAddress | ObjectLocation:
    """Convert the address of a Kafka topic, or a location in object storage."""
    try:
        address = parse_log_address(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    if address is None:
        raise argparse.ArgumentTypeError(f"{text!r} is neither {SCHEME}HOST:PORT[,HOST:PORT]/TOPIC nor {FORMS}")
    return address


def database(text: str) -> DatabaseAddress:
    """Convert the address of a PostgreSQL database."""
    try:
        return DatabaseAddress.parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def location(text: str) -> Path | str:
    """Convert a path or a URI."""
    from pipelines.config.uri import parse_uri

    return parse_uri(text)


def store_address(text: str) -> str:
    """Check the address of a feature store."""
    try:
        return check_address(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
