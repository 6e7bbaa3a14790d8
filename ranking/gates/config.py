"""``[model.gate]`` of a ranker.toml: each kind of gate, its settings, and how it is built."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Discriminator, NonNegativeFloat, PositiveInt, Tag, model_validator

from ranking.gates.attentive import AttentiveGate
from ranking.gates.base import Gate
from ranking.gates.dselect_k import DSelectK, Surplus
from ranking.gates.gumbel_softmax import GumbelSoftmax
from ranking.gates.shared_bottom import SharedBottom
from ranking.gates.softmax import Softmax
from ranking.gates.softmax_selectors import SoftmaxSelectors
from ranking.gates.top_k import TopK
from ranking.schema import StrictModel


class _Kind(StrictModel):
    """What every kind of gate can be asked.

    Attributes:
        importance_weight: weight of the load-balancing penalty L_importance.
    """

    importance_weight: NonNegativeFloat = 0.0


class _PerExample(_Kind):
    """A gate that can decide per example.

    Attributes:
        per_example: decide for each example instead of once.
        similarity_same: β_s of the sample-similarity penalty L_s.
        similarity_different: its β_d.
    """

    per_example: bool = False
    similarity_same: NonNegativeFloat = 0.0
    similarity_different: NonNegativeFloat = 0.0

    @model_validator(mode="after")
    def _similarity_is_of_examples(self) -> Self:
        if not self.per_example and (self.similarity_same or self.similarity_different):
            raise ValueError("similarity_same and similarity_different compare examples: set per_example = true")
        return self


class _Selectors(_Kind):
    """A gate made of k selectors.

    Attributes:
        k: the most experts that one task may use.
        experts_budget: B, the most experts that all tasks together may use; default: a quarter of the experts but at
            least k, and no bound for a per-example gate, whose rows cost what each of them chooses.
        union_weight: weight of the expected share of the experts that any task uses.
        overlap_weight: weight of the penalty on selectors of one task that agree; it fades out.
        entropy_weight: λ of the penalty on undecided selectors; it rises from 0 over the ramp.
    """

    k: PositiveInt = 2
    experts_budget: PositiveInt | None = None
    union_weight: NonNegativeFloat = 0.0
    overlap_weight: NonNegativeFloat = 0.01
    entropy_weight: NonNegativeFloat = 0.0


class DSelectKConfig(_Selectors, _PerExample):
    """DSelect-k.

    Attributes:
        surplus: what codes without an expert become if n is no power of two, see ``DSelectK``.
        surplus_weight: ξ of the penalty on them, for ``surplus = "penalty"``.
    """

    kind: Literal["dselect_k"] = "dselect_k"
    surplus: Surplus = "fold"
    surplus_weight: NonNegativeFloat = 0.1


class SoftmaxSelectorsConfig(_Selectors):
    """The ablation gate: softmaxes instead of binary codes."""

    kind: Literal["softmax_selectors"]


class TopKConfig(_PerExample):
    """Top-k.

    Attributes:
        k: experts of one task.
        noise: add learned noise to the logits in training.
    """

    kind: Literal["top_k"]
    k: PositiveInt = 2
    noise: bool = False


class SoftmaxConfig(_PerExample):
    """Softmax: every task uses every expert."""

    kind: Literal["softmax"]


class GumbelSoftmaxConfig(_Kind):
    """Gumbel-softmax: a Bernoulli selector for each expert.

    Attributes:
        sparsity_weight: λ of the penalty Σ log ψ, which makes experts rarer.
    """

    kind: Literal["gumbel_softmax"]
    sparsity_weight: NonNegativeFloat = 1e-3


class AttentiveConfig(_Kind):
    """Attentive while the experts learn, then distilled into a per-example softmax gate that can serve."""

    kind: Literal["attentive"]
    similarity_same: NonNegativeFloat = 0.0
    similarity_different: NonNegativeFloat = 0.0


class SharedBottomConfig(StrictModel):
    """One network for all tasks; ``model.experts`` is left aside."""

    kind: Literal["shared_bottom"]


class SingleTaskConfig(StrictModel):
    """The single-task baseline: for each task a model of its own that shares nothing."""

    kind: Literal["single_task"]


def _kind(data: Any) -> Any:
    return data.get("kind", "dselect_k") if isinstance(data, dict) else getattr(data, "kind", None)


GateConfig = Annotated[
    Annotated[DSelectKConfig, Tag("dselect_k")]
    | Annotated[TopKConfig, Tag("top_k")]
    | Annotated[SoftmaxConfig, Tag("softmax")]
    | Annotated[GumbelSoftmaxConfig, Tag("gumbel_softmax")]
    | Annotated[SoftmaxSelectorsConfig, Tag("softmax_selectors")]
    | Annotated[AttentiveConfig, Tag("attentive")]
    | Annotated[SharedBottomConfig, Tag("shared_bottom")]
    | Annotated[SingleTaskConfig, Tag("single_task")],
    Discriminator(_kind),
]


def build_gate(
    config: GateConfig, num_tasks: int, num_experts: int, input_size: int, width: int, gamma: float = 1.0
) -> Gate:
    """An untrained gate.

    Args:
        config: its kind and settings.
        num_tasks: T.
        num_experts: n.
        input_size: width of the examples, which per-example gates read.
        width: of the experts' outputs, which an attentive gate reads.
        gamma: initial width of DSelect-k's fractional region.

    Raises:
        ValueError: the settings make no gate.
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
            raise ValueError("single_task is a model for each task, trained one by one: it has no gate over tasks")
