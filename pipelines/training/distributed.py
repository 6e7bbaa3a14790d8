"""The processes of one training: one alone, or the ranks that torchrun started."""

from __future__ import annotations

import os
import signal
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor

from ranking.errors import RankerError

PATIENCE = timedelta(hours=24)
"""How long ranks wait for one that works: surveying years of logs takes hours. A rank that dies is noticed at once."""


@dataclass(frozen=True)
class DistContext:
    """Who trains together.

    Attributes:
        rank: this process, from 0.
        size: processes.
        device: where this process computes.
    """

    rank: int = 0
    size: int = 1
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    @property
    def first(self) -> bool:
        """Whether this process writes the run folder."""
        return self.rank == 0

    def sum(self, values: Tensor) -> Tensor:
        """Sum over the ranks, the same on each."""
        if self.size > 1:
            values = values.clone()
            dist.all_reduce(values)
        return values

    def any(self, flag: bool) -> bool:
        """Whether some rank says so."""
        return bool(self.sum(torch.tensor(float(flag), device=self.device)) > 0) if self.size > 1 else flag

    def wait(self) -> None:
        """Until every rank is here."""
        if self.size > 1:
            dist.barrier()


def world_size() -> int:
    """How many processes torchrun started for this training; 1 without it."""
    return int(os.environ.get("WORLD_SIZE", "1"))


@contextmanager
def init_distributed() -> Iterator[DistContext]:
    """The world that this process is part of; a process that torchrun started meets the others.

    Raises:
        RankerError: another rank was lost.
    """
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0"))) if cuda else torch.device("cpu")
    if world_size() == 1:
        yield DistContext(device=device)
        return
    rank = int(os.environ["RANK"])
    lost = RankerError(
        f"rank {rank}: another rank was lost, so that training stops here; its own message says why. "
        "The same command with --resume goes on from the last checkpoint"
    )

    def stopped(*_: object) -> None:
        raise lost

    before = signal.signal(signal.SIGTERM, stopped)  # how torchrun ends the ranks that are left
    dist.init_process_group("nccl" if cuda else "gloo", timeout=PATIENCE)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Grad strides")  # copied, not wrong
            yield DistContext(rank, world_size(), device)
        dist.barrier()
    except RuntimeError as error:  # gloo and NCCL have no exception of their own for a peer that is gone
        if any(word in str(error).lower() for word in ("gloo", "nccl", "connection", "socket")):
            raise lost from error
        raise
    finally:
        signal.signal(signal.SIGTERM, before)
        dist.destroy_process_group()
