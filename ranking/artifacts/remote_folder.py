"""A run or a bundle in object storage: the files of a folder, and SHA256SUMS, which is uploaded last."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from ranking.artifacts.atomic_files import atomic_directory, files_in, sha256
from ranking.artifacts.checksums import CHECKSUM_FILE, MAX_BYTES, format_checksums, parse_checksums
from ranking.artifacts.object_store import ObjectStore
from ranking.errors import BundleError

CLAIM = f"{CHECKSUM_FILE}.part"
"""Object with the checksums of an upload that has not finished."""
THREADS = 8
"""Number of files that are copied at once."""


def push_folder(folder: Path, location: str) -> int:
    """Upload a folder, or the rest of it after an interruption.

    Args:
        folder: the folder.
        location: its location, which must not have other objects.

    Returns:
        The number of files.

    Raises:
        BundleError: the location cannot be accessed, or has other objects.
        ConfigError: obstore is not installed.
        OSError: a file cannot be read.
    """
    store = ObjectStore(location)
    files = {file.relative_to(folder).as_posix(): file for file in files_in(folder)}
    listed = {name: file for name, file in files.items() if name != CHECKSUM_FILE}
    checksums = format_checksums({name: sha256(file) for name, file in listed.items()}).encode()
    if not _claim(store, checksums):
        return len(listed)
    with ThreadPoolExecutor(THREADS) as pool:
        _wait(pool.map(lambda name: store.upload(listed[name], name), listed))
    store.write(CHECKSUM_FILE, checksums)
    store.delete(CLAIM)
    return len(listed)


def pull_folder(location: str, folder: Path, *, with_checksums: bool) -> int:
    """Copy and verify a folder.

    Args:
        location: its location.
        folder: the copy, which appears when it is complete; it must not exist, or be empty.
        with_checksums: write SHA256SUMS, too, which is a file of a bundle but not of a run.

    Returns:
        The number of files.

    Raises:
        BundleError: the location cannot be accessed, has no complete folder, or a file is damaged.
        ConfigError: obstore is not installed.
        OutputError: the folder is not empty or cannot be written.
    """
    store = ObjectStore(location)
    checksums = _read(store, CHECKSUM_FILE)
    if checksums is None:
        raise BundleError(f"{store.location} does not exist, or its upload has not finished")
    expected = parse_checksums(checksums, store.location)
    with atomic_directory(folder) as draft, ThreadPoolExecutor(THREADS) as pool:
        _wait(pool.map(lambda name: _download(store, name, expected[name], draft), expected))
        if with_checksums:
            (draft / CHECKSUM_FILE).write_bytes(checksums)
    return len(expected)


def find_folder(location: str) -> frozenset[str] | None:
    """Return the names of the files of a complete folder at a location; None if there is none.

    Raises:
        BundleError: the location cannot be accessed.
        ConfigError: obstore is not installed.
    """
    checksums = _read(ObjectStore(location), CHECKSUM_FILE)
    return None if checksums is None else frozenset(parse_checksums(checksums, location))


def _claim(store: ObjectStore, checksums: bytes) -> bool:
    """Reserve a location for a folder; return False if it already has the whole folder.

    Raises:
        BundleError: it has other objects.
    """
    if _is_complete(store, checksums):
        return False
    if not store.is_empty() and _read(store, CLAIM) is None:
        raise BundleError(f"{store.location} holds other objects: name another location")
    # Of two folders that are uploaded at the same time, one creates this object.
    if not store.replace(CLAIM, checksums, None) and _read(store, CLAIM) not in (checksums, None):
        raise BundleError(
            f"{store.location} holds the unfinished upload of another folder: name another location, or delete its "
            "objects"
        )
    return not _is_complete(store, checksums)  # another upload may have ended before this one made its claim


def _is_complete(store: ObjectStore, checksums: bytes) -> bool:
    """Return whether a location has the whole folder.

    Raises:
        BundleError: it has another one.
    """
    complete = _read(store, CHECKSUM_FILE)
    if complete not in (None, checksums):
        raise BundleError(f"{store.location} holds another folder: name another location, or delete its objects")
    return complete is not None


def _download(store: ObjectStore, name: str, digest: str, draft: Path) -> None:
    file = draft / name
    file.parent.mkdir(parents=True, exist_ok=True)
    store.download(name, file)
    if sha256(file) != digest:
        raise BundleError(
            f"{store.location}/{name} is damaged: its SHA-256 is not that of {CHECKSUM_FILE}; delete the objects of "
            "the location, and push the folder again"
        )


def _read(store: ObjectStore, name: str) -> bytes | None:
    found = store.read(name, MAX_BYTES)
    return None if found is None else found[0]


def _wait(results: Iterable[None]) -> None:
    """Wait until all files are copied.

    Raises:
        Exception: the first error.
    """
    for _ in results:
        pass
