"""Builds the gate that ``[model.gate]`` of ``ranker.toml`` describes."""

from __future__ import annotations

from ranking.gates.attentive import AttentiveGate
from ranking.gates.base import Gate
from ranking.gates.dselect_k import DSelectK
from ranking.gates.gumbel_softmax import GumbelSoftmax
from ranking.gates.shared_bottom import SharedBottom
from ranking.gates.softmax import Softmax
from ranking.gates.softmax_selectors import SoftmaxSelectors
from ranking.gates.top_k import TopK
from ranking.settings.gate import (
    AttentiveConfig,
    DSelectKConfig,
    GateConfig,
    GumbelSoftmaxConfig,
    SharedBottomConfig,
    SingleTaskConfig,
    SoftmaxConfig,
    SoftmaxSelectorsConfig,
    TopKConfig,
)


def build_gate(
    config: GateConfig, num_tasks: int, num_experts: int, input_size: int, width: int, gamma: float = 1.0
) -> Gate:
    """Build an untrained gate.

    Args:
        config: kind and settings.
        num_tasks: number of tasks T.
        num_experts: number of experts n.
        input_size: width of the examples, which per-example gates read.
        width: width of the experts' outputs, which an attentive gate reads.
        gamma: initial width of DSelect-k's fractional region.

    Raises:
        ValueError: ``single_task`` does not have a gate, or a setting is out of range.
    """
    examples = input_size if getattr(config, "per_example", False) else None
    match config:
        case DSelectKConfig():
            return DSelectK(num_tasks, num_experts, config.k, gamma, examples, config.surplus)
        case TopKConfig():
            return TopK(num_tasks, num_experts, config.k, examples, config.noise)
        case SoftmaxConfig():
            return Softmax(num_tasks, num_experts, examples)
        case GumbelSoftmaxConfig():
            return GumbelSoftmax(num_tasks, num_experts)
        case SoftmaxSelectorsConfig():
            return SoftmaxSelectors(num_tasks, num_experts, config.k)
        case AttentiveConfig():
            return AttentiveGate(num_tasks, num_experts, input_size, width)
        case SharedBottomConfig():
            return SharedBottom(num_tasks)
        case SingleTaskConfig():
            raise ValueError("single_task trains one model per task and does not have a gate")
