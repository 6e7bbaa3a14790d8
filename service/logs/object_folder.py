"""A log in object storage: each write is an object, which has the name that a file would have."""

from __future__ import annotations

import errno
import math

from ranking.artifacts.log_names import LogNames
from ranking.artifacts.object_store import ObjectLocation, ObjectStore
from ranking.errors import BundleError, ConfigError
from service.logs.sink import LogSink, LogUsage

DELIVERY_SECONDS = 8.0
"""Maximum seconds until an object is stored; less than ``CLOSE_SECONDS`` of the settings."""
FILE_BYTES = 8 * 1024 * 1024
"""Maximum size in memory of the requests in an object of the served log, so that it is stored in time."""


class ObjectFolder(LogSink):
    """Objects below a location; the storage need not be available yet.

    Args:
        location: the location.
        names: names of files, which are those of objects.
        max_bytes: maximum size of the content of a write.

    Raises:
        ConfigError: obstore is not installed, or an environment variable of the storage is invalid.
    """

    def __init__(self, location: ObjectLocation, names: LogNames, max_bytes: float = math.inf) -> None:
        self.max_bytes, self.separates_keys = max_bytes, False
        self._names = names
        try:
            self._store = ObjectStore(location.text, DELIVERY_SECONDS)
        except (BundleError, ConfigError) as error:
            raise ConfigError(f"{names.setting} = {error}") from None

    def scan(self) -> LogUsage:
        """Return no usage: object storage has no limit, and ``ranker collect`` deletes what it has copied."""
        return LogUsage()

    def write(self, content: bytes | memoryview, key: str | None = None) -> None:  # noqa: ARG002 — of the base class
        """Store an object.

        Args:
            content: its content.
            key: None, because an object holds content of any API keys.

        Raises:
            OSError: it may not have been stored.
        """
        try:
            self._store.write(self._names.new(), bytes(content))
        except BundleError as error:
            raise OSError(errno.EIO, str(error)) from None
