"""Which versions of a model are to be served: an operator's changes to ``current.json``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ranking.artifacts import repository
from ranking.artifacts.release import CURRENT, Release, parse_release
from ranking.errors import BundleError


def change_release(repo: Path, name: str, changes: Mapping[str, Any]) -> Release:
    """Changes what is to be served of a model; services follow when they next look.

    Args:
        repo: the repository.
        name: of the model.
        changes: fields of ``Release`` → new values; a version that becomes current is no canary or shadow any longer.
            With a version, a damaged current.json is written anew.

    Returns:
        What is to be served now.

    Raises:
        BundleError: no such model or version, changes that do not fit together, or a damaged current.json.
        OutputError: the repository cannot be written.
    """
    if not repository.list_versions(repo, name):
        raise BundleError(f"{repo} has no model '{name}': it has {', '.join(repository.list_models(repo)) or 'none'}")
    if not changes:
        return repository.read_release(repo, name)
    with repository.lock_model(repo, name):
        before = _before(repo, name, changes)
        release = parse_release({**before.model_dump(), **changes}, f"{repo}/{name}/{CURRENT}")
        repository.write_release(repo, name, release)
    return release


def _before(repo: Path, name: str, changes: Mapping[str, Any]) -> Release:
    if "version" not in changes:
        return repository.read_release(repo, name)
    try:
        return repository.read_release(repo, name).promoted(changes["version"])
    except BundleError:
        return Release(version=changes["version"])
