"""From a bundle to a version in a repository."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from pipelines.console import print_status
from ranking.artifacts import bundle, checksums, repository
from ranking.artifacts.atomic_files import atomic_directory, fsync, os_error_text
from ranking.artifacts.release import CURRENT, Release
from ranking.errors import BundleError, OutputError
from ranking.schema import MODEL_NAME


def publish(source: Path, repo: Path, name: str | None = None, keep: int | None = None) -> tuple[str, int]:
    """Copies a bundle into a repository as its next version and makes that the current one, unless another is pinned.

    A crash at any point leaves the repository as it was: the copy becomes a version by one rename, and current.json is
    replaced by another. Several publishers may be at work: each gets a version of its own.

    Args:
        source: the bundle.
        repo: the repository.
        name: of the model; default: the bundle's.
        keep: so many of the newest versions stay, and those that current.json names; default: all.

    Returns:
        The model's name and the version.

    Raises:
        BundleError: the bundle does not verify, the name is none that a folder can have, or current.json is damaged.
        OutputError: the repository cannot be written.
    """
    ranker = bundle.load(source)
    name = ranker.schema.name if name is None else name
    if not re.fullmatch(MODEL_NAME, name):
        raise BundleError(f"name '{name}': use letters, digits, '_' and '-'")
    _released(repo, name)  # else nobody would know what is pinned, and all work be in vain
    with repository.staging_dir(repo, name) as work:
        with atomic_directory(work / "new") as draft:
            shutil.copytree(source, draft, dirs_exist_ok=True)
            checksums.verify_files(draft)
        with repository.lock_model(repo, name):
            version = max(repository.list_versions(repo, name), default=0) + 1
            _move(work / "new", repository.bundle_folder(repo, name, version))
            before = _released(repo, name)
            if before is not None and before.pinned:
                print_status(
                    f"{name} is pinned to version {before.version}: version {version} is published but not current; "
                    f"'ranker release {repo} {name} --version {version}' makes it so"
                )
                after = before
            else:
                after = Release(version=version) if before is None else before.promoted(version)
                repository.write_release(repo, name, after)
            if keep is not None:
                _retire(repo, name, keep, after, work)
    return name, version


def _released(repo: Path, name: str) -> Release | None:
    """What is to be served of the model so far."""
    return repository.read_release(repo, name) if (repo / name / CURRENT).exists() else None


def _retire(repo: Path, name: str, keep: int, release: Release, work: Path) -> None:
    """Moves old versions away, so that each goes at once and not file by file; whoever has loaded one keeps it."""
    for version in repository.list_versions(repo, name)[:-keep]:
        if version not in release.versions:
            _move(repository.bundle_folder(repo, name, version), work / str(version))
            print_status(f"{name} version {version} is removed")


def _move(folder: Path, target: Path) -> None:
    try:
        folder.rename(target)
        fsync(target.parent)
        fsync(folder.parent)
    except OSError as error:
        raise OutputError(f"{target}: cannot be written ({os_error_text(error)})") from None
