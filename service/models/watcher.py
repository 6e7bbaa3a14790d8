"""Looks at the repository again and again, on a thread of its own."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from service.models.reconciler import Reconciler

log = logging.getLogger("ranker.service")


class Watcher:
    """Keeps what is served up to date.

    Args:
        reconciler: that does it.
        seconds: between two looks.
        give_up: called, from the thread, if the first look finds nothing to serve; None: it has been made.
    """

    def __init__(
        self, reconciler: Reconciler, seconds: float, give_up: Callable[[Exception], None] | None = None
    ) -> None:
        self._reconciler, self._seconds, self._give_up = reconciler, seconds, give_up
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="versions", daemon=True)

    def start(self) -> None:
        """Begins to look."""
        self._thread.start()

    def stop(self) -> None:
        """Ends; a version that is being loaded is loaded first."""
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        if self._give_up is not None:
            try:
                self._reconciler.first()
            except Exception as error:
                self._give_up(error)
                return
        said = ""
        while not self._stopped.wait(self._seconds):
            try:
                self._reconciler.poll()
                said = ""
            except Exception as error:  # such as a network filesystem that is away; what is served stays
                if str(error) != said:
                    log.exception("the repository cannot be looked at; what is served stays")
                said = str(error)
