"""What the gates did, for ``ranker evaluate``: measures as plain data, and as lines of text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ranking.model.gate_stats import GateStatistics

SHOWN = 8
"""Experts of a task that a line of text names."""


def measures(found: GateStatistics, trained: Mapping[str, Any]) -> dict[str, Any]:
    """What was measured on rows, beside how training came to the selection (``selection.json``).

    ``steps_to_binary`` is the share of the steps after which the choice was exact. ``training_experts_of_top_k`` is how
    many experts a task ran in training for each one that Top-k with the same k would have run (DSelect-k, table C.3);
    None for a gate without a k. ``frozen_flops`` is what the frozen graph costs a row (per example: on average over the
    validation split), and ``frozen_of_dense`` that for each FLOP of the same model with all its experts.
    """
    binary, costs = trained["binary_at_step"], trained["flops"]
    return {
        "kind": trained["kind"],
        "num_experts": trained["num_experts"],
        "k": trained["k"],
        "per_example": trained["per_example"],
        **found.to_json(),
        "binary_at_step": binary,
        "steps_to_binary": None if binary is None else binary / trained["steps"],
        "training_experts_of_top_k": trained["training_experts_of_top_k"],
        "frozen_flops": costs["frozen"],
        "frozen_of_dense": costs["frozen"] / costs["dense"],
    }


def table(found: Mapping[str, Any]) -> str:
    """The measures as lines of text for a person."""
    kind = f"{found['kind']}, per example" if found["per_example"] else found["kind"]
    first = [
        f"{kind}: {found['experts_used']} of {found['num_experts']} experts used, {found['experts_a_row']:.1f} a row",
        f"frozen graph {found['frozen_flops']:,} FLOPs a row, {found['frozen_of_dense']:.0%} of its dense model",
    ]
    if found["steps_to_binary"] is not None:
        first.append(f"choice exact after {found['steps_to_binary']:.0%} of the steps")
    if found["training_experts_of_top_k"] is not None:
        first.append(f"training ran {found['training_experts_of_top_k']:.2f} experts for each of Top-k's")
    lines = ["; ".join(first)]
    similar = found["jaccard"]
    if similar["all"] is not None:
        lines.append(
            f"Jaccard index of two tasks' experts: {similar['all']:.3f}, within groups "
            f"{_number(similar['within_groups'])}, across groups {_number(similar['across_groups'])}"
        )
    lines.append(f"{'task':<16}{'experts':>8}{'H_s':>7}{'H_u':>7}{'I(E;Y)':>8}  mean weights of the experts")
    for task, row in found["table"].items():
        lines.append(
            f"{task:<16}{found['experts_a_task'][task]:>8.1f}{found['sparsity'][task]:>7.3f}"
            f"{found['utilisation'][task]:>7.3f}{_number(found['mutual_information'][task]):>8}  {_weights(row)}"
        )
    return "\n".join(lines)


def _weights(row: Mapping[str, float]) -> str:
    """The heaviest experts, by number."""
    shown = sorted(sorted(row, key=lambda expert: -row[expert])[:SHOWN], key=int)
    more = f"  and {len(row) - len(shown)} more" if len(row) > len(shown) else ""
    return "  ".join(f"{expert}: {row[expert]:.2f}" for expert in shown) + more


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"
