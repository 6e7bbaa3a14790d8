"""``ranker release``: shows or changes which versions of a model are served (``current.json``)."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from ranking.artifacts import bundle, repository
from ranking.artifacts.bounded_calls import BoundedCalls
from ranking.artifacts.default_model import write_default_model
from ranking.artifacts.release import CURRENT, Release, parse_release
from ranking.errors import BundleError

RESPONSE_SECONDS = 10.0
"""Seconds to wait for the first read of the repository."""


def change_release(repo: Path, name: str, changes: Mapping[str, Any], *, make_default: bool = False) -> Release:
    """Change which versions of a model are served; services apply the change at their next poll.

    The versions that ``changes`` names are verified first: checksums, golden rows, and that they are in the repository.

    Args:
        repo: the repository.
        name: name of the model.
        changes: new values of ``Release`` fields. A version that becomes current is removed as canary and shadow, and a
            new canary as shadow. With a version, a damaged current.json is rewritten.
        make_default: whether the model becomes the default model of the repository.

    Returns:
        The new release.

    Raises:
        BundleError: the model or a version does not exist, a version is damaged, the changes conflict, or current.json
            is damaged, or the repository does not respond.
        OutputError: the repository cannot be written.
    """
    repository.check_model_name(name)
    _require_response(repo, name)
    if not repository.list_versions(repo, name):
        raise BundleError(f"{repo} has no model '{name}': it has {', '.join(repository.list_models(repo)) or 'none'}")
    release = _write_changes(repo, name, changes) if changes else repository.read_release(repo, name)
    if make_default:
        write_default_model(repo, name)
    return release


def _require_response(repo: Path, name: str) -> None:
    """Check that the repository responds: not even Ctrl-C interrupts a read of a filesystem that hangs."""
    try:
        with suppress(BundleError):  # The caller reports it, unless it is about to rewrite the file.
            BoundedCalls(RESPONSE_SECONDS, max_calls=1).call(lambda: repository.read_release(repo, name))
    except TimeoutError:
        raise BundleError(f"{repo} did not respond within {RESPONSE_SECONDS:g} s: check its filesystem") from None


def _write_changes(repo: Path, name: str, changes: Mapping[str, Any]) -> Release:
    with repository.lock_model(repo, name):
        previous = _previous(repo, name, changes)
        canary = changes.get("canary")
        if canary is not None and canary["version"] == previous.shadow and "shadow" not in changes:
            changes = {**changes, "shadow": None}
        release = parse_release({**previous.model_dump(), **changes}, f"{repo}/{name}/{CURRENT}")
        repository.check_published(repo, name, release)
        for version in _named_versions(release, changes):
            bundle.load(repository.bundle_folder(repo, name, version))
        repository.write_release(repo, name, release)
    return release


def _named_versions(release: Release, changes: Mapping[str, Any]) -> list[int]:
    """Return the versions of the roles that change; a damaged canary must not prevent a rollback."""
    canary = release.canary.version if release.canary else None
    roles = {"version": release.version, "canary": canary, "shadow": release.shadow}
    return list(dict.fromkeys(version for role, version in roles.items() if role in changes and version is not None))


def _previous(repo: Path, name: str, changes: Mapping[str, Any]) -> Release:
    if "version" not in changes:
        return repository.read_release(repo, name)
    try:
        return repository.read_release(repo, name).promoted(changes["version"])
    except BundleError:
        return Release(version=changes["version"])
