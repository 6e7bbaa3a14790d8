"""Release of a model: the versions that services load, stored as ``current.json``."""

from __future__ import annotations

from typing import Annotated, Any, Self

from pydantic import Field, ValidationError, model_validator

from ranking.errors import BundleError
from ranking.schema.base import ListOf, StrictModel
from ranking.schema.validation_errors import format_validation_error

CURRENT = "current.json"
FALLBACKS = "fallbacks.json"

MAX_FALLBACKS = 3
"""Maximum number of fallbacks of a release."""

Version = Annotated[int, Field(ge=1, lt=2**63)]


class Canary(StrictModel):
    """Version that answers a share of the requests.

    Attributes:
        version: number of the version.
        weight: share of the requests, 0 to 1.
    """

    version: Version
    weight: Annotated[float, Field(ge=0, le=1)]


class Release(StrictModel):
    """Versions of a model that services load.

    Attributes:
        version: current version, which answers all requests except the canary's share.
        pinned: whether publishing keeps the current version instead of replacing it.
        canary: version that answers a share of the requests.
        shadow: version that also scores requests, for comparison only.
    """

    version: Version
    pinned: bool = False
    canary: Canary | None = None
    shadow: Version | None = None

    @property
    def versions(self) -> list[int]:
        """All versions of the release without duplicates, the current one first."""
        optional = [self.canary.version if self.canary else None, self.shadow]
        return list(dict.fromkeys([self.version, *(version for version in optional if version is not None)]))

    def promoted(self, version: int) -> Release:
        """Return the release with this version as the current one and no longer as canary or shadow."""
        return Release(
            version=version,
            pinned=self.pinned,
            canary=None if self.canary and self.canary.version == version else self.canary,
            shadow=None if self.shadow in (version, self.canary and self.canary.version) else self.shadow,
        )

    @model_validator(mode="after")
    def _check_roles(self) -> Self:
        for role, version in (("canary", self.canary and self.canary.version), ("shadow", self.shadow)):
            if version == self.version:
                raise ValueError(
                    f"version {version} cannot be both the current version and the {role}: remove the {role}"
                )
        return self

    def to_json(self) -> dict[str, Any]:
        """Return the content of ``current.json``; defaults are omitted, so the shortest form has only ``version``."""
        return self.model_dump(exclude_defaults=True)


class Fallbacks(StrictModel):
    """Versions that a process serves if it can load no version of the release, stored as ``fallbacks.json``.

    They are not part of ``current.json`` because earlier versions of this software reject unknown keys.

    Attributes:
        versions: versions that were current before and are older than the current one, newest first.
    """

    versions: ListOf[Version] = ()

    def after_release(self, previous: int | None, version: int) -> Fallbacks:
        """Return the fallbacks once this version replaces the previous one.

        A rollback removes newer versions from the list, because they were probably rolled back for a reason.
        """
        earlier = {*self.versions, *(() if previous is None else (previous,))}
        return Fallbacks(versions=tuple(sorted((v for v in earlier if v < version), reverse=True)[:MAX_FALLBACKS]))


def parse_release(document: Any, source: str) -> Release:
    """Validate a release from JSON.

    Args:
        document: parsed JSON.
        source: name of the document, with which error messages begin.

    Raises:
        BundleError: the document is not a release; names the field.
    """
    if not isinstance(document, dict):
        raise BundleError(
            f"{source} is damaged: it should read {{\"version\": N}}; 'ranker release … --version N' restores it"
        )
    try:
        return Release.model_validate(document)
    except ValidationError as error:
        raise BundleError(f"{source}: {format_validation_error(error, document)}") from None
