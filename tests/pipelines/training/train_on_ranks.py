"""Script of one rank: run several ``ranker train`` commands, and compare the weights of all ranks after each training.

torchrun starts it once for many trainings, because starting takes longer than training.
"""

from __future__ import annotations

import json
import sys
from contextlib import nullcontext, redirect_stderr, redirect_stdout
from pathlib import Path

import torch
import torch.distributed as dist

from pipelines.cli.main import main
from pipelines.jobs import train as train_job
from pipelines.training.checkpoint import dense_parameters
from pipelines.training.distributed import init_distributed
from pipelines.training.trainer import Trainer
from tests.pipelines.training.tables_on_ranks import measure_tables


def fit_and_compare(trainer: Trainer) -> None:
    """Train, and check that the weights of this rank are those of rank 0."""
    original_fit(trainer)
    for name, parameter in dense_parameters(trainer._objective):
        weights = parameter.detach().clone()
        dist.broadcast(weights, 0)
        assert torch.equal(weights, parameter), f"{name} differs on rank {dist.get_rank()}"
    if dist.get_rank() == 0:
        for part in trainer._tables._parts()["author"]:
            print(f"author: [{part.start}, {part.stop})", file=sys.stderr)
        print("all ranks have the same weights", file=sys.stderr)


original_fit = Trainer.fit
Trainer.fit = fit_and_compare  # type: ignore[method-assign]
folder = Path(sys.argv[1])
with init_distributed() as context:
    if "--tables" in sys.argv:
        measure_tables(folder, context)
    train_job.init_distributed = lambda: nullcontext(context)
    for name, argv in json.loads((folder / "commands.json").read_text()).items():
        out, err = (folder / f"{name}.{stream}" for stream in ("out", "err"))
        with out.open("a") as stdout, err.open("a") as stderr, redirect_stdout(stdout), redirect_stderr(stderr):
            exit_code = main(argv)
            context.barrier()
        assert exit_code == 0, err.read_text()
# A thread that outlives the process group may abort the process at its end.
threads = [(task / "comm").read_text().strip() for task in Path("/proc/self/task").iterdir()]
assert "pt_gloo_runloop" not in threads, threads
