"""Sections on the training history: losses, gate weights and schedule by step."""

from __future__ import annotations

from collections.abc import Sequence

from pipelines.report.plots import MANY_TASKS, Marker, Plot, Series, Size, line_plot, thin
from pipelines.report.run_data import RunData, TrainingHistory
from pipelines.report.section import Section

MAX_COLORS = 8
"""Maximum number of experts with their own color; more colors cannot be told apart."""

MAX_POINTS = 40_000
"""Approximate number of points of all gate-weight lines together, which bounds the size of the page."""

MAX_LOSS_POINTS = 200
"""Maximum number of points of a loss or schedule line."""

GATES_WITHOUT_SCHEDULE = {"top_k", "softmax", "shared_bottom", "single_task"}
"""Gate kinds without annealing and final selection."""

MIN_LABELED_WEIGHT = 0.05
"""Final weight from which the line of an expert has a label."""


def learning_curves(run_data: RunData) -> Section:
    """Build the plots of training and validation loss by task, and of the schedule."""
    title = "Learning curves"
    if not run_data.histories:
        omitted = (
            "There is no metrics.jsonl because training did not reach its first check. Wait for it, or train again."
        )
        return Section("curves", title, omitted=omitted)
    narrow = len(run_data.config.tasks) > MANY_TASKS
    size = Size().narrow() if narrow else Size()
    panels = [
        _loss_plot(task, history, schedule_markers(run_data, history), size)
        for history in run_data.histories
        for task in history.tasks
    ]
    history = run_data.history
    markers = schedule_markers(run_data, history) if history else []
    about = (
        "Loss of each task by optimizer step; each panel has its own scale. The reported model is the one with the "
        "best validation loss after the experts were selected."
    )
    sampled = [task.name for task in run_data.config.tasks if task.keep_negatives < 1]
    if sampled:
        about += (
            f" Training kept only a sample of the negatives of {', '.join(sampled)}: the training loss is that of the "
            "kept rows and is higher than the validation loss of all rows."
        )
    if run_data.config.training.teachers:
        about += (
            " Half of each label was the prediction of earlier runs: the training loss is that of these labels and is "
            "not comparable to the validation loss."
        )
    return Section(
        "curves",
        title,
        about,
        {
            "panels": panels,
            "markers": markers,
            "schedule": _schedule_plots(history, markers) if history else [],
            "narrow": narrow,
        },
    )


def gate_weights(run_data: RunData) -> Section:
    """Build the plots of expert weights by task and step (figure 2 of the DSelect-k paper)."""
    title, history = "Gate weights", run_data.history
    if run_data.single_task:
        return Section("trajectories", title, omitted="Each task has a separate model, so there is no gate.")
    if history is None or "gate_weights" not in history.checks[-1]:
        omitted = "metrics.jsonl has no gate weights because an older version wrote it. Train again to get them."
        return Section("trajectories", title, omitted=omitted)
    num_experts = len(next(iter(history.checks[-1]["gate_weights"].values())))
    used = _used_experts(history)
    colored = sorted(used[:MAX_COLORS])
    narrow = len(history.tasks) > MANY_TASKS
    size = Size(right=30).narrow() if narrow else Size(right=30)
    top = max(max(weights) for check in history.checks for weights in check["gate_weights"].values())
    y_range = (0.0, min(1.0, top * 1.05))
    points_per_line = max(12, MAX_POINTS // (len(history.tasks) * num_experts))
    markers = schedule_markers(run_data, history)
    return Section(
        "trajectories",
        title,
        "Weight of each expert for each task at every check; the label of a line is the number of its expert."
        + (" This gate is per example: the weights are means over a batch." if run_data.per_example else ""),
        {
            "panels": [
                _weights_plot(task, history, colored, markers, y_range, size, points_per_line) for task in history.tasks
            ],
            "markers": markers,
            "colored": colored,
            "others": num_experts > len(colored),
            "crowded": len(used) > MAX_COLORS,
            "narrow": narrow,
        },
    )


def schedule_markers(run_data: RunData, history: TrainingHistory) -> list[Marker]:
    """Return the steps of budget, start of annealing and final selection; none for gates without a schedule."""
    if run_data.config.model.gate.kind in GATES_WITHOUT_SCHEDULE:
        return []
    convergence, steps, first = run_data.config.training.convergence, history.steps, history.checks[0]
    final_step = max(1, round(convergence.anneal_until * steps))
    if first["phase"] == "selected" and first["step"] < final_step:
        return []  # a warm start kept the selection of an earlier run
    markers = [
        Marker("annealing starts", "anneal", round(convergence.anneal_from * steps)),
        Marker("selection final", "final", final_step),
    ]
    budget = run_data.config.model.experts_budget
    if budget is not None and budget < run_data.config.model.num_experts:
        markers.insert(0, Marker("experts beyond the budget removed", "budget", round(convergence.budget_at * steps)))
    return markers


def _loss_plot(task: str, history: TrainingHistory, markers: Sequence[Marker], size: Size) -> Plot:
    train = [(check["step"], check["train"][task]) for check in history.checks]
    validation = [(check["step"], check["validation"][task]) for check in history.checks]
    best = min(validation, key=lambda point: point[1])
    (first, first_loss), (last, last_loss) = validation[0], validation[-1]
    label = (
        f"Loss of {task}: validation {first_loss:.4f} at step {first}, {last_loss:.4f} at step {last}, lowest "
        f"{best[1]:.4f} at step {best[0]}; training {train[0][1]:.4f} to {train[-1][1]:.4f}"
    )
    lines = [
        Series("training", "train", thin(train, MAX_LOSS_POINTS)),
        Series("validation", "validation", thin(validation, MAX_LOSS_POINTS)),
    ]
    return line_plot(task, lines, x_max=history.steps, label=label, markers=markers, size=size)


def _schedule_plots(history: TrainingHistory, markers: Sequence[Marker]) -> list[Plot]:
    """Return the plots of remaining experts, speed and learning rate."""
    panels = []
    for key, title in (
        ("experts", "remaining experts"),
        ("rows_per_second", "rows per second"),
        ("learning_rate", "learning rate"),
    ):
        points = [(check["step"], check[key]) for check in history.checks if isinstance(check.get(key), int | float)]
        if points:
            top = max(value for _, value in points) * 1.08 or 1.0
            label = f"{title}: {points[0][1]:g} at step {points[0][0]}, {points[-1][1]:g} at step {points[-1][0]}"
            line = Series(title, "validation", thin(points, MAX_LOSS_POINTS))
            panels.append(
                line_plot(title, [line], x_max=history.steps, label=label, markers=markers, y_range=(0.0, top))
            )
    return panels


def _used_experts(history: TrainingHistory) -> list[int]:
    """Return the experts with a final weight above 0 for some task, in order of decreasing total weight."""
    weights_by_task = history.checks[-1]["gate_weights"].values()
    totals = [sum(weights) for weights in zip(*weights_by_task, strict=True)]
    return sorted((e for e, total in enumerate(totals) if total > 0), key=lambda expert: (-totals[expert], expert))


def _weights_plot(
    task: str,
    history: TrainingHistory,
    colored: Sequence[int],
    markers: Sequence[Marker],
    y_range: tuple[float, float],
    size: Size,
    points_per_line: int,
) -> Plot:
    steps = [check["step"] for check in history.checks]
    columns = list(zip(*(check["gate_weights"][task] for check in history.checks), strict=True))
    lines = []
    for expert, column in enumerate(columns):
        points = thin(_until_removed(list(zip(steps, column, strict=True))), points_per_line)
        labeled = column[-1] >= MIN_LABELED_WEIGHT
        style = f"e{colored.index(expert)}" if expert in colored else "uncolored" if labeled else "other"
        lines.append(Series(f"expert {expert}", style, points, str(expert) if labeled else ""))
    lines.sort(key=lambda line: (line.end != "", line.style != "other"))
    final = sorted(((column[-1], expert) for expert, column in enumerate(columns) if column[-1] > 0), reverse=True)
    heaviest = ", ".join(f"expert {expert} {weight:.2f}" for weight, expert in final[:MAX_COLORS])
    label = f"Final gate weights of {task}: {heaviest}"
    return line_plot(task, lines, x_max=history.steps, label=label, markers=markers, y_range=y_range, size=size)


def _until_removed(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Drop the trailing zeros of a removed expert, except for the first one."""
    last = max((i for i, (_, weight) in enumerate(points) if weight > 0), default=-1)
    return points[: last + 2]
