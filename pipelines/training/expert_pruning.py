"""Remove experts, or replace a gate that cannot be served, in a model in training, with the optimizer state."""

from __future__ import annotations

import torch
from torch import Tensor

from pipelines.console import print_status
from pipelines.training.gate_schedule import GateSchedule
from ranking.gates import Gate
from ranking.model.mmoe import MMoE


def prune(model: MMoE, optimizer: torch.optim.Optimizer, schedule: GateSchedule, step: int) -> None:
    """Apply the schedule's decision to the model: distill the gate, or keep only the remaining experts."""
    if model.gate.serving_gate() is not model.gate:
        distill(model, optimizer)
        print_status(
            f"step {step}: the gate was distilled into one that can be served; the experts are frozen from this step on"
        )
        return
    keep_experts(model, optimizer, schedule.experts)
    remaining = f"{len(schedule.experts)} of {model.gate.num_experts} experts"
    if not schedule.done:
        _drop_gate_state(model, optimizer)
        print_status(f"step {step}: the experts budget keeps {remaining}; training continues with these")
        return
    if schedule.snapped_codes:
        print_status(
            f"step {step}: {schedule.snapped_codes} selectors were not binary after annealing and were snapped; "
            "use more steps, a longer annealing or a larger training.learning_rate.gates"
        )
    if model.gate.per_example:
        print_status(f"step {step}: the selection is exact for every example, at most {model.gate.k} experts per task")
    else:
        since = f"binary since step {schedule.binary_at_step}"
        print_status(f"step {step}: the gates selected {remaining} ({since}); training continues with these")


def distill(model: MMoE, optimizer: torch.optim.Optimizer) -> None:
    """Replace a gate that cannot be served with one that can, and freeze the experts; the new gate keeps learning."""
    _drop_gate_state(model, optimizer)
    gate: Gate = model.gate.serving_gate()
    gate.train(model.training)
    optimizer.param_groups[-1]["params"] = list(gate.parameters())
    model.gate = gate
    model.experts.requires_grad_(False)


def keep_experts(model: MMoE, optimizer: torch.optim.Optimizer, experts: list[int]) -> None:
    """Remove all other experts from the model and from the optimizer state."""
    positions = model.positions(experts)
    before = dict(model.named_parameters())
    model.keep_experts(experts)
    after = dict(model.named_parameters())
    replacement = {before[name]: parameter for name, parameter in after.items() if parameter is not before[name]}
    for group in optimizer.param_groups:
        group["params"] = [replacement.get(parameter, parameter) for parameter in group["params"]]
    for old, new in replacement.items():
        state = optimizer.state.pop(old, {})
        optimizer.state[new] = {
            key: value[positions] if isinstance(value, Tensor) and value.shape == old.shape else value
            for key, value in state.items()
        }


def _drop_gate_state(model: MMoE, optimizer: torch.optim.Optimizer) -> None:
    """Drop the optimizer state of the gate, whose parameters changed outside of the optimizer."""
    for parameter in model.gate.parameters():
        optimizer.state.pop(parameter, None)
