"""What is served now, and who answers a request."""

from __future__ import annotations

from collections.abc import Iterator

from service.engine.model import LoadedModel
from service.models.routing import ModelRouting
from service.models.startup_barrier import StartupBarrier

LOADING = "the models are being loaded: try again"


class ModelNotFoundError(Exception):
    """No such model, or no such version of it, is served."""


class ModelUnavailableError(Exception):
    """The model is still being loaded, or loading it failed."""


class ModelRegistry:
    """What is served now. One thread changes it, requests read it without a lock.

    Args:
        default: the model that answers when a request names none; None: the only one, if there is one.
        start: of the processes of the service, if there are several.
    """

    def __init__(self, default: str | None, start: StartupBarrier | None = None) -> None:
        self._lineups: dict[str, ModelRouting | None] = {}
        self._given = self._default = default
        self._start, self._loaded = start, False

    @property
    def ready(self) -> bool:
        """Whether, here and in all processes, every model has been looked at once, and what can serve does."""
        return self._loaded and (self._start is None or self._start.all_ready)

    def loaded(self) -> None:
        """Every model has been looked at once."""
        self._loaded = True
        if self._start is not None:
            self._start.mark_ready()

    def __iter__(self) -> Iterator[ModelRouting]:
        return (lineup for lineup in self._lineups.values() if lineup is not None)

    def __contains__(self, name: str) -> bool:
        return name in self._lineups

    def get(self, name: str | None = None) -> ModelRouting:
        """The model that a request names, default: the default model, or the only one.

        Raises:
            ModelNotFoundError: no such model is served, or there is no default.
            ModelUnavailableError: the model is still being loaded, or loading it failed.
        """
        if name is None:
            name = self._default
            if name is None:
                raise self._nobody()
        lineup = self._lineups.get(name)
        if lineup is None:
            raise self._absent(name)
        return lineup

    def get_version(self, name: str, version: str) -> LoadedModel:
        """One version of a model, whatever its role.

        Raises:
            ModelNotFoundError: no such model or version is served.
            ModelUnavailableError: the model is still being loaded, or loading it failed.
        """
        served = self.get(name).versions
        if version not in served:
            raise ModelNotFoundError(f"version {version} of '{name}' is not served; served: {', '.join(served)}")
        return served[version]

    def routing(self, name: str) -> ModelRouting | None:
        """What is served of a model; None while nothing is."""
        return self._lineups.get(name)

    def replace(self, name: str, lineup: ModelRouting | None) -> None:
        """Lets this line-up answer from the next request on; None: the model is known, but nothing is served yet."""
        self._lineups = {**self._lineups, name: lineup}
        self._default = self._given or (name if len(self._lineups) == 1 else None)

    def _nobody(self) -> ModelNotFoundError | ModelUnavailableError:
        if not self._lineups:
            return ModelUnavailableError(LOADING)
        return ModelNotFoundError(f"name a model, there is no default: /v1/models/{{{'|'.join(self._lineups)}}}/rank")

    def _absent(self, name: str) -> ModelNotFoundError | ModelUnavailableError:
        if name in self._lineups:
            reason = "cannot be served, the service's log says why" if self._loaded else "is being loaded: try again"
            return ModelUnavailableError(f"model '{name}' {reason}")
        if not self._loaded:
            return ModelUnavailableError(LOADING)
        return ModelNotFoundError(f"no model '{name}' is served; served: {', '.join(self._lineups)}")
