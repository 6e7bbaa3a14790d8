"""The frozen graph behind the embeddings as an ONNX model.

Inputs, float32 except ``request``: ``shared`` [requests, width] and ``items`` [candidates, width], embeddings and dense
values in the order of ``SharedItemSplitter``, without bins, which the graph computes; ``request`` [candidates] int64,
the row of ``shared`` of each candidate, or a single number if all candidates belong to one request and items have
features. With several models, each has its own inputs for the same rows: ``0/shared``, ``0/items``, ``1/shared``, ….
Outputs: ``output.TASK`` [candidates, 1] per task, before calibration.

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
from ranking.frozen.weights import FrozenModel, factors_of, layers_of, prefixes

OPSET, IR_VERSION = 17, 8
"""Old versions that all current runtimes support."""
OUTPUT = "output."
"""Name prefix of the outputs."""

Layer = tuple[npt.NDArray[Any], npt.NDArray[Any]]
"""Weight [inputs, outputs] and bias [outputs]."""


def onnx_body(ranker: FrozenRanker, tasks: Sequence[str]) -> bytes:
    """Export the experts and towers of some tasks.

    Args:
        ranker: ranker with static gates.
        tasks: names of the tasks; the model contains only what they need.

    Raises:
        BundleError: a gate is per example, so that each row has experts of its own.
    """
    ranker.require_backend("onnxruntime")
    splitter, names = SharedItemSplitter(ranker.encoder), prefixes(len(ranker.models))
    bodies = [_ModelBody(model, prefix, splitter) for model, prefix in zip(ranker.models, names, strict=True)]
    experts = [
        body.experts(model.selection.experts_for(tasks)) for body, model in zip(bodies, ranker.models, strict=True)
    ]
    nodes = []
    for task in tasks:
        read = [body.tower(task, body.reading(task, of_body)) for body, of_body in zip(bodies, experts, strict=True)]
        if len(read) > 1:  # The output of a single model has this name already.
            nodes.append(helper.make_node("Mean", read, [f"{OUTPUT}{task}"]))
    request = helper.make_tensor_value_info("request", TensorProto.INT64, ["candidates_or_1"])
    outputs = [helper.make_tensor_value_info(f"{OUTPUT}{t}", TensorProto.FLOAT, ["candidates", 1]) for t in tasks]
    graph = helper.make_graph(
        [*(node for body in bodies for node in body.nodes), *nodes],
        "frozen ranker",
        [*(value for body in bodies for value in body.inputs()), request],
        outputs,
        [weight for body in bodies for weight in body.weights],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION)
    serialized: bytes = model.SerializeToString()
    return serialized


class _ModelBody:
    """The part of the ONNX graph that belongs to one model.

    Args:
        model: the model.
        prefix: start of the names of all its inputs, weights and values.
        splitter: divides its inputs into shared ones and those of items.

    Attributes:
        nodes: nodes added so far.
        weights: weights added so far.
    """

    def __init__(self, model: FrozenModel, prefix: str, splitter: SharedItemSplitter) -> None:
        self._model, self._arrays, self._prefix = model, model.weights, prefix
        self._groups = {"shared": splitter.shared, "items": splitter.items}
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []

    def inputs(self) -> list[onnx.ValueInfoProto]:
        """Return the inputs of the model."""
        rows = {"shared": "requests", "items": "candidates"}
        return [
            helper.make_tensor_value_info(self._prefix + name, TensorProto.FLOAT, [rows[name], _width(group)])
            for name, group in self._groups.items()
        ]

    def experts(self, experts: Sequence[int]) -> dict[int, str]:
        """Add the experts; returns the names of their outputs."""
        layers = {expert: layers_of(self._arrays, f"expert.{expert}") for expert in experts}
        first = [of_expert[0] for of_expert in layers.values()]
        outputs = dict(zip(experts, self._first_layers([f"expert.{e}.0" for e in experts], first), strict=True))
        for expert, (_, *others) in layers.items():
            for depth, layer in enumerate(others, start=1):
                outputs[expert] = self._relu(self._affine(f"expert.{expert}.{depth}", outputs[expert], layer))
        return outputs

    def reading(self, task: str, experts: Mapping[int, str]) -> str:
        """Add what the tower of a task reads of these outputs of experts: some of them side by side, or their sum."""
        selection = self._model.selection
        if selection.reading == "side_by_side":
            read = [experts[e] for e in selection.tasks[task]]
            return self._node("Concat", read, f"mixed.{task}", axis=1)
        parts = []
        for expert, factor in factors_of(self._arrays, selection, task).items():
            scale = self._weight(f"gate.{task}.{expert}", factor)
            parts.append(self._node("Mul", [experts[expert], scale], f"mixed.{task}.{expert}"))
        total = parts[0]
        for number, part in enumerate(parts[1:], start=1):
            total = self._node("Add", [total, part], f"mixed.{task}.sum.{number}")
        return total

    def tower(self, task: str, x: str) -> str:
        """Add the tower of a task; returns the name of its output."""
        *hidden, last = layers_of(self._arrays, f"tower.{task}")
        for depth, layer in enumerate(hidden):
            x = self._relu(self._affine(f"tower.{task}.{depth}", x, layer))
        return self._affine(f"{OUTPUT}{task}", x, last)

    def _first_layers(self, names: Sequence[str], layers: Sequence[Layer]) -> list[str]:
        weights, biases = zip(*layers, strict=True)
        weight, widths = np.concatenate(weights, 1), [len(bias) for bias in biases]
        total = self._weight("experts.bias", np.concatenate(biases))
        for name, group in self._groups.items():
            width, values = _width(group), self._prefix + name
            if name == "items" and self._groups["shared"].input_columns:
                total = self._node("Gather", [total, "request"], "experts.request")
            if width:
                total = self._product(f"experts.{name}", values, weight[group.input_columns[:width]], total)
            if len(group.bins):
                bins = self._bins(name, group)
                total = self._product(f"experts.{name}.bins", bins, weight[group.input_columns[width:]], total)
        if len(names) == 1:
            return [self._node("Relu", [total], f"{names[0]}.relu")]
        outputs = [f"{self._prefix}{name}.relu" for name in names]
        parts = [self._relu(total), self._integers("experts.widths", widths)]
        self.nodes.append(helper.make_node("Split", parts, outputs, axis=1))
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
        numbers = self._node(
            "Slice", [self._prefix + name, *limits, self._integers(f"{name}.axis", [1])], f"{name}.numbers"
        )
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
        self.nodes.append(helper.make_node("Relu", [x], [f"{x}.relu"]))
        return f"{x}.relu"

    def _node(self, kind: str, inputs: list[str], output: str, **attributes: int) -> str:
        self.nodes.append(helper.make_node(kind, inputs, [self._prefix + output], **attributes))
        return self._prefix + output

    def _integers(self, name: str, values: Sequence[int]) -> str:
        return self._constant(name, np.array(values, np.int64))

    def _weight(self, name: str, value: npt.ArrayLike) -> str:
        return self._constant(name, np.asarray(value, np.float32))

    def _constant(self, name: str, value: npt.NDArray[Any]) -> str:
        self.weights.append(numpy_helper.from_array(value, self._prefix + name))
        return self._prefix + name


def _width(group: FeatureGroup) -> int:
    """Return the width of the input of a group: without bins."""
    return len(group.input_columns) - len(group.bins)
