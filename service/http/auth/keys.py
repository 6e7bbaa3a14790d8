"""API keys: a file with the name, SHA-256, scopes, expiry and limit of each key, never the key itself."""

from __future__ import annotations

import hashlib
import hmac
import json
import logging
import os
import re
import secrets
import stat
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    AwareDatetime,
    BaseModel,
    ConfigDict,
    Field,
    FiniteFloat,
    ValidationError,
    field_validator,
    model_validator,
)

from ranking.artifacts.atomic_files import check_writable, os_error_text, write_json
from ranking.errors import ConfigError
from ranking.file_locks import FileLock
from ranking.schema.validation_errors import format_validation_error

log = logging.getLogger("ranker.service")

Scope = Literal["rank", "feedback", "read", "admin"]

PREFIX = "ranker_"
"""Prefix of every key, by which secret scanners recognize a leaked one."""
RANDOM_BYTES = 32
"""Random bytes of a key."""
OWNER_ONLY = 0o600
"""Mode of a new key file."""
MIN_RATE = 0.001
"""Minimum of a key's maximum rate, in requests per second."""
CHECK_SECONDS = 1.0
"""Minimum seconds between two checks whether the key file has changed."""


class Key(BaseModel):
    """Entry of one key.

    Attributes:
        name: name of the key; it appears in logs.
        sha256: hexadecimal SHA-256 of the key.
        scopes: operations that the key permits.
        expires: time from which the key is invalid, or None if it never expires.
        max_requests_per_second: maximum rate of the key's requests per process, or None for no maximum.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    sha256: str
    scopes: Annotated[tuple[Scope, ...], Field(min_length=1)]
    expires: AwareDatetime | None = None
    max_requests_per_second: Annotated[FiniteFloat, Field(ge=MIN_RATE)] | None = None

    @field_validator("name")
    @classmethod
    def _check_name(cls, name: str) -> str:
        if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.@-]{0,63}", name):
            raise ValueError("use up to 64 letters, digits, '_', '.', '@' and '-'")
        return name

    @field_validator("sha256")
    @classmethod
    def _check_hash(cls, text: str) -> str:
        if len(text) != 64 or not set(text) <= set("0123456789abcdef"):
            # The message omits the text, which may be a key.
            raise ValueError("write the key's SHA-256 as 64 hexadecimal digits, not the key")
        return text

    def permits(self, scope: Scope) -> bool:
        """Whether the key permits the operations of a scope; ``admin`` includes ``read``."""
        return scope in self.scopes or (scope == "read" and "admin" in self.scopes)

    def expired(self, now: datetime) -> bool:
        """Whether the key is invalid because of its age."""
        return self.expires is not None and self.expires <= now


class Keys(BaseModel):
    """Content of the key file."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    keys: tuple[Key, ...]

    @model_validator(mode="after")
    def _check_distinct(self) -> Keys:
        for field in ("name", "sha256"):
            values = [getattr(key, field) for key in self.keys]
            if len(set(values)) < len(values):
                raise ValueError(f"keys: two have the same {field}")
        return self


def read_keys(file: Path) -> tuple[Key, ...]:
    """Read all keys of a file.

    Raises:
        ConfigError: the file cannot be read or is not valid; the message shows no hash.
    """
    try:
        data = json.loads(file.read_text())
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read ({os_error_text(error)}); make one with 'ranker keys new'") from None
    except ValueError as error:  # not UTF-8 or not JSON
        raise ConfigError(f"{file} is not valid JSON: {error}") from None
    try:
        return Keys.model_validate(data).keys
    except ValidationError as error:
        raise ConfigError(f"{file}: {format_validation_error(error, data, Keys)}") from None


def create_key(
    file: Path,
    name: str,
    scopes: tuple[Scope, ...],
    expires: datetime | None = None,
    max_requests_per_second: float | None = None,
) -> str:
    """Create a key and add its entry to the file, which is created if it does not exist.

    Args:
        file: key file.
        name: name of the key.
        scopes: operations that the key permits.
        expires: time from which the key is invalid; None: it never expires.
        max_requests_per_second: maximum rate of the key's requests per process; None: no maximum.

    Returns:
        The key; it cannot be recovered later.

    Raises:
        ConfigError: the name is taken or not valid, the rate is below ``MIN_RATE``, or the file cannot be read.
        OutputError: the file cannot be written.
    """
    secret = PREFIX + secrets.token_urlsafe(RANDOM_BYTES)
    digest = hashlib.sha256(secret.encode()).hexdigest()
    fields = {
        "name": name,
        "sha256": digest,
        "scopes": scopes,
        "expires": expires,
        "max_requests_per_second": max_requests_per_second,
    }
    try:
        key = Key.model_validate(fields)
    except ValidationError as error:
        raise ConfigError(format_validation_error(error, fields)) from None
    check_writable(file)
    with FileLock(file.parent):  # of two changes at the same time, none is lost
        keys = read_keys(file) if file.exists() else ()
        if name in [key.name for key in keys]:
            raise ConfigError(f"{file}: a key named '{name}' exists; choose another name, or revoke that key")
        _write(file, [*keys, key])
    return secret


def revoke_key(file: Path, name: str) -> None:
    """Remove a key from the file.

    Raises:
        ConfigError: no key has that name, or the file cannot be read.
        OutputError: the file cannot be written.
    """
    check_writable(file)
    with FileLock(file.parent):
        keys = read_keys(file)
        if name not in [key.name for key in keys]:
            names = ", ".join(key.name for key in keys) or "none"
            raise ConfigError(f"{file}: no key is named '{name}'; existing keys: {names}")
        _write(file, [key for key in keys if key.name != name])


def describe_key(key: Key) -> dict[str, Any]:
    """Return the fields of a key that ``ranker keys list`` prints: all but the hash."""
    return key.model_dump(mode="json", exclude={"sha256"}) | {"expired": key.expired(datetime.now(UTC))}


def _write(file: Path, keys: list[Key]) -> None:
    """Replace the file; keep its mode and owner, so that a service of another user can still read it."""
    file = file.resolve()  # replace the target of a link, not the link
    status = file.stat() if file.exists() else None
    data = {"keys": [key.model_dump(mode="json", exclude_none=True) for key in keys]}
    write_json(data, file, stat.S_IMODE(status.st_mode) if status else OWNER_ONLY)
    if status and os.geteuid() == 0:
        os.chown(file, status.st_uid, status.st_gid)


class Keyring:
    """Finds the entry of a key.

    A changed file takes effect within ``CHECK_SECONDS``. If it is damaged or missing, an error is logged and the
    previous keys stay valid.

    Args:
        file: key file.
        clock: function that returns the current time in seconds.

    Raises:
        ConfigError: the file cannot be read or is not valid.
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
            message = (
                "%s can be read by every user of this machine; run 'chmod 600' (its hashes do not reveal the keys)"
            )
            log.warning(message, self._file)


def _file_version(file: Path) -> tuple[int, ...] | None:
    """Return metadata that changes with the file, or None if the file does not exist."""
    try:
        status = file.stat()
    except OSError:
        return None
    return status.st_mode, status.st_ino, status.st_ctime_ns
