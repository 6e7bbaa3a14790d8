"""Default model of a repository, recorded in ``repository.json``: ``{"default_model": "feed"}``.

It is recorded when the first model is published, so that publishing a second one does not change which model answers
requests that name none. A repository without the file, from an earlier version, has a default model if it holds one
model only.
"""

from __future__ import annotations

import os
from pathlib import Path

from pydantic import ValidationError

from ranking.artifacts.atomic_files import write_json
from ranking.artifacts.repository import list_models, lock_repository, read_json
from ranking.errors import BundleError
from ranking.schema.base import ModelName, StrictModel

REPOSITORY_FILE = "repository.json"


class _Defaults(StrictModel):
    default_model: ModelName


def read_default_model(repository: Path) -> str | None:
    """Return the default model that is recorded in a repository, or None.

    Raises:
        BundleError: ``repository.json`` is damaged.
    """
    file = repository / REPOSITORY_FILE
    try:
        return _Defaults.model_validate(read_json(file)).default_model
    except FileNotFoundError:
        return None
    except ValidationError:
        raise BundleError(
            f'{file} is damaged: it should read {{"default_model": NAME}}; \'ranker release {repository} NAME '
            "--default' restores it"
        ) from None


def write_default_model(repository: Path, name: str) -> None:
    """Record the default model of a repository.

    Raises:
        BundleError: the repository has no such model.
        OutputError: the repository cannot be written.
    """
    names = list_models(repository)
    if name not in names:
        raise BundleError(f"{repository} has no model '{name}': it has {', '.join(names) or 'none'}")
    with lock_repository(repository):
        write_json({"default_model": name}, repository / REPOSITORY_FILE)


def record_first_model(repository: Path, name: str) -> None:
    """Record the default model unless one is recorded; call this before a model gets its first release.

    The default model is the only one with a release, or ``name`` if there is none yet. A repository that already holds
    several models continues without one.

    Raises:
        OutputError: the repository cannot be written.
    """
    file = repository / REPOSITORY_FILE
    with lock_repository(repository):
        names = list_models(repository)
        if not os.path.lexists(file) and len(names) <= 1:
            write_json({"default_model": names[0] if names else name}, file)
