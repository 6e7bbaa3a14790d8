"""The keys that are valid now: those of the key file, which is read again when it changes."""

from __future__ import annotations

import hashlib
import hmac
import logging
import stat
import time
from collections.abc import Callable
from pathlib import Path

from ranking.errors import ConfigError
from service.http.auth.key_file import Key, read

log = logging.getLogger("ranker.service")

LOOK_EVERY = 1.0
"""Seconds between looks at whether the file has changed."""


class Keyring:
    """Tells whose a key is.

    A changed file counts within ``LOOK_EVERY`` seconds. One that is broken or gone is logged, and the keys stay as they
    were.

    Args:
        file: of the keys.
        clock: seconds.

    Raises:
        ConfigError: it cannot be read, or holds something else.
    """

    def __init__(self, file: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._file, self._clock = file, clock
        self._looked = clock()
        self._stamp = _stamp(file)  # before reading: what changes meanwhile is read again
        self._take(read(file))

    def find(self, presented: bytes) -> Key | None:
        """The key's entry, which may have expired; None if it is unknown.

        Takes as long for every key: the hash is compared with all that are stored, each in constant time.
        """
        now = self._clock()
        if now - self._looked >= LOOK_EVERY:
            self._looked = now
            self._look()
        digest = hashlib.sha256(presented).digest()
        found = None
        for stored, key in self._keys:
            if hmac.compare_digest(stored, digest):
                found = key
        return found

    def _look(self) -> None:
        stamp = _stamp(self._file)
        if stamp == self._stamp:
            return
        self._stamp = stamp
        try:
            keys = read(self._file)
        except ConfigError as error:
            log.error("the API keys stay as they were: %s", error)
            return
        self._take(keys)

    def _take(self, keys: tuple[Key, ...]) -> None:
        self._keys = [(bytes.fromhex(key.sha256), key) for key in keys]
        log.info("API keys of %s: %s", self._file, ", ".join(key.name for key in keys) or "none, all are refused")
        if self._stamp is not None and self._stamp[0] & stat.S_IROTH:
            log.warning(
                "%s can be read by every user of this machine; its hashes tell no key, but 'chmod 600' is better",
                self._file,
            )


def _stamp(file: Path) -> tuple[int, ...] | None:
    """What changes with the file; None if it is not there."""
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_mode, found.st_ino, found.st_ctime_ns
