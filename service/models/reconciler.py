"""Reconciles the served versions with the releases in the repository."""

from __future__ import annotations

import gc
import logging
import threading
from collections.abc import Callable, Collection
from dataclasses import dataclass
from weakref import WeakValueDictionary

from ranking.artifacts import repository
from ranking.artifacts.release import CURRENT, Release
from ranking.errors import BundleError, RankerError
from service.engine.model import LoadedModel
from service.models.loader import FileSignature, file_signature, load_model, required_models
from service.models.registry import ModelRegistry, ModelRouting
from service.settings import Settings
from service.telemetry.metrics import Metrics

log = logging.getLogger("ranker.service")


@dataclass(frozen=True)
class RejectedVersion:
    """A version, or a model's current.json, that cannot be served.

    Attributes:
        reason: Error message.
        files: Signature of the files at the time; loading is retried when it changes.
    """

    reason: str
    files: FileSignature


class Reconciler:
    """Loads released versions and routes requests to them. One thread at a time reconciles; requests never wait for it.

    Processes do not coordinate: each polls ``current.json`` and converges to the same state. A version that cannot be
    loaded is rejected: it is logged and counted once, and the previous version continues to serve. A model whose folder
    is removed, or whose current.json cannot be read, also continues to be served.

    Args:
        settings: Settings of the service.
        models: Registry to update.
        metrics: Metrics of the service.

    Attributes:
        loading: (model, version) that is being loaded, or None.
        rejected: (model, version) → reason; version 0 stands for the model's current.json.
        retired: (model, version) → version without a role that still has requests in progress.
    """

    def __init__(self, settings: Settings, models: ModelRegistry, metrics: Metrics) -> None:
        self._settings, self._models, self._metrics = settings, models, metrics
        self._lock = threading.Lock()
        self.loading: tuple[str, int] | None = None
        self.rejected: dict[tuple[str, int], RejectedVersion] = {}
        self.retired: WeakValueDictionary[tuple[str, int], LoadedModel] = WeakValueDictionary()

    def load_initial(self) -> None:
        """Load all models for the first time and mark the registry as loaded.

        Raises:
            BundleError: No model can be served, or not the default model.
        """
        self.poll()
        names = required_models(self._settings)
        if not any(self._models.routing(name) for name in names):
            raise BundleError(next(entry.reason for (name, _), entry in self.rejected.items() if name in names))
        self._models.mark_loaded()

    def poll(self) -> None:
        """Reconcile every model of the repository.

        Raises:
            BundleError: The repository does not exist.
        """
        with self._lock:
            names = repository.list_models(self._settings.repository)
            for name in names:
                if name not in self._models:
                    self._models.replace(name, None)
            for name in names:
                self._sync(name)

    def reload(self, name: str) -> None:
        """Reconcile one model, and retry its rejected versions.

        Raises:
            BundleError: A released version is rejected; the message names the first one and the reason.
        """
        with self._lock:
            self._forget_rejections(name)
            self._sync(name)
            for (model, _), entry in self.rejected.items():
                if model == name:
                    raise BundleError(entry.reason)

    def _sync(self, name: str) -> None:
        files = file_signature(self._settings.repository / name / CURRENT)
        try:
            release = repository.read_release(self._settings.repository, name)
        except RankerError as error:
            self._reject(name, 0, error, files)
            return
        self._forget_rejections(name, keep=release.versions)
        self._apply(name, release)  # versions that are loaded change roles immediately
        for version in release.versions:
            routing = self._models.routing(name)
            if routing is None or str(version) not in routing.versions:
                self._apply(name, release, self._load(name, version))

    def _forget_rejections(self, name: str, keep: Collection[int] = ()) -> None:
        for key in [key for key in self.rejected if key[0] == name and key[1] not in keep]:
            del self.rejected[key]

    def _load(self, name: str, version: int) -> LoadedModel | None:
        """Return the loaded version, or None if it is rejected."""
        folder = self._settings.repository / name
        files = file_signature(folder / str(version), folder / CURRENT)
        if self._is_rejected(name, version, files):
            return None
        self.loading = (name, version)
        try:
            model = load_model(self._settings, name, version)
        except Exception as error:  # whatever the error is, the previous version continues to serve
            self._reject(name, version, error, files)
            return None
        finally:
            self.loading = None
        self.rejected.pop((name, version), None)
        log.info("loaded %s version %s on %s in %.2f s", name, version, model.backend.name, model.load_seconds)
        return model

    def _is_rejected(self, name: str, version: int, files: FileSignature) -> bool:
        """Whether a version was rejected with exactly these files."""
        entry = self.rejected.get((name, version))
        return entry is not None and entry.files == files

    def _reject(self, name: str, version: int, error: Exception, files: FileSignature) -> None:
        """Record, count and log a rejection unless it is already known."""
        if self._is_rejected(name, version, files):
            return
        self.rejected[name, version] = RejectedVersion(str(error) or type(error).__name__, files)
        self._metrics.load_failures.labels(name).inc()
        subject = f"version {version}" if version else CURRENT
        unexpected = None if isinstance(error, RankerError) else error
        log.error("rejected %s of '%s': %s", subject, name, error, exc_info=unexpected)

    def _apply(self, name: str, release: Release, new: LoadedModel | None = None) -> None:
        """Assign the roles of a release to the loaded versions, and retire versions without a role.

        Args:
            name: Name of the model.
            release: Release to apply.
            new: Version that was just loaded, if any.
        """
        before = self._models.routing(name)
        loaded = dict(before.versions) if before else {}
        if new is not None:
            loaded[new.version] = new
        current = loaded.get(str(release.version), before.current if before else None)
        if current is None:
            return
        canary = loaded.get(str(release.canary.version)) if release.canary else None
        weight = release.canary.weight if release.canary and canary else 0.0
        shadow = loaded.get(str(release.shadow)) if release.shadow else None
        after = ModelRouting(current, canary, weight, shadow)
        if after == before:
            return
        if new is not None:
            _freeze_objects(collect_all=bool(self.retired))
        self._models.replace(name, after)
        for model in loaded.values():
            if model.version not in after.versions:
                self.retired[name, int(model.version)] = model
        self._report(name, before, after)

    def _report(self, name: str, before: ModelRouting | None, after: ModelRouting) -> None:
        """Record a change of routing in metrics and log."""
        old, new = dict(before.roles) if before else {}, dict(after.roles)
        for role, model in old.items():
            if new.get(role) is not model:
                self._metrics.record_unloaded(name, model.version, role)
        for role, model in new.items():
            if old.get(role) is not model:
                experts = len(model.ranker.selection.experts_used)
                self._metrics.record_loaded(name, model.version, role, model.load_seconds, experts)
        canary = f", canary version {after.canary.version} with weight {after.weight:.1%}" if after.canary else ""
        shadow = f", shadow version {after.shadow.version}" if after.shadow else ""
        log.info("serving %s version %s%s%s", name, after.current.version, canary, shadow)


class Watcher:
    """Polls the repository on a background thread.

    Args:
        reconciler: Reconciler of this process.
        poll_seconds: Seconds between polls.
        on_startup_failure: Called from the thread if the initial load finds no model to serve. None if the initial load
            has been made.
    """

    def __init__(
        self, reconciler: Reconciler, poll_seconds: float, on_startup_failure: Callable[[Exception], None] | None = None
    ) -> None:
        self._reconciler, self._poll_seconds = reconciler, poll_seconds
        self._on_startup_failure = on_startup_failure
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watcher", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread after the version that it is loading, if any."""
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        if self._on_startup_failure is not None:
            try:
                self._reconciler.load_initial()
            except Exception as error:
                self._on_startup_failure(error)
                return
        logged = ""
        while not self._stopped.wait(self._poll_seconds):
            try:
                self._reconciler.poll()
                logged = ""
            except Exception as error:  # for example an unavailable network filesystem
                if str(error) != logged:
                    log.exception("the repository cannot be read; the loaded versions continue to serve")
                logged = str(error)


def _freeze_objects(*, collect_all: bool) -> None:
    """Exclude all current objects from garbage collection, if this process freezes objects.

    Args:
        collect_all: Collect frozen objects first, so that versions in reference cycles are freed.
    """
    if gc.get_freeze_count():
        if collect_all:
            gc.unfreeze()
        gc.collect()
        gc.freeze()
