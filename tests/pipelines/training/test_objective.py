"""The training objective: losses of the rows, ranking loss, penalties."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from pipelines.training.labeled_batch import DeviceBatch
from pipelines.training.objective import Objective, ObjectiveOutput
from ranking.model.losses import FixedWeighting, UncertaintyWeighting
from ranking.model.mmoe import MMoE
from ranking.model.ranking_loss import pairwise_losses

if TYPE_CHECKING:
    from tests.pipelines.conftest import Shop

PENALTY: Any = lambda *_: torch.tensor(10.0)  # noqa: E731 - stands for the penalties on the gate


def compute(
    shop: Shop, model: MMoE, batch: DeviceBatch, weighting: type[FixedWeighting], weight: float = 0.0
) -> ObjectiveOutput:
    tasks = shop.schema.tasks
    output: ObjectiveOutput = Objective(model, tasks, weighting(tasks), PENALTY, weight, "float32")(1, batch)
    return output


def test_ranking_loss_is_added_with_its_weight_and_those_of_the_tasks(
    shop: Shop, model_and_batch: tuple[MMoE, DeviceBatch]
) -> None:
    model, batch = model_and_batch
    grouped = replace(batch, groups=torch.arange(len(batch.labels)) % 9)
    for weighting in (FixedWeighting, UncertaintyWeighting):
        plain, ranked = compute(shop, model, batch, weighting), compute(shop, model, grouped, weighting, 0.5)
        assert grouped.groups is not None
        pairs = pairwise_losses(plain.outputs, batch.labels, grouped.groups, shop.schema.tasks, batch.weights)
        weights = torch.tensor([task.weight for task in shop.schema.tasks])
        assert pairs @ weights > 0
        torch.testing.assert_close(ranked.total - plain.total, 0.5 * (pairs @ weights))
        assert torch.equal(ranked.losses, plain.losses)


def test_objective_without_groups_is_the_weighted_losses_and_the_penalties(
    shop: Shop, model_and_batch: tuple[MMoE, DeviceBatch]
) -> None:
    model, batch = model_and_batch
    output = compute(shop, model, batch, FixedWeighting, 0.5)
    weights = torch.tensor([task.weight for task in shop.schema.tasks])
    torch.testing.assert_close(output.total, output.losses @ weights + 10.0)
