"""``ranker publish``: copies a bundle into a repository as its next version."""

from __future__ import annotations

import shutil
from pathlib import Path

from pipelines.console import print_status
from pipelines.jobs.counter_loss import Coverage, require_coverage
from ranking.artifacts import bundle, checksums, repository
from ranking.artifacts.atomic_files import atomic_directory
from ranking.artifacts.default_model import record_first_model
from ranking.artifacts.release import Release
from ranking.errors import BundleError


def publish(
    source: Path,
    repo: Path,
    name: str | None = None,
    keep: int | None = None,
    *,
    allow_poorer_counters: bool = False,
) -> tuple[str, int]:
    """Copy a bundle into a repository as its next version, and make it the current version unless another is pinned.

    A crash at any point leaves a valid repository: the copy becomes a version by one rename, and current.json is
    replaced atomically. Concurrent publishers get different versions.

    Args:
        source: the bundle.
        repo: the repository.
        name: name of the model; default: the name in the bundle.
        keep: number of newest versions to keep, besides those that current.json names; default: all.
        allow_poorer_counters: publish even if the counters lack much of those of the current version.

    Returns:
        The name of the model and the version.

    Raises:
        BundleError: the checksums do not match, the name is invalid, or current.json is damaged.
        OutputError: the repository cannot be written.
        QualityGateError: the counters lack much of those of the current version.
    """
    ranker = bundle.load(source)
    name = ranker.schema.name if name is None else name
    repository.check_model_name(name)
    release = repository.find_release(repo, name)  # fails before the copy if current.json is damaged
    if release is not None:
        served = repository.bundle_folder(repo, name, release.version)
        _compare_counters(
            served, Coverage.of_bundle(ranker.counter_features), source, allow_poorer_counters or release.pinned
        )
    with repository.staging_dir(repo, name) as work:
        with atomic_directory(work / "new") as draft:
            shutil.copytree(source, draft, dirs_exist_ok=True)
            checksums.verify_files(draft)
        with repository.lock_model(repo, name):
            version = max(repository.list_versions(repo, name), default=0) + 1
            repository.move_folder(work / "new", repository.bundle_folder(repo, name, version))
            previous = repository.find_release(repo, name)
            if previous is not None and previous.pinned:
                print_status(
                    f"{name} is pinned to version {previous.version}: "
                    f"version {version} is published but is not the current version; "
                    f"'ranker release {repo} {name} --version {version}' makes it current"
                )
                release = previous
            else:
                if previous is None:
                    record_first_model(repo, name)
                release = Release(version=version) if previous is None else previous.promoted(version)
                repository.write_release(repo, name, release)
            if keep is not None:
                _retire(repo, name, keep, release, work)
    return name, version


def _compare_counters(served: Path, new: Coverage | None, source: Path, allow: bool) -> None:
    """Report what the counters of a bundle lack of those of the current version, unless that is damaged.

    Raises:
        QualityGateError: they lack much of it.
    """
    try:
        old = Coverage.of_version(served)
    except BundleError as error:
        print_status(f"the counters are not compared with those of the current version: {error}")
        return
    require_coverage(old, new, served, source, allow=allow)


def _retire(repo: Path, name: str, keep: int, release: Release, work: Path) -> None:
    """Remove old versions, each by one rename; services that loaded a removed version keep it in memory."""
    for version in repository.list_versions(repo, name)[:-keep]:
        if version not in release.versions:
            repository.move_folder(repository.bundle_folder(repo, name, version), work / str(version))
            print_status(f"removed version {version} of {name}")
