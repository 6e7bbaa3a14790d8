"""ONNX export of the frozen graph behind the embeddings.

Inputs, float32 except ``request``: ``shared`` [requests, width] and ``items`` [candidates, width], embeddings and dense
values in the order of ``SharedItemSplitter``, without bins, which the graph computes; ``request`` [candidates] int64,
the row of ``shared`` of each candidate, or a single number if all candidates belong to one request and items have
features. Outputs: ``output.TASK`` [candidates, 1] per task, before calibration.

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
from ranking.encoding.request_batch import FeatureGroup, SharedItemSplitter
from ranking.frozen.graph import FrozenGraph, Layer

OPSET, IR_VERSION = 17, 8
"""Old versions that all current runtimes support."""
OUTPUT = "output."
"""Name prefix of the outputs."""

Input = tuple[str, Sequence[int]]
"""Name of an input of the experts, and its columns in their first layer."""


def onnx_body(graph: FrozenGraph, encoder: Encoder) -> bytes | None:
    """Export the graph behind the embeddings; returns None for a per-example gate, which selects experts per row.

    Args:
        graph: graph to export.
        encoder: encoder of its inputs.
    """
    if graph.gate is not None:
        return None
    splitter, body = SharedItemSplitter(encoder), _GraphBuilder()
    groups = {"shared": splitter.shared, "items": splitter.items}
    widths = {name: len(group.input_columns) - len(group.bins) for name, group in groups.items()}
    inputs = {name: body.with_bins(name, group, widths[name]) for name, group in groups.items()}
    for expert, (first, *others) in graph.experts.items():
        hidden = body.first_layer(f"expert.{expert}.0", first, *((inputs[n], groups[n].input_columns) for n in groups))
        for depth, layer in enumerate(others, start=1):
            hidden = body.relu(body.affine(f"expert.{expert}.{depth}", hidden, layer))
        body.experts[expert] = hidden
    for task, layers in graph.towers.items():
        hidden = body.mix(task, list(graph.selection.tasks[task].items()))
        for depth, layer in enumerate(layers[:-1]):
            hidden = body.relu(body.affine(f"tower.{task}.{depth}", hidden, layer))
        body.affine(f"{OUTPUT}{task}", hidden, layers[-1])
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

    def with_bins(self, name: str, group: FeatureGroup, width: int) -> str:
        """Append the encoding in bins to an input of the graph, whose last columns are the dense values.

        A product with ones copies each number to its bins and subtracts their starts: five times as fast as Gather.
        """
        bins = group.bins
        if not len(bins):
            return name
        first, count = width - len(group.dense), int(bins.columns[-1]) + 1
        limits = [
            self._integers(f"{name}.{key}", [value]) for key, value in (("first", first), ("last", first + count))
        ]
        numbers = self._node("Slice", [name, *limits, self._integers(f"{name}.axis", [1])], f"{name}.numbers")
        copies = self._weight(f"{name}.copies", np.arange(count)[:, None] == bins.columns)
        shifted = self._node("Gemm", [numbers, copies, self._weight(f"{name}.shift", -bins.starts)], f"{name}.shifted")
        slopes = self._weight(f"{name}.slopes", 1.0 / (bins.ends - bins.starts))
        ends = [self._weight(f"{name}.{key}", np.float32(value)) for key, value in (("min", 0), ("max", 1))]
        encoded = self._node("Clip", [self._node("Mul", [shifted, slopes], f"{name}.scaled"), *ends], f"{name}.bins")
        return self._node("Concat", [name, encoded], f"{name}.with_bins", axis=1)

    def first_layer(self, name: str, layer: Layer, shared: Input, items: Input) -> str:
        (weight, bias), (shared_input, shared_columns), (item_input, item_columns) = layer, shared, items
        if not shared_columns:
            return self.relu(self.affine(name, item_input, (weight[item_columns], bias)))
        per_request = self.affine(f"{name}.shared", shared_input, (weight[shared_columns], bias))
        per_candidate = self._node("Gather", [per_request, "request"], f"{name}.request")
        if not item_columns:
            return self.relu(per_candidate)
        item_weight = self._weight(f"{name}.items.weight", weight[item_columns])
        return self.relu(self._node("Gemm", [item_input, item_weight, per_candidate], name))

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

    def _node(self, kind: str, inputs: list[str], output: str, **attributes: int) -> str:
        self._nodes.append(helper.make_node(kind, inputs, [output], **attributes))
        return output

    def _integers(self, name: str, values: Sequence[int]) -> str:
        self._weights.append(numpy_helper.from_array(np.array(values, np.int64), name))
        return name

    def _weight(self, name: str, value: Tensor | npt.ArrayLike) -> str:
        self._weights.append(numpy_helper.from_array(np.asarray(value, np.float32), name))
        return name
