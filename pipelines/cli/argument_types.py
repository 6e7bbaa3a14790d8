"""How arguments of the command line are read."""

from __future__ import annotations

import argparse
from datetime import date
from pathlib import Path
from typing import Any

from ranking.artifacts.feature_store_keys import check_address

LEAST_ROWS = 2000
"""Of a generated log."""


def positive_int(text: str) -> int:
    """A whole number from 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1")
    return int(text)


def canary(text: str) -> dict[str, Any]:
    """A version and its share of the requests."""
    version, equals, weight = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"{text!r} is not N=WEIGHT, such as 4=0.1")
    return {"version": positive_int(version), "weight": fraction(weight)}


def days(text: str) -> int:
    """A whole number of days, of a century at most."""
    if not text.isdecimal() or not 1 <= int(text) <= 36500:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1 to 36500")
    return int(text)


def log_rows(text: str) -> int:
    """Rows of a generated log: enough for its rarest label, one in 200, to be there in training."""
    if not text.isdecimal() or int(text) < LEAST_ROWS:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a whole number from {LEAST_ROWS}; of fewer rows a rare label is constant in training"
        )
    return int(text)


def non_negative_int(text: str) -> int:
    """A whole number from 0."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 0")
    return int(text)


def fraction(text: str) -> float:
    """A number from 0 to 1."""
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 <= number <= 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 0 to 1")
    return number


def day(text: str) -> date:
    """A date."""
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a date such as 2026-01-11") from None


def log_place(text: str) -> Path | str:
    """A path or a URI."""
    from pipelines.config.uri import parse_uri

    return parse_uri(text)


def store(text: str) -> str:
    """Address of a store."""
    try:
        return check_address(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def port(text: str) -> int:
    """A TCP port."""
    if not text.isdecimal() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port from 0 to 65535")
    return int(text)
