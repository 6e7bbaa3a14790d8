"""The models being served: loaded and verified from a repository when the service starts."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

from ranking import bundle, repository
from ranking.errors import BundleError
from ranking.frozen import FrozenRanker
from service.engine.encoding import RequestEncoder
from service.engine.runtimes import Runtime, choose
from service.engine.runtimes.golden import require_golden
from service.problems import Problem
from service.settings import Settings


@dataclass(frozen=True, eq=False)
class Served:
    """One loaded version of a model.

    Attributes:
        name: of the model.
        version: of the model.
        ranker: the bundle.
        encoder: of its requests.
        runtime: what executes it.
        load_seconds: that loading and verifying took.
    """

    name: str
    version: str
    ranker: FrozenRanker
    encoder: RequestEncoder
    runtime: Runtime
    load_seconds: float


class Repository:
    """Loads and verifies the current versions of all models of a repository.

    Args:
        settings: which repository, which model answers when a request names none, and what executes them.

    Raises:
        BundleError: nothing is published, the default model is not, or a bundle does not verify.
    """

    def __init__(self, settings: Settings) -> None:
        path, default = settings.repository, settings.default_model
        names = repository.names(path)
        if not names:
            raise BundleError(f"{path} holds no published model; publish one with 'ranker publish'")
        if default is not None and default not in names:
            raise BundleError(f"{path} has no model '{default}': it has {', '.join(names)}")
        self._default = default if default is not None or len(names) > 1 else names[0]
        self._served = {name: _load(settings, name) for name in names}

    def __iter__(self) -> Iterator[Served]:
        return iter(self._served.values())

    def find(self, name: str | None = None, version: str | None = None) -> Served:
        """The model that a request names, default: the default model, or the only one.

        Raises:
            Problem: 404 for a model or version that is not served.
        """
        name = name or self._default
        if name is None:
            raise Problem(404, f"name a model, there is no default: /v1/models/{{{'|'.join(self._served)}}}/rank")
        served = self._served.get(name)
        if served is None:
            raise Problem(404, f"no model '{name}' is served; served: {', '.join(self._served)}")
        if version is not None and version != served.version:
            raise Problem(404, f"version {version} of '{name}' is not served; served: {served.version}")
        return served


def _load(settings: Settings, name: str) -> Served:
    start = time.monotonic()
    version = repository.current(settings.repository, name)
    folder = repository.folder(settings.repository, name, version)
    ranker = bundle.load(folder)
    runtime = choose(ranker, settings.backend, settings.threads, settings.precision)
    require_golden(runtime, ranker, folder)
    return Served(name, str(version), ranker, RequestEncoder(ranker), runtime, time.monotonic() - start)
