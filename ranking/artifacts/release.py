"""What is to be served of a model: ``current.json``, a wish that publishers and operators write and services follow."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import Field, ValidationError, model_validator

from ranking.artifacts.atomic_files import os_error_text, write_json
from ranking.errors import BundleError
from ranking.schema.base import StrictModel
from ranking.schema.validation_errors import format_validation_error

CURRENT = "current.json"

Version = Annotated[int, Field(ge=1, lt=2**63)]


class Canary(StrictModel):
    """A version that answers a share of the requests.

    Attributes:
        version: which.
        weight: the share, 0 to 1.
    """

    version: Version
    weight: Annotated[float, Field(ge=0, le=1)]


class Release(StrictModel):
    """Which versions of a model are to be served.

    Attributes:
        version: answers, but for the canary's share.
        pinned: a newly published version does not become the current one.
        canary: answers a share.
        shadow: version that scores what others answered, for comparison only.
    """

    version: Version
    pinned: bool = False
    canary: Canary | None = None
    shadow: Version | None = None

    @property
    def versions(self) -> list[int]:
        """Every version that is to be served, the current one first; each once."""
        others = [self.canary.version if self.canary else None, self.shadow]
        return list(dict.fromkeys([self.version, *(version for version in others if version is not None)]))

    def promoted(self, version: int) -> Release:
        """With this version current; as a canary or shadow it has served its purpose."""
        return Release(
            version=version,
            pinned=self.pinned,
            canary=None if self.canary and self.canary.version == version else self.canary,
            shadow=None if self.shadow == version else self.shadow,
        )

    @model_validator(mode="after")
    def _others_are_others(self) -> Self:
        for role, other in (("canary", self.canary and self.canary.version), ("shadow", self.shadow)):
            if other == self.version:
                raise ValueError(f"version {other} cannot be both the current one and the {role}: leave the {role} out")
        return self

    def to_json(self) -> dict[str, Any]:
        """As ``current.json`` has it: what is not set is not there, so that its simplest form names a version only."""
        return self.model_dump(exclude_defaults=True)


def parse(document: Any, where: str) -> Release:
    """A release from JSON.

    Raises:
        BundleError: it is none; begins with ``where`` and names the field.
    """
    if not isinstance(document, dict):
        raise BundleError(
            f"{where} is damaged: it should read {{\"version\": N}}; 'ranker release … --version N' writes it anew"
        )
    try:
        return Release.model_validate(document)
    except ValidationError as error:
        raise BundleError(f"{where}: {format_validation_error(error, document)}") from None


def read(model: Path) -> Release:
    """The release of a model's folder.

    Raises:
        BundleError: there is none, or ``current.json`` is damaged.
    """
    file = model / CURRENT
    try:
        document = json.loads(file.read_bytes())
    except FileNotFoundError:
        raise BundleError(f"{file} is not there: publish a bundle with 'ranker publish'") from None
    except OSError as error:
        raise BundleError(f"{file} cannot be read ({os_error_text(error)})") from None
    except (ValueError, RecursionError):  # no JSON, no text
        document = None
    return parse(document, str(file))


def write(release: Release, model: Path) -> None:
    """Replaces ``current.json`` at once; the caller holds ``repository.changing``.

    Raises:
        OutputError: it cannot be written.
    """
    write_json(release.to_json(), model / CURRENT)
