"""Counts of ``ranker join``, as text and for programs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class JoinCounts:
    """Result of ``ranker join``.

    Attributes:
        until: time until which windows have closed, ISO 8601.
        requests: requests whose window closed since the last run.
        impressions: their candidates.
        rows: rows that were written: the candidates that were shown.
        labels: number of rows with a positive label or a value, by task.
        used: events in the window of their impression.
        unmatched: events without such a request or item; also those that arrived after the row was written.
        late: events after the window.
        early: events more than 5 minutes before their impression.
        duplicates: events that repeat another one.
        repeated_requests: answers that repeat a request id; the first answer counts.
        impossible_times: requests before 1970 or in the future, which are left out.
        open_requests: requests whose window has not closed.
        left_out: messages about damaged files of the served log and damaged lines of feedback; the next run reads them
            again, and they may have been restored then.
    """

    until: str
    requests: int = 0
    impressions: int = 0
    rows: int = 0
    labels: Mapping[str, int] | None = None
    used: int = 0
    unmatched: int = 0
    late: int = 0
    early: int = 0
    duplicates: int = 0
    repeated_requests: int = 0
    impossible_times: int = 0
    open_requests: int = 0
    left_out: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the counts for ``--json``."""
        return {**asdict(self), "labels": dict(self.labels or {}), "left_out": list(self.left_out)}

    def to_text(self) -> str:
        """Return the counts as lines of text."""
        labels = ", ".join(f"{name} {count:,}" for name, count in (self.labels or {}).items())
        impossible = f"; left out for their time: {self.impossible_times:,}" if self.impossible_times else ""
        return "\n".join(
            [
                f"until {self.until}: {self.rows:,} rows of {self.requests:,} requests with {self.impressions:,} items",
                f"labels: {labels or 'none'}",
                f"events: {self.used:,} used, {self.duplicates:,} of them repeated; {self.late:,} late, "
                f"{self.early:,} early, {self.unmatched:,} unmatched",
                f"open: {self.open_requests:,} requests; repeated request ids: {self.repeated_requests:,}{impossible}",
                *(f"damaged: {message}" for message in self.left_out),
            ]
        )
