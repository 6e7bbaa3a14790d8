"""The request path: table of candidates → scores → objective → order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ranking.errors import InvalidInputError
from ranking.frozen import FrozenRanker
from ranking.schema import Task
from service.api.messages import RankRequest
from service.engine.candidates import explained, invalid, item_ids, to_table


@dataclass(frozen=True)
class Ranked:
    """Scored candidates, best first.

    Attributes:
        ids: as the request gave them.
        total: the objective [items], float64.
        scores: [items, tasks] float32.
        missing: names of the features that each candidate lacked.
        tasks: names of the columns of ``scores``.
        experts: task → {expert: weight} that the scores are made of, if the request asks for explanations.
    """

    ids: list[int | str]
    total: npt.NDArray[np.float64]
    scores: npt.NDArray[np.float32]
    missing: list[list[str]]
    tasks: list[str]
    experts: dict[str, dict[int, float]]

    @property
    def experts_run(self) -> list[int]:
        """Experts that were evaluated, ascending; none for no candidates."""
        return sorted({expert for chosen in self.experts.values() for expert in chosen}) if self.ids else []


def rank(ranker: FrozenRanker, request: RankRequest) -> Ranked:
    """Scores and sorts a request's candidates; equal scores keep the order of the request.

    Raises:
        Problem: 422, naming the field that is wrong.
    """
    try:
        tasks = ranker.tasks(request.tasks)
        weights = objective_weights(ranker, tasks, request.objective)
        table = ranker.complete(to_table(request, ranker.schema))
        scores, missing = (tensor.numpy() for tensor in ranker.score_completed(table, tasks))
    except InvalidInputError as error:
        raise explained(error, ranker.schema) from None
    total = scores.astype(np.float64) @ weights
    order = np.argsort(-total, kind="stable")[: request.top_n]
    ids = item_ids(request)
    names = np.array([feature.name for feature in ranker.schema.given])
    return Ranked(
        [ids[i] for i in order],
        total[order],
        scores[order],
        [names[row].tolist() for row in missing[order]],
        [task.name for task in tasks],
        ranker.graph.explain(ranker.encoder.encode(table), [t.name for t in tasks]) if request.explain else {},
    )


def objective_weights(
    ranker: FrozenRanker, tasks: list[Task], asked: dict[str, float] | None
) -> npt.NDArray[np.float64]:
    """Weight of each task [tasks] in the score that sorts: as asked, else the bundle's, else the first task alone."""
    names = [task.name for task in tasks]
    for task in asked or {}:
        if task not in names:
            raise invalid(f"objective.{task}", f"is not among the tasks that are scored: {', '.join(names)}")
    objective: Any = asked or {task: w for task, w in ranker.objective.items() if task in names} or {names[0]: 1.0}
    return np.array([objective.get(name, 0.0) for name in names])
