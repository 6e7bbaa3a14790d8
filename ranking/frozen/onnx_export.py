"""The frozen graph behind the embeddings as ONNX, so that a runtime made for inference can execute it.

Inputs, float32 but for ``request``: ``shared`` [requests, width] and ``items`` [candidates, width] as ``halves.Sides``
orders them, embeddings beside dense values; ``request`` [candidates] int64 says which row of ``shared`` each candidate
belongs to, and may be a single number if all of them belong to one and items have features. Outputs: ``output.TASK``
[candidates, 1] for each task, before calibration.

Of an expert's first layer the half that reads ``shared`` runs once a request; its result is the bias of the other half.
Asked for some outputs only, a runtime needs to run just the experts and towers that lead to them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper
from torch import Tensor

from ranking.encoding.encoder import Encoder
from ranking.encoding.request_batch import SharedItemSplitter
from ranking.frozen.graph import FrozenGraph, Layer

OPSET, IR_VERSION = 17, 8
"""Old enough for every runtime of the last years."""
OUTPUT = "output."
"""Prefix of the outputs' names."""


def onnx_body(graph: FrozenGraph, encoder: Encoder) -> bytes | None:
    """The body as an ONNX file; None for a per-example gate, whose rows choose their experts one by one.

    Args:
        graph: what to write.
        encoder: that encodes its inputs.
    """
    if graph.gate is not None:
        return None
    sides, body = SharedItemSplitter(encoder), _Body()
    for expert, (first, *others) in graph.experts.items():
        hidden = body.halved(f"expert.{expert}.0", first, sides.shared.joined, sides.items.joined)
        for depth, layer in enumerate(others, start=1):
            hidden = body.relu(body.affine(f"expert.{expert}.{depth}", hidden, layer))
        body.experts[expert] = hidden
    for task, layers in graph.towers.items():
        hidden = body.mixed(task, list(graph.selection.tasks[task].items()))
        for depth, layer in enumerate(layers[:-1]):
            hidden = body.relu(body.affine(f"tower.{task}.{depth}", hidden, layer))
        body.affine(f"{OUTPUT}{task}", hidden, layers[-1])
    widths = {"shared": len(sides.shared.joined), "items": len(sides.items.joined)}
    return body.file(widths, [f"{OUTPUT}{task}" for task in graph.towers])


class _Body:
    """Nodes and weights of a graph that is being put together; ``experts`` names their outputs."""

    def __init__(self) -> None:
        self.experts: dict[int, str] = {}
        self._nodes: list[onnx.NodeProto] = []
        self._weights: list[onnx.TensorProto] = []

    def affine(self, name: str, x: str, layer: Layer) -> str:
        weight, bias = layer
        return self._node("Gemm", [x, self._weight(f"{name}.weight", weight), self._weight(f"{name}.bias", bias)], name)

    def halved(self, name: str, layer: Layer, shared: Sequence[int], items: Sequence[int]) -> str:
        weight, bias = layer
        if not shared:
            return self.relu(self.affine(name, "items", (weight[items], bias)))
        once = self.affine(f"{name}.shared", "shared", (weight[shared], bias))
        of_rows = self._node("Gather", [once, "request"], f"{name}.request")
        if not items:
            return self.relu(of_rows)
        of_items = self._weight(f"{name}.items.weight", weight[items])
        return self.relu(self._node("Gemm", ["items", of_items, of_rows], name))

    def relu(self, x: str) -> str:
        return self._node("Relu", [x], f"{x}.relu")

    def mixed(self, task: str, chosen: Sequence[tuple[int, float]]) -> str:
        parts = []
        for expert, weight in chosen:
            by = self._weight(f"gate.{task}.{expert}", np.float32(weight))
            parts.append(self._node("Mul", [self.experts[expert], by], f"mixed.{task}.{expert}"))
        total = parts[0]
        for part in parts[1:]:
            total = self._node("Add", [total, part], f"{total}+{part}")
        return total

    def file(self, widths: dict[str, int], outputs: Sequence[str]) -> bytes:
        rows = {"shared": "requests", "items": "candidates"}
        inputs = [helper.make_tensor_value_info(k, TensorProto.FLOAT, [rows[k], w]) for k, w in widths.items()]
        inputs.append(helper.make_tensor_value_info("request", TensorProto.INT64, ["candidates_or_1"]))
        given = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["candidates", 1]) for name in outputs]
        graph = helper.make_graph(self._nodes, "frozen ranker", inputs, given, self._weights)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION)
        onnx.checker.check_model(model)
        written: bytes = model.SerializeToString()
        return written

    def _node(self, kind: str, inputs: list[str], output: str) -> str:
        self._nodes.append(helper.make_node(kind, inputs, [output]))
        return output

    def _weight(self, name: str, value: Tensor | npt.ArrayLike) -> str:
        self._weights.append(numpy_helper.from_array(np.asarray(value, np.float32), name))
        return name
