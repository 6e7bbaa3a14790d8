"""Thread that writes feedback, so that disk latency does not block the event loop."""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
from contextlib import suppress
from pathlib import Path
from typing import Self, TypeAlias

from service.feedback.files import RotatingJsonlFile
from service.settings import Settings

log = logging.getLogger("ranker.service")

MAX_QUEUED_WRITES = 1_000
"""Maximum number of feedback requests that wait to be written."""

Reply: TypeAlias = asyncio.Future[OSError | None]


class FeedbackQueueFullError(Exception):
    """Too many feedback requests wait to be written."""


class FeedbackWriter:
    """Writes feedback lines to the files of this process.

    Args:
        folder: Folder of the files.
        max_bytes: Size in bytes at which a file is finished.
        max_seconds: Age in seconds at which a file is finished.

    Raises:
        OutputError: The folder is not writable.
    """

    def __init__(self, folder: Path, max_bytes: int, max_seconds: float) -> None:
        self._files = RotatingJsonlFile(folder, max_bytes, max_seconds)
        self._queue: queue.Queue[tuple[bytes, Reply] | None] = queue.Queue(MAX_QUEUED_WRITES)
        self._thread = threading.Thread(target=self._run, name="feedback", daemon=True)
        self._thread.start()

    @classmethod
    def from_settings(cls, settings: Settings) -> Self | None:
        """Create a writer, or return None if ``feedback_dir`` is not set.

        Raises:
            OutputError: The folder is not writable.
        """
        if settings.feedback_dir is None:
            return None
        return cls(settings.feedback_dir, settings.feedback_max_bytes, settings.feedback_max_seconds)

    async def write(self, lines: bytes) -> None:
        """Write lines; they survive the end of this process once this method returns.

        Raises:
            FeedbackQueueFullError: The queue is full.
            OSError: The lines could not be written.
        """
        reply: Reply = asyncio.get_running_loop().create_future()
        try:
            self._queue.put_nowait((lines, reply))
        except queue.Full:
            raise FeedbackQueueFullError from None
        error = await reply
        if error is not None:
            raise error

    def close(self) -> None:
        """Write the queued lines, finish the open file, and stop the thread."""
        self._queue.put(None)
        self._thread.join()

    def _run(self) -> None:
        while True:
            try:
                entry = self._queue.get(timeout=self._files.seconds_until_due())
            except queue.Empty:
                self._finish()
                continue
            if entry is None:
                self._finish()
                return
            lines, reply = entry
            _send_reply(reply, self._append(lines))

    def _append(self, lines: bytes) -> OSError | None:
        try:
            self._files.append(lines)
        except OSError as error:
            log.error("feedback cannot be written: %s", error.strerror)
            return error
        return None

    def _finish(self) -> None:
        try:
            self._files.finish()
        except OSError as error:
            log.error("feedback file cannot be finished: %s", error.strerror)


def _send_reply(reply: Reply, error: OSError | None) -> None:
    def set_result() -> None:
        if not reply.done():  # the client may have disconnected
            reply.set_result(error)

    with suppress(RuntimeError):  # the event loop is closed
        reply.get_loop().call_soon_threadsafe(set_result)
