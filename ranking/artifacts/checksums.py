"""Checksums of the files of a folder in the format of sha256sum; they detect altered, missing and added files."""

from __future__ import annotations

from pathlib import Path

from ranking.artifacts.atomic_files import files_in, os_error_text, sha256
from ranking.errors import BundleError

CHECKSUM_FILE = "SHA256SUMS"


def write_checksums(folder: Path) -> None:
    """Write SHA256SUMS of all other files in the folder."""
    lines = [f"{sha256(file)}  {name}\n" for name, file in _data_files(folder).items()]
    (folder / CHECKSUM_FILE).write_text("".join(lines))


def verify_files(folder: Path) -> None:
    """Verify every file of a bundle against SHA256SUMS.

    Raises:
        BundleError: names the first file that is missing, altered, not listed or not a regular file.
    """
    if not (folder / CHECKSUM_FILE).is_file():
        raise BundleError(
            f"{folder} is not a bundle: it has no {CHECKSUM_FILE}; name REPOSITORY/NAME/VERSION or make one with "
            "'ranker freeze'"
        )
    _check_regular_files(folder)
    try:
        _compare_checksums(folder)
    except OSError as error:  # The folder may be deleted in the meantime.
        raise BundleError(f"{folder} cannot be read ({os_error_text(error)})") from None


def _compare_checksums(folder: Path) -> None:
    try:
        text = (folder / CHECKSUM_FILE).read_bytes().decode()
        lines = [line.split("  ", 1) for line in text.split("\n")[:-1]]
        expected = {name: digest for digest, name in lines}
        if text != "".join(f"{digest}  {name}\n" for name, digest in expected.items()):
            raise ValueError
    except ValueError:
        raise BundleError(
            f"{folder}/{CHECKSUM_FILE} is damaged; freeze the run again or copy the bundle again"
        ) from None
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
