"""Modules of the cuda backend that need no GPU; test_parity.py compares its scores."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from service.backends.torch_modules import ALIGNMENT, Buffers, SelectedExperts

WIDTH, OUTPUTS, CANDIDATES = 5, 3, 4

SELECTIONS = st.lists(st.sets(st.integers(0, 5), min_size=1, max_size=4), min_size=1, max_size=7)
"""Experts of each task, of which some are read by one task and others by all."""


def test_buffers_transfer_copies_every_tensor() -> None:
    ids, flags, rows = torch.tensor([[1, 2], [3, 4]]), torch.tensor([True]), torch.rand(3, 5)
    buffers = Buffers([ids, flags, torch.zeros(0, 4), rows], torch.device("cpu"))
    assert [tensor.shape for tensor in buffers.on_device] == [(2, 2), (1,), (0, 4), (3, 5)]
    assert torch.equal(buffers.on_device[0], ids)
    assert torch.equal(buffers.on_device[3], rows)
    starts = [tensor.data_ptr() - buffers.host[0].data_ptr() for tensor in buffers.host if tensor.numel()]
    assert starts == [0, ALIGNMENT, 2 * ALIGNMENT]
    buffers.host[0][:] = 7
    buffers.host[3][:] = 0.5
    assert torch.equal(buffers.on_device[0], ids)
    buffers.transfer()
    assert buffers.on_device[0].tolist() == [[7, 7], [7, 7]]
    assert bool((buffers.on_device[3] == 0.5).all())


def numbered(selections: list[set[int]]) -> list[list[int]]:
    """Number the experts that some task selected."""
    used = sorted(set().union(*selections))
    return [[used.index(expert) for expert in sorted(selection)] for selection in selections]


@given(SELECTIONS, st.integers(0, 2**32))
def test_selected_experts_any_selection_matches_one_task_at_a_time(selections: list[set[int]], seed: int) -> None:
    random, reads = torch.Generator().manual_seed(seed), numbered(selections)
    hidden = torch.randn(1 + max(map(max, reads)), CANDIDATES, WIDTH, generator=random)
    weights = [{expert: torch.randn(WIDTH, OUTPUTS, generator=random) for expert in read} for read in reads]
    biases = [torch.randn(OUTPUTS, generator=random) for _ in reads]
    outputs = SelectedExperts(weights, biases)(hidden)
    for task, (by_expert, bias) in enumerate(zip(weights, biases, strict=True)):
        expected = sum((hidden[expert] @ weight for expert, weight in by_expert.items()), bias)
        torch.testing.assert_close(outputs[task], expected, rtol=1e-5, atol=1e-5)


@given(SELECTIONS, st.integers(0, 5))
def test_selected_experts_infinite_expert_reaches_only_its_tasks(selections: list[set[int]], which: int) -> None:
    reads = numbered(selections)
    experts = 1 + max(map(max, reads))
    hidden = torch.ones(experts, CANDIDATES, WIDTH)
    hidden[which % experts] = torch.inf
    weights = [dict.fromkeys(read, torch.ones(WIDTH, OUTPUTS)) for read in reads]
    outputs = SelectedExperts(weights, [torch.zeros(OUTPUTS)] * len(reads))(hidden)
    finite = outputs.isfinite().flatten(1).all(1).tolist()
    assert finite == [which % experts not in read for read in reads]
