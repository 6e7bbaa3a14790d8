"""Content of the repository for people to read: versions with their manifests, evaluations and reports."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ranking.artifacts import bundle, repository
from ranking.errors import BundleError
from ranking.regular_files import read_regular
from ranking.schema import Schema
from ranking.selection import Selection

MAX_DOCUMENT_BYTES = 16 * 1024 * 1024
"""Maximum size of a manifest, an evaluation or a report that is read."""


@dataclass(frozen=True)
class CatalogEntry:
    """A published version as its files describe it.

    Attributes:
        schema: features and tasks.
        selection: selected experts.
        objective: weight of each task.
        gate: kind of the gate.
        made_by: software that made the bundle.
        trained_until: end of the training split.
        flops: floating-point operations per row, as in selection.json.
    """

    schema: Schema
    selection: Selection
    objective: dict[str, float]
    gate: str
    made_by: str
    trained_until: str
    flops: dict[str, Any]


def read_entry(path: Path, model: str, version: int) -> CatalogEntry:
    """Read the manifest of a version.

    Raises:
        BundleError: the version does not exist, or its manifest cannot be used.
    """
    folder = repository.bundle_folder(path, model, version)
    file = folder / "manifest.json"
    with bundle.as_bundle_error(folder):
        manifest = _parse(read_regular(file, MAX_DOCUMENT_BYTES))
        details = manifest["details"]
        return CatalogEntry(
            bundle.parse_schema(manifest["schema"], file),
            Selection.from_json(manifest["selection"]),
            {str(task): float(weight) for task, weight in manifest["objective"].items()},
            str(details.get("selection", details["model"]["gate"])["kind"]),
            str(details["made_by"]),
            str(details["trained_until"]),
            dict(details["flops"]),
        )


def read_evaluation(path: Path, model: str, version: int) -> dict[str, Any] | None:
    """Read the evaluation of a version; None if it has none.

    Raises:
        BundleError: the evaluation cannot be read.
    """
    content = _read_document(path, model, version, bundle.EVALUATION)
    if content is None:
        return None
    with bundle.as_bundle_error(repository.bundle_folder(path, model, version)):
        evaluation = _parse(content)
        if not all(isinstance(metrics, dict) for metrics in evaluation["tasks"].values()):
            raise ValueError(f"{bundle.EVALUATION} is not an evaluation")
        return evaluation


def read_report(path: Path, model: str, version: int) -> bytes | None:
    """Read the report of a version; None if it has none.

    Raises:
        BundleError: the report cannot be read.
    """
    return _read_document(path, model, version, bundle.REPORT)


def has_report(path: Path, model: str, version: int) -> bool:
    """Whether a version has a report."""
    return (repository.bundle_folder(path, model, version) / bundle.REPORT).is_file()


def published_at(path: Path, model: str, version: int) -> datetime | None:
    """Return the time at which a version was published; None if it cannot be read."""
    try:
        status = repository.bundle_folder(path, model, version).stat()
    except (BundleError, OSError):
        return None
    return datetime.fromtimestamp(status.st_mtime, UTC)


def _read_document(path: Path, model: str, version: int, name: str) -> bytes | None:
    folder = repository.bundle_folder(path, model, version)
    if not (folder / name).exists():
        return None
    with bundle.as_bundle_error(folder):
        return read_regular(folder / name, MAX_DOCUMENT_BYTES)


def _parse(content: bytes) -> dict[str, Any]:
    """Parse a JSON object; unlike ``json.loads``, reject NaN and infinity, which a response cannot contain."""
    document = json.loads(content, parse_constant=_reject)
    if not isinstance(document, dict):
        raise ValueError("a document is not a JSON object")
    return document


def _reject(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")
