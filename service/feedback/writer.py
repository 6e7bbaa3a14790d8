"""One thread writes what requests bring, so that no request waits for another's disk."""

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

WAITING = 1_000
"""Requests that may wait to be written."""

Reply: TypeAlias = asyncio.Future[OSError | None]


class FullError(Exception):
    """More is brought than the disk takes."""


class FeedbackWriter:
    """Writes lines to the files of one process.

    Args:
        folder: of the files.
        max_bytes: of a file.
        max_seconds: that a file is written to.

    Raises:
        OutputError: the folder cannot be written.
    """

    def __init__(self, folder: Path, max_bytes: int, max_seconds: float) -> None:
        self._files = RotatingJsonlFile(folder, max_bytes, max_seconds)
        self._queue: queue.Queue[tuple[bytes, Reply] | None] = queue.Queue(WAITING)
        self._thread = threading.Thread(target=self._run, name="feedback", daemon=True)
        self._thread.start()

    @classmethod
    def from_settings(cls, settings: Settings) -> Self | None:
        """The writer that the settings ask for, if they do.

        Raises:
            OutputError: the folder cannot be written.
        """
        if settings.feedback_dir is None:
            return None
        return cls(settings.feedback_dir, settings.feedback_max_bytes, settings.feedback_max_seconds)

    async def write(self, lines: bytes) -> None:
        """Returns when the lines are in the file, where the end of this process cannot take them away.

        Raises:
            FullError: too many wait already.
            OSError: they could not be written.
        """
        reply: Reply = asyncio.get_running_loop().create_future()
        try:
            self._queue.put_nowait((lines, reply))
        except queue.Full:
            raise FullError from None
        error = await reply
        if error is not None:
            raise error

    def close(self) -> None:
        """Writes what waits and finishes the file."""
        self._queue.put(None)
        self._thread.join()

    def _run(self) -> None:
        while True:
            try:
                item = self._queue.get(timeout=self._files.wait())
            except queue.Empty:
                self._finish()
                continue
            if item is None:
                self._finish()
                return
            lines, reply = item
            _answer(reply, self._append(lines))

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
            log.error("a file of feedback cannot be finished: %s", error.strerror)


def _answer(reply: Reply, error: OSError | None) -> None:
    def answer() -> None:
        if not reply.done():  # the client went away meanwhile
            reply.set_result(error)

    with suppress(RuntimeError):  # the loop is closed: nobody waits
        reply.get_loop().call_soon_threadsafe(answer)
