"""Registry of the models that are served now, and routing of requests to the versions of a model."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import xxhash

from service.engine.model import LoadedModel

Role = Literal["current", "canary", "shadow"]

HASH_RANGE = 2.0**64

LOADING = "the models are being loaded: try again"


@dataclass(frozen=True)
class ModelRouting:
    """Served versions of one model by role. Immutable, so that each request sees one consistent state.

    Attributes:
        current: Version that answers all requests except the canary's share.
        canary: Version that answers a share of requests.
        weight: Share of the canary, 0 to 1.
        shadow: Version that scores requests for comparison, after their responses.
    """

    current: LoadedModel
    canary: LoadedModel | None = None
    weight: float = 0.0
    shadow: LoadedModel | None = None

    @property
    def roles(self) -> Iterator[tuple[Role, LoadedModel]]:
        """Each assigned role with its version."""
        yield "current", self.current
        if self.canary is not None:
            yield "canary", self.canary
        if self.shadow is not None:
            yield "shadow", self.shadow

    @property
    def versions(self) -> dict[str, LoadedModel]:
        """Loaded versions by version string."""
        return {model.version: model for _, model in self.roles}

    def route(self, user: int | str | None, request_id: str) -> LoadedModel:
        """Select the version that answers a request, by a hash of the user, or of the request id if there is no user.

        The same user always gets the same version. A growing weight only moves users to the canary, and each canary
        version starts with other users.
        """
        if self.canary is None:
            return self.current
        key = f"{self.canary.name}\0{self.canary.version}\0{request_id if user is None else user}"
        share = xxhash.xxh3_64_intdigest(key.encode("utf-8", "surrogatepass")) / HASH_RANGE
        return self.canary if share < self.weight else self.current


class ModelNotFoundError(Exception):
    """The requested model, or the requested version of it, is not served."""


class ModelUnavailableError(Exception):
    """The model is being loaded, or loading it failed."""


class StartupBarrier:
    """Counter shared by the processes of a service: the service is ready when all of them have loaded their models.

    A process that later replaces a terminated one loads its models before it accepts connections.

    Args:
        processes: Number of processes.
    """

    def __init__(self, processes: int) -> None:
        self._pending = multiprocessing.get_context("spawn").Value("i", processes)

    def mark_ready(self) -> None:
        """Record that one more process is ready."""
        with self._pending.get_lock():
            self._pending.value -= 1

    @property
    def all_ready(self) -> bool:
        """Whether all processes have been ready."""
        return bool(self._pending.value <= 0)


class ModelRegistry:
    """Models that are served now. One thread updates the registry; requests read it without a lock.

    Args:
        default: Model that answers requests that name none. None selects the only model, if there is exactly one.
        barrier: Startup barrier of a service with several processes.
    """

    def __init__(self, default: str | None, barrier: StartupBarrier | None = None) -> None:
        self._routings: dict[str, ModelRouting | None] = {}
        self._configured_default = self._default = default
        self._barrier, self._loaded = barrier, False

    @property
    def ready(self) -> bool:
        """Whether this process and all others have loaded every model that can be served."""
        return self._loaded and (self._barrier is None or self._barrier.all_ready)

    def mark_loaded(self) -> None:
        """Record that the initial load is complete."""
        self._loaded = True
        if self._barrier is not None:
            self._barrier.mark_ready()

    def __contains__(self, name: str) -> bool:
        return name in self._routings

    def get(self, name: str | None = None) -> ModelRouting:
        """Return the routing of a model, by default of the default model.

        Raises:
            ModelNotFoundError: The model is not served, or there is no default model.
            ModelUnavailableError: The model is being loaded, or loading it failed.
        """
        if name is None:
            name = self._default
            if name is None:
                raise self._no_default()
        routing = self._routings.get(name)
        if routing is None:
            raise self._not_served(name)
        return routing

    def get_version(self, name: str, version: str) -> LoadedModel:
        """Return a version of a model, whatever its role.

        Raises:
            ModelNotFoundError: The model or the version is not served.
            ModelUnavailableError: The model is being loaded, or loading it failed.
        """
        versions = self.get(name).versions
        if version not in versions:
            raise ModelNotFoundError(f"version {version} of '{name}' is not served; served: {', '.join(versions)}")
        return versions[version]

    def routing(self, name: str) -> ModelRouting | None:
        """Return the routing of a model, or None if none of its versions is served."""
        return self._routings.get(name)

    def replace(self, name: str, routing: ModelRouting | None) -> None:
        """Set the routing of a model for subsequent requests; None registers a model that is not served yet."""
        self._routings = {**self._routings, name: routing}
        self._default = self._configured_default or (name if len(self._routings) == 1 else None)

    def _no_default(self) -> ModelNotFoundError | ModelUnavailableError:
        if not self._routings:
            return ModelUnavailableError(LOADING)
        return ModelNotFoundError(f"name a model, there is no default: /v1/models/{{{'|'.join(self._routings)}}}/rank")

    def _not_served(self, name: str) -> ModelNotFoundError | ModelUnavailableError:
        if name in self._routings:
            reason = "cannot be served, the service's log says why" if self._loaded else "is being loaded: try again"
            return ModelUnavailableError(f"model '{name}' {reason}")
        if not self._loaded:
            return ModelUnavailableError(LOADING)
        return ModelNotFoundError(f"no model '{name}' is served; served: {', '.join(self._routings)}")
