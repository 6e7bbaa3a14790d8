"""What is served now, and who answers a request."""

from __future__ import annotations

from collections.abc import Iterator

from service.engine.model import LoadedModel
from service.models.routing import ModelRouting
from service.models.startup_barrier import StartupBarrier
from service.protocol.problems import Problem

RETRY = {"Retry-After": "1"}


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
            Problem: 404 for a model that is not there, 503 for one that is still being loaded or cannot be.
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
            Problem: as ``find``; 404 for a version that is not loaded.
        """
        served = self.get(name).versions
        if version not in served:
            raise Problem(404, f"version {version} of '{name}' is not served; served: {', '.join(served)}")
        return served[version]

    def routing(self, name: str) -> ModelRouting | None:
        """What is served of a model; None while nothing is."""
        return self._lineups.get(name)

    def replace(self, name: str, lineup: ModelRouting | None) -> None:
        """Lets this line-up answer from the next request on; None: the model is known, but nothing is served yet."""
        self._lineups = {**self._lineups, name: lineup}
        self._default = self._given or (name if len(self._lineups) == 1 else None)

    def _nobody(self) -> Problem:
        if not self._lineups:
            return Problem(503, "the models are being loaded: try again", headers=RETRY)
        return Problem(404, f"name a model, there is no default: /v1/models/{{{'|'.join(self._lineups)}}}/rank")

    def _absent(self, name: str) -> Problem:
        if name in self._lineups:
            reason = "cannot be served, the service's log says why" if self._loaded else "is being loaded: try again"
            return Problem(503, f"model '{name}' {reason}", headers=RETRY)
        if not self._loaded:
            return Problem(503, "the models are being loaded: try again", headers=RETRY)
        return Problem(404, f"no model '{name}' is served; served: {', '.join(self._lineups)}")
