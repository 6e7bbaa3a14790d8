"""Train deepctr-torch's MMOE with its ``fit`` on prepared rows.

    python -m benchmarks.training.deepctr ROWS EPOCHS

Its gates are per-example softmax gates, here without hidden layers. Its L2 penalty on whole embedding tables, which
ranker does not have, is disabled. It uses Adam, no metrics and no validation. ``fit`` creates its own loader and
accepts no other.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from deepctr_torch.inputs import DenseFeat, SparseFeat, VarLenSparseFeat
from deepctr_torch.models import MMOE

from benchmarks.training import shape
from benchmarks.training.prepared import Rows, restore


def main(folder: Path, epochs: int) -> dict[str, Any]:
    """Train once and return the rows/s after the first epoch, which is a warm-up."""
    rows = restore(folder)
    model = MMOE(
        make_columns(rows),
        num_experts=shape.EXPERTS,
        expert_dnn_hidden_units=shape.EXPERT_LAYERS,
        gate_dnn_hidden_units=(),
        tower_dnn_hidden_units=shape.TOWER_LAYERS,
        l2_reg_linear=0,
        l2_reg_embedding=0,
        task_types=["binary" if binary else "regression" for binary in rows.tasks.values()],
        task_names=list(rows.tasks),
    )
    model.compile("adam", loss=["binary_crossentropy" if binary else "mse" for binary in rows.tasks.values()])
    fit = {"x": rows.x, "y": rows.y, "batch_size": shape.BATCH, "verbose": 0}
    with (
        Path(os.devnull).open("w") as devnull,
        contextlib.redirect_stdout(devnull),
        contextlib.redirect_stderr(devnull),
    ):
        model.fit(**fit, epochs=1)
        start = time.perf_counter()
        history = model.fit(**fit, epochs=epochs - 1)
    seconds = time.perf_counter() - start
    return {"rows_per_second": (epochs - 1) * len(rows.y) / seconds, "losses": history.history["loss"][-1:]}


def make_columns(rows: Rows) -> list[Any]:
    """Return deepctr-torch's feature columns."""
    columns: list[Any] = []
    for f in rows.sparse:
        column = SparseFeat(f.name, f.rows, embedding_dim=f.dim)
        columns.append(column if f.length == 1 else VarLenSparseFeat(column, f.length, combiner="mean"))
    return columns + [DenseFeat(name) for name in rows.dense]


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]), int(sys.argv[2]))))
