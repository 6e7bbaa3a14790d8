"""How far the processes of one service are with loading for the first time."""

from __future__ import annotations

import multiprocessing


class StartupBarrier:
    """Shared by the processes of a service: it is ready when all of them are.

    A process that starts later, in the place of one that died, loads before it takes connections: the others do.

    Args:
        processes: how many.
    """

    def __init__(self, processes: int) -> None:
        self._left = multiprocessing.get_context("spawn").Value("i", processes)

    def mark_ready(self) -> None:
        """One more is ready."""
        with self._left.get_lock():
            self._left.value -= 1

    @property
    def all_ready(self) -> bool:
        """Whether all have been ready."""
        return bool(self._left.value <= 0)
