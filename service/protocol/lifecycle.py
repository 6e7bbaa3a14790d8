"""Whether a process still welcomes requests."""

from __future__ import annotations


class Lifecycle:
    """One object for those who stop a process and those who answer for it.

    Attributes:
        draining: the process was told to stop: it is not ready any more, and still answers whoever asks.
    """

    def __init__(self) -> None:
        self.draining = False

    def drain(self) -> None:
        """The process was told to stop."""
        self.draining = True
