"""Reading of ``ranker.toml`` and of command-line overrides, before validation; writing of values on one line."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tomli_w

from ranking.errors import ConfigError, UsageError

PARQUET_MAGIC = b"PAR1"
"""First bytes of every Parquet file."""
HOW_TO_WRITE_VALUES = "write text in quotes, numbers like 0.001 and dates like 2026-01-09"
DEEP_KEY = re.compile(r"""(?:(?:[\w-]+|"[^"\n]*"|'[^'\n]*')[ \t]*\.[ \t]*){32}""")
"""A key with more than 32 parts. The memory that tomllib needs for a key grows with the square of its parts."""


def read_toml(file: Path, overrides: Sequence[str] = ()) -> dict[str, Any]:
    """Read a TOML file and apply overrides.

    Args:
        file: the TOML file.
        overrides: settings such as ``training.epochs=3`` in TOML notation; bare words are strings.

    Raises:
        ConfigError: the file cannot be read or is not TOML; says what it is instead.
        UsageError: an override does not have the form section.key=value.
    """
    try:
        content = file.read_bytes()
    except IsADirectoryError:
        candidate = file / "ranker.toml"
        hint = f"name {candidate}" if candidate.is_file() else "name the ranker.toml that describes the log"
        raise ConfigError(f"{file}: is a folder, not a configuration file; {hint}") from None
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read ({error.strerror}); name a ranker.toml") from None
    if content.startswith(PARQUET_MAGIC):
        raise ConfigError(
            f"{file}: is a Parquet file, not a configuration file; name the ranker.toml that describes the log"
        )
    try:
        text = content.decode()
        if DEEP_KEY.search(text):
            raise RecursionError
        data = tomllib.loads(text)
    except UnicodeDecodeError:
        raise ConfigError(f"{file}: not valid TOML: not UTF-8 text; name a ranker.toml") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{file}: not valid TOML: {error}{_invalid_line(text, str(error))}") from None
    except RecursionError:
        raise ConfigError(f"{file}: not a ranker.toml: lists or tables are nested too deeply") from None
    for override in overrides:
        _apply(data, override)
    return data


def inline_toml(value: Any) -> str:
    """Return a value in TOML notation on one line."""
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{key} = {inline_toml(entry)}" for key, entry in value.items()) + " }"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(inline_toml, value)) + "]"
    return tomli_w.dumps({"x": str(value) if isinstance(value, Path) else value}).removeprefix("x = ").rstrip("\n")


def _invalid_line(text: str, error: str) -> str:
    """Return the line that an error of tomllib names, as the rest of the message; empty if it names none."""
    found = re.search(r"\(at line (\d+), column \d+\)", error)
    if found is None:
        return ""
    line = text.split("\n")[int(found[1]) - 1].strip()
    is_value = error.startswith(("Invalid value", "Expected newline"))
    return f": {line:.80}" + (f"; {HOW_TO_WRITE_VALUES}" if is_value else "")


def _apply(data: dict[str, Any], override: str) -> None:
    key, equals, text = override.partition("=")
    *path, last = key.strip().split(".")
    if DEEP_KEY.search(override):
        raise UsageError(f"--set {override:.60}…: lists or tables are nested too deeply")
    if not equals or not all([*path, last]):
        raise UsageError(f"--set {override}: write it as section.key=value, such as training.epochs=3")
    try:
        value: Any = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text
    except RecursionError:
        raise UsageError(f"--set {key.strip()}: lists or tables are nested too deeply") from None
    for part in path:
        data = data.setdefault(part, {})
        if not isinstance(data, dict):
            raise UsageError(f"--set {override}: '{part}' is not a section")
    data[last] = value
