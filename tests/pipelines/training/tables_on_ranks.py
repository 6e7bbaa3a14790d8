"""What a training does with its tables, on each rank: create, save, restore and continue them."""

from __future__ import annotations

import gc
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from safetensors.torch import load_file

from pipelines.training.checkpoint import Checkpoints
from pipelines.training.distributed import DistContext
from pipelines.training.embedding_tables import SPLIT_BYTES, EmbeddingTables
from pipelines.training.tensor_file import TensorBlocks, write_tensors
from ranking.encoding.torch_batch import TorchBatch
from ranking.model.embeddings import Embeddings
from ranking.schema import Schema

DIM = 16
ROW_BYTES = 4 * DIM
SMALL_ROWS, LARGE_ROWS = SPLIT_BYTES // ROW_BYTES + 1, 4_000_001
SCHEMA = Schema.model_validate(
    {
        "name": "x",
        "features": [{"name": "item", "kind": "categorical", "owner": "item", "dim": DIM}],
        "tasks": [{"name": "y", "kind": "binary"}],
    }
)


def anonymous_bytes() -> int:
    """Return the memory that is this process's own; mapped files do not count."""
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(lines["RssAnon"].split()[0]) * 1024


@contextmanager
def sampled_peak(peaks: list[int]) -> Iterator[None]:
    """Append by how many bytes the memory grew at most."""
    before, samples, done = anonymous_bytes(), [0], threading.Event()

    def sample() -> None:
        while not done.wait(0.002):
            samples.append(anonymous_bytes() - before)

    thread = threading.Thread(target=sample)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
        peaks.append(max(samples))


def make_tables(rows: int, context: DistContext, weights: dict[str, torch.Tensor] | None = None) -> EmbeddingTables:
    """Create a table and do one step, which gives its rows different sums."""
    embeddings = Embeddings(SCHEMA, {"item": rows}, "meta")
    tables = EmbeddingTables(embeddings, 0.1, 8, context, 3, weights)
    ids = torch.tensor([[2], [rows - 1]])
    (embeddings(TorchBatch(ids, (), torch.zeros(2, 0))) * torch.tensor([[1.0], [2.0]])).sum().backward()
    return tables


def use_tables(folder: Path, rows: int, context: DistContext) -> None:
    """Do with a table what a training does, and continue it in another one; write ROWS.safetensors with its content."""
    tables, file = make_tables(rows, context), folder / f"{rows}.safetensors"
    checkpoints = Checkpoints(folder / str(rows), folder / "best.safetensors", context, 1)
    checkpoints.save(1, tables.state(), {})
    names = {"item": tables.weights()["item"], "sums": tables.sums()["item"]}
    tensors: dict[str, torch.Tensor | TensorBlocks] = {**names}
    if context.is_main:
        with file.open("wb") as stream:
            write_tensors(tensors, stream)
    else:
        write_tensors(tensors, None)
    context.barrier()
    checkpoint = checkpoints.latest()
    assert checkpoint is not None
    checkpoint.load(tables.state())
    del tables, names, tensors
    gc.collect()
    stored = load_file(file)
    continued = make_tables(rows + 5, context, {"item": stored["item"]})
    continued.load_sums({"item": stored["sums"]})


def measure_tables(folder: Path, context: DistContext) -> None:
    """Write RANK.json, by how many bytes the memory of a rank grew for a small and then for a large table.

    The small one comes first, so that the large one measures nothing else.
    """
    peaks: list[int] = []
    for rows in (SMALL_ROWS, LARGE_ROWS):
        with sampled_peak(peaks):
            use_tables(folder, rows, context)
        gc.collect()
    (folder / f"{context.rank}.json").write_text(json.dumps(peaks))
