"""Errors of the engine; ``service.http.errors`` maps them to HTTP responses."""

from __future__ import annotations


class InvalidRequestError(Exception):
    """A field of a request is invalid.

    Args:
        field: path of the field in the request, such as ``items[3].features.price``.
        reason: error of the field.
    """

    def __init__(self, field: str, reason: str) -> None:
        super().__init__(f"{field}: {reason}")
        self.field, self.reason = field, reason


class DeadlineExceededError(Exception):
    """The deadline of a request passed before scoring, or the explanation, started."""


class QueueFullError(Exception):
    """The queue has no room for the candidates of a request."""


class TooManyExplanationsError(Exception):
    """The maximum number of requests already waits for contributions."""


class ScoringError(Exception):
    """The backend failed on a batch (``__cause__`` is its exception), or a score is not finite."""
