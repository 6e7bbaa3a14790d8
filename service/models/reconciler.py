"""What is served follows what is to be served: versions are loaded, swapped, and refused if they do not verify."""

from __future__ import annotations

import gc
import logging
import threading
from dataclasses import dataclass
from weakref import WeakValueDictionary

from ranking.artifacts import repository
from ranking.artifacts.release import CURRENT, Release
from ranking.errors import BundleError, RankerError
from service.engine.model import LoadedModel
from service.models.loader import load, required_models
from service.models.registry import ModelRegistry
from service.models.routing import ModelRouting
from service.models.signature import Signature, signature
from service.settings import Settings
from service.telemetry.metrics import Metrics

log = logging.getLogger("ranker.service")


@dataclass(frozen=True)
class RejectedVersion:
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

    def __init__(self, settings: Settings, models: ModelRegistry, metrics: Metrics) -> None:
        self._settings, self._models, self._metrics = settings, models, metrics
        self._turn = threading.Lock()
        self.loading: tuple[str, int] | None = None
        self.rejected: dict[tuple[str, int], RejectedVersion] = {}
        self.retired: WeakValueDictionary[tuple[str, int], LoadedModel] = WeakValueDictionary()

    def first(self) -> None:
        """Looks for the first time; then the models are ready.

        Raises:
            BundleError: no model can be served, or not the default one.
        """
        self.poll()
        names = required_models(self._settings)
        if not any(self._models.routing(name) for name in names):
            raise BundleError(next(r.reason for (name, _), r in self.rejected.items() if name in names))
        self._models.loaded()

    def poll(self) -> None:
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
                self._sync(name)

    def reload(self, name: str) -> None:
        """Looks at one model, also at what was refused before.

        Raises:
            BundleError: what is to be served cannot be; names the first that cannot and why.
        """
        with self._turn:
            for key in [key for key in self.rejected if key[0] == name]:
                del self.rejected[key]
            self._sync(name)
            for (refused, _), refusal in self.rejected.items():
                if refused == name:
                    raise BundleError(refusal.reason)

    def _sync(self, name: str) -> None:
        file = self._settings.repository / name / CURRENT
        seen = signature(file)
        try:
            release = repository.release(self._settings.repository, name)
        except RankerError as error:
            self._reject(name, 0, error, seen)
            return
        for key in [key for key in self.rejected if key[0] == name and key[1] not in release.versions]:
            del self.rejected[key]
        self._apply(name, release)  # what is loaded takes its new role at once
        for version in release.versions:
            if not self._is_loaded(name, version):
                self._apply(name, release, self._loaded(name, version))

    def _is_loaded(self, name: str, version: int) -> bool:
        lineup = self._models.routing(name)
        return lineup is not None and str(version) in lineup.versions

    def _loaded(self, name: str, version: int) -> LoadedModel | None:
        """The version, None if it is refused."""
        model = self._settings.repository / name
        seen = signature(model / str(version), model / CURRENT)
        known = self.rejected.get((name, version))
        if known is not None and known.files == seen:
            return None
        self.loading = (name, version)
        try:
            served = load(self._settings, name, version)
        except Exception as error:  # whatever it is, the old version goes on
            self._reject(name, version, error, seen)
            return None
        finally:
            self.loading = None
        self.rejected.pop((name, version), None)
        log.info("loaded %s version %s on %s in %.2f s", name, version, served.backend.backend, served.load_seconds)
        return served

    def _reject(self, name: str, version: int, error: Exception, seen: Signature) -> None:
        """Notes why something cannot be served, unless that is known."""
        known = self.rejected.get((name, version))
        if known is not None and known.files == seen:
            return
        self.rejected[name, version] = RejectedVersion(str(error) or type(error).__name__, seen)
        self._metrics.load_failures.labels(name).inc()
        what = f"version {version} of" if version else "what is to be served of"
        unexpected = None if isinstance(error, RankerError) else error
        log.error("%s '%s' is refused: %s", what, name, error, exc_info=unexpected)

    def _apply(self, name: str, release: Release, new: LoadedModel | None = None) -> None:
        """Gives what is loaded the roles of the release; who has none left is retired."""
        before = self._models.routing(name)
        there = dict(before.versions) if before else {}
        if new is not None:
            there[new.version] = new
        current = there.get(str(release.version), before.current if before else None)
        if current is None:
            return
        canary = there.get(str(release.canary.version)) if release.canary else None
        weight = release.canary.weight if release.canary and canary else 0.0
        shadow = there.get(str(release.shadow)) if release.shadow else None
        after = ModelRouting(current, canary, weight, shadow)
        if after == before:
            return
        if new is not None:
            _hide_from_collector(collect_all=bool(self.retired))
        self._models.replace(name, after)
        for served in there.values():
            if served.version not in after.versions:
                self.retired[name, int(served.version)] = served
        self._report(name, before, after)

    def _report(self, name: str, before: ModelRouting | None, after: ModelRouting) -> None:
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
