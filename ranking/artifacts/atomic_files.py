"""Write files and folders atomically and durably."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import secrets
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from ranking.errors import OutputError
from ranking.regular_files import open_regular

TOKEN_BYTES = 8
"""Random bytes in the name of a draft of ``replaced_file``."""


@contextmanager
def atomic_directory(folder: Path) -> Iterator[Path]:
    """Yield a draft folder that is flushed to disk and renamed to ``folder`` on success, or removed on failure.

    Raises:
        OutputError: ``folder`` exists and is not empty, or it cannot be written.
    """
    check_creatable(folder)
    draft = None
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        draft = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
        draft.chmod(0o755)
        yield draft
        for file in files_in(draft):
            if file.stat().st_mode & 0o777 != 0o444:  # A link to a file of a protected run stays protected.
                file.chmod(0o644)  # Some writers restrict files to their owner, but another user may serve them.
        for path in [*files_in(draft), *(inner for inner in draft.rglob("*") if inner.is_dir()), draft]:
            fsync(path)
        draft.rename(folder)
        fsync(folder.parent)
    except BaseException as error:
        if draft is not None:
            shutil.rmtree(draft, ignore_errors=True)
        if isinstance(error, OSError) and error.errno in (errno.EEXIST, errno.ENOTEMPTY) and folder.is_dir():
            raise OutputError(f"{folder} was created by another process in the meantime: try again") from None
        if isinstance(error, OSError):
            raise OutputError(f"{folder}: cannot be written ({os_error_text(error)})") from None
        raise


@contextmanager
def write_errors(path: Path) -> Iterator[None]:
    """Convert errors of the filesystem while a file or folder is written to OutputError."""
    try:
        yield
    except OSError as error:
        raise OutputError(f"{path}: cannot be written ({os_error_text(error)})") from None


def check_folder(path: Path) -> Path:
    """Return the nearest existing folder at or above a path.

    Raises:
        OutputError: the nearest existing path is a file.
    """
    with write_errors(path):
        nearest = next(ancestor for ancestor in (path, *path.parents) if ancestor.exists())
    if not nearest.is_dir():
        raise OutputError(f"{nearest} is a file, not a folder: name another path")
    return nearest


def check_empty(folder: Path) -> None:
    """Check that a folder is empty or does not exist.

    Raises:
        OutputError: it is not empty, or one of its parents is a file.
    """
    check_folder(folder.parent)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise OutputError(f"{folder} exists and is never overwritten: name another folder")


def check_creatable(folder: Path) -> None:
    """Check that ``atomic_directory`` can create a folder, so that commands fail before they do any work.

    Raises:
        OutputError: the folder is not empty, one of its parents is a file, or there is no write permission.
    """
    check_empty(folder)
    parent = check_folder(folder.parent)
    if not os.access(parent, os.W_OK | os.X_OK):
        raise OutputError(f"{folder}: cannot be written (no permission to write in {parent}); name another folder")


def check_writable(file: Path) -> None:
    """Check that a file can be created or replaced, so that commands fail before they do any work.

    Raises:
        OutputError: the path is a folder, its parent does not exist, or there is no write permission.
    """
    parent = check_folder(file.parent)
    if parent != file.parent:
        raise OutputError(f"{file}: cannot be written (there is no folder {file.parent})")
    if file.is_dir():
        raise OutputError(f"{file}: cannot be written (it is a folder); name a file in it")
    if not os.access(parent, os.W_OK | os.X_OK):
        raise OutputError(f"{file}: cannot be written (no permission to write in {parent}); name another path")


def write_json(data: dict[str, Any], file: Path, mode: int = 0o666) -> None:
    """Replace a file by JSON atomically: readers see either the old or the new content.

    Args:
        data: content.
        file: path of the file.
        mode: permissions, which the umask of the process restricts.

    Raises:
        OutputError: the file cannot be written.
    """
    remove_drafts(file.parent)
    replace_file(file, [encode_json(data)], mode)


def encode_json(data: dict[str, Any]) -> bytes:
    """Return JSON as it is written to files."""
    return (json.dumps(data, indent=2) + "\n").encode()


def replace_file(file: Path, parts: Iterable[bytes], mode: int = 0o666) -> None:
    """Replace a file atomically, see ``replaced_file``.

    Args:
        file: path of the file.
        parts: its content.
        mode: permissions, which the umask of the process restricts.

    Raises:
        OutputError: the file cannot be written.
    """
    with write_errors(file), replaced_file(file, mode) as stream:
        stream.writelines(parts)


@contextmanager
def replaced_file(file: Path, mode: int = 0o666) -> Iterator[BinaryIO]:
    """Yield a stream whose content, once it is on disk, replaces a file on success.

    Args:
        file: path of the file.
        mode: permissions, which the umask of the process restricts.

    Raises:
        OSError: the file cannot be written.
    """
    draft, descriptor = _new_draft(file, mode)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            yield stream
            stream.flush()
            os.fsync(descriptor)
            draft.replace(file)  # before the lock ends with the stream
        fsync(file.parent)
    except BaseException:
        with suppress(OSError):
            draft.unlink()
        raise


def _new_draft(file: Path, mode: int) -> tuple[Path, int]:
    """Create a draft of a file that no other process uses; return its path and descriptor, which holds a lock."""
    while True:
        draft = file.with_name(f".{file.name}.{secrets.token_hex(TOKEN_BYTES)}.draft")
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
        with suppress(OSError):  # a filesystem without locks
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        if draft.exists():
            return draft, descriptor
        os.close(descriptor)  # another process has removed it before it was locked


def remove_drafts(folder: Path) -> None:
    """Remove what processes left in a folder that were killed in ``replaced_file``."""
    with suppress(OSError):  # a folder that cannot be read
        for draft in folder.glob(f".*.{'[0-9a-f]' * 2 * TOKEN_BYTES}.draft"):
            with suppress(OSError), draft.open("rb") as stream:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)  # fails while the process that writes the draft runs
                draft.unlink()


def os_error_text(error: OSError) -> str:
    """Return the reason of a failed file operation; for a copy of several files, the first reason."""
    if isinstance(error, shutil.Error) and error.args and isinstance(error.args[0], list):
        return str(error.args[0][0][2])
    return error.strerror or str(error)


def files_in(folder: Path) -> list[Path]:
    """Return all files below a folder, sorted."""
    return sorted(file for file in folder.rglob("*") if not file.is_dir())


def sha256(file: Path) -> str:
    """Return the hexadecimal SHA-256 of a regular file's content."""
    with open_regular(file) as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def fsync(path: Path) -> None:
    """Wait until the content of a file or folder is on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
