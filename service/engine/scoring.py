"""Encodes and scores one batch of requests."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from ranking.encoding.request_batch import RequestBatch
from ranking.errors import InvalidInputError
from service.backends.base import Scores
from service.engine.feature_trace import FeatureTrace
from service.engine.model import LoadedModel
from service.engine.request import FeatureRequest
from service.engine.request_encoder import MissingFeatures, RequestEncoder
from service.engine.scheduler import BatchKey, QueueEntry


@dataclass(frozen=True)
class RequestScores:
    """Scores of candidates of one request.

    Attributes:
        scores: scores [candidates, tasks] float32.
        missing: missing features of the candidates.
        unseen_users: number of candidates whose user the ranker has never seen.
        unseen_items: number of candidates whose item the ranker has never seen.
        trace: features that the request does not contain; None if it is not traced.
    """

    scores: Scores
    missing: MissingFeatures
    unseen_users: int
    unseen_items: int
    trace: FeatureTrace | None

    @staticmethod
    def concat(parts: Sequence[RequestScores]) -> RequestScores:
        """Join the candidates of all batches of one request."""
        if len(parts) == 1:
            return parts[0]
        traces = [part.trace for part in parts if part.trace is not None]
        return RequestScores(
            np.concatenate([part.scores for part in parts]),
            MissingFeatures.concat([part.missing for part in parts]),
            sum(part.unseen_users for part in parts),
            sum(part.unseen_items for part in parts),
            FeatureTrace.concat(traces) if traces else None,
        )


def score_batch(key: BatchKey, entries: Sequence[QueueEntry], *, traced: bool) -> list[RequestScores | Exception]:
    """Score a batch and return for each entry the scores of its candidates in it, or the error in their features.

    Requests with the same signature are encoded together.

    Args:
        key: the model and the tasks.
        entries: the batch.
        traced: whether to return the features that the requests do not contain, too.

    Raises:
        Exception: the backend failed.
    """
    model, tasks = key
    _end_stage("queue", entries)
    features = [entry.batch_features for entry in entries]
    results: dict[int, RequestScores | Exception] = {}
    order: list[int] = []
    batches: list[RequestBatch] = []
    traces: list[FeatureTrace | None] = []
    groups = deque(_group_by_signature([request.signature for request in features]))
    while groups:
        group = groups.popleft()
        try:
            batch, group_traces = _encode(model.encoder, [features[index] for index in group], traced)
        except InvalidInputError as error:
            if len(group) == 1:
                row = None if error.row is None else error.row + entries[group[0]].start
                results[group[0]] = InvalidInputError(error.field, error.reason, row)
            else:  # find the invalid requests by encoding one by one
                groups.extendleft([index] for index in reversed(group))
            continue
        order += group
        batches.append(batch)
        traces += group_traces
    _end_stage("look-up", entries)
    if order:
        counts = [entries[index].batch_rows for index in order]
        results |= zip(order, _score(model, RequestBatch.concat(batches), tasks, counts, traces), strict=True)
    _end_stage("forward", entries)
    return [results[index] for index in range(len(entries))]


def _group_by_signature(signatures: Sequence[Hashable]) -> Iterator[list[int]]:
    """Group the indices of equal signatures; a signature of None forms its own group."""
    groups: dict[Hashable, list[int]] = defaultdict(list)
    for index, signature in enumerate(signatures):
        groups[("ungrouped", index) if signature is None else signature].append(index)
    return iter(groups.values())


def _encode(
    encoder: RequestEncoder, requests: Sequence[FeatureRequest], traced: bool
) -> tuple[RequestBatch, Sequence[FeatureTrace | None]]:
    """Encode requests together; return with them the trace of each."""
    batch, trace = encoder.encode(FeatureRequest.concat(requests), traced=traced)
    if trace is None:
        return batch, [None] * len(requests)
    stops = np.cumsum([len(request) for request in requests]).tolist()
    rows = map(slice, [0, *stops], stops)
    return batch, [trace.of_request(request, part) for request, part in enumerate(rows)]


def _score(
    model: LoadedModel,
    batch: RequestBatch,
    tasks: Sequence[str],
    counts: list[int],
    traces: Sequence[FeatureTrace | None],
) -> Iterator[RequestScores]:
    """Score encoded requests.

    Args:
        model: version that scores.
        batch: encoded requests.
        tasks: tasks to score.
        counts: number of candidates of each request.
        traces: trace of each request.
    """
    scores = model.backend.scores(batch, tasks)
    if len(scores) != sum(counts):
        raise ValueError(f"{len(scores)} scores for {sum(counts)} candidates")
    parts = zip(counts, np.cumsum(counts).tolist(), model.encoder.missing(batch, counts), traces, strict=True)
    for request, (count, stop, missing, trace) in enumerate(parts):
        rows = slice(stop - count, stop)
        users = count if batch.unseen_users is not None and batch.unseen_users[request] else 0
        items = 0 if batch.unseen_items is None else int(np.count_nonzero(batch.unseen_items[rows]))
        yield RequestScores(scores[rows], missing, users, items, trace)


def _end_stage(stage: Literal["queue", "look-up", "forward"], entries: Sequence[QueueEntry]) -> None:
    for entry in entries:
        entry.timer.end(stage)
