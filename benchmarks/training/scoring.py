"""``ranker score`` against the bare frozen graph on the same rows.

    python -m benchmarks.training.scoring FOLDER ROWS REPEATS

Turn by turn: the whole command (Parquet → clean → encode → graph → Parquet), and the graph alone on tensors that are
ready.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import torch

from benchmarks.training import shape
from pipelines.config.config import load
from pipelines.data.reader import LogReader
from pipelines.datasets.synthetic import generate
from pipelines.jobs.freeze import freeze_run
from pipelines.jobs.score import score_log
from pipelines.jobs.train import train
from ranking.encoding.torch_batch import TorchBatch
from ranking.frozen.ranker import SCORE_ROWS, FrozenRanker


def main(folder: Path, rows: int, repeats: int) -> dict[str, Any]:
    """Rows/s of both, for each repeat."""
    generate(folder / "log", rows)
    config = load(folder / "log" / "ranker.toml", [f"training.batch_size={min(shape.BATCH, rows // 100)}"])
    ranker = freeze_run(train(config, folder / "run").path, folder / "bundle")
    ready = inputs(ranker, config.logs.path)
    count = sum(map(len, ready))
    whole, bare = [], []
    for repeat in range(repeats + 1):  # the first warms up
        start = time.perf_counter()
        graph_alone(ranker, ready)
        between = time.perf_counter()
        score_log(ranker, config.logs.path, folder / f"scores-{repeat}.parquet")
        end = time.perf_counter()
        bare.append(count / (between - start))
        whole.append(count / (end - between))
    return {"rows": count, "score": whole[1:], "graph": bare[1:]}


def inputs(ranker: FrozenRanker, log: Path) -> list[TorchBatch]:
    """What the graph gets, in the batches that scoring cuts."""
    reader = LogReader(log, ranker.schema, dict(ranker.tables), labels=False)
    return [
        TorchBatch.from_numpy(ranker.encoder.encode(cleaned.rows.slice(start, SCORE_ROWS)))
        for cleaned in reader.scan(drop_duplicates=False)
        for start in range(0, cleaned.rows.num_rows, SCORE_ROWS)
    ]


@torch.inference_mode()
def graph_alone(ranker: FrozenRanker, ready: list[TorchBatch]) -> None:
    """Outputs of all tasks."""
    for part in ready:
        ranker.graph(part, list(ranker.schema.task_names))


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))))
