"""The checksums of a folder's files, as sha256sum writes them: what is altered, lost or added is noticed."""

from __future__ import annotations

from pathlib import Path

from ranking.artifacts.atomic_files import files_in, os_error_text, sha256
from ranking.errors import BundleError

SUMS = "SHA256SUMS"


def write_sums(folder: Path) -> None:
    """Writes SHA256SUMS of all other files that are there."""
    (folder / SUMS).write_text("".join(f"{sha256(file)}  {name}\n" for name, file in _others(folder).items()))


def verify_files(folder: Path) -> None:
    """Checks every file of a bundle against SHA256SUMS.

    Raises:
        BundleError: names the first file that is missing, altered, not listed or no ordinary file.
    """
    if not (folder / SUMS).is_file():
        raise BundleError(
            f"{folder} is no bundle: it has no {SUMS}; name REPOSITORY/NAME/VERSION or make one with 'ranker freeze'"
        )
    _require_ordinary(folder)
    try:
        _require_sums(folder)
    except OSError as error:  # it may be taken away meanwhile
        raise BundleError(f"{folder} cannot be read ({os_error_text(error)})") from None


def _require_sums(folder: Path) -> None:
    try:
        text = (folder / SUMS).read_bytes().decode()
        listed = [line.split("  ", 1) for line in text.split("\n")[:-1]]
        expected = {name: digest for digest, name in listed}
        if text != "".join(f"{digest}  {name}\n" for name, digest in expected.items()):
            raise ValueError
    except ValueError:
        raise BundleError(f"{folder}/{SUMS} is damaged; freeze the run again or copy the bundle again") from None
    found = _others(folder)
    for name in sorted(found.keys() - expected.keys()):
        raise BundleError(f"{folder}/{name} is not listed in {SUMS}: something was added to the bundle")
    for name, digest in expected.items():
        if name not in found:
            raise BundleError(f"{folder}/{name} is missing; copy the bundle again")
        if sha256(found[name]) != digest:
            raise BundleError(f"{folder}/{name} was altered (its SHA-256 is not that of {SUMS}); copy the bundle again")


def _others(folder: Path) -> dict[str, Path]:
    """Every file but the sums, by its name within the folder."""
    files = {file.relative_to(folder).as_posix(): file for file in files_in(folder)}
    files.pop(SUMS, None)
    return files


def _require_ordinary(folder: Path) -> None:
    """Refuses what could lead out of the folder, change after it was verified, or never end."""
    for path in sorted(folder.rglob("*")):
        if path.is_symlink() or not (path.is_file() or path.is_dir()):
            raise BundleError(f"{path} is a link, a pipe or the like: a bundle holds files; copy them themselves")
