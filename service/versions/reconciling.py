"""What is served follows what is to be served: versions are loaded, swapped, and refused if they do not verify."""

from __future__ import annotations

import gc
import logging
import threading
from dataclasses import dataclass
from weakref import WeakValueDictionary

from ranking import repository
from ranking.errors import BundleError, RankerError
from ranking.release import CURRENT, Release
from service.settings import Settings
from service.telemetry.metrics import Metrics
from service.versions.lineup import Lineup
from service.versions.loading import load, required_models
from service.versions.models import Models
from service.versions.served import Served
from service.versions.signature import Signature, signature

log = logging.getLogger("ranker.service")


@dataclass(frozen=True)
class Refusal:
    """A version, or a model's current.json, that cannot be served.

    Attributes:
        reason: why.
        files: as they were; while they stay so nobody tries again.
    """

    reason: str
    files: Signature


class Reconciler:
    """Makes what is served what is to be served; one thread at a time, requests do not wait for it.

    A version that cannot be loaded is refused: logged and counted once, and what answered before goes on. A model that
    is taken away, or whose current.json cannot be read, is served as before too.

    Args:
        settings: which repository, and what executes its models.
        models: what is served.
        metrics: where loads and refusals are counted.

    Attributes:
        loading: model and version that is being loaded.
        refused: model and version → why; version 0 stands for its current.json.
        retired: model and version → what does not answer any longer, but has not answered its last request.
    """

    def __init__(self, settings: Settings, models: Models, metrics: Metrics) -> None:
        self._settings, self._models, self._metrics = settings, models, metrics
        self._turn = threading.Lock()
        self.loading: tuple[str, int] | None = None
        self.refused: dict[tuple[str, int], Refusal] = {}
        self.retired: WeakValueDictionary[tuple[str, int], Served] = WeakValueDictionary()

    def first(self) -> None:
        """Looks for the first time; then the models are ready.

        Raises:
            BundleError: no model can be served, or not the default one.
        """
        self.look()
        names = required_models(self._settings)
        if not any(self._models.lineup(name) for name in names):
            raise BundleError(next(r.reason for (name, _), r in self.refused.items() if name in names))
        self._models.loaded()

    def look(self) -> None:
        """Looks at every model of the repository.

        Raises:
            BundleError: there is no repository.
        """
        with self._turn:
            names = repository.names(self._settings.repository)
            for name in names:
                if name not in self._models:
                    self._models.replace(name, None)
            for name in names:
                self._follow(name)

    def look_again(self, name: str) -> None:
        """Looks at one model, also at what was refused before.

        Raises:
            BundleError: what is to be served cannot be; names the first that cannot and why.
        """
        with self._turn:
            for key in [key for key in self.refused if key[0] == name]:
                del self.refused[key]
            self._follow(name)
            for (refused, _), refusal in self.refused.items():
                if refused == name:
                    raise BundleError(refusal.reason)

    def _follow(self, name: str) -> None:
        file = self._settings.repository / name / CURRENT
        seen = signature(file)
        try:
            release = repository.release(self._settings.repository, name)
        except RankerError as error:
            self._refuse(name, 0, error, seen)
            return
        for key in [key for key in self.refused if key[0] == name and key[1] not in release.versions]:
            del self.refused[key]
        self._arrange(name, release)  # what is loaded takes its new role at once
        for version in release.versions:
            if not self._is_loaded(name, version):
                self._arrange(name, release, self._loaded(name, version))

    def _is_loaded(self, name: str, version: int) -> bool:
        lineup = self._models.lineup(name)
        return lineup is not None and str(version) in lineup.versions

    def _loaded(self, name: str, version: int) -> Served | None:
        """The version, None if it is refused."""
        model = self._settings.repository / name
        seen = signature(model / str(version), model / CURRENT)
        known = self.refused.get((name, version))
        if known is not None and known.files == seen:
            return None
        self.loading = (name, version)
        try:
            served = load(self._settings, name, version)
        except Exception as error:  # whatever it is, the old version goes on
            self._refuse(name, version, error, seen)
            return None
        finally:
            self.loading = None
        self.refused.pop((name, version), None)
        log.info("loaded %s version %s on %s in %.2f s", name, version, served.runtime.backend, served.load_seconds)
        return served

    def _refuse(self, name: str, version: int, error: Exception, seen: Signature) -> None:
        """Notes why something cannot be served, unless that is known."""
        known = self.refused.get((name, version))
        if known is not None and known.files == seen:
            return
        self.refused[name, version] = Refusal(str(error) or type(error).__name__, seen)
        self._metrics.load_failures.labels(name).inc()
        what = f"version {version} of" if version else "what is to be served of"
        unexpected = None if isinstance(error, RankerError) else error
        log.error("%s '%s' is refused: %s", what, name, error, exc_info=unexpected)

    def _arrange(self, name: str, release: Release, new: Served | None = None) -> None:
        """Gives what is loaded the roles of the release; who has none left is retired."""
        before = self._models.lineup(name)
        there = dict(before.versions) if before else {}
        if new is not None:
            there[new.version] = new
        current = there.get(str(release.version), before.current if before else None)
        if current is None:
            return
        canary = there.get(str(release.canary.version)) if release.canary else None
        weight = release.canary.weight if release.canary and canary else 0.0
        shadow = there.get(str(release.shadow)) if release.shadow else None
        after = Lineup(current, canary, weight, shadow)
        if after == before:
            return
        if new is not None:
            _hide_from_collector(collect_all=bool(self.retired))
        self._models.replace(name, after)
        for served in there.values():
            if served.version not in after.versions:
                self.retired[name, int(served.version)] = served
        self._tell(name, before, after)

    def _tell(self, name: str, before: Lineup | None, after: Lineup) -> None:
        old, new = dict(before.roles) if before else {}, dict(after.roles)
        for role, served in old.items():
            if new.get(role) is not served:
                self._metrics.unloaded(name, served.version, role)
        for role, served in new.items():
            if old.get(role) is not served:
                self._metrics.loaded(served, role)
        shares = f", version {after.canary.version} answers {after.weight:.1%} of it" if after.canary else ""
        shadow = f", version {after.shadow.version} is its shadow" if after.shadow else ""
        log.info("serving %s version %s%s%s", name, after.current.version, shares, shadow)


def _hide_from_collector(*, collect_all: bool) -> None:
    """Keeps collections from walking over a version that stays, if the process hides what stays.

    Args:
        collect_all: what was hidden earlier is collected too, lest a version stay for ever that is part of a cycle.
    """
    if gc.get_freeze_count():
        if collect_all:
            gc.unfreeze()
        gc.collect()
        gc.freeze()
