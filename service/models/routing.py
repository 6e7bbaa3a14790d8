"""The versions of one model that answer now, each in its role."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import xxhash

from service.engine.model import LoadedModel

Role = Literal["current", "canary", "shadow"]

HASHES = 2.0**64


@dataclass(frozen=True)
class ModelRouting:
    """The versions of one model that answer now; replaced as a whole, so that a request sees one state of it.

    Attributes:
        current: answers, but for the canary's share.
        canary: answers a share.
        weight: that share, 0 to 1.
        shadow: scores what others have answered.
    """

    current: LoadedModel
    canary: LoadedModel | None = None
    weight: float = 0.0
    shadow: LoadedModel | None = None

    @property
    def roles(self) -> Iterator[tuple[Role, LoadedModel]]:
        """Each role that is filled."""
        yield "current", self.current
        if self.canary is not None:
            yield "canary", self.canary
        if self.shadow is not None:
            yield "shadow", self.shadow

    @property
    def versions(self) -> dict[str, LoadedModel]:
        """Each version that is loaded."""
        return {served.version: served for _, served in self.roles}

    def choose(self, user: int | str | None, request_id: str) -> LoadedModel:
        """Who answers a request: the same version whenever the user, or, where none is named, the request is the same.

        As the weight grows users only move to the canary; another canary begins with other users.
        """
        if self.canary is None:
            return self.current
        drawn = f"{self.canary.name}\0{self.canary.version}\0{request_id if user is None else user}"
        share = xxhash.xxh3_64_intdigest(drawn.encode("utf-8", "surrogatepass")) / HASHES
        return self.canary if share < self.weight else self.current
