"""The valid API keys: those of the key file, which is read again when it changes."""

from __future__ import annotations

import hashlib
import hmac
import logging
import stat
import time
from collections.abc import Callable
from pathlib import Path

from ranking.errors import ConfigError
from service.http.auth.key_file import Key, read_keys

log = logging.getLogger("ranker.service")

CHECK_SECONDS = 1.0
"""Minimum seconds between two checks whether the key file has changed."""


class Keyring:
    """Finds the entry of a key.

    A changed file takes effect within ``CHECK_SECONDS``. If it is damaged or missing, an error is logged and the
    previous keys stay valid.

    Args:
        file: Key file.
        clock: Function that returns the current time in seconds.

    Raises:
        ConfigError: The file cannot be read or is not valid.
    """

    def __init__(self, file: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._file, self._clock = file, clock
        self._checked_at = clock()
        self._version = _file_version(file)  # before the file is read, so that a change during the read is noticed
        self._replace_keys(read_keys(file))

    def find(self, secret: bytes) -> Key | None:
        """Return the entry of a key, which may have expired, or None if the key is unknown.

        The time does not depend on the key: its hash is compared with all stored hashes, each in constant time.
        """
        now = self._clock()
        if now - self._checked_at >= CHECK_SECONDS:
            self._checked_at = now
            self._reload_if_changed()
        digest = hashlib.sha256(secret).digest()
        match = None
        for stored, key in self._keys:
            if hmac.compare_digest(stored, digest):
                match = key
        return match

    def _reload_if_changed(self) -> None:
        version = _file_version(self._file)
        if version == self._version:
            return
        self._version = version
        try:
            keys = read_keys(self._file)
        except ConfigError as error:
            log.error("the API keys stay as they were: %s", error)
            return
        self._replace_keys(keys)

    def _replace_keys(self, keys: tuple[Key, ...]) -> None:
        self._keys = [(bytes.fromhex(key.sha256), key) for key in keys]
        names = ", ".join(key.name for key in keys) or "none, all requests that need one are rejected"
        log.info("API keys of %s: %s", self._file, names)
        if self._version is not None and self._version[0] & stat.S_IROTH:
            log.warning(
                "%s can be read by every user of this machine; run 'chmod 600' (its hashes do not reveal the keys)",
                self._file,
            )


def _file_version(file: Path) -> tuple[int, ...] | None:
    """Return metadata that changes with the file, or None if the file does not exist."""
    try:
        status = file.stat()
    except OSError:
        return None
    return status.st_mode, status.st_ino, status.st_ctime_ns
