"""Locations of logs: local paths, and URIs of the filesystems that pyarrow supports (s3, gs, abfs, hdfs, file)."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit, urlunsplit

import pyarrow as pa
from pyarrow.fs import FileSystem, FileType, LocalFileSystem
from pydantic import BeforeValidator
from pydantic_core import PydanticCustomError

from ranking.errors import LogError, single_line

URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")

HINT = "check the address, the network and the credentials (for S3: the AWS_* variables)"


def parse_uri(text: str | Path) -> Path | str:
    """Return a URI unchanged (a ``Path`` would merge its slashes), and other text as a path.

    Raises:
        PydanticCustomError: the value is not text.
    """
    if not isinstance(text, str | Path):
        raise PydanticCustomError("location", "must be a path or a URI, in quotes")
    return Path(text) if isinstance(text, Path) or not URI.match(text) else text


Uri = Annotated[Path | str, BeforeValidator(parse_uri)]
"""A local path, or a URI as text."""


def parse_uris(value: Any) -> Any:
    """Return a location, or several of them as a tuple.

    Raises:
        PydanticCustomError: the value is neither text nor a list of different texts.
    """
    if not isinstance(value, list | tuple):
        return parse_uri(value)
    locations = tuple(parse_uri(entry) for entry in value)
    if not locations or len(set(locations)) < len(locations):
        raise PydanticCustomError("locations", "must name at least one location, and each of them once")
    return locations


Uris = Annotated[Path | str | tuple[Path | str, ...], BeforeValidator(parse_uris)]
"""A location, or several of them."""


def split_uris(where: Uris) -> tuple[Uri, ...]:
    """Return the locations, also of a single one."""
    return where if isinstance(where, tuple) else (where,)


def redact_uri(where: Uris) -> str:
    """Return locations as text for messages: a URI without its password and options."""
    if isinstance(where, tuple):
        return ", ".join(map(redact_uri, where))
    if isinstance(where, Path):
        return str(where)
    parts = urlsplit(where)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2], query="", fragment="")).rstrip("/")


def open_uri(where: Uri) -> tuple[FileSystem, str, FileType]:
    """Return the filesystem of a location, its path there, and whether it is a file, a folder or missing.

    Raises:
        LogError: the filesystem is unknown, cannot be reached or denies access.
    """
    try:
        filesystem, path = FileSystem.from_uri(where) if isinstance(where, str) else (LocalFileSystem(), str(where))
        return filesystem, path, filesystem.get_file_info(path).type
    except (OSError, pa.ArrowException) as error:
        reason = single_line(error).replace(str(where), redact_uri(where))
        raise LogError(f"{redact_uri(where)}: cannot be reached ({reason}); {HINT}") from None
