"""ONNX export of the frozen graph behind the embeddings.

Inputs, float32 except ``request``: ``shared`` [requests, width] and ``items`` [candidates, width], embeddings and dense
values in the order of ``SharedItemSplitter``; ``request`` [candidates] int64, the row of ``shared`` of each
candidate, or a single number if all candidates belong to one request and items have features. Outputs: ``output.TASK``
[candidates, 1] per task, before calibration.

The part of an expert's first layer that reads ``shared`` runs once per request; its result is the bias of the part that
reads ``items``. To compute some outputs only, a runtime runs only the experts and towers that lead to them.
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
"""Old versions that all current runtimes support."""
OUTPUT = "output."
"""Name prefix of the outputs."""


def onnx_body(graph: FrozenGraph, encoder: Encoder) -> bytes | None:
    """Export the graph behind the embeddings; returns None for a per-example gate, which selects experts per row.

    Args:
        graph: graph to export.
        encoder: encoder of its inputs.
    """
    if graph.gate is not None:
        return None
    splitter, body = SharedItemSplitter(encoder), _GraphBuilder()
    for expert, (first, *others) in graph.experts.items():
        hidden = body.first_layer(
            f"expert.{expert}.0", first, splitter.shared.input_columns, splitter.items.input_columns
        )
        for depth, layer in enumerate(others, start=1):
            hidden = body.relu(body.affine(f"expert.{expert}.{depth}", hidden, layer))
        body.experts[expert] = hidden
    for task, layers in graph.towers.items():
        hidden = body.mix(task, list(graph.selection.tasks[task].items()))
        for depth, layer in enumerate(layers[:-1]):
            hidden = body.relu(body.affine(f"tower.{task}.{depth}", hidden, layer))
        body.affine(f"{OUTPUT}{task}", hidden, layers[-1])
    widths = {"shared": len(splitter.shared.input_columns), "items": len(splitter.items.input_columns)}
    return body.serialize(widths, [f"{OUTPUT}{task}" for task in graph.towers])


class _GraphBuilder:
    """Builder of the ONNX graph; ``experts`` holds the output name of each expert."""

    def __init__(self) -> None:
        self.experts: dict[int, str] = {}
        self._nodes: list[onnx.NodeProto] = []
        self._weights: list[onnx.TensorProto] = []

    def affine(self, name: str, x: str, layer: Layer) -> str:
        weight, bias = layer
        return self._node("Gemm", [x, self._weight(f"{name}.weight", weight), self._weight(f"{name}.bias", bias)], name)

    def first_layer(self, name: str, layer: Layer, shared: Sequence[int], items: Sequence[int]) -> str:
        weight, bias = layer
        if not shared:
            return self.relu(self.affine(name, "items", (weight[items], bias)))
        per_request = self.affine(f"{name}.shared", "shared", (weight[shared], bias))
        per_candidate = self._node("Gather", [per_request, "request"], f"{name}.request")
        if not items:
            return self.relu(per_candidate)
        item_weight = self._weight(f"{name}.items.weight", weight[items])
        return self.relu(self._node("Gemm", ["items", item_weight, per_candidate], name))

    def relu(self, x: str) -> str:
        return self._node("Relu", [x], f"{x}.relu")

    def mix(self, task: str, selected: Sequence[tuple[int, float]]) -> str:
        parts = []
        for expert, weight in selected:
            scale = self._weight(f"gate.{task}.{expert}", np.float32(weight))
            parts.append(self._node("Mul", [self.experts[expert], scale], f"mixed.{task}.{expert}"))
        total = parts[0]
        for part in parts[1:]:
            total = self._node("Add", [total, part], f"{total}+{part}")
        return total

    def serialize(self, widths: dict[str, int], outputs: Sequence[str]) -> bytes:
        rows = {"shared": "requests", "items": "candidates"}
        inputs = [helper.make_tensor_value_info(k, TensorProto.FLOAT, [rows[k], w]) for k, w in widths.items()]
        inputs.append(helper.make_tensor_value_info("request", TensorProto.INT64, ["candidates_or_1"]))
        output_infos = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["candidates", 1]) for name in outputs]
        graph = helper.make_graph(self._nodes, "frozen ranker", inputs, output_infos, self._weights)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION)
        onnx.checker.check_model(model)
        serialized: bytes = model.SerializeToString()
        return serialized

    def _node(self, kind: str, inputs: list[str], output: str) -> str:
        self._nodes.append(helper.make_node(kind, inputs, [output]))
        return output

    def _weight(self, name: str, value: Tensor | npt.ArrayLike) -> str:
        self._weights.append(numpy_helper.from_array(np.asarray(value, np.float32), name))
        return name
