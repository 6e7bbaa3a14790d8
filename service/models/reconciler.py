"""Reconciles the served versions with the releases in the repository."""

from __future__ import annotations

import gc
import logging
import threading
from collections.abc import Mapping, Sequence
from weakref import WeakValueDictionary

from ranking.artifacts import repository
from ranking.artifacts.checksums import file_signature, verify_files
from ranking.artifacts.default_model import read_default_model
from ranking.artifacts.release import CURRENT, Release
from ranking.errors import BundleError, RankerError
from service.engine.model import LoadedModel
from service.models.loader import check_repository, load_model, open_remote
from service.models.registry import ModelRegistry, ModelRouting
from service.models.rejected_versions import RejectedVersions
from service.settings import Settings
from service.telemetry.metrics import Metrics

log = logging.getLogger("ranker.service")


class Reconciler:
    """Loads released versions and routes requests to them. One thread at a time reconciles; requests never wait for it.

    Processes do not coordinate: each polls ``current.json`` and converges to the same state. A version that cannot be
    loaded is rejected: it is logged and counted once, and the previous version continues to serve. If there is none,
    the newest fallback that can be loaded serves. A model whose folder is removed, or whose current.json cannot be
    read, also continues to be served.

    Args:
        settings: settings of the service.
        models: registry to update.
        metrics: metrics of the service.

    Attributes:
        loading: (model, version) that is being loaded, or None.
        rejected: versions that cannot be served.
        retired: (model, version) → version without a role that still has requests in progress.
    """

    def __init__(self, settings: Settings, models: ModelRegistry, metrics: Metrics) -> None:
        self._settings, self._models, self._metrics = settings, models, metrics
        self._remote = open_remote(settings)
        self._lock = threading.Lock()
        self._logged: dict[str, str] = {}  # Last message by subject.
        self.loading: tuple[str, int] | None = None
        self.rejected = RejectedVersions(metrics)
        self.retired: WeakValueDictionary[tuple[str, int], LoadedModel] = WeakValueDictionary()

    def load_initial(self) -> None:
        """Load all models for the first time.

        Raises:
            BundleError: no model can be served, or not the default model.
        """
        check_repository(self._settings)
        self.poll()
        if not self._models.ready:
            raise BundleError(self._unready_reason())

    def poll(self) -> None:
        """Reconcile every model of the repository. Once the default model is served, the registry is ready.

        Raises:
            BundleError: the repository does not exist, or a copy of it cannot be updated.
            OutputError: the copy cannot be written.
        """
        with self._lock:
            if self._remote is not None and not self._models.ready and self._settings.repository.is_dir():
                self._reconcile(is_current=False)  # Serve what is there while newer versions are copied.
            failure = self._update_copy()
            self._reconcile(is_current=failure is None)
        if failure is not None:
            raise failure

    def reload(self, name: str) -> None:
        """Reconcile one model, and retry its rejected versions.

        Raises:
            BundleError: a released version is rejected; the message names the first one and the reason.
            RankerError: a copy of the repository cannot be updated.
        """
        with self._lock:
            failure = self._update_copy()
            self.rejected.remove_all(name)
            self._sync(name, self._read_release(name))
            self._mark_loaded()
            for reason in self.rejected.reasons(name).values():
                raise BundleError(reason)
        if failure is not None:
            raise failure

    def release(self, name: str, release: Release) -> None:
        """Verify all versions of a release, replace the model's release by it, and serve it.

        Raises:
            BundleError: a version is not published or cannot be served, or the repository is a copy; the release is
                then unchanged.
            OutputError: the repository cannot be written.
        """
        path = self._settings.repository
        if self._remote is not None:
            raise BundleError(
                f"this repository is a copy of {self._remote.location}: change the release there with 'ranker release' "
                "and 'ranker push'"
            )
        with self._lock, repository.lock_model(path, name):
            repository.check_published(path, name, release)
            verified = {}
            for version in release.versions:
                if self._is_loaded(name, version):  # A service that starts later must be able to load it, too.
                    verify_files(repository.bundle_folder(path, name, version))
                else:
                    verified[version] = self._verify(name, version)
            repository.write_release(path, name, release)
            self.rejected.remove_all(name)
            self._sync(name, release, verified)
            self._mark_loaded()

    def _reconcile(self, *, is_current: bool) -> None:
        """Serve the releases of the folder; ``is_current``: it is not a copy, or one that was just updated."""
        names = repository.list_models(self._settings.repository)
        for name in names:
            if name not in self._models:
                self._models.replace(name, None)
        has_default = self._sync_default()
        releases = {name: self._read_release(name) for name in names}
        if is_current and has_default and None not in releases.values():
            self._metrics.repository_read.set_to_current_time()
        for name, release in releases.items():
            self._sync(name, release)
        self._mark_loaded()

    def _update_copy(self) -> RankerError | None:
        """Update the copy of a repository in object storage, if it is one; return the error, if any."""
        try:
            if self._remote is not None:
                self._remote.pull(self._settings.repository, overwrite=True, keep_days=0)
        except RankerError as error:
            return error
        return None

    def _verify(self, name: str, version: int) -> LoadedModel:
        """Return the loaded version, or raise BundleError, also for unexpected errors."""
        try:
            return load_model(self._settings, name, version)
        except RankerError:
            raise
        except Exception as error:
            log.exception("version %s of '%s' cannot be loaded", version, name)
            raise BundleError(f"version {version} cannot be loaded: {str(error) or type(error).__name__}") from error

    def _sync_default(self) -> bool:
        """Adopt the default model of the repository; return whether it could be read."""
        try:
            default = read_default_model(self._settings.repository)
        except RankerError as error:
            self._log_once("default", f"the default model is unchanged: {error}")
            return False
        self._logged.pop("default", None)
        if default is not None:  # A file that was removed is like a damaged one: the default is unchanged.
            self._models.set_default(default)
        return True

    def _read_release(self, name: str) -> Release | None:
        """Return the release of a model, or None if it is rejected."""
        files = file_signature(self._settings.repository / name / CURRENT)
        try:
            return repository.read_release(self._settings.repository, name)
        except RankerError as error:
            self.rejected.add(name, 0, error, files)
            return None

    def _sync(self, name: str, release: Release | None, verified: Mapping[int, LoadedModel] | None = None) -> None:
        """Serve a release of a model, or a fallback if no other version of the model can be served.

        Args:
            name: name of the model.
            release: release to serve; None if it is rejected.
            verified: versions of the release that are already loaded but not served.
        """
        fallbacks = [] if self._models.routing(name) else self._read_fallbacks(name)
        if release is not None:
            self.rejected.remove_all(name, keep=[*release.versions, *fallbacks])
            self._apply(name, release)  # versions that are loaded change roles immediately
            self._load_roles(name, release, [release.version], verified or {})
        if self._models.routing(name) is None:
            self._serve_fallback(name, fallbacks)
        if release is not None and self._models.routing(name) is not None:
            self._load_roles(name, release, release.versions[1:], verified or {})

    def _load_roles(
        self, name: str, release: Release, versions: Sequence[int], verified: Mapping[int, LoadedModel]
    ) -> None:
        """Load those of these versions that are not loaded, and apply the release after each."""
        for version in versions:
            if not self._is_loaded(name, version):
                self._apply(name, release, verified.get(version) or self._load(name, version))

    def _is_loaded(self, name: str, version: int) -> bool:
        routing = self._models.routing(name)
        return routing is not None and str(version) in routing.versions

    def _read_fallbacks(self, name: str) -> list[int]:
        try:
            return repository.read_fallbacks(self._settings.repository, name)
        except RankerError as error:
            self._log_once(f"fallbacks of {name}", str(error))
            return []

    def _serve_fallback(self, name: str, versions: Sequence[int]) -> None:
        """Serve the first of these versions that can be loaded, if any."""
        for version in versions:
            model = self._load(name, version)
            if model is not None:
                log.warning("the released version of '%s' cannot be served; version %s replaces it", name, version)
                self._switch(name, ModelRouting(model, degraded=True), is_new=True)
                return

    def _mark_loaded(self) -> None:
        """Mark the registry as loaded once the default model, or else any model, is served."""
        if self._models.ready:
            return
        reason = self._unready_reason()
        if reason:
            self._log_once("ready", f"not ready until a model can be loaded: {reason}")
        else:
            self._models.ready = True

    def _unready_reason(self) -> str:
        """Return why the registry is not ready, or an empty string."""
        default = self._models.default
        required = self._models.names if default is None else [default]
        if any(self._models.routing(name) for name in required):
            return ""
        reasons = [reason for name in required for reason in self.rejected.reasons(name).values()]
        missing = "holds no model" if default is None else f"has no model '{default}'"
        return reasons[0] if reasons else f"{self._settings.repository} {missing}"

    def _log_once(self, subject: str, message: str) -> None:
        """Log an error unless it is the last one about this subject."""
        if self._logged.get(subject) != message:
            log.error("%s", message)
        self._logged[subject] = message

    def _load(self, name: str, version: int) -> LoadedModel | None:
        """Return the loaded version, or None if it is rejected."""
        folder = self._settings.repository / name
        files = file_signature(folder / str(version), folder / CURRENT)
        routing = self._models.routing(name)
        if self.rejected.holds(name, version, files, retry=routing is None or routing.degraded):
            return None
        self.loading = (name, version)
        try:
            model = load_model(self._settings, name, version)
        except Exception as error:  # whatever the error is, the previous version continues to serve
            self.rejected.add(name, version, error, files)
            return None
        finally:
            self.loading = None
        self.rejected.remove(name, version)
        log.info("loaded %s version %s on %s in %.2f s", name, version, model.backend.name, model.load_seconds)
        return model

    def _apply(self, name: str, release: Release, new: LoadedModel | None = None) -> None:
        """Assign the roles of a release to the loaded versions, and retire versions without a role.

        Args:
            name: name of the model.
            release: release to apply.
            new: version that was just loaded, if any.
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
        degraded = before is not None and before.degraded and current.version != str(release.version)
        after = ModelRouting(current, canary, weight, shadow, degraded)
        if after != before:
            self._switch(name, after, is_new=new is not None)

    def _switch(self, name: str, after: ModelRouting, *, is_new: bool) -> None:
        """Replace the routing of a model.

        Args:
            name: name of the model.
            after: new routing.
            is_new: whether a version was loaded for it.
        """
        before = self._models.routing(name)
        if is_new:
            _freeze_objects(collect_all=bool(self.retired))
        self._models.replace(name, after)
        for version, model in (before.versions if before else {}).items():
            if version not in after.versions:
                self.retired[name, int(version)] = model
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


def _freeze_objects(*, collect_all: bool) -> None:
    """Exclude all current objects from garbage collection, if this process freezes objects.

    Args:
        collect_all: collect frozen objects first, so that versions in reference cycles are freed.
    """
    if gc.get_freeze_count():
        if collect_all:
            gc.unfreeze()
        gc.collect()
        gc.freeze()
