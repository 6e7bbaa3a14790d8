"""A folder that receives the service's files: its creation, its disappearance, and names of files with their time."""

from __future__ import annotations

import errno
import logging
import math
import os
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from ranking.artifacts.atomic_files import os_error_text
from ranking.errors import OutputError

log = logging.getLogger("ranker.service")

TIME_FORMAT = "%Y%m%dT%H%M%SZ"
"""Format of the time of creation in the names of files."""


class OutputFolder:
    """A folder that several processes and replicas may share.

    Args:
        path: The folder; it is created if it does not exist.
        content: What the files hold, for messages.

    Attributes:
        path: The folder.

    Raises:
        OutputError: The folder cannot be created or written.
    """

    def __init__(self, path: Path, content: str) -> None:
        self.path, self._content = path, content
        try:
            path.mkdir(parents=True, exist_ok=True)
            self._device = path.stat().st_dev
            with os.scandir(path):
                pass
            if not os.access(path, os.W_OK | os.X_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        except OSError as error:
            raise OutputError(f"{path}: {content} cannot be written ({os_error_text(error)})") from None

    def check(self) -> None:
        """Create the folder again if it was removed.

        Raises:
            OSError: The folder cannot be created, or is on another filesystem than at first: it was unmounted, and what
                is written there now would be hidden as soon as it is mounted again.
        """
        created = not self.path.is_dir()
        if created:
            self.path.mkdir(parents=True, exist_ok=True)
        if self.path.stat().st_dev != self._device:
            if created:  # otherwise it is the place where the filesystem is to be mounted again
                with suppress(OSError):
                    self.path.rmdir()
            reason = f"{self.path} is on another filesystem than at the start: mount it again, or restart the service"
            raise OSError(errno.ENODEV, reason)
        if created:
            log.error("the %s folder %s was removed; created it again", self._content, self.path)


def unix_time(text: str) -> float:
    """Parse the time in the name of a file; infinity if it is impossible, as in a name of foreign origin."""
    try:
        return datetime.strptime(text, TIME_FORMAT).replace(tzinfo=UTC).timestamp()
    except ValueError:
        return math.inf
