"""How the training went: losses, the gates' weights, the schedule, over its steps."""

from __future__ import annotations

from collections.abc import Sequence

from pipelines.report.plots import MANY_TASKS, Marker, Plot, Series, Size, over_steps, thinned
from pipelines.report.run_data import History, RunData
from pipelines.report.section import Section

COLOURS = 8
"""Experts with a colour of their own: as many as can be told apart."""

POINTS = 40_000
"""Points of all trajectories together, which bounds the page's size."""

FINAL_FROM_THE_START = {"top_k", "softmax", "shared_bottom", "single_task"}
"""Gates without a moment at which the choice becomes final."""

LABELLED = 0.05
"""Weight above which a line's end is labelled."""


def curves(facts: RunData) -> Section:
    """Training and validation loss of each task, and the schedule."""
    if not facts.histories:
        lack = "There is no metrics.jsonl: the training did not come to its first check. Wait for it, or train again."
        return Section("curves", "Learning curves", lack=lack)
    size = Size().narrow() if len(facts.config.tasks) > MANY_TASKS else Size()
    panels = [
        _losses(task, history, moments(facts, history), size) for history in facts.histories for task in history.tasks
    ]
    history = facts.history
    lead = (
        "Loss of each task over the optimiser's steps; every panel has its own scale. The reported model is the "
        "best check on the validation rows after the experts were chosen."
    )
    sampled = [task.name for task in facts.config.tasks if task.keep_negatives < 1]
    if sampled:
        lead += (
            f" Training kept only a share of the negatives of {', '.join(sampled)}: its loss there is that of "
            "the kept rows, and lies higher than the validation loss of all."
        )
    return Section(
        "curves",
        "Learning curves",
        lead,
        {
            "panels": panels,
            "moments": moments(facts, history) if history else [],
            "schedule": _schedule(history, moments(facts, history)) if history else [],
            "narrow": len(facts.config.tasks) > MANY_TASKS,
        },
    )


def trajectories(facts: RunData) -> Section:
    """The weight of every expert for every task: figure 2 of the DSelect-k paper."""
    title, history = "Gate weights", facts.history
    if facts.single_task:
        lack = "Each task has a model of its own, so there is no gate that could share experts."
        return Section("trajectories", title, lack=lack)
    if history is None or "gate_weights" not in history.checks[-1]:
        lack = "This run's metrics.jsonl has no gate weights: an older version trained it. Train again to see them."
        return Section("trajectories", title, lack=lack)
    number = len(next(iter(history.checks[-1]["gate_weights"].values())))
    coloured = _heaviest(history)
    narrow = len(history.tasks) > MANY_TASKS
    base = Size(right=30)
    size = base.narrow() if narrow else base
    top = max(max(weights) for check in history.checks for weights in check["gate_weights"].values())
    most = max(12, POINTS // (len(history.tasks) * number))
    return Section(
        "trajectories",
        title,
        "How much each task's gate weighs each expert, check by check; a line ends with its expert's number."
        + (" Means over a batch, because this gate decides per example." if facts.per_example else ""),
        {
            "panels": [
                _weights(task, history, coloured, moments(facts, history), (0.0, min(1.0, top * 1.05)), size, most)
                for task in history.tasks
            ],
            "moments": moments(facts, history),
            "coloured": coloured,
            "others": number > len(coloured),
            "crowded": len(_chosen(history)) > COLOURS,
            "narrow": narrow,
        },
    )


def moments(facts: RunData, history: History) -> list[Marker]:
    """Budget cut, start of the annealing and final choice; none for a gate that has nothing to conclude."""
    if facts.config.model.gate.kind in FINAL_FROM_THE_START:
        return []
    convergence, steps, first = facts.config.training.convergence, history.steps, history.checks[0]
    choice = max(1, round(convergence.anneal_until * steps))
    if first["phase"] == "selected" and first["step"] < choice:
        return []  # an earlier run's choice was kept
    found = [
        Marker("annealing starts", "anneal", round(convergence.anneal_from * steps)),
        Marker("choice final", "choice", choice),
    ]
    budget = facts.config.model.experts_budget
    if budget is not None and budget < facts.config.model.num_experts:
        found.insert(0, Marker("experts beyond the budget dropped", "budget", round(convergence.budget_at * steps)))
    return found


def _losses(task: str, history: History, marks: Sequence[Marker], size: Size) -> Plot:
    train = [(check["step"], check["train"][task]) for check in history.checks]
    validation = [(check["step"], check["validation"][task]) for check in history.checks]
    best = min(validation, key=lambda point: point[1])
    (first, at_first), (last, at_last) = validation[0], validation[-1]
    label = (
        f"Loss of {task}: validation {at_first:.4f} at step {first}, {at_last:.4f} at step {last}, lowest "
        f"{best[1]:.4f} at step {best[0]}; training {train[0][1]:.4f} to {train[-1][1]:.4f}"
    )
    lines = [
        Series("training", "train", thinned(train, 200)),
        Series("validation", "validation", thinned(validation, 200)),
    ]
    return over_steps(task, lines, steps=history.steps, label=label, moments=marks, size=size)


def _schedule(history: History, marks: Sequence[Marker]) -> list[Plot]:
    """Experts left, speed and learning rate."""
    panels = []
    for key, title in (
        ("experts", "experts left"),
        ("rows_per_second", "rows a second"),
        ("learning_rate", "learning rate"),
    ):
        points = [(check["step"], check[key]) for check in history.checks if isinstance(check.get(key), int | float)]
        if points:
            top = max(value for _, value in points) * 1.08 or 1.0
            label = f"{title}: {points[0][1]:g} at step {points[0][0]}, {points[-1][1]:g} at step {points[-1][0]}"
            line = Series(title, "validation", thinned(points, 200))
            panels.append(
                over_steps(title, [line], steps=history.steps, label=label, moments=marks, y_range=(0.0, top))
            )
    return panels


def _heaviest(history: History) -> list[int]:
    """Experts that get a colour, in order of their number: those that weigh most in the end, over all tasks."""
    return sorted(_chosen(history)[:COLOURS])


def _chosen(history: History) -> list[int]:
    """Experts that some task uses in the end, the heaviest over all tasks first."""
    last = history.checks[-1]["gate_weights"].values()
    totals = [sum(weights) for weights in zip(*last, strict=True)]
    return sorted((e for e, total in enumerate(totals) if total > 0), key=lambda expert: (-totals[expert], expert))


def _weights(
    task: str,
    history: History,
    coloured: Sequence[int],
    marks: Sequence[Marker],
    y_range: tuple[float, float],
    size: Size,
    most: int,
) -> Plot:
    steps = [check["step"] for check in history.checks]
    columns = list(zip(*(check["gate_weights"][task] for check in history.checks), strict=True))
    lines = []
    for expert, column in enumerate(columns):
        points = thinned(_while_alive(list(zip(steps, column, strict=True))), most)
        chosen = column[-1] >= LABELLED
        style = f"e{coloured.index(expert)}" if expert in coloured else "uncoloured" if chosen else "other"
        lines.append(Series(f"expert {expert}", style, points, str(expert) if chosen else ""))
    lines.sort(key=lambda line: (line.end != "", line.style != "other"))
    final = sorted(((column[-1], expert) for expert, column in enumerate(columns) if column[-1] > 0), reverse=True)
    heaviest = ", ".join(f"expert {expert} {weight:.2f}" for weight, expert in final[:COLOURS])
    label = f"Gate weights of {task}, in the end: {heaviest}"
    return over_steps(task, lines, steps=history.steps, label=label, moments=marks, y_range=y_range, size=size)


def _while_alive(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Without the zeros of an expert that was dropped, but for the first of them."""
    last = max((i for i, (_, weight) in enumerate(points) if weight > 0), default=-1)
    return points[: last + 2]
