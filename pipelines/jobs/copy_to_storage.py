"""``ranker push`` and ``ranker pull``: copies of repositories, runs and bundles in object storage."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pipelines.console import print_status
from pipelines.runs.run import RunFolder
from ranking.artifacts import repository
from ranking.artifacts.bundle import MANIFEST
from ranking.artifacts.checksums import verify_files
from ranking.artifacts.remote_folder import find_folder, pull_folder, push_folder
from ranking.artifacts.remote_repository import RemoteRepository
from ranking.errors import UsageError


def push(folder: Path, location: str) -> dict[str, Any]:
    """Upload a finished run, a bundle, or what a repository has changed.

    Returns:
        The number of files of a run or bundle, or the releases of a repository by model.

    Raises:
        LogError: the run is not finished.
        BundleError: the folder is damaged, or the location cannot be used.
        ConfigError: obstore is not installed.
    """
    is_bundle = (folder / MANIFEST).exists()
    if not is_bundle and not RunFolder(folder).config.exists():
        RemoteRepository(location, print_status).push(folder)
        return _releases(folder)
    if is_bundle:
        verify_files(folder)
    else:
        RunFolder.open(folder)
    with repository.read_errors(folder):
        return {"files": push_folder(folder, location)}


def pull(location: str, folder: Path, *, every_version: bool, overwrite: bool) -> dict[str, Any]:
    """Copy and verify a run, a bundle, or the released versions of a repository.

    Args:
        location: its location, to which ``push`` uploaded it.
        folder: the copy. That of a run or bundle must not exist yet.
        every_version: copy all versions of the repository.
        overwrite: replace releases that were changed in the copy of the repository.

    Returns:
        The same as ``push``.

    Raises:
        UsageError: an option is for repositories only.
        BundleError: the location cannot be used, or a file is damaged.
        OutputError: the folder cannot be written.
        ConfigError: obstore is not installed.
    """
    files = find_folder(location)
    if files is None:
        remote = RemoteRepository(location, print_status)
        if not remote.pull(folder, every_version=every_version, overwrite=overwrite):
            print_status(f"{location} holds no repository, run or bundle")
        return _releases(folder)
    if every_version or overwrite:
        raise UsageError("--all and --overwrite are for repositories only")
    return {"files": pull_folder(location, folder, with_checksums=MANIFEST in files)}


def _releases(folder: Path) -> dict[str, Any]:
    names = repository.list_models(folder)
    return {name: repository.read_release(folder, name).to_json() for name in names}
