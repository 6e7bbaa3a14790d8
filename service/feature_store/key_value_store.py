"""Interface of the key-value store that holds features by id."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol

Failure = Literal["timeout", "unreachable", "error"]
"""Reason why a store did not answer. ``error``: it rejected the command, for example because of a wrong password."""


class KeyValueStoreError(Exception):
    """A store did not answer.

    Args:
        reason: label value for the metrics.
        detail: message for the log, without passwords and keys.
    """

    def __init__(self, reason: Failure, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason


class KeyValueStore(Protocol):
    """Store of byte strings by key.

    Attributes:
        kind: type of the store, a label value of the metrics.
        address: address of the store in messages, without password.
        clustered: whether the store is a Redis Cluster, whose keys of counters have another form.
    """

    kind: str
    address: str
    clustered: bool

    async def read(self, keys: Sequence[str]) -> list[bytes | None]:
        """Read the value of each key, None for keys that do not exist.

        Raises:
            KeyValueStoreError: the store did not answer in time, or not at all.
        """
        ...

    async def close(self) -> None:
        """Close the connections to the store."""
        ...
