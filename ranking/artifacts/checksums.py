"""Checksums of the files of a folder in the format of sha256sum; they detect altered, missing and added files."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from ranking.artifacts.atomic_files import files_in, os_error_text, sha256
from ranking.errors import BundleError
from ranking.regular_files import read_regular

FileSignature = frozenset[tuple[str, int, int, int]]
"""(path, inode, size in bytes, time of the last change in ns) of each file and folder."""

CHECKSUM_FILE = "SHA256SUMS"
MAX_BYTES = 16 * 1024 * 1024
"""Maximum size of SHA256SUMS."""


def write_checksums(folder: Path) -> None:
    """Write SHA256SUMS of all other files in the folder."""
    checksums = {name: sha256(file) for name, file in _data_files(folder).items()}
    (folder / CHECKSUM_FILE).write_text(format_checksums(checksums))


def format_checksums(checksums: Mapping[str, str]) -> str:
    """Return the content of SHA256SUMS: the SHA-256 of each file by its path within the folder."""
    return "".join(f"{digest}  {name}\n" for name, digest in checksums.items())


def file_signature(*paths: Path) -> FileSignature:
    """Return a value that changes when one of these files, or anything below these folders, changes.

    The files are not read.
    """
    signature = set()
    for root in paths:
        with suppress(OSError):  # The folder cannot be listed.
            for path in [root, *root.rglob("*")]:
                with suppress(OSError):  # The file does not exist, or was removed in the meantime.
                    status = path.stat()
                    signature.add((str(path), status.st_ino, status.st_size, status.st_ctime_ns))
    return frozenset(signature)


def verify_files(folder: Path) -> None:
    """Verify every file of a bundle against SHA256SUMS.

    Raises:
        BundleError: names the first file that is missing, altered, not listed or not a regular file.
    """
    try:
        if not (folder / CHECKSUM_FILE).is_file():
            raise BundleError(
                f"{folder} is not a bundle: it has no {CHECKSUM_FILE}; name REPOSITORY/NAME/VERSION or make one with "
                "'ranker freeze'"
            )
        _check_regular_files(folder)
        _compare_checksums(folder)
    except OSError as error:  # The folder may be deleted in the meantime.
        raise BundleError(f"{folder} cannot be read ({os_error_text(error)})") from None


def parse_checksums(content: bytes, folder: Path | str) -> dict[str, str]:
    """Return the SHA-256 of each file by its path within the folder, from the content of SHA256SUMS.

    Raises:
        BundleError: the content is damaged, or a path leads out of the folder.
    """
    try:
        text = content.decode()
        lines = [line.split("  ", 1) for line in text.split("\n")[:-1]]
        expected = {name: digest for digest, name in lines}
        if text != format_checksums(expected):
            raise ValueError
        if any("\0" in name or {"", ".", ".."} & {*name.split("/")} for name in expected):
            raise ValueError
    except ValueError:
        raise BundleError(
            f"{folder}/{CHECKSUM_FILE} is damaged; freeze the run again or copy the bundle again"
        ) from None
    return expected


def _compare_checksums(folder: Path) -> None:
    expected = parse_checksums(read_regular(folder / CHECKSUM_FILE, MAX_BYTES), folder)
    files = _data_files(folder)
    for name in sorted(files.keys() - expected.keys()):
        raise BundleError(f"{folder}/{name} is not listed in {CHECKSUM_FILE}: the file was added to the bundle")
    for name, digest in expected.items():
        if name not in files:
            raise BundleError(f"{folder}/{name} is missing; copy the bundle again")
        if sha256(files[name]) != digest:
            raise BundleError(
                f"{folder}/{name} was altered (its SHA-256 is not that of {CHECKSUM_FILE}); copy the bundle again"
            )


def _data_files(folder: Path) -> dict[str, Path]:
    """Return every file except the checksums, by its path within the folder."""
    files = {file.relative_to(folder).as_posix(): file for file in files_in(folder)}
    files.pop(CHECKSUM_FILE, None)
    return files


def _check_regular_files(folder: Path) -> None:
    """Reject files that may point outside the folder, change after verification, or never end."""
    for path in sorted(folder.rglob("*")):
        if path.is_symlink() or not (path.is_file() or path.is_dir()):
            raise BundleError(
                f"{path} is a link, a pipe or another special file: a bundle holds regular files; copy the files"
            )
