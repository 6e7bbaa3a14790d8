"""``ranker release``: shows or changes which versions of a model are served (``current.json``)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ranking.artifacts import repository
from ranking.artifacts.release import CURRENT, Release, parse_release
from ranking.errors import BundleError


def change_release(repo: Path, name: str, changes: Mapping[str, Any]) -> Release:
    """Change which versions of a model are served; services apply the change at their next poll.

    Args:
        repo: the repository.
        name: name of the model.
        changes: new values of ``Release`` fields. A version that becomes current is removed as canary and shadow. With
            a version, a damaged current.json is rewritten.

    Returns:
        The new release.

    Raises:
        BundleError: the model or a version does not exist, the changes conflict, or current.json is damaged.
        OutputError: the repository cannot be written.
    """
    if not repository.list_versions(repo, name):
        raise BundleError(f"{repo} has no model '{name}': it has {', '.join(repository.list_models(repo)) or 'none'}")
    if not changes:
        return repository.read_release(repo, name)
    with repository.lock_model(repo, name):
        previous = _previous(repo, name, changes)
        release = parse_release({**previous.model_dump(), **changes}, f"{repo}/{name}/{CURRENT}")
        repository.write_release(repo, name, release)
    return release


def _previous(repo: Path, name: str, changes: Mapping[str, Any]) -> Release:
    if "version" not in changes:
        return repository.read_release(repo, name)
    try:
        return repository.read_release(repo, name).promoted(changes["version"])
    except BundleError:
        return Release(version=changes["version"])
