"""Processes of one training: a single process, or the ranks that torchrun started."""

from __future__ import annotations

import gc
import importlib
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

COLLECTIVE_TIMEOUT = timedelta(hours=24)
"""Timeout of collective operations: profiling years of logs takes hours. A dead rank is detected immediately."""

KEEP_GROUP = ("torch.distributed.nn.functional", "torch.distributed.optim.zero_redundancy_optimizer")
"""Modules of PyTorch whose functions have the process group at the time of their import as a default argument.

TorchRec imports them. If that happens after the group was created, they keep the group and its threads until the
interpreter ends. A thread that frees a tensor at that moment aborts the process.
"""

IGNORED_WARNINGS = (
    "Grad strides",  # DDP copies such gradients correctly
    "TBE B200 optimization",  # FBGEMM reports on a GPU which kernels it has chosen
    "`torch.distributed.*` is deprecated",  # TorchRec calls functions of PyTorch that have new names
)
"""Start of the texts of warnings, as regular expressions, that nobody needs to act on."""


@dataclass(frozen=True)
class DistContext:
    """Position of this process among the ranks of a training.

    Attributes:
        rank: number of this process, from 0.
        world_size: number of processes.
        device: device of this process.
    """

    rank: int = 0
    world_size: int = 1
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    @property
    def is_main(self) -> bool:
        """Whether this process writes the run folder."""
        return self.rank == 0

    def sum(self, values: Tensor) -> Tensor:
        """Return the sum over all ranks, on every rank."""
        if self.world_size > 1:
            values = values.clone()
            dist.all_reduce(values)
        return values

    def any(self, flag: bool) -> bool:
        """Return whether the flag is set on any rank."""
        return bool(self.sum(torch.tensor(float(flag), device=self.device)) > 0) if self.world_size > 1 else flag

    def barrier(self) -> None:
        """Wait for all ranks."""
        if self.world_size > 1:
            dist.barrier()


def get_world_size() -> int:
    """Return the number of processes that torchrun started; 1 without torchrun."""
    return int(os.environ.get("WORLD_SIZE", "1"))


@contextmanager
def init_distributed() -> Iterator[DistContext]:
    """Join the process group of torchrun; without torchrun, yield the context of a single process.

    Raises:
        RankerError: another rank failed, or this machine has fewer GPUs than ranks.
    """
    with warnings.catch_warnings(), _join_group() as context:
        for message in IGNORED_WARNINGS:
            warnings.filterwarnings("ignore", message=message)
        yield context


@contextmanager
def _join_group() -> Iterator[DistContext]:
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0"))) if cuda else torch.device("cpu")
    world_size = get_world_size()
    if world_size == 1:
        yield DistContext(device=device)
        return
    rank = int(os.environ["RANK"])
    if cuda and int(os.environ["LOCAL_WORLD_SIZE"]) > (gpus := torch.cuda.device_count()):
        raise RankerError(
            f"rank {rank}: each rank needs a GPU, and this machine has {gpus}: start at most {gpus} ranks on it, or "
            "set CUDA_VISIBLE_DEVICES to an empty text to train on the CPU"
        )
    failure = RankerError(
        f"rank {rank}: training stopped because another rank failed; see the error of that rank. "
        "The same command with --resume continues from the last checkpoint"
    )

    def on_sigterm(*_: object) -> None:
        raise failure

    for module in KEEP_GROUP:
        importlib.import_module(module)
    previous_handler = signal.signal(signal.SIGTERM, on_sigterm)  # torchrun sends SIGTERM to the remaining ranks
    dist.init_process_group("nccl" if cuda else "gloo", timeout=COLLECTIVE_TIMEOUT)
    try:
        yield DistContext(rank, world_size, device)
        dist.barrier()
    except BaseException as error:
        # The process ends with its own message. torchrun, which notices the failure of a rank, must not end it before.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if _is_lost_peer(error):
            raise failure from error
        raise
    else:
        signal.signal(signal.SIGTERM, previous_handler)
    finally:
        dist.destroy_process_group()
        gc.collect()  # Models in reference cycles keep the group, too.


def _is_lost_peer(error: BaseException) -> bool:
    """Return whether another rank has ended; gloo and NCCL have no exception type of their own for it.

    They call wrong arguments, which are a defect of this program, invalid.
    """
    text = str(error).lower()
    names_it = any(word in text for word in ("gloo", "nccl", "connection", "socket"))
    return isinstance(error, RuntimeError) and names_it and "invalid" not in text
