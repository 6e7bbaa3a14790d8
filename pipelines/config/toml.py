"""A ranker.toml as TOML: read from its file, with settings of the command line put in; not yet checked."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ranking.errors import ConfigError, UsageError

PARQUET = b"PAR1"
"""What every Parquet file begins with."""


def read_toml(file: Path, overrides: Sequence[str] = ()) -> dict[str, Any]:
    """The document with its overrides.

    Args:
        file: the TOML file.
        overrides: settings such as ``training.epochs=3``, in TOML's notation (bare words are strings).

    Raises:
        ConfigError: the file cannot be read or is no TOML; says what it is instead.
        UsageError: an override that is not written as section.key=value.
    """
    try:
        content = file.read_bytes()
    except IsADirectoryError:
        inside = file / "ranker.toml"
        mend = f"name {inside}" if inside.is_file() else "name the ranker.toml that describes the log"
        raise ConfigError(f"{file}: is a folder, but a configuration is wanted; {mend}") from None
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read ({error.strerror}); name a ranker.toml") from None
    if content.startswith(PARQUET):
        raise ConfigError(
            f"{file}: is a Parquet file, but a configuration is wanted; name the ranker.toml that describes the log"
        )
    try:
        data = tomllib.loads(content.decode())
    except UnicodeDecodeError:
        raise ConfigError(f"{file}: not valid TOML: it is no text in UTF-8; name a ranker.toml") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{file}: not valid TOML: {error}") from None
    for override in overrides:
        _set(data, override)
    return data


def _set(data: dict[str, Any], override: str) -> None:
    key, equals, text = override.partition("=")
    *path, last = key.strip().split(".")
    if not equals or not all([*path, last]):
        raise UsageError(f"--set {override}: write it as section.key=value, such as training.epochs=3")
    try:
        value: Any = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text
    for part in path:
        data = data.setdefault(part, {})
        if not isinstance(data, dict):
            raise UsageError(f"--set {override}: '{part}' is no section with keys")
    data[last] = value
