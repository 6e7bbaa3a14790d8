"""Files and folders that appear whole or not at all."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ranking.errors import OutputError


@contextmanager
def atomic_directory(folder: Path) -> Iterator[Path]:
    """A draft folder that is flushed to disk and becomes ``folder`` if the block succeeds; else nothing is left.

    Raises:
        OutputError: ``folder`` exists and is not empty, or cannot be written.
    """
    check_creatable(folder)
    draft = None
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        draft = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
        draft.chmod(0o755)
        yield draft
        for file in files_in(draft):
            file.chmod(0o644)  # some writers keep files to their owner, but another user may serve them
        for path in [*files_in(draft), *(inner for inner in draft.rglob("*") if inner.is_dir()), draft]:
            fsync(path)
        draft.rename(folder)
        fsync(folder.parent)
    except BaseException as error:
        if draft is not None:
            shutil.rmtree(draft, ignore_errors=True)
        if isinstance(error, OSError) and error.errno in (errno.EEXIST, errno.ENOTEMPTY) and folder.is_dir():
            raise OutputError(f"{folder} was made by another meanwhile: try again") from None
        if isinstance(error, OSError):
            raise OutputError(f"{folder}: cannot be written ({os_error_text(error)})") from None
        raise


def require_folder(path: Path) -> Path:
    """The lowest folder at or above a path that is there.

    Raises:
        OutputError: a file is in its place.
    """
    try:
        found = next(place for place in (path, *path.parents) if place.exists())
    except OSError as error:
        raise OutputError(f"{path}: cannot be written ({os_error_text(error)})") from None
    if not found.is_dir():
        raise OutputError(f"{found} is a file, not a folder: name another place")
    return found


def require_empty(folder: Path) -> None:
    """Refuses a folder that holds something, or that lies below a file.

    Raises:
        OutputError: it does.
    """
    require_folder(folder.parent)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise OutputError(f"{folder} exists and is never overwritten: name another folder")


def check_creatable(folder: Path) -> None:
    """Refuses a folder that ``atomic_directory`` could not make, so that nobody works for nothing.

    Raises:
        OutputError: it holds something, lies below a file, or may not be written.
    """
    require_empty(folder)
    above = require_folder(folder.parent)
    if not os.access(above, os.W_OK | os.X_OK):
        raise OutputError(f"{folder}: cannot be written (no permission to write in {above}); name another folder")


def require_writable(file: Path) -> None:
    """Refuses a file that cannot be written or replaced, so that nobody works for nothing.

    Raises:
        OutputError: it is a folder, there is none to hold it, or that may not be written.
    """
    above = require_folder(file.parent)
    if above != file.parent:
        raise OutputError(f"{file}: cannot be written (there is no folder {file.parent})")
    if file.is_dir():
        raise OutputError(f"{file}: cannot be written (it is a folder); name a file in it")
    if not os.access(above, os.W_OK | os.X_OK):
        raise OutputError(f"{file}: cannot be written (no permission to write in {above}); name another place")


def write_json(data: dict[str, Any], file: Path, mode: int = 0o666) -> None:
    """Writes JSON so that a reader sees the old file or the new one, never half.

    Args:
        data: to write.
        file: that is replaced.
        mode: its permissions; the process's umask takes some away.

    Raises:
        OutputError: it cannot be written.
    """
    draft = file.with_name(f".{file.name}.draft")
    try:
        draft.touch(mode)
        draft.write_text(json.dumps(data, indent=2) + "\n")
        fsync(draft)
        draft.replace(file)
        fsync(file.parent)
    except OSError as error:
        draft.unlink(missing_ok=True)
        raise OutputError(f"{file}: cannot be written ({os_error_text(error)})") from None


def os_error_text(error: OSError) -> str:
    """Why a file operation failed; the first reason where many files were copied."""
    if isinstance(error, shutil.Error) and error.args and isinstance(error.args[0], list):
        return str(error.args[0][0][2])
    return error.strerror or str(error)


def files_in(folder: Path) -> list[Path]:
    """All files below a folder, sorted."""
    return sorted(file for file in folder.rglob("*") if not file.is_dir())


def sha256(file: Path) -> str:
    """Hexadecimal SHA-256 of a file's content."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def fsync(path: Path) -> None:
    """Waits until a file's or folder's content is on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
