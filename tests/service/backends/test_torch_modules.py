"""Modules of the cuda backend that need no GPU; test_parity.py compares its scores."""

from __future__ import annotations

import torch

from service.backends.torch_modules import ALIGNMENT, Buffers


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
