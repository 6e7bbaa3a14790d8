"""Polls the repository in the background."""

from __future__ import annotations

import logging
import threading

from ranking.errors import RankerError
from service.models.reconciler import Reconciler

log = logging.getLogger("ranker.service")

STOP_SECONDS = 5.0
"""Maximum seconds for which the end of a process waits for the thread that polls the repository."""


class Watcher:
    """Polls the repository on a background thread, at once and then at regular intervals.

    Args:
        reconciler: reconciler of this process.
        poll_seconds: seconds between polls.

    Attributes:
        first_poll: set once the first poll has ended, with or without an error.
    """

    def __init__(self, reconciler: Reconciler, poll_seconds: float) -> None:
        self._reconciler, self._poll_seconds = reconciler, poll_seconds
        self._stopped, self.first_poll = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="watcher", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread after the version that it is loading, but do not wait for a filesystem that hangs."""
        self._stopped.set()
        self._thread.join(STOP_SECONDS)
        if self._thread.is_alive():
            log.warning("the repository does not respond, or a version is still being loaded: not waiting for it")

    def _run(self) -> None:
        logged = ""
        while not self._stopped.is_set():
            try:
                self._reconciler.poll()
                logged = ""
            except Exception as error:  # for example an unavailable network filesystem
                if str(error) != logged:
                    unexpected = None if isinstance(error, RankerError) else error
                    log.error(
                        "the repository cannot be read; the loaded versions continue to serve: %s",
                        error,
                        exc_info=unexpected,
                    )
                logged = str(error)
            finally:
                self.first_poll.set()
            self._stopped.wait(self._poll_seconds)
