"""Statistics of how a gate distributes rows among experts, accumulated over batches (measures of both papers)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ranking.schema import Task


class GateStatistics:
    """Running sums over rows; a static gate routes every row identically.

    Entropies are in bits. H_s and H_u are equations 1 and 2 of Krishnamurthy et al.; the mutual information I(E;Y) is
    their equation 3 with the expected counts of appendix A: cᵢⱼ sums the weights of expert i over the rows of class j.

    Args:
        tasks: tasks in the order of the gate's output.
        num_experts: number of experts n.
    """

    def __init__(self, tasks: Sequence[Task], num_experts: int) -> None:
        self._tasks = tasks
        count = len(tasks)
        self._rows = 0
        self._weights = torch.zeros(count, num_experts, dtype=torch.float64)
        self._entropy = torch.zeros(count, dtype=torch.float64)
        self._used = torch.zeros(count, dtype=torch.float64)
        self._union = 0.0
        self._jaccard = torch.zeros(count, count, dtype=torch.float64)
        self._counts = torch.zeros(count, 2, num_experts, dtype=torch.float64)

    @torch.no_grad()
    def add(self, weights: Tensor, labels: Tensor) -> None:
        """Add rows.

        Args:
            weights: gate weights [tasks, experts] of a static gate, or [rows, tasks, experts].
            labels: labels [rows, tasks], NaN where unknown.
        """
        rows = len(labels)
        weights = weights.double().expand(rows, *weights.shape[-2:])
        distinct = weights if weights.stride(0) else weights[:1]  # All rows of a static gate are equal.
        times = rows / max(len(distinct), 1)
        self._rows += rows
        p = distinct / distinct.sum(-1, keepdim=True).clamp(min=1e-300)
        self._weights += times * distinct.sum(0)
        self._entropy += times * entropy(p).sum(0)
        used = (distinct > 0).double()
        self._used += times * used.sum((0, -1))
        self._union += times * float(used.amax(1).sum())
        both = used @ used.mT
        either = used.sum(-1).unsqueeze(-1) + used.sum(-1).unsqueeze(-2) - both
        self._jaccard += times * (both / either.clamp(min=1.0)).sum(0)
        classes = torch.stack([labels == 0, labels == 1]).double()  # [classes, rows, tasks]
        if len(distinct) == rows:
            self._counts += torch.einsum("cbt,btn->tcn", classes, p)
        else:
            self._counts += torch.einsum("ct,tn->tcn", classes.sum(1), p[0])

    def extend(self, other: GateStatistics) -> None:
        """Add the rows of other statistics of the same gate."""
        self._rows += other._rows
        self._weights += other._weights
        self._entropy += other._entropy
        self._used += other._used
        self._union += other._union
        self._jaccard += other._jaccard
        self._counts += other._counts

    @property
    def mean_weights(self) -> Tensor:
        """Mean weight of each expert for each task [tasks, experts]."""
        return self._weights / max(self._rows, 1)

    @property
    def experts_per_row(self) -> float:
        """Mean over rows of the number of experts with a positive weight for any task."""
        return self._union / max(self._rows, 1)

    @property
    def experts_per_task(self) -> dict[str, float]:
        """Mean over rows of the number of experts with a positive weight, by task."""
        return self._by_task((self._used / max(self._rows, 1)).tolist())

    def to_json(self) -> dict[str, Any]:
        """Return all measures; an undefined one (no such pair of tasks, a missing class) is None."""
        rows, mean = max(self._rows, 1), self.mean_weights
        shares = mean / mean.sum(-1, keepdim=True).clamp(min=1e-300)
        binary = [task.kind == "binary" for task in self._tasks]
        information = [
            mutual_information(counts) if is_binary and bool((counts.sum(1) > 0).all()) else None
            for counts, is_binary in zip(self._counts, binary, strict=True)
        ]
        return {
            "experts_used": int((mean > 0).any(0).sum()),
            "experts_a_row": self.experts_per_row,
            "experts_a_task": self.experts_per_task,
            "jaccard": self._mean_jaccard(),
            "sparsity": self._by_task((self._entropy / rows).tolist()),
            "utilisation": self._by_task(entropy(shares).tolist()),
            "mutual_information": self._by_task(information),
            "table": self._by_task([_nonzero_weights(row) for row in mean]),
            "table_by_class": {
                task.name: {str(c): _nonzero_weights(row / row.sum()) for c, row in enumerate(counts) if row.sum() > 0}
                for task, counts in zip(self._tasks, self._counts, strict=True)
                if task.kind == "binary"
            },
        }

    def _by_task(self, values: Sequence[Any]) -> dict[str, Any]:
        return {task.name: value for task, value in zip(self._tasks, values, strict=True)}

    def _mean_jaccard(self) -> dict[str, float | None]:
        """Return the mean Jaccard index of two tasks' experts over all pairs, pairs within and pairs across groups."""
        groups = [task.group for task in self._tasks]
        rows = max(self._rows, 1)

        def mean(includes: Callable[[str | None, str | None], bool]) -> float | None:
            values = [
                float(self._jaccard[i, j]) / rows
                for i in range(len(groups))
                for j in range(i)
                if includes(groups[i], groups[j])
            ]
            return sum(values) / len(values) if values else None

        return {
            "all": mean(lambda _a, _b: True),
            "within_groups": mean(lambda a, b: a is not None and a == b),
            "across_groups": mean(lambda a, b: a is not None and b is not None and a != b),
        }


def entropy(p: Tensor) -> Tensor:
    """Return the entropy of distributions along the last dimension, in bits."""
    return 0.0 - (p * p.clamp(min=1e-300).log2()).sum(-1)  # 0.0 − x avoids −0.


def mutual_information(counts: Tensor) -> float:
    """Return I(E;Y) = H(E) + H(Y) − H(E, Y) ≥ 0 in bits, from counts [classes, experts] with a positive sum."""
    joint = counts / counts.sum()
    information = entropy(joint.sum(0)) + entropy(joint.sum(1)) - entropy(joint.flatten())
    return max(float(information), 0.0)


def _nonzero_weights(row: Tensor) -> dict[str, float]:
    return {str(expert): weight for expert, weight in enumerate(row.tolist()) if weight > 0}
