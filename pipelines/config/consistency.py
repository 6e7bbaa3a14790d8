"""Settings that are valid alone but contradict each other, or whose size no training can use.

Only configurations of new trainings are checked: a run of an earlier version that was trained with such settings can
still be evaluated and frozen.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ranking.errors import ConfigError
from ranking.settings.gate import DSelectKConfig

if TYPE_CHECKING:
    from pipelines.config.config import Config

MAX_TASK_WEIGHT = 1e6
"""Maximum weight of a task's loss; the sum of the weighted losses is float32."""
GAMMA_RANGE = (1e-12, 1e6)
"""Range of the widths of a gate's fractional region, which is computed in float32."""
MAX_BOOTSTRAP_DRAWS = 100_000
"""Maximum number of bootstrap draws; the memory of an evaluation grows with their number."""


def require_consistent(config: Config) -> None:
    """Check that no settings contradict each other or are too large to be used.

    Raises:
        ConfigError: names the settings.
    """
    contradictions = [*_gate(config), *_sizes(config), *_ranking(config), *_evaluation(config), *_columns(config)]
    if contradictions:
        raise ConfigError("; ".join(contradictions))


def _gate(config: Config) -> Iterator[str]:
    gate = config.model.gate
    if gate.kind == "single_task" and config.training.teachers:
        yield "training.teachers: single_task trains a model for each task: distill a configuration with one task"
    k, budget = getattr(gate, "k", None), getattr(gate, "experts_budget", None)
    if k is not None and budget is not None and k > budget:
        yield (
            f"model.gate: k = {k} exceeds experts_budget = {budget}, so that no task can use k experts: "
            "choose k ≤ experts_budget"
        )
    default = DSelectKConfig.model_fields["surplus_weight"].default
    if isinstance(gate, DSelectKConfig) and gate.surplus != "penalty" and gate.surplus_weight != default:
        yield (
            f"model.gate: surplus_weight = {gate.surplus_weight:g} has no effect with surplus = '{gate.surplus}': "
            "set surplus = 'penalty' or remove surplus_weight"
        )


def _sizes(config: Config) -> Iterator[str]:
    for task in config.tasks:
        if task.weight > MAX_TASK_WEIGHT:
            yield f"tasks.'{task.name}'.weight: must be at most {MAX_TASK_WEIGHT:g} (got {task.weight:g})"
    low, high = GAMMA_RANGE
    for key in ("gamma", "final_gamma"):
        gamma = getattr(config.training.convergence, key)
        if not low <= gamma <= high:
            yield f"training.convergence.{key}: must be from {low:g} to {high:g} (got {gamma:g})"


def _ranking(config: Config) -> Iterator[str]:
    ranking = config.training.ranking_loss
    if ranking is None:
        return
    if ranking.within == "request" and config.columns.request is None:
        yield (
            "training.ranking_loss: within = 'request' needs the column of the request id: set columns.request, or "
            "choose within = 'user_day'"
        )
    if all(task.kind != "binary" for task in config.tasks):
        yield "training.ranking_loss: no task is binary, and only binary tasks have this loss: remove it"


def _evaluation(config: Config) -> Iterator[str]:
    draws = config.evaluation.bootstrap
    if draws > MAX_BOOTSTRAP_DRAWS:
        yield f"evaluation.bootstrap: {draws:,} draws need too much memory: choose at most {MAX_BOOTSTRAP_DRAWS:,}"


def _columns(config: Config) -> Iterator[str]:
    roles: dict[str, str] = {}
    for role, column in config.columns.model_dump(exclude_none=True).items():
        if column in roles:
            yield f"columns: {roles[column]} and {role} are the same column '{column}': name two columns"
        roles.setdefault(column, role)
    for task in config.tasks:
        for column, use in ((task.label, "label"), (task.mask, "mask")):
            if column is not None and column in roles:
                yield f"tasks.'{task.name}'.{use}: column '{column}' is the {roles[column]} column"
    for feature in config.inputs:
        if roles.get(feature.column) in ("time", "weight"):
            yield (
                f"features.'{feature.name}': column '{feature.column}' is the {roles[feature.column]} column; "
                "write the feature into a column of its own"
            )
