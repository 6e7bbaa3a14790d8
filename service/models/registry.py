"""Registry of the models that are served now, and routing of requests to the versions of a model."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import xxhash

from service.engine.model import LoadedModel
from service.protocol.problems import MAX_QUOTED_LENGTH

Role = Literal["current", "fallback", "canary", "shadow"]

HASH_RANGE = 2.0**64

LOADING = "the models are being loaded: try again"


@dataclass(frozen=True)
class ModelRouting:
    """Served versions of one model by role. Immutable, so that each request sees one consistent state.

    Attributes:
        current: version that answers all requests except the canary's share: the current version of the release, the
            one before if that cannot be loaded, or a fallback.
        canary: version that answers a share of requests.
        weight: share of the canary, 0 to 1.
        shadow: version that scores requests for comparison, after their responses.
        degraded: whether ``current`` is a fallback, because this process could not load the version of the release.
    """

    current: LoadedModel
    canary: LoadedModel | None = None
    weight: float = 0.0
    shadow: LoadedModel | None = None
    degraded: bool = False

    @property
    def roles(self) -> Iterator[tuple[Role, LoadedModel]]:
        """Each assigned role with its version."""
        yield "fallback" if self.degraded else "current", self.current
        if self.canary is not None:
            yield "canary", self.canary
        if self.shadow is not None:
            yield "shadow", self.shadow

    @property
    def versions(self) -> dict[str, LoadedModel]:
        """Loaded versions by version string."""
        return {model.version: model for _, model in self.roles}

    def is_fallback(self, model: LoadedModel) -> bool:
        """Return whether a version answers because this process could not load the version of the release."""
        return self.degraded and model is self.current

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


class ModelRegistry:
    """Models that are served now. One thread updates the registry; requests read it without a lock.

    Args:
        default: model that answers requests that name none. None selects the model that ``set_default`` names, or else
            the only model, if there is exactly one.

    Attributes:
        default: model that answers requests that name none, or None.
        ready: whether every model that can be served has been loaded once.
    """

    def __init__(self, default: str | None) -> None:
        self._routings: dict[str, ModelRouting | None] = {}
        self._configured_default = self.default = default
        self._recorded_default: str | None = None
        self.ready = False

    @property
    def names(self) -> list[str]:
        """Names of all models, also of those that are not served yet."""
        return list(self._routings)

    def __contains__(self, name: str) -> bool:
        return name in self._routings

    def get(self, name: str | None = None) -> ModelRouting:
        """Return the routing of a model, by default of the default model.

        Raises:
            ModelNotFoundError: the model is not served, or ``name`` is None and no model is the default.
            ModelUnavailableError: the model is being loaded, or loading it failed.
        """
        if name is None:
            name = self.default
            if name is None:
                raise self._no_default()
        routing = self._routings.get(name)
        if routing is None:
            raise self._not_served(name)
        return routing

    def get_version(self, name: str, version: str) -> LoadedModel:
        """Return a version of a model, whatever its role.

        Raises:
            ModelNotFoundError: the model or the version is not served.
            ModelUnavailableError: the model is being loaded, or loading it failed.
        """
        versions = self.get(name).versions
        if version not in versions:
            served = ", ".join(sorted(versions, key=int))
            raise ModelNotFoundError(
                f"version {version:.{MAX_QUOTED_LENGTH}} of '{name}' is not served; served: {served}"
            )
        return versions[version]

    @property
    def served(self) -> dict[str, ModelRouting]:
        """Routings of the models of which a version is served, by name."""
        return {name: routing for name, routing in self._routings.items() if routing is not None}

    def routing(self, name: str) -> ModelRouting | None:
        """Return the routing of a model, or None if none of its versions is served."""
        return self._routings.get(name)

    def replace(self, name: str, routing: ModelRouting | None) -> None:
        """Set the routing of a model for subsequent requests; None registers a model that is not served yet."""
        self._routings = {**self._routings, name: routing}
        self._select_default()

    def set_default(self, name: str) -> None:
        """Set the default model that the repository records; the constructor's argument takes precedence."""
        self._recorded_default = name
        self._select_default()

    def _select_default(self) -> None:
        recorded = self._recorded_default if self._recorded_default in self._routings else None
        only = next(iter(self._routings)) if len(self._routings) == 1 else None
        self.default = self._configured_default or recorded or only

    def _no_default(self) -> ModelNotFoundError | ModelUnavailableError:
        if not self._routings:
            return ModelUnavailableError(LOADING)
        return ModelNotFoundError(f"name a model, there is no default: /v1/models/{{{'|'.join(self._routings)}}}/rank")

    def _not_served(self, name: str) -> ModelNotFoundError | ModelUnavailableError:
        if name in self._routings:
            reason = "cannot be served, the service's log says why" if self.ready else "is being loaded: try again"
            return ModelUnavailableError(f"model '{name}' {reason}")
        if not self.ready:
            return ModelUnavailableError(LOADING)
        return ModelNotFoundError(
            f"no model '{name:.{MAX_QUOTED_LENGTH}}' is served; served: {', '.join(self._routings)}"
        )
