"""Routing of requests to the versions of one model."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import xxhash

from service.engine.model import LoadedModel

Role = Literal["current", "canary", "shadow"]

HASH_RANGE = 2.0**64


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
