"""The request path around scoring: what is asked → a checked request; its scores → objective → order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ranking.errors import InvalidInputError
from ranking.frozen.ranker import FrozenRanker
from ranking.schema import Task
from service.engine.errors import InvalidRequestError
from service.engine.missing import Missing
from service.engine.request import EMPTY, FeatureRequest, StoreFeatures
from service.engine.request_encoder import RequestEncoder
from service.engine.validation import ParsedRequest, to_invalid_request, validate
from service.engine.values import Values, take


@dataclass(frozen=True)
class PreparedRequest:
    """A request that is ready to be scored.

    Attributes:
        ids: of the candidates, as the request gave them.
        request: the candidates, and what they share.
        tasks: to score.
        weights: of the tasks in the objective [tasks] float64.
        top_n: so many of the best are asked for; None: all.
        experts: task → {expert: weight} that the scores will be made of, if the request asks for explanations.
        degraded: see ``StoreFeatures``.
    """

    ids: Values
    request: FeatureRequest
    tasks: list[Task]
    weights: npt.NDArray[np.float64]
    top_n: int | None
    experts: dict[str, dict[int, float]]
    degraded: bool


@dataclass(frozen=True)
class RankResult:
    """Scored candidates, best first.

    Attributes:
        ids: as the request gave them.
        total: the objective [items], float64.
        scores: [items, tasks] float32.
        missing: features that they lacked.
        tasks: names of the columns of ``scores``.
        experts: task → {expert: weight} that the scores are made of, if the request asks for explanations.
        degraded: see ``StoreFeatures``.
    """

    ids: Values
    total: npt.NDArray[np.float64]
    scores: npt.NDArray[np.float32]
    missing: Missing
    tasks: list[str]
    experts: dict[str, dict[int, float]]
    degraded: bool

    @property
    def experts_run(self) -> list[int]:
        """Experts that were evaluated, ascending; none for no candidates."""
        return sorted({expert for chosen in self.experts.values() for expert in chosen}) if len(self.ids) else []


def prepare(
    ranker: FrozenRanker, encoder: RequestEncoder, asked: ParsedRequest, stored: StoreFeatures = EMPTY
) -> PreparedRequest:
    """Checks a request.

    Args:
        ranker: that will score it.
        encoder: of the ranker's requests.
        asked: the request.
        stored: what a store has for it.

    Raises:
        InvalidRequestError: a field of the request is invalid.
    """
    options = asked.options
    experts = {}
    try:
        tasks = ranker.tasks(options.tasks)
        weights = objective_weights(ranker, tasks, options.objective)
        request = validate(asked, encoder.readable, stored)
        if options.explain:
            experts = ranker.explain(encoder.splitter.merge(encoder(request)), [task.name for task in tasks])
    except InvalidInputError as error:
        raise to_invalid_request(error, ranker.schema) from None
    return PreparedRequest(asked.candidates.ids, request, tasks, weights, options.top_n, experts, stored.degraded)


def sort_candidates(prepared: PreparedRequest, scores: npt.NDArray[np.float32], missing: Missing) -> RankResult:
    """Sorts a request's candidates by the objective; equal ones keep the order of the request.

    Args:
        prepared: the request.
        scores: [candidates, tasks].
        missing: what the candidates lack.
    """
    total = scores.astype(np.float64) @ prepared.weights
    best = np.argsort(-total, kind="stable")[: prepared.top_n]
    return RankResult(
        take(prepared.ids, best),
        total[best],
        scores[best],
        missing.take(best),
        [task.name for task in prepared.tasks],
        prepared.experts,
        prepared.degraded,
    )


def objective_weights(
    ranker: FrozenRanker, tasks: list[Task], asked: dict[str, float] | None
) -> npt.NDArray[np.float64]:
    """Weight of each task [tasks] in the score that sorts: as asked, else the bundle's, else the first task alone."""
    names = [task.name for task in tasks]
    for task in asked or {}:
        if task not in names:
            raise InvalidRequestError(
                f"objective.{task}", f"is not among the tasks that are scored: {', '.join(names)}"
            )
    objective: Any = asked or {task: w for task, w in ranker.objective.items() if task in names} or {names[0]: 1.0}
    return np.array([objective.get(name, 0.0) for name in names])
