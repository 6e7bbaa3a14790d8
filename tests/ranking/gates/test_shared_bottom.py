"""The shared bottom as a gate."""

from __future__ import annotations

import torch

from ranking.gates import SharedBottom


def test_every_task_has_the_one_expert() -> None:
    gate = SharedBottom(3)
    assert (gate.num_tasks, gate.num_experts, gate.k, gate.per_example) == (3, 1, 1, False)
    assert torch.equal(gate(), torch.ones(3, 1))
    assert gate.route().selectors is None


def test_there_is_nothing_to_learn_and_nothing_to_conclude() -> None:
    gate = SharedBottom(2)
    assert list(gate.parameters()) == []
    assert not gate.needs_finalize
    assert gate.converged().tolist() == [True, True]
    assert gate.finalize() == 0
    assert gate.selection(["click", "like"]).tasks == {"click": {0: 1.0}, "like": {0: 1.0}}


def test_it_follows_the_model_to_its_precision() -> None:
    assert SharedBottom(2).double()().dtype == torch.float64
