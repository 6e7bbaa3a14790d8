"""Number formats of the report; an undefined value is shown as a dash."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from datetime import datetime
from typing import TypeGuard

UNDEFINED = "–"


def number(value: float | None, digits: int = 4) -> str:
    """Format a decimal number; one that rounds to 0 has no sign."""
    return f"{value:z,.{digits}f}" if _is_defined(value) else UNDEFINED


def count(value: float | None) -> str:
    """Format an integer with thousands separators."""
    return f"{value:,.0f}" if _is_defined(value) else UNDEFINED


def percent(share: float | None) -> str:
    """Format a share of 1 as a percentage, with more decimals for small values."""
    if not _is_defined(share):
        return UNDEFINED
    digits = 0 if share == 0 or share >= 0.1 else 1 if share >= 0.01 else 2
    return f"{share:.{digits}%}"


def short(value: float | None) -> str:
    """Format a number with three significant digits and a unit prefix: 419968 is ``420 k``."""
    if not _is_defined(value):
        return UNDEFINED
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(value) >= 0.9995 * size:
            return f"{value / size:.3g} {unit}"
    return f"{value:.3g}"


def rate(share: float | None) -> str:
    """Format a share of 1 as a percentage with three significant digits, for base rates that may be very small."""
    return f"{100 * share:#.3g}".rstrip(".") + "%" if _is_defined(share) else UNDEFINED


def timestamp(time: datetime) -> str:
    """Format a time to the minute; midnight is shown as a date only."""
    return time.isoformat(" ", "minutes").replace(" 00:00", "", 1)


def axis_label(value: float, ticks: Sequence[float]) -> str:
    """Format a tick with the number of decimals that tells it apart from the other ticks."""
    largest = max(abs(tick) for tick in ticks)
    if largest >= 1000:
        return short(value).replace(" ", "")
    step = min((b - a for a, b in itertools.pairwise(ticks)), default=largest or 1.0)
    return f"{value:.{max(0, -math.floor(math.log10(step) + 1e-9))}f}"


def _is_defined(value: float | None) -> TypeGuard[float]:
    return value is not None and math.isfinite(value)
