"""How the report writes numbers; what is undefined is a dash."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from datetime import datetime

DASH = "–"


def number(value: float | None, digits: int = 4) -> str:
    """A decimal number."""
    return DASH if _undefined(value) else f"{value:,.{digits}f}"


def count(value: float | None) -> str:
    """A whole number with its thousands apart."""
    return DASH if _undefined(value) else f"{value:,.0f}"


def percent(share: float | None) -> str:
    """A share of 1, with a decimal where it is small."""
    if _undefined(share):
        return DASH
    digits = 0 if share == 0 or share >= 0.1 else 1 if share >= 0.01 else 2
    return f"{share:.{digits}%}"


def short(value: float | None) -> str:
    """About three digits: 419968 is ``420 k``."""
    if _undefined(value):
        return DASH
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(value) >= 0.9995 * size:
            return f"{value / size:.3g} {unit}"
    return f"{value:.3g}"


def rate(share: float | None) -> str:
    """A share of 1 to three digits, however small: base rates are."""
    return DASH if _undefined(share) else f"{100 * share:#.3g}".rstrip(".") + "%"


def moment(time: datetime) -> str:
    """A time; midnight is a date."""
    return time.isoformat(" ", "minutes").replace(" 00:00", "", 1)


def axis_number(value: float, among: Sequence[float]) -> str:
    """A tick, with as many decimals as its neighbours need."""
    largest = max(abs(tick) for tick in among)
    if largest >= 1000:
        return short(value).replace(" ", "")
    step = min((b - a for a, b in itertools.pairwise(among)), default=largest or 1.0)
    return f"{value:.{max(0, -math.floor(math.log10(step) + 1e-9))}f}"


def _undefined(value: float | None) -> bool:
    return value is None or not math.isfinite(value)
