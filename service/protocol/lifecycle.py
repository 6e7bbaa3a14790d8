"""The lifecycle state of a process."""

from __future__ import annotations


class Lifecycle:
    """State that the server sets and the health endpoints report.

    Attributes:
        draining: whether the process is shutting down; it is not ready, but still answers requests.
    """

    def __init__(self) -> None:
        self.draining = False

    def drain(self) -> None:
        """Mark the process as shutting down."""
        self.draining = True
