"""State of every version in the repository; names and states follow Triton's repository index."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import BaseModel

from ranking.artifacts import repository
from service.models.reconciler import Reconciler
from service.models.registry import ModelRegistry
from service.models.routing import Role

State = Literal["READY", "LOADING", "UNLOADING", "UNAVAILABLE"]


class VersionEntry(BaseModel):
    """State of one version.

    ``UNLOADING``: the version finishes its last requests. ``UNAVAILABLE``: the version is not released, or is rejected
    for the given reason.
    """

    name: str
    version: str
    state: State
    reason: str = ""
    roles: list[Role] = []


def index_repository(path: Path, models: ModelRegistry, reconciler: Reconciler) -> list[VersionEntry]:
    """Return the versions of all models.

    Raises:
        BundleError: The repository does not exist.
    """
    return [entry for name in repository.list_models(path) for entry in index_model(path, name, models, reconciler)]


def index_model(path: Path, name: str, models: ModelRegistry, reconciler: Reconciler) -> list[VersionEntry]:
    """Return the versions of one model. An entry with an empty version stands for an unreadable current.json."""
    routing = models.routing(name)
    roles: dict[str, list[Role]] = {}
    for role, model in routing.roles if routing else ():
        roles.setdefault(model.version, []).append(role)
    reasons = {
        version: entry.reason.replace(f"{path}/", "")
        for (model_name, version), entry in reconciler.rejected.copy().items()
        if model_name == name
    }
    numbers = {*repository.list_versions(path, name), *reasons, *map(int, roles)}
    entries = []
    for number in sorted(numbers):
        version, reason = str(number) if number else "", reasons.get(number, "")
        entry = VersionEntry(name=name, version=version, state="UNAVAILABLE", reason=reason or "not released")
        if version in roles:
            entry = VersionEntry(name=name, version=version, state="READY", reason=reason, roles=roles[version])
        elif reconciler.loading == (name, number):
            entry = VersionEntry(name=name, version=version, state="LOADING")
        elif (name, number) in reconciler.retired:
            entry = VersionEntry(name=name, version=version, state="UNLOADING")
        entries.append(entry)
    return entries
