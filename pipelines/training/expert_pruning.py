"""Takes experts, and a gate that cannot serve, out of a model in training, with the optimiser's state of them."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from pipelines.console import print_status
from pipelines.training.gate_schedule import GateSchedule
from ranking.gates import Gate
from ranking.model.mmoe import MMoE


def narrow(model: MMoE, optimiser: torch.optim.Optimizer, convergence: GateSchedule, step: int) -> None:
    """Goes on with the experts that are left, and with the final choice among them once it is made."""
    if model.gate.serving_gate() is not model.gate:
        distil(model, optimiser)
        print_status(f"step {step}: the gate is distilled into one that serves; experts are fixed from here")
        return
    keep_experts(model, optimiser, convergence.experts)
    left = f"{len(convergence.experts)} of {model.gate.num_experts} experts"
    if not convergence.done:
        _forget_gate(model, optimiser)
        print_status(f"step {step}: the budget leaves {left}; only these train on")
        return
    if convergence.snapped_codes:
        print_status(
            f"step {step}: {convergence.snapped_codes} selectors were not binary when the ramp ended and were "
            "snapped; more steps, a longer ramp or a larger training.learning_rate.gates lets them choose"
        )
    if model.gate.per_example:
        print_status(f"step {step}: the choice is exact for every example, at most {model.gate.k} experts a task")
    else:
        since = f"binary since step {convergence.binary_at_step}"
        print_status(f"step {step}: the gates chose {left} ({since}); only these train on")


def distil(model: MMoE, optimiser: torch.optim.Optimizer) -> None:
    """Puts the gate that serves in the place of one that cannot; it learns on while the experts are fixed."""
    _forget_gate(model, optimiser)
    gate: Gate = model.gate.serving_gate()
    gate.train(model.training)
    optimiser.param_groups[-1]["params"] = list(gate.parameters())
    model.gate = gate
    model.experts.requires_grad_(False)


def keep_experts(model: MMoE, optimiser: torch.optim.Optimizer, experts: list[int]) -> None:
    """Drops all experts but these from the model and from the optimiser's state."""
    kept = model.positions(experts)
    before = list(model.experts.parameters())
    model.keep_experts(experts)
    replacement: dict[nn.Parameter, nn.Parameter] = dict(zip(before, model.experts.parameters(), strict=True))
    for group in optimiser.param_groups:
        group["params"] = [replacement.get(parameter, parameter) for parameter in group["params"]]
    for old, new in replacement.items():
        state = optimiser.state.pop(old, {})
        optimiser.state[new] = {
            key: value[kept] if isinstance(value, Tensor) and value.shape == old.shape else value
            for key, value in state.items()
        }


def _forget_gate(model: MMoE, optimiser: torch.optim.Optimizer) -> None:
    """Drops the optimiser's state of the gate, whose parameters were changed by other hands."""
    for parameter in model.gate.parameters():
        optimiser.state.pop(parameter, None)
