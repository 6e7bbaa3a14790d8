"""From a bundle to a version in a repository."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from ranking import bundle, repository
from ranking.errors import BundleError
from ranking.files import appearing, write_json
from ranking.schema import MODEL_NAME


def publish(source: Path, repo: Path, name: str | None = None) -> tuple[str, int]:
    """Copies a bundle into a repository as its next version and makes that the current one.

    A crash at any point leaves the repository as it was: the copy becomes a version by one rename, and current.json is
    replaced by another.

    Returns:
        The model's name and the version.

    Raises:
        BundleError: the bundle does not verify, or the name is none that a folder can have.
        OutputError: the repository cannot be written.
    """
    ranker = bundle.load(source)
    name = ranker.schema.name if name is None else name
    if not re.fullmatch(MODEL_NAME, name):
        raise BundleError(f"name '{name}': use letters, digits, '_' and '-'")
    version = max(repository.versions(repo, name), default=0) + 1
    with appearing(repository.folder(repo, name, version)) as draft:
        shutil.copytree(source, draft, dirs_exist_ok=True)
        bundle.verify_files(draft)
    write_json({"version": version}, repo / name / repository.CURRENT)
    return name, version
