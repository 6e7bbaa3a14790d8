"""What the gates did, for ``ranker evaluate``: measures as plain data, and as lines of text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ranking.specialisation import Specialisation


def measures(found: Specialisation, trained: Mapping[str, Any]) -> dict[str, Any]:
    """What was measured on rows, beside how training came to the selection (``selection.json``).

    ``steps_to_binary`` is the share of the steps after which the choice was exact, and ``training_experts_of_top_k``
    how many experts a task ran in training for each one that Top-k with the same k would have run (DSelect-k, table
    C.3). ``frozen_of_dense`` is the cost of the frozen graph in FLOPs for each of the dense model's.
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
        "frozen_of_dense": costs["frozen"] / costs["dense"],
    }


def table(found: Mapping[str, Any]) -> str:
    """The measures as lines of text for a person."""
    kind = f"{found['kind']}, per example" if found["per_example"] else found["kind"]
    binary = "" if found["steps_to_binary"] is None else f"; binary after {found['steps_to_binary']:.0%} of the steps"
    similar = found["jaccard"]
    lines = [
        f"{kind}: {found['experts_used']} of {found['num_experts']} experts used, {found['experts_a_row']:.1f} a row; "
        f"frozen FLOPs {found['frozen_of_dense']:.0%} of dense{binary}; "
        f"experts run in training {found['training_experts_of_top_k']:.2f} × Top-k's",
        f"Jaccard index of two tasks' experts: {_number(similar['all'])}, within groups "
        f"{_number(similar['within_groups'])}, across groups {_number(similar['across_groups'])}",
        f"{'task':<16}{'experts':>8}{'H_s':>7}{'H_u':>7}{'I(E;Y)':>8}  mean weight of each expert",
    ]
    for task, row in found["table"].items():
        weights = "  ".join(f"{expert}: {weight:.2f}" for expert, weight in row.items())
        lines.append(
            f"{task:<16}{found['experts_a_task'][task]:>8.1f}{found['sparsity'][task]:>7.3f}"
            f"{found['utilisation'][task]:>7.3f}{_number(found['mutual_information'][task]):>8}  {weights}"
        )
    return "\n".join(lines)


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"
