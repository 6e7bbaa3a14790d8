"""Versions of bundles on disk: ``REPOSITORY/NAME/VERSION/`` (1, 2, 3 …, never changed) and ``NAME/current.json``."""

from __future__ import annotations

import json
from pathlib import Path

from ranking.errors import BundleError

CURRENT = "current.json"


def names(repository: Path) -> list[str]:
    """Models that have a current version, sorted.

    Raises:
        BundleError: no such folder.
    """
    if not repository.is_dir():
        raise BundleError(f"{repository}: no such repository; publish a bundle into it with 'ranker publish'")
    return sorted(file.parent.name for file in repository.glob(f"*/{CURRENT}"))


def versions(repository: Path, name: str) -> list[int]:
    """Published versions of a model, ascending."""
    folders = (repository / name).glob("[0-9]*")
    return sorted(int(folder.name) for folder in folders if folder.name.isdecimal() and folder.is_dir())


def current(repository: Path, name: str) -> int:
    """The version to serve.

    Raises:
        BundleError: the model has none, or current.json is damaged.
    """
    file = repository / name / CURRENT
    try:
        version = json.loads(file.read_text())["version"]
    except OSError:
        raise BundleError(f"{file} cannot be read: publish a bundle with 'ranker publish'") from None
    except (ValueError, KeyError, TypeError):
        version = None
    if type(version) is not int:
        raise BundleError(f'{file} is damaged: it should read {{"version": N}}')
    return version


def folder(repository: Path, name: str, version: int) -> Path:
    """Where a version's bundle lies.

    Raises:
        BundleError: a link leads out of the repository.
    """
    found = repository / name / str(version)
    if not found.resolve().is_relative_to(repository.resolve()):
        raise BundleError(f"{found} leads out of the repository, by a link: put the bundle itself there")
    return found
