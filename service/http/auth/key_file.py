"""The file of API keys: of each its name, SHA-256, scopes and expiry, never the key itself."""

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

from ranking.artifacts.atomic_files import os_error_text, require_writable, write_json
from ranking.errors import ConfigError
from ranking.schema.validation_errors import format_validation_error

Scope = Literal["rank", "feedback", "admin"]
SCOPES: tuple[Scope, ...] = get_args(Scope)

PREFIX = "ranker_"
"""Of every key, so that whoever searches for leaked secrets knows one when it turns up."""
RANDOM_BYTES = 32
OWNER_ONLY = 0o600


class Key(BaseModel):
    """One key.

    Attributes:
        name: whose it is; may be logged.
        sha256: of the key, hexadecimal.
        scopes: what it may do.
        expires: when it stops working; None: never.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    sha256: str
    scopes: Annotated[tuple[Scope, ...], Field(min_length=1)]
    expires: AwareDatetime | None = None

    @field_validator("name")
    @classmethod
    def _plain_name(cls, name: str) -> str:
        if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.@-]{0,63}", name):
            raise ValueError("use up to 64 letters, digits, '_', '.', '@' and '-'")
        return name

    @field_validator("sha256")
    @classmethod
    def _hash(cls, text: str) -> str:
        if len(text) != 64 or not set(text) <= set("0123456789abcdef"):  # not shown: it may be a key
            raise ValueError("write the key's SHA-256 as 64 hexadecimal digits, not the key")
        return text

    def expired(self, now: datetime) -> bool:
        """Whether it no longer works."""
        return self.expires is not None and self.expires <= now


class Keys(BaseModel):
    """What the file holds."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    keys: tuple[Key, ...]

    @model_validator(mode="after")
    def _distinct(self) -> Keys:
        for what in ("name", "sha256"):
            values = [getattr(key, what) for key in self.keys]
            if len(set(values)) < len(values):
                raise ValueError(f"keys: two have the same {what}")
        return self


def read(file: Path) -> tuple[Key, ...]:
    """All keys.

    Raises:
        ConfigError: it cannot be read, or holds something else; says what, and shows no hash.
    """
    try:
        data = json.loads(file.read_text())
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read ({os_error_text(error)}); make one with 'ranker keys new'") from None
    except ValueError as error:  # no UTF-8, no JSON
        raise ConfigError(f"{file} is no JSON: {error}") from None
    try:
        return Keys.model_validate(data).keys
    except ValidationError as error:
        raise ConfigError(f"{file}: {format_validation_error(error, data)}") from None


def new(file: Path, name: str, scopes: tuple[Scope, ...], expires: datetime | None = None) -> str:
    """Makes a key and adds its hash to the file, which is made if it is not there.

    Returns:
        The key: nobody can tell it later.

    Raises:
        ConfigError: a key has that name already, or the file cannot be read.
        OutputError: it cannot be written.
    """
    secret = PREFIX + secrets.token_urlsafe(RANDOM_BYTES)
    added = {"name": name, "sha256": hashlib.sha256(secret.encode()).hexdigest(), "scopes": scopes, "expires": expires}
    try:
        key = Key.model_validate(added)
    except ValidationError as error:
        raise ConfigError(format_validation_error(error, added)) from None
    with _alone(file):
        keys = read(file) if file.exists() else ()
        if name in [key.name for key in keys]:
            raise ConfigError(f"{file}: a key is named '{name}' already; choose another name, or revoke that one")
        _write(file, [*keys, key])
    return secret


def revoke(file: Path, name: str) -> None:
    """Takes a key out of the file.

    Raises:
        ConfigError: no key has that name, or the file cannot be read.
        OutputError: it cannot be written.
    """
    with _alone(file):
        keys = read(file)
        if name not in [key.name for key in keys]:
            there = ", ".join(key.name for key in keys) or "none"
            raise ConfigError(f"{file}: no key is named '{name}'; there are: {there}")
        _write(file, [key for key in keys if key.name != name])


def told(key: Key) -> dict[str, Any]:
    """A key as ``ranker keys list`` shows it: without its hash."""
    return key.model_dump(mode="json", exclude={"sha256"}) | {"expired": key.expired(datetime.now(UTC))}


def _write(file: Path, keys: list[Key]) -> None:
    """Replaces the file; who could read it still can, such as a service of another user than root."""
    file = file.resolve()  # what a link leads to, not the link
    before = file.stat() if file.exists() else None
    data = {"keys": [key.model_dump(mode="json", exclude_none=True) for key in keys]}
    write_json(data, file, stat.S_IMODE(before.st_mode) if before else OWNER_ONLY)
    if before and os.geteuid() == 0:
        os.chown(file, before.st_uid, before.st_gid)


@contextmanager
def _alone(file: Path) -> Iterator[None]:
    """Two who change the file at a time wait for each other: both changes are kept."""
    require_writable(file)
    folder = os.open(file.parent, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)
