"""All experts on ONNX Runtime, mixed as one would write it for speed.

The bundle's own body adds a task's experts up one by one, which is the best for two of them. With all of them it would
cost more than it must, and pruning would look better than it is; here one matrix product mixes for all tasks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import helper, numpy_helper

from ranking.encoding.encoder import Encoder
from ranking.encoding.request_batch import RequestBatch, SharedItemSplitter
from ranking.frozen.graph import FrozenGraph
from ranking.frozen.onnx_export import onnx_body
from ranking.frozen.ranker import FrozenRanker
from service.backends.embedding import Embedding


class DenseRuntime:
    """Runs ``dense_body`` step by step as the service's ONNX runtime runs the bundle's.

    Args:
        ranker: with a graph in which every task chose every expert.
        threads: that one call may use.
    """

    def __init__(self, ranker: FrozenRanker, threads: int) -> None:
        self._ranker, sides = ranker, SharedItemSplitter(ranker.encoder)
        self._shared = Embedding(sides.shared, ranker.weights)
        self._items = Embedding(sides.items, ranker.weights)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
        body = dense_body(ranker.graph, ranker.encoder)
        options.log_severity_level = 3
        self._session = onnxruntime.InferenceSession(body, options, ["CPUExecutionProvider"])

    def scores(self, halves: RequestBatch, _: Sequence[str]) -> object:
        """Scores [candidates, tasks] float32 of all tasks."""
        feeds = {"shared": self._shared(halves.shared), "items": self._items(halves.items)}
        request = halves.request[: 1 if len(halves.shared) == 1 else None]
        outputs = np.concatenate(self._session.run(None, feeds | {"request": request}), 1)
        return self._ranker.finished(outputs, self._ranker.schema.task_names)


def dense_body(graph: FrozenGraph, encoder: Encoder) -> bytes:
    """The exporter's body with its mixing replaced: [tasks, experts] times [experts, candidates · width].

    Args:
        graph: of a static gate, in which every task chose every expert.
        encoder: that encodes its inputs.
    """
    body = onnx_body(graph, encoder)
    assert body is not None
    model = onnx.load_from_string(body)
    tasks, experts = list(graph.towers), list(graph.experts)
    layers = next(iter(graph.experts.values()))
    kept = [node for node in model.graph.node if node.op_type not in ("Mul", "Add")]  # nothing else is mixing
    first = {_name(graph, task): task for task in tasks}
    for node in kept:
        if node.output[0] in first:
            node.input[0] = f"mixed.{first[node.output[0]]}"
    start = next(i for i, node in enumerate(kept) if node.output[0] in first)
    nodes = [*kept[:start], *_mixing(tasks, [f"expert.{e}.{len(layers) - 1}.relu" for e in experts]), *kept[start:]]
    weights = [weight for weight in model.graph.initializer if not weight.name.startswith("gate.")]
    constants: dict[str, Any] = {
        "gate": np.array([[graph.selection.tasks[task][e] for e in experts] for task in tasks], np.float32),
        "gate.first": np.array([0]),
        "gate.flat": np.array([len(experts), -1]),
        "gate.wide": np.array([len(tasks), -1, len(layers[-1][1])]),
        "gate.each": np.ones(len(tasks), np.int64),
    }
    weights += [numpy_helper.from_array(value, name) for name, value in constants.items()]
    del model.graph.node[:], model.graph.initializer[:]
    model.graph.node.extend(nodes)
    model.graph.initializer.extend(weights)
    onnx.checker.check_model(model)
    written: bytes = model.SerializeToString()
    return written


def _name(graph: FrozenGraph, task: str) -> str:
    """What the first layer of a task's tower gives."""
    return f"tower.{task}.0" if len(graph.towers[task]) > 1 else f"output.{task}"


def _mixing(tasks: list[str], experts: list[str]) -> list[onnx.NodeProto]:
    single = [f"{expert}.single" for expert in experts]
    parts = [f"mixed.{task}.single" for task in tasks]
    return [
        *(
            helper.make_node("Unsqueeze", [expert, "gate.first"], [one])
            for expert, one in zip(experts, single, strict=True)
        ),
        helper.make_node("Concat", single, ["experts"], axis=0),
        helper.make_node("Reshape", ["experts", "gate.flat"], ["experts.flat"]),
        helper.make_node("MatMul", ["gate", "experts.flat"], ["mixed.flat"]),
        helper.make_node("Reshape", ["mixed.flat", "gate.wide"], ["mixed"]),
        helper.make_node("Split", ["mixed", "gate.each"], parts, axis=0),
        *(
            helper.make_node("Squeeze", [part, "gate.first"], [f"mixed.{t}"])
            for part, t in zip(parts, tasks, strict=True)
        ),
    ]
