"""Compare ``ranker score`` with the frozen graph only on the same rows, in turns.

    python -m benchmarks.training.scoring FOLDER ROWS REPEATS

The command is timed from Parquet to Parquet: reading, cleaning, encoding, graph, writing. The graph is timed on
prepared tensors. The model has no counters.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import torch

from benchmarks.training import shape
from pipelines.config.config import load_config
from pipelines.data.reader import LogReader
from pipelines.datasets.synthetic import generate
from pipelines.jobs.freeze import freeze_run
from pipelines.jobs.score import score_log
from pipelines.jobs.train import train
from ranking.encoding.torch_batch import TorchBatch
from ranking.frozen.ranker import SCORE_ROWS, FrozenRanker


def main(folder: Path, rows: int, repeats: int) -> dict[str, Any]:
    """Return the rows/s of both, one value per repeat."""
    generate(folder / "log", rows)
    settings = [f"training.batch_size={min(shape.BATCH, rows // 100)}", *shape.WITHOUT_COUNTERS]
    config = load_config(folder / "log" / "ranker.toml", settings)
    ranker = freeze_run(train(config, folder / "run").path, folder / "bundle")
    path = folder / "log" / "log"
    batches = prepare_batches(ranker, path)
    count = sum(map(len, batches))
    command_rates, graph_rates = [], []
    for repeat in range(repeats + 1):  # The first repeat is a warm-up.
        start = time.perf_counter()
        run_graph(ranker, batches)
        middle = time.perf_counter()
        score_log(ranker, path, folder / f"scores-{repeat}.parquet")
        end = time.perf_counter()
        graph_rates.append(count / (middle - start))
        command_rates.append(count / (end - middle))
    return {"rows": count, "score": command_rates[1:], "graph": graph_rates[1:]}


def prepare_batches(ranker: FrozenRanker, log: Path | str) -> list[TorchBatch]:
    """Return the inputs of the graph, in batches of the same size as in ``ranker score``."""
    reader = LogReader(log, ranker.schema, dict(ranker.tables), labels=False)
    return [
        TorchBatch.from_numpy(ranker.encoder.encode(cleaned.rows.slice(start, SCORE_ROWS)))
        for cleaned in reader.scan(drop_duplicates=False)
        for start in range(0, cleaned.rows.num_rows, SCORE_ROWS)
    ]


@torch.inference_mode()
def run_graph(ranker: FrozenRanker, batches: list[TorchBatch]) -> None:
    """Compute the outputs of all tasks."""
    for batch in batches:
        ranker.graph(batch, list(ranker.schema.task_names))


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))))
