"""Verdicts on the claims of a paper."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pipelines.evaluation.paired import paired_interval

Verdict = Literal["held", "failed", "not decided"]


def verdict(holds: bool) -> Verdict:
    """Return the verdict on a claim that a count decides."""
    return "held" if holds else "failed"


def is_lower(ours: Sequence[float], theirs: Sequence[float]) -> Verdict:
    """Return the verdict on the claim that our values are lower, by the 95 % interval of the paired differences.

    It is not decided if 0 is inside of the interval. Values that are all equal are not lower.

    Args:
        ours: value of each seed or problem.
        theirs: values of the same seeds or problems.
    """
    difference, half = paired_interval(ours, theirs)
    if difference + half < 0:
        return "held"
    return "failed" if difference - half >= 0 else "not decided"


def is_not_higher(ours: Sequence[float], theirs: Sequence[float]) -> Verdict:
    """Return the verdict on the claim that our values are not higher, the opposite of theirs being lower."""
    opposite: dict[Verdict, Verdict] = {"held": "failed", "failed": "held", "not decided": "not decided"}
    return opposite[is_lower(theirs, ours)]


def all_of(verdicts: Sequence[Verdict]) -> Verdict:
    """Return the verdict on the claim that all of these hold."""
    if "failed" in verdicts:
        return "failed"
    return "not decided" if "not decided" in verdicts else "held"


def any_of(verdicts: Sequence[Verdict]) -> Verdict:
    """Return the verdict on the claim that at least one of these holds."""
    if "held" in verdicts:
        return "held"
    return "not decided" if "not decided" in verdicts else "failed"
