"""Prepares a request for scoring, and sorts its candidates by the objective."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from ranking.encoding.vocabulary import IdArray
from ranking.errors import InvalidInputError
from ranking.frozen.contributions import Contributions
from ranking.frozen.ranker import FrozenRanker
from ranking.schema import Task
from service.engine.errors import InvalidRequestError, ScoringError
from service.engine.feature_trace import FeatureTrace
from service.engine.request import EMPTY, FeatureRequest, RawFeatures, StoreFeatures
from service.engine.request_encoder import MissingFeatures, RequestEncoder
from service.engine.validation import to_invalid_request, validate
from service.engine.values import Values, take
from service.protocol.messages import RankOptions


@dataclass(frozen=True)
class PreparedRequest:
    """A validated request, ready to be scored.

    Attributes:
        request: features of the candidates, their user and their context.
        tasks: names of the tasks to score.
        weights: weight of each task in the objective [tasks] float64.
        top_n: number of candidates to return; None: all.
        explain: whether the request asks for an explanation.
        experts: weight of each expert by task, if the request asks for an explanation; else empty.
        degraded: see ``StoreFeatures``.
        counters_as_of: time of the last impression in the counters; None if the ranker has none.
    """

    request: FeatureRequest
    tasks: list[str]
    weights: npt.NDArray[np.float64]
    top_n: int | None
    explain: bool
    experts: dict[str, dict[int, float]]
    degraded: bool
    counters_as_of: str | None


@dataclass(frozen=True)
class RankResult:
    """Scored candidates, best first.

    Attributes:
        prepared: the request.
        order: position in the request of each candidate [candidates].
        total: objective of each candidate [candidates] float64.
        scores: scores [candidates, tasks] float32.
        missing: missing features of the candidates.
        trace: features that the request does not contain, in the order of the request; None if it is not traced.
        contributions: contributions of features to the logits of the best candidates, if the request asks for an
            explanation; None without candidates and for a per-example gate.
    """

    prepared: PreparedRequest
    order: IdArray
    total: npt.NDArray[np.float64]
    scores: npt.NDArray[np.float32]
    missing: MissingFeatures
    trace: FeatureTrace | None = None
    contributions: Contributions | None = None

    @cached_property
    def ids(self) -> Values:
        """Ids of the candidates, as in the request."""
        return take(self.prepared.request.owners["item"].ids, self.order)

    @property
    def tasks(self) -> list[str]:
        """Names of the columns of ``scores``."""
        return self.prepared.tasks

    @property
    def experts_run(self) -> list[int]:
        """Experts that were evaluated, ascending; empty if there are no candidates."""
        experts = {expert for weights in self.prepared.experts.values() for expert in weights}
        return sorted(experts) if len(self.order) else []


def prepare(
    ranker: FrozenRanker,
    encoder: RequestEncoder,
    options: RankOptions,
    items: RawFeatures,
    stored: StoreFeatures = EMPTY,
) -> PreparedRequest:
    """Validate a request.

    Args:
        ranker: ranker that will score the request.
        encoder: encoder of the ranker's requests.
        options: everything but the candidates.
        items: the candidates.
        stored: features from the feature store.

    Raises:
        InvalidRequestError: a field of the request is invalid.
    """
    experts = {}
    try:
        tasks = ranker.tasks(options.tasks)
        names = [task.name for task in tasks]
        weights = objective_weights(ranker, tasks, options.objective)
        features = encoder.with_counters(validate(options, items, encoder.readable, stored), options.time, stored.sums)
        if options.explain:
            experts = ranker.explain(encoder.splitter.merge(encoder(features)), names)
    except InvalidInputError as error:
        raise to_invalid_request(error, ranker.schema) from None
    as_of = encoder.counters_as_of(stored.sums)
    top_n, explain = options.top_n, options.explain
    return PreparedRequest(features, names, weights, top_n, explain, experts, stored.degraded, as_of)


def sort_candidates(
    prepared: PreparedRequest,
    scores: npt.NDArray[np.float32],
    missing: MissingFeatures,
    trace: FeatureTrace | None = None,
) -> RankResult:
    """Sort the candidates of a request by the objective; ties keep the order of the request.

    Args:
        prepared: prepared request.
        scores: scores [candidates, tasks].
        missing: missing features of the candidates.
        trace: features that the request does not contain; None if it is not traced.

    Raises:
        ScoringError: a score is not finite, so that the candidates have no order.
    """
    total = scores.astype(np.float64) @ prepared.weights
    if not math.isfinite(total.sum()):  # Weights are bounded and finite, so only a score can make it infinite or NaN.
        invalid = ~np.isfinite(scores)
        row, column = np.argwhere(invalid)[0].tolist()
        reason = f"task '{prepared.tasks[column]}' of candidate {row} has the score {scores[row, column]}"
        raise ScoringError(f"{reason}, which is not finite")
    best = np.argsort(-total, kind="stable")[: prepared.top_n]
    return RankResult(prepared, best, total.take(best), scores.take(best, 0), missing.take(best), trace)


def objective_weights(
    ranker: FrozenRanker, tasks: list[Task], requested: dict[str, float] | None
) -> npt.NDArray[np.float64]:
    """Return the weight of each task [tasks] in the objective.

    The weights are those of the request, else those of the bundle.

    Raises:
        InvalidRequestError: the request weights a task that is not scored.
    """
    names = [task.name for task in tasks]
    for task in requested or {}:
        if task not in names:
            reason = f"is not among the tasks that are scored: {', '.join(names)}"
            raise InvalidRequestError(f"objective.{task}", reason)
    return np.array([requested.get(name, 0.0) for name in names]) if requested else ranker.objective_weights(tasks)
