"""What a store is to the request path, and what it has for a request."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from ranking.schema import Owner
from service.engine.values import Values

Failure = Literal["timeout", "unreachable", "error"]
"""Why a store did not answer: too late, no connection, or it refused (a wrong password, a command not allowed …)."""


class FeatureStoreError(Exception):
    """A store did not answer.

    Args:
        reason: for the metrics.
        detail: for the log; holds no password and no key.
    """

    def __init__(self, reason: Failure, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason


class FeatureStore(Protocol):
    """Values by key.

    Attributes:
        kind: of store, for the metrics.
        shown: how messages call it.
    """

    kind: str
    shown: str

    async def read(self, keys: Sequence[str]) -> list[bytes | None]:
        """The value of each key, None where there is none.

        Raises:
            StoreError: no answer, or none in time.
        """
        ...

    async def close(self) -> None:
        """Gives its connections up."""
        ...


@dataclass(frozen=True)
class StoreFeatures:
    """What a store has for one request.

    Attributes:
        columns: owner → column → values, as a request could give them.
        form: which columns these are and of which types, see ``Request``.
        degraded: something that the store should have given is not here, because something went wrong.
    """

    columns: Mapping[Owner, Mapping[str, Values]] = field(default_factory=dict)
    signature: Hashable = ()
    degraded: bool = False


EMPTY = StoreFeatures()
"""Where nothing was looked up."""
