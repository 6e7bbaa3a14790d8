"""Encodes and scores one batch of requests."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

import numpy as np

from ranking.encoding.request_batch import RequestBatch
from ranking.errors import InvalidInputError
from service.backends.base import Scores
from service.engine.model import LoadedModel
from service.engine.request import FeatureRequest
from service.engine.request_encoder import MissingFeatures, RequestEncoder
from service.engine.used_features import ComputedFeatures
from service.telemetry.stage_timer import StageTimer

BatchKey: TypeAlias = tuple[LoadedModel, tuple[str, ...]]
"""The model and the sorted tasks; requests that agree in both share batches."""


class UnseenIds(NamedTuple):
    """Number of candidates whose user, and whose item, the ranker has never seen."""

    user: int
    item: int


@dataclass(frozen=True)
class RequestScores:
    """Scores of candidates of one request.

    Attributes:
        scores: scores [candidates, tasks] float32.
        missing: missing features of the candidates.
        unseen: number of candidates with unseen ids.
        computed: features that the request does not contain.
    """

    scores: Scores
    missing: MissingFeatures
    unseen: UnseenIds
    computed: ComputedFeatures

    @staticmethod
    def concat(parts: Sequence[RequestScores]) -> RequestScores:
        """Join the candidates of all slices of one request."""
        if len(parts) == 1:
            return parts[0]
        scores = np.concatenate([part.scores for part in parts])
        unseen = UnseenIds(sum(part.unseen.user for part in parts), sum(part.unseen.item for part in parts))
        missing = MissingFeatures.concat([part.missing for part in parts])
        return RequestScores(scores, missing, unseen, ComputedFeatures.concat([part.computed for part in parts]))


@dataclass(frozen=True)
class QueuedRequest:
    """A request in the queue, or a slice of it.

    Attributes:
        request: features to score.
        timer: stage timer of the request.
        counted: whether the scoring metrics count the request.
        offset: position in the request of the first candidate of this slice.
    """

    request: FeatureRequest
    timer: StageTimer
    counted: bool = True
    offset: int = 0

    def slice(self, start: int, stop: int) -> QueuedRequest:
        """Return the candidates [start, stop)."""
        return QueuedRequest(self.request.slice(start, stop), self.timer, self.counted, self.offset + start)


def score_batch(key: BatchKey, requests: Sequence[QueuedRequest]) -> list[RequestScores | Exception]:
    """Score a batch and return for each request its scores, or the error in its features.

    Requests with the same signature are encoded together.

    Raises:
        Exception: the backend failed.
    """
    model, tasks = key
    _end_stage("queue", requests)
    results: dict[int, RequestScores | Exception] = {}
    encoded: list[tuple[Sequence[int], EncodedRequests]] = []
    for indices in _group_by_signature([queued.request.signature for queued in requests]):
        try:
            encoded.append((indices, _encode(model.encoder, [requests[index] for index in indices])))
        except InvalidInputError:  # find the invalid requests by encoding one by one
            for index in indices:
                try:
                    encoded.append(([index], _encode(model.encoder, [requests[index]])))
                except InvalidInputError as error:
                    results[index] = error
    _end_stage("look-up", requests)
    if encoded:
        batch = RequestBatch.concat([part.batch for _, part in encoded])
        order = [index for indices, _ in encoded for index in indices]
        computed = [values for _, part in encoded for values in part.computed]
        scored = _score(model, batch, tasks, [len(requests[index].request) for index in order], computed)
        results |= zip(order, scored, strict=True)
    _end_stage("forward", requests)
    return [results[index] for index in range(len(requests))]


def _group_by_signature(signatures: Sequence[Hashable]) -> Iterator[list[int]]:
    """Group the indices of equal signatures; a signature of None forms its own group."""
    groups: dict[Hashable, list[int]] = defaultdict(list)
    for index, signature in enumerate(signatures):
        groups[("ungrouped", index) if signature is None else signature].append(index)
    return iter(groups.values())


class EncodedRequests(NamedTuple):
    """Requests that were encoded together, and the features that each of them does not contain."""

    batch: RequestBatch
    computed: list[ComputedFeatures]


def _encode(encoder: RequestEncoder, requests: Sequence[QueuedRequest]) -> EncodedRequests:
    try:
        batch, computed = encoder.encode(FeatureRequest.concat([queued.request for queued in requests]))
    except InvalidInputError as error:
        row = None if error.row is None else error.row + requests[0].offset
        raise InvalidInputError(error.field, error.reason, row) from None
    stops = np.cumsum([len(queued.request) for queued in requests]).tolist()
    rows = map(slice, [0, *stops], stops)
    return EncodedRequests(batch, [computed.of_request(request, part) for request, part in enumerate(rows)])


def _score(
    model: LoadedModel,
    batch: RequestBatch,
    tasks: Sequence[str],
    counts: list[int],
    computed: Sequence[ComputedFeatures],
) -> Iterator[RequestScores]:
    """Score encoded requests.

    Args:
        model: version that scores.
        batch: encoded requests.
        tasks: tasks to score.
        counts: number of candidates of each request.
        computed: features that each request does not contain.
    """
    scores = model.backend.scores(batch, tasks)
    if len(scores) != sum(counts):
        raise ValueError(f"{len(scores)} scores for {sum(counts)} candidates")
    parts = zip(counts, np.cumsum(counts).tolist(), model.encoder.missing(batch, counts), strict=True)
    for request, (count, stop, missing) in enumerate(parts):
        rows = slice(stop - count, stop)
        users = count if batch.unseen_users is not None and batch.unseen_users[request] else 0
        items = 0 if batch.unseen_items is None else int(np.count_nonzero(batch.unseen_items[rows]))
        yield RequestScores(scores[rows], missing, UnseenIds(users, items), computed[request])


def _end_stage(stage: Literal["queue", "look-up", "forward"], requests: Sequence[QueuedRequest]) -> None:
    for queued in requests:
        queued.timer.end(stage)
