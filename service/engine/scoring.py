"""A batch of requests → their scores and what they lack: encoded together as far as they say the same things."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np

from ranking.encoding.request_batch import RequestBatch
from ranking.errors import InvalidInputError
from service.backends.base import Backend, Scores
from service.engine.missing import Missing
from service.engine.model import LoadedModel
from service.engine.request import FeatureRequest
from service.engine.request_encoder import RequestEncoder
from service.telemetry.stage_timer import StageTimer

BatchKey: TypeAlias = tuple[LoadedModel, tuple[str, ...]]
"""What scores and the tasks, sorted: requests that agree in both share batches."""


@dataclass(frozen=True)
class RequestScores:
    """Candidates of one request, or a part of them: scores [candidates, tasks], and which features they lack."""

    scores: Scores
    missing: Missing

    @staticmethod
    def concat(parts: Sequence[RequestScores]) -> RequestScores:
        """The candidates of all parts of one request."""
        if len(parts) == 1:
            return parts[0]
        return RequestScores(
            np.concatenate([part.scores for part in parts]), Missing.concat([part.missing for part in parts])
        )


@dataclass(frozen=True)
class QueuedRequest:
    """A request in the queue, or a part of it, and the clock of its stages.

    Attributes:
        request: what is scored.
        stages: of the request.
        counted: whether it is part of what metrics say of scoring.
        first: of the request's candidates.
    """

    request: FeatureRequest
    stages: StageTimer
    counted: bool = True
    first: int = 0

    def slice(self, start: int, stop: int) -> QueuedRequest:
        """Candidates from ``start`` to ``stop``."""
        return QueuedRequest(self.request.slice(start, stop), self.stages, self.counted, self.first + start)


def score(key: BatchKey, batch: Sequence[QueuedRequest]) -> list[RequestScores | Exception]:
    """What each part of a batch is answered: its scores, or what is wrong with the request.

    Raises:
        Exception: the runtime failed.
    """
    served, tasks = key
    _end_stage("queue", batch)
    found: dict[int, RequestScores | Exception] = {}
    encoded: list[tuple[Sequence[int], RequestBatch]] = []
    for places in _group_by_signature([work.request.signature for work in batch]):
        try:
            encoded.append((places, _encode(served.encoder, [batch[place] for place in places])))
        except InvalidInputError:  # one of them is wrong: which?
            for place in places:
                try:
                    encoded.append(([place], _encode(served.encoder, [batch[place]])))
                except InvalidInputError as error:
                    found[place] = error
    _end_stage("look-up", batch)
    if encoded:
        halves = RequestBatch.concat([some for _, some in encoded])
        order = [place for places, _ in encoded for place in places]
        scored = _score_batch(
            served.backend, served.encoder, halves, tasks, [len(batch[place].request) for place in order]
        )
        found |= zip(order, scored, strict=True)
    _end_stage("forward", batch)
    return [found[place] for place in range(len(batch))]


def _group_by_signature(forms: Sequence[Hashable]) -> Iterator[list[int]]:
    """Places of those of one form; None is like no other."""
    groups: dict[Hashable, list[int]] = defaultdict(list)
    for place, form in enumerate(forms):
        groups[("alone", place) if form is None else form].append(place)
    return iter(groups.values())


def _encode(encoder: RequestEncoder, works: Sequence[QueuedRequest]) -> RequestBatch:
    try:
        return encoder(FeatureRequest.concat([work.request for work in works]))
    except InvalidInputError as error:
        row = None if error.row is None else error.row + works[0].first
        raise InvalidInputError(error.field, error.reason, row) from None


def _score_batch(
    runtime: Backend, encoder: RequestEncoder, halves: RequestBatch, tasks: Sequence[str], counts: Sequence[int]
) -> Iterator[RequestScores]:
    """Of each request of so many candidates."""
    scores = runtime.scores(halves, tasks)
    if len(scores) != sum(counts):
        raise ValueError(f"{len(scores)} scores for {sum(counts)} candidates")
    stops = np.cumsum(counts).tolist()
    each = zip(counts, stops, encoder.missing(halves, counts), strict=True)
    return (RequestScores(scores[stop - count : stop], missing) for count, stop, missing in each)


def _end_stage(stage: Literal["queue", "look-up", "forward"], batch: Sequence[QueuedRequest]) -> None:
    for work in batch:
        work.stages.end(stage)
