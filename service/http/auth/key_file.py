"""The file of API keys: name, SHA-256, scopes and expiry of each key, never the key itself."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from ranking.artifacts.atomic_files import check_writable, os_error_text, write_json
from ranking.errors import ConfigError
from ranking.schema.validation_errors import format_validation_error

Scope = Literal["rank", "feedback", "admin"]
SCOPES: tuple[Scope, ...] = get_args(Scope)

PREFIX = "ranker_"
"""Prefix of every key, by which secret scanners recognize a leaked one."""
RANDOM_BYTES = 32
"""Random bytes of a key."""
OWNER_ONLY = 0o600
"""Mode of a new key file."""


class Key(BaseModel):
    """Entry of one key.

    Attributes:
        name: Name of the key; it appears in logs.
        sha256: Hexadecimal SHA-256 of the key.
        scopes: Operations that the key permits.
        expires: Time from which the key is invalid, or None if it never expires.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    sha256: str
    scopes: Annotated[tuple[Scope, ...], Field(min_length=1)]
    expires: AwareDatetime | None = None

    @field_validator("name")
    @classmethod
    def _check_name(cls, name: str) -> str:
        if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.@-]{0,63}", name):
            raise ValueError("use up to 64 letters, digits, '_', '.', '@' and '-'")
        return name

    @field_validator("sha256")
    @classmethod
    def _check_hash(cls, text: str) -> str:
        if len(text) != 64 or not set(text) <= set(
            "0123456789abcdef"
        ):  # the message omits the text, which may be a key
            raise ValueError("write the key's SHA-256 as 64 hexadecimal digits, not the key")
        return text

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
        ConfigError: The file cannot be read or is not valid; the message shows no hash.
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
        raise ConfigError(f"{file}: {format_validation_error(error, data)}") from None


def create_key(file: Path, name: str, scopes: tuple[Scope, ...], expires: datetime | None = None) -> str:
    """Create a key and add its entry to the file, which is created if it does not exist.

    Returns:
        The key; it cannot be recovered later.

    Raises:
        ConfigError: The name is taken or not valid, or the file cannot be read.
        OutputError: The file cannot be written.
    """
    secret = PREFIX + secrets.token_urlsafe(RANDOM_BYTES)
    digest = hashlib.sha256(secret.encode()).hexdigest()
    fields = {"name": name, "sha256": digest, "scopes": scopes, "expires": expires}
    try:
        key = Key.model_validate(fields)
    except ValidationError as error:
        raise ConfigError(format_validation_error(error, fields)) from None
    with _exclusive_lock(file):
        keys = read_keys(file) if file.exists() else ()
        if name in [key.name for key in keys]:
            raise ConfigError(f"{file}: a key named '{name}' exists; choose another name, or revoke that key")
        _write(file, [*keys, key])
    return secret


def revoke_key(file: Path, name: str) -> None:
    """Remove a key from the file.

    Raises:
        ConfigError: No key has that name, or the file cannot be read.
        OutputError: The file cannot be written.
    """
    with _exclusive_lock(file):
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


@contextmanager
def _exclusive_lock(file: Path) -> Iterator[None]:
    """Serialize concurrent changes of the file, so that none is lost."""
    check_writable(file)
    folder = os.open(file.parent, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)
