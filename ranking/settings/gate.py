"""``[model.gate]`` of ``ranker.toml``: the settings of each kind of gate."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Discriminator, NonNegativeFloat, PositiveInt, Tag, model_validator

from ranking.schema import StrictModel


class _Kind(StrictModel):
    """Settings of every kind of gate.

    Attributes:
        importance_weight: weight of the load-balancing penalty L_importance.
    """

    importance_weight: NonNegativeFloat = 0.0


class _PerExample(_Kind):
    """Settings of a gate that can select per example.

    Attributes:
        per_example: select per example instead of once per task.
        similarity_same: β_s of the sample-similarity penalty L_s.
        similarity_different: β_d of the same penalty.
    """

    per_example: bool = False
    similarity_same: NonNegativeFloat = 0.0
    similarity_different: NonNegativeFloat = 0.0

    @model_validator(mode="after")
    def _check_similarity(self) -> Self:
        if not self.per_example and (self.similarity_same or self.similarity_different):
            raise ValueError("similarity_same and similarity_different compare examples: set per_example = true")
        return self


class _Selectors(_Kind):
    """Settings of a gate with k selectors.

    Attributes:
        k: maximum number of experts per task.
        experts_budget: maximum number B of experts for all tasks together; default: a quarter of the experts but at
            least k, and unbounded for a per-example gate, where the cost of a row depends on its own selection.
        union_weight: weight of the expected fraction of experts that any task uses.
        overlap_weight: weight of the penalty on equal selectors of one task; it decays to 0.
        entropy_weight: λ of the selector entropy penalty; it increases from 0 over the ramp.
    """

    k: PositiveInt = 2
    experts_budget: PositiveInt | None = None
    union_weight: NonNegativeFloat = 0.0
    overlap_weight: NonNegativeFloat = 0.01
    entropy_weight: NonNegativeFloat = 0.0


class DSelectKConfig(_Selectors, _PerExample):
    """Settings of DSelect-k.

    Attributes:
        start: ``similar_tasks`` measures which tasks are alike, and lets these start with the same experts, if the gate
            is static and the budget has room for two disjoint selections; ``random`` as in the paper.
        surplus: treatment of codes without an expert, see ``DSelectK``.
        surplus_weight: ξ of the penalty on these codes, for ``surplus = "penalty"``.
    """

    kind: Literal["dselect_k"] = "dselect_k"
    start: Literal["similar_tasks", "random"] = "similar_tasks"
    surplus: Literal["fold", "random", "penalty"] = "fold"
    surplus_weight: NonNegativeFloat = 0.1


class SoftmaxSelectorsConfig(_Selectors):
    """Settings of the ablation gate, which has softmax selectors instead of binary codes."""

    kind: Literal["softmax_selectors"]


class TopKConfig(_PerExample):
    """Settings of Top-k.

    Attributes:
        k: number of experts per task.
        noise: add learned noise to the logits in training.
    """

    kind: Literal["top_k"]
    k: PositiveInt = 2
    noise: bool = False


class SoftmaxConfig(_PerExample):
    """Settings of the softmax gate, with which every task uses every expert."""

    kind: Literal["softmax"]


class GumbelSoftmaxConfig(_Kind):
    """Settings of Gumbel-softmax, which has one Bernoulli selector per expert.

    Attributes:
        sparsity_weight: λ of the penalty Σ log ψ, which reduces the number of experts.
    """

    kind: Literal["gumbel_softmax"]
    sparsity_weight: NonNegativeFloat = 1e-3


class AttentiveConfig(_Kind):
    """Settings of the attentive gate, which is distilled into a per-example softmax gate for serving."""

    kind: Literal["attentive"]
    similarity_same: NonNegativeFloat = 0.0
    similarity_different: NonNegativeFloat = 0.0


class SharedBottomConfig(StrictModel):
    """One network for all tasks; ``model.experts`` is ignored."""

    kind: Literal["shared_bottom"]


class SingleTaskConfig(StrictModel):
    """The single-task baseline: one separate model per task."""

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
