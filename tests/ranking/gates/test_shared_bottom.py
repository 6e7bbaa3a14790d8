"""Shared bottom as a gate with one expert."""

from __future__ import annotations

import torch

from ranking.gates import SharedBottom


def test_shared_bottom_gives_every_task_the_only_expert() -> None:
    gate = SharedBottom(3)
    assert (gate.num_tasks, gate.num_experts, gate.k, gate.per_example) == (3, 1, 1, False)
    assert torch.equal(gate(), torch.ones(3, 1))
    assert gate.route().selectors is None


def test_shared_bottom_has_no_parameters_and_is_converged() -> None:
    gate = SharedBottom(2)
    assert list(gate.parameters()) == []
    assert not gate.needs_finalize
    assert gate.converged().tolist() == [True, True]
    assert gate.finalize() == 0
    assert gate.selection(["click", "like"]).tasks == {"click": {0: 1.0}, "like": {0: 1.0}}


def test_shared_bottom_converted_to_float64_returns_float64_weights() -> None:
    assert SharedBottom(2).double()().dtype == torch.float64
