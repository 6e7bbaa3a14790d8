"""The frozen graph behind the embeddings as an ONNX model.

Inputs, float32 except ``request``: ``shared`` [requests, width] and ``items`` [candidates, width], embeddings and dense
values in the order of ``SharedItemSplitter``, without bins, which the graph computes; ``request`` [candidates] int64,
the row of ``shared`` of each candidate, or a single number if all candidates belong to one request and items have
features. Outputs: ``output.TASK`` [candidates, 1] per task, before calibration.

The first layers of the experts are one product, because they read the same inputs. Its part that reads ``shared`` runs
once per request; the result is the bias of the part that reads ``items``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

from ranking.encoding.request_batch import FeatureGroup, SharedItemSplitter
from ranking.frozen.ranker import FrozenRanker
from ranking.frozen.weights import factors_of, layers_of

OPSET, IR_VERSION = 17, 8
"""Old versions that all current runtimes support."""
OUTPUT = "output."
"""Name prefix of the outputs."""

Layer = tuple[npt.NDArray[Any], npt.NDArray[Any]]
"""Weight [inputs, outputs] and bias [outputs]."""


def onnx_body(ranker: FrozenRanker, tasks: Sequence[str]) -> bytes:
    """Export the experts and towers of some tasks.

    Args:
        ranker: ranker with a static gate.
        tasks: names of the tasks; the model contains only what they need.

    Raises:
        BundleError: the gate is per example, so that each row has experts of its own.
    """
    ranker.require_backend("onnxruntime")
    splitter, body = SharedItemSplitter(ranker.encoder), _GraphBuilder(ranker.weights)
    groups = {"shared": splitter.shared, "items": splitter.items}
    selection = ranker.selection
    experts = body.experts(selection.experts_for(tasks), groups)
    for task in tasks:
        if selection.reading == "side_by_side":
            mixed = body.concatenate(task, [experts[e] for e in selection.tasks[task]])
        else:
            factors = factors_of(ranker.weights, selection, task)
            mixed = body.mix(task, {experts[e]: factor for e, factor in factors.items()})
        body.tower(task, mixed)
    return body.serialize({name: _width(group) for name, group in groups.items()}, tasks)


class _GraphBuilder:
    """Builder of the ONNX graph.

    Args:
        weights: arrays by the weight names of ``FrozenGraph``.
    """

    def __init__(self, weights: Mapping[str, npt.NDArray[Any]]) -> None:
        self._arrays = weights
        self._nodes: list[onnx.NodeProto] = []
        self._weights: list[onnx.TensorProto] = []

    def experts(self, experts: Sequence[int], groups: Mapping[str, FeatureGroup]) -> dict[int, str]:
        """Add the experts; returns the names of their outputs."""
        layers = {expert: layers_of(self._arrays, f"expert.{expert}") for expert in experts}
        first = [of_expert[0] for of_expert in layers.values()]
        outputs = dict(zip(experts, self._first_layers([f"expert.{e}.0" for e in experts], first, groups), strict=True))
        for expert, (_, *others) in layers.items():
            for depth, layer in enumerate(others, start=1):
                outputs[expert] = self._relu(self._affine(f"expert.{expert}.{depth}", outputs[expert], layer))
        return outputs

    def concatenate(self, task: str, experts: Sequence[str]) -> str:
        """Add the outputs of some experts side by side."""
        output = f"mixed.{task}"
        self._nodes.append(helper.make_node("Concat", experts, [output], axis=1))
        return output

    def mix(self, task: str, factors: Mapping[str, npt.ArrayLike]) -> str:
        """Add the sum of expert outputs, each multiplied by a number or a vector."""
        parts = []
        for expert, factor in factors.items():
            scale = self._weight(f"gate.{task}.{expert}", factor)
            parts.append(self._node("Mul", [expert, scale], f"mixed.{task}.{expert}"))
        total = parts[0]
        for part in parts[1:]:
            total = self._node("Add", [total, part], f"{total}+{part}")
        return total

    def tower(self, task: str, x: str) -> None:
        """Add the tower of a task."""
        *hidden, last = layers_of(self._arrays, f"tower.{task}")
        for depth, layer in enumerate(hidden):
            x = self._relu(self._affine(f"tower.{task}.{depth}", x, layer))
        self._affine(f"{OUTPUT}{task}", x, last)

    def serialize(self, widths: Mapping[str, int], tasks: Sequence[str]) -> bytes:
        """Return the model with inputs of these widths."""
        rows = {"shared": "requests", "items": "candidates"}
        inputs = [helper.make_tensor_value_info(k, TensorProto.FLOAT, [rows[k], w]) for k, w in widths.items()]
        inputs.append(helper.make_tensor_value_info("request", TensorProto.INT64, ["candidates_or_1"]))
        outputs = [helper.make_tensor_value_info(f"{OUTPUT}{t}", TensorProto.FLOAT, ["candidates", 1]) for t in tasks]
        graph = helper.make_graph(self._nodes, "frozen ranker", inputs, outputs, self._weights)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION)
        serialized: bytes = model.SerializeToString()
        return serialized

    def _first_layers(
        self, names: Sequence[str], layers: Sequence[Layer], groups: Mapping[str, FeatureGroup]
    ) -> list[str]:
        weights, biases = zip(*layers, strict=True)
        weight, widths = np.concatenate(weights, 1), [len(bias) for bias in biases]
        total = self._weight("experts.bias", np.concatenate(biases))
        for name, group in groups.items():
            width = _width(group)
            if name == "items" and groups["shared"].input_columns:
                total = self._node("Gather", [total, "request"], "experts.request")
            if width:
                total = self._product(f"experts.{name}", name, weight[group.input_columns[:width]], total)
            if len(group.bins):
                bins = self._bins(name, group)
                total = self._product(f"experts.{bins}", bins, weight[group.input_columns[width:]], total)
        outputs = [f"{name}.relu" for name in names]
        if len(outputs) == 1:
            return [self._node("Relu", [total], outputs[0])]
        parts = [self._relu(total), self._integers("experts.widths", widths)]
        self._nodes.append(helper.make_node("Split", parts, outputs, axis=1))
        return outputs

    def _bins(self, name: str, group: FeatureGroup) -> str:
        """Add the encoding in bins of an input, whose last columns are the dense values.

        A product with ones copies each number to its bins and subtracts their starts: five times as fast as Gather. The
        slopes are not part of it, because x · slope − start · slope would lose digits in narrow bins.
        """
        bins = group.bins
        first, count = _width(group) - len(group.dense), int(bins.columns[-1]) + 1
        limits = [
            self._integers(f"{name}.{key}", [value]) for key, value in (("first", first), ("last", first + count))
        ]
        numbers = self._node("Slice", [name, *limits, self._integers(f"{name}.axis", [1])], f"{name}.numbers")
        copies = np.arange(count)[:, None] == bins.columns
        shifted = self._product(f"{name}.shifted", numbers, copies, self._weight(f"{name}.shift", -bins.starts))
        slopes = self._weight(f"{name}.slopes", 1.0 / (bins.ends - bins.starts))
        ends = [self._weight(f"{name}.{key}", np.float32(value)) for key, value in (("min", 0), ("max", 1))]
        return self._node("Clip", [self._node("Mul", [shifted, slopes], f"{name}.scaled"), *ends], f"{name}.bins")

    def _affine(self, name: str, x: str, layer: Layer) -> str:
        weight, bias = layer
        return self._product(name, x, weight, self._weight(f"{name}.bias", bias))

    def _product(self, name: str, x: str, weight: npt.NDArray[Any], total: str) -> str:
        """Add x · weight + total."""
        return self._node("Gemm", [x, self._weight(f"{name}.weight", weight), total], name)

    def _relu(self, x: str) -> str:
        return self._node("Relu", [x], f"{x}.relu")

    def _node(self, kind: str, inputs: list[str], output: str) -> str:
        self._nodes.append(helper.make_node(kind, inputs, [output]))
        return output

    def _integers(self, name: str, values: Sequence[int]) -> str:
        self._weights.append(numpy_helper.from_array(np.array(values, np.int64), name))
        return name

    def _weight(self, name: str, value: npt.ArrayLike) -> str:
        self._weights.append(numpy_helper.from_array(np.asarray(value, np.float32), name))
        return name


def _width(group: FeatureGroup) -> int:
    """Return the width of the input of a group: without bins."""
    return len(group.input_columns) - len(group.bins)
