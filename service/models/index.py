"""Every version of every model in the repository, and how it stands with it; names and states are Triton's."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from pydantic import BaseModel

from ranking.artifacts import repository
from service.models.reconciler import Reconciler
from service.models.registry import ModelRegistry
from service.models.routing import Role

State = Literal["READY", "LOADING", "UNLOADING", "UNAVAILABLE"]


class VersionEntry(BaseModel):
    """One version.

    ``UNLOADING`` answers its last requests; ``UNAVAILABLE`` is refused, as the reason says, or nobody released it.
    """

    name: str
    version: str
    state: State
    reason: str = ""
    roles: list[Role] = []


def index(path: Path, models: ModelRegistry, reconciler: Reconciler) -> list[VersionEntry]:
    """Entries of all models; one without a version is a current.json that cannot be read.

    Raises:
        BundleError: there is no repository.
    """
    return [entry for name in repository.names(path) for entry in entries(path, name, models, reconciler)]


def entries(path: Path, name: str, models: ModelRegistry, reconciler: Reconciler) -> Iterator[VersionEntry]:
    """Entries of one model."""
    lineup = models.routing(name)
    roles: dict[str, list[Role]] = {}
    for role, served in lineup.roles if lineup else ():
        roles.setdefault(served.version, []).append(role)
    refused = {
        version: refusal.reason for (model, version), refusal in reconciler.rejected.copy().items() if model == name
    }
    there = set(repository.versions(path, name)) | refused.keys() | {int(version) for version in roles}
    for version in sorted(there):
        text = str(version) if version else ""
        reason = refused.get(version, "").replace(f"{path}/", "")
        if text in roles:
            yield VersionEntry(name=name, version=text, state="READY", reason=reason, roles=roles[text])
        elif reconciler.loading == (name, version):
            yield VersionEntry(name=name, version=text, state="LOADING")
        elif (name, version) in reconciler.retired:
            yield VersionEntry(name=name, version=text, state="UNLOADING")
        else:
            yield VersionEntry(name=name, version=text, state="UNAVAILABLE", reason=reason or "not released")
