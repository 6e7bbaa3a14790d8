"""Pairwise loss on the order of the rows of a group, such as the candidates of a request."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from ranking.model.losses import label_weights
from ranking.schema import Task

MAX_GROUP_ROWS = 128
"""Rows of a group that are compared with each other; a larger group counts as several, which bounds the memory."""


class Pairs(NamedTuple):
    """Pairs of rows of the same group.

    Attributes:
        first: position of one row of each pair [pairs].
        second: position of the other one [pairs].
        group: number of the group of each row [rows], from 0; a row without a group has one of its own.
    """

    first: Tensor
    second: Tensor
    group: Tensor


def pairwise_losses(outputs: Tensor, labels: Tensor, groups: Tensor, tasks: Sequence[Task], weights: Tensor) -> Tensor:
    """Return each task's mean pairwise loss [tasks]; 0 for a regression.

    The loss of a pair is the cross-entropy of the order of its labels under the difference of its logits: RankNet
    (Burges et al. 2005, "Learning to rank using gradient descent", section 3). It is averaged over the pairs of a group
    with different labels, then over the rows: a group counts as often as it has rows, as in GAUC. Adding it to the loss
    of the rows keeps the logits calibrated (Li et al. 2015, "Click-through prediction for advertising in Twitter
    timeline", section 3.3).

    Args:
        outputs: logits or values [rows, tasks].
        labels: labels [rows, tasks], NaN where masked.
        groups: group of each row [rows] int64; 0 means none.
        tasks: tasks in the order of the columns.
        weights: sample weights [rows]. A weight of 2 is equivalent to duplicating the row.
    """
    first, second, group = pairs_within(groups)
    binary = torch.tensor([task.kind == "binary" for task in tasks], device=outputs.device)
    order = torch.nan_to_num(labels[first] - labels[second]).sign() * binary
    weights = weights.to(outputs.dtype)
    weight = (weights[first] * weights[second]).unsqueeze(1) * order.abs()
    loss = weight * F.softplus(-order * (outputs[first] - outputs[second]))
    zeros = outputs.new_zeros(len(groups), len(tasks))
    pair_weights = zeros.index_add(0, group[first], weight)
    rows = zeros.index_add(0, group, weights.unsqueeze(1) * ~labels.isnan())
    means = zeros.index_add(0, group[first], loss) / torch.where(pair_weights > 0, pair_weights, 1.0)
    total = label_weights(labels, weights)
    return (means * rows).sum(0) / torch.where(total > 0, total, 1.0)


def pairs_within(groups: Tensor) -> Pairs:
    """Return all pairs of rows of the same group, each once; at most ``MAX_GROUP_ROWS`` rows of a group at a time."""
    groups, order = groups.sort(stable=True)
    position = torch.arange(len(groups), device=groups.device)
    starts = torch.ones_like(groups, dtype=torch.bool)
    starts[1:] = (groups[1:] != groups[:-1]) | (groups[1:] == 0)
    first_of_group = torch.where(starts, position, 0).cummax(0).values
    earlier = (position - first_of_group) % MAX_GROUP_ROWS  # rows of the group before each row
    first = position.repeat_interleave(earlier)
    pair = torch.arange(len(first), device=groups.device)
    start = position - earlier
    second = start[first] + pair - (earlier.cumsum(0) - earlier)[first]
    group = torch.empty_like(position)
    group[order] = start
    return Pairs(order[first], order[second], group)
