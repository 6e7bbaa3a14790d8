"""Versions that cannot be served: why, and when to load them again."""

from __future__ import annotations

import logging
import time
from collections.abc import Collection
from dataclasses import dataclass

from ranking.artifacts.checksums import FileSignature
from ranking.artifacts.release import CURRENT
from ranking.errors import RankerError
from service.telemetry.metrics import Metrics

log = logging.getLogger("ranker.service")

RETRY_SECONDS = 60.0
"""Seconds after which a rejected version of a model that is not served, or served by a fallback, is loaded again."""


@dataclass(frozen=True)
class _Rejection:
    """The error message, the signature of the files, and the time of the last attempt, of the monotonic clock."""

    reason: str
    files: FileSignature
    time: float


class RejectedVersions:
    """Rejected versions of all models; version 0 stands for a model's current.json.

    Each rejection is logged and counted once. Methods that change it are called by one thread at a time.

    Args:
        metrics: metrics of the service.
    """

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._rejections: dict[tuple[str, int], _Rejection] = {}

    def reasons(self, name: str) -> dict[int, str]:
        """Return the rejected versions of a model with their error messages; may be called by any thread."""
        rejections = self._rejections.copy()
        return {version: rejection.reason for (model, version), rejection in rejections.items() if model == name}

    def add(self, name: str, version: int, error: Exception, files: FileSignature) -> None:
        """Reject a version.

        Args:
            name: name of the model.
            version: version, or 0.
            error: reason.
            files: signature of the files when they were read.
        """
        known = self._rejections.get((name, version))
        rejection = _Rejection(str(error) or type(error).__name__, files, time.monotonic())
        self._rejections[name, version] = rejection
        if known is not None and (known.reason, known.files) == (rejection.reason, rejection.files):
            return
        self._metrics.load_failures.labels(name).inc()
        subject = f"version {version}" if version else CURRENT
        unexpected = None if isinstance(error, RankerError) else error
        log.error("rejected %s of '%s': %s", subject, name, error, exc_info=unexpected)

    def remove(self, name: str, version: int) -> None:
        """Remove a version, because it was loaded."""
        self._rejections.pop((name, version), None)

    def remove_all(self, name: str, keep: Collection[int] = ()) -> None:
        """Remove all versions of a model, except some."""
        for key in [key for key in self._rejections if key[0] == name and key[1] not in keep]:
            del self._rejections[key]

    def holds(self, name: str, version: int, files: FileSignature, *, retry: bool) -> bool:
        """Whether a version was rejected with exactly these files.

        Args:
            name: name of the model.
            version: version, or 0.
            files: signature of the files now.
            retry: whether a rejection ends after ``RETRY_SECONDS``, because its error may have been temporary.
        """
        rejection = self._rejections.get((name, version))
        if rejection is None or rejection.files != files:
            return False
        return not retry or time.monotonic() < rejection.time + RETRY_SECONDS
