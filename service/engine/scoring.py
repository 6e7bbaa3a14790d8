"""A batch of requests → their scores and what they lack: encoded together as far as they say the same things."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np

from ranking.errors import InvalidInputError
from ranking.halves import Halves
from service.engine.encoding import RequestEncoder
from service.engine.missing import Missing
from service.engine.request import Request
from service.engine.runtimes import Runtime
from service.engine.runtimes.base import Scores
from service.telemetry.stages import Stages
from service.versions.served import Served

Key: TypeAlias = tuple[Served, tuple[str, ...]]
"""What scores and the tasks, sorted: requests that agree in both share batches."""


@dataclass(frozen=True)
class Scored:
    """Candidates of one request, or a part of them: scores [candidates, tasks], and which features they lack."""

    scores: Scores
    missing: Missing

    @staticmethod
    def concat(parts: Sequence[Scored]) -> Scored:
        """The candidates of all parts of one request."""
        if len(parts) == 1:
            return parts[0]
        return Scored(np.concatenate([part.scores for part in parts]), Missing.concat([part.missing for part in parts]))


@dataclass(frozen=True)
class Work:
    """A request in the queue, or a part of it, and the clock of its stages.

    Attributes:
        request: what is scored.
        stages: of the request.
        counted: whether it is part of what metrics say of scoring.
        first: of the request's candidates.
    """

    request: Request
    stages: Stages
    counted: bool = True
    first: int = 0

    def slice(self, start: int, stop: int) -> Work:
        """Candidates from ``start`` to ``stop``."""
        return Work(self.request.slice(start, stop), self.stages, self.counted, self.first + start)


def score(key: Key, batch: Sequence[Work]) -> list[Scored | Exception]:
    """What each part of a batch is answered: its scores, or what is wrong with the request.

    Raises:
        Exception: the runtime failed.
    """
    served, tasks = key
    _end("queue", batch)
    found: dict[int, Scored | Exception] = {}
    encoded: list[tuple[Sequence[int], Halves]] = []
    for places in _alike([work.request.form for work in batch]):
        try:
            encoded.append((places, _encoded(served.encoder, [batch[place] for place in places])))
        except InvalidInputError:  # one of them is wrong: which?
            for place in places:
                try:
                    encoded.append(([place], _encoded(served.encoder, [batch[place]])))
                except InvalidInputError as error:
                    found[place] = error
    _end("look-up", batch)
    if encoded:
        halves = Halves.concat([some for _, some in encoded])
        order = [place for places, _ in encoded for place in places]
        scored = _scored(served.runtime, served.encoder, halves, tasks, [len(batch[place].request) for place in order])
        found |= zip(order, scored, strict=True)
    _end("forward", batch)
    return [found[place] for place in range(len(batch))]


def _alike(forms: Sequence[Hashable]) -> Iterator[list[int]]:
    """Places of those of one form; None is like no other."""
    groups: dict[Hashable, list[int]] = defaultdict(list)
    for place, form in enumerate(forms):
        groups[("alone", place) if form is None else form].append(place)
    return iter(groups.values())


def _encoded(encoder: RequestEncoder, works: Sequence[Work]) -> Halves:
    try:
        return encoder(Request.joined([work.request for work in works]))
    except InvalidInputError as error:
        row = None if error.row is None else error.row + works[0].first
        raise InvalidInputError(error.field, error.reason, row) from None


def _scored(
    runtime: Runtime, encoder: RequestEncoder, halves: Halves, tasks: Sequence[str], counts: Sequence[int]
) -> Iterator[Scored]:
    """Of each request of so many candidates."""
    scores = runtime.scores(halves, tasks)
    if len(scores) != sum(counts):
        raise ValueError(f"{len(scores)} scores for {sum(counts)} candidates")
    stops = np.cumsum(counts).tolist()
    each = zip(counts, stops, encoder.missing(halves, counts), strict=True)
    return (Scored(scores[stop - count : stop], missing) for count, stop, missing in each)


def _end(stage: Literal["queue", "look-up", "forward"], batch: Sequence[Work]) -> None:
    for work in batch:
        work.stages.end(stage)
