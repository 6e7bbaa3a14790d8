"""Score requests with prebuilt matrices: a dict from id to row, and ``body.onnx``. Needs NumPy and ONNX Runtime only.

This is the look-up of a hand-written application for one model. It checks nothing: an unknown id or context value is an
error, and missing features are not listed.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime

from benchmarks.serving.peers.protocol import Body, Scores, candidate_ids


class Matrices:
    """Scores requests for one bundle; implements ``protocol.Scorer``.

    Args:
        bundle: folder of the bundle.
        folder: folder that ``matrix_files.write_matrices`` wrote.
    """

    def __init__(self, bundle: Path, folder: Path) -> None:
        layout = json.loads((folder / "layout.json").read_text())
        self.tasks: list[str] = layout["tasks"]
        self._items, self._item_rows = np.load(folder / "items.npy"), _rows(folder / "items.ids.npy")
        self._users, self._user_rows = np.load(folder / "users.npy"), _rows(folder / "users.ids.npy")
        self._numbers: dict[str, tuple[int, float, float]] = {name: tuple(c) for name, c in layout["numbers"].items()}
        self._categories = []
        for name, start in layout["categories"].items():
            vectors = np.load(folder / f"context.{name}.npy")
            rows = _rows(folder / f"context.{name}.ids.npy")
            self._categories.append((name, slice(start, start + vectors.shape[1]), vectors, rows))
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        model = str(bundle / "body.onnx")
        self._session = onnxruntime.InferenceSession(model, options, ["CPUExecutionProvider"])
        self._outputs = [f"output.{task}" for task in self.tasks]

    def score(self, bodies: Sequence[Body]) -> list[Scores]:
        """Return the scores of each request; all requests form one batch."""
        shared = np.stack([self._shared(body) for body in bodies])
        rows = [self._item_rows[item_id] for body in bodies for item_id in candidate_ids(body)]
        stops = np.cumsum([len(candidate_ids(body)) for body in bodies])
        request = np.repeat(np.arange(len(bodies)), np.diff(stops, prepend=0)) if len(bodies) > 1 else np.zeros(1, int)
        feeds = {"shared": shared, "items": self._items.take(rows, 0), "request": request}
        logits = np.concatenate(self._session.run(self._outputs, feeds), 1)
        scores = 1 / (1 + np.exp(-logits))
        return np.split(scores, stops[:-1]) if len(bodies) > 1 else [scores]

    def _shared(self, body: Body) -> npt.NDArray[np.float32]:
        """Return the inputs of the user and the context."""
        shared: npt.NDArray[np.float32] = self._users[self._user_rows[body["user"]["id"]]].copy()
        context = body["context"]
        for name, columns, vectors, rows in self._categories:
            shared[columns] = vectors[rows[context[name]]]
        for name, (column, shift, scale) in self._numbers.items():
            shared[column] = (context[name] - shift) / scale
        return shared


def _rows(file: Path) -> dict[Any, int]:
    """Map each id in a file to its row."""
    return {item_id: row for row, item_id in enumerate(np.load(file).tolist())}
