"""An answered request as the event loop hands it over: references only, so that it costs a few microseconds."""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple

import xxhash

from service.engine.model import LoadedModel
from service.engine.response import RankResult

BODY_FACTOR = 4
"""Approximate memory of the values in a body relative to its size; numbers take more, long text takes less."""
STORED_VALUE_BYTES = 64
"""Approximate memory of a value of the feature store."""
HASH_RANGE = 2.0**64
SAMPLING_SEED = 1
"""Seed of the hash that samples users, so that the sample is independent of the one that receives a canary."""


class ServedRequest(NamedTuple):
    """An answered request.

    Attributes:
        model: version that scored the request.
        request_id: id of the request, as answered.
        time: time that the request names, or None.
        arrived: ``time.monotonic()`` of its arrival.
        user: id of the user, or None.
        degraded: whether the answer is degraded.
        body_bytes: size of the body of the request.
        result: ranked candidates, with the prepared request and the trace of its features.
    """

    model: LoadedModel
    request_id: str
    time: datetime | None
    arrived: float
    user: int | str | None
    degraded: bool
    body_bytes: int
    result: RankResult

    @property
    def candidates(self) -> int:
        """Number of candidates of the request, also those that the response does not contain."""
        return len(self.result.prepared.request)

    @property
    def bytes(self) -> int:
        """Approximate memory of the values that the request and the feature store hold."""
        stored = len(self.result.prepared.request.owners["item"].stored)
        return BODY_FACTOR * self.body_bytes + STORED_VALUE_BYTES * stored * self.candidates


def is_sampled(user: int | str | None, request_id: str, share: float) -> bool:
    """Return whether a request is logged: all requests of a user are, or none.

    Args:
        user: id of the user. An integer is the same user as its decimal text. None: the request id decides.
        request_id: id of the request.
        share: share of the users to log.
    """
    if share >= 1.0:
        return True
    key = request_id if user is None else str(user)
    return xxhash.xxh3_64_intdigest(key.encode("utf-8", "surrogatepass"), SAMPLING_SEED) / HASH_RANGE < share
