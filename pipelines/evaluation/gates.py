"""Gate metrics of an evaluation, as plain data and as text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ranking.model.gate_stats import GateStatistics

EXPERTS_SHOWN = 8
"""Maximum number of experts that the text lists per task."""


def gate_metrics(statistics: GateStatistics, selection: Mapping[str, Any]) -> dict[str, Any]:
    """Return the gate metrics of the evaluated rows with the figures of ``selection.json``.

    ``steps_to_binary`` is the share of training steps after which the selection was exact.
    ``training_experts_of_top_k`` is the number of experts that a task ran in training per expert that Top-k with the
    same k would have run (DSelect-k, table C.3); None for a gate without a k. ``frozen_flops`` is the cost per row of
    the frozen graph; for a per-example gate, it is the mean over the validation split. ``frozen_of_dense`` is its ratio
    to the cost of the dense model.
    """
    binary_at_step, flops = selection["binary_at_step"], selection["flops"]
    return {
        "kind": selection["kind"],
        "num_experts": selection["num_experts"],
        "k": selection["k"],
        "per_example": selection["per_example"],
        **statistics.to_json(),
        "binary_at_step": binary_at_step,
        "steps_to_binary": None if binary_at_step is None else binary_at_step / selection["steps"],
        "training_experts_of_top_k": selection["training_experts_of_top_k"],
        "frozen_flops": flops["frozen"],
        "frozen_of_dense": flops["frozen"] / flops["dense"],
    }


def format_gates(gates: Mapping[str, Any]) -> str:
    """Format gate metrics as text."""
    kind = f"{gates['kind']}, per example" if gates["per_example"] else gates["kind"]
    summary = [
        f"{kind}: {gates['experts_used']} of {gates['num_experts']} experts used, {gates['experts_a_row']:.1f} per row",
        f"frozen graph {gates['frozen_flops']:,} FLOPs per row, {gates['frozen_of_dense']:.0%} of the dense model",
    ]
    if gates["steps_to_binary"] is not None:
        summary.append(f"selection exact after {gates['steps_to_binary']:.0%} of the steps")
    if gates["training_experts_of_top_k"] is not None:
        summary.append(f"training ran {gates['training_experts_of_top_k']:.2f} times the experts of Top-k")
    lines = ["; ".join(summary)]
    jaccard = gates["jaccard"]
    if jaccard["all"] is not None:
        lines.append(
            f"mean Jaccard index of two tasks' experts: {jaccard['all']:.3f}, within groups "
            f"{_number(jaccard['within_groups'])}, across groups {_number(jaccard['across_groups'])}"
        )
    lines.append(f"{'task':<16}{'experts':>8}{'H_s':>7}{'H_u':>7}{'I(E;Y)':>8}  mean expert weights")
    for task, weights in gates["table"].items():
        lines.append(
            f"{task:<16}{gates['experts_a_task'][task]:>8.1f}{gates['sparsity'][task]:>7.3f}"
            f"{gates['utilisation'][task]:>7.3f}{_number(gates['mutual_information'][task]):>8}  {_weights(weights)}"
        )
    return "\n".join(lines)


def _weights(weights: Mapping[str, float]) -> str:
    """Format the heaviest experts, ordered by expert number."""
    shown = sorted(sorted(weights, key=lambda expert: -weights[expert])[:EXPERTS_SHOWN], key=int)
    more = f"  and {len(weights) - len(shown)} more" if len(weights) > len(shown) else ""
    return "  ".join(f"{expert}: {weights[expert]:.2f}" for expert in shown) + more


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"
