"""Run all experts on ONNX Runtime with a mixing step that is efficient for many experts.

The ONNX body of a bundle adds the weighted experts of a task one by one, which is fastest for two experts. For all
experts it would be slower than necessary and overstate the gain of pruning. Here, one matrix product mixes the experts
for all tasks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import helper, numpy_helper

from ranking.encoding.request_batch import RequestBatch, SharedItemSplitter
from ranking.frozen.onnx_export import onnx_body
from ranking.frozen.ranker import FrozenRanker
from service.backends.onnx import EmbeddingLookup


class DenseOnnxBackend:
    """Runs ``dense_body`` in the same steps as the ONNX backend of the service.

    Args:
        ranker: ranker whose tasks use all experts, see ``dense_model.dense_ranker``.
        threads: threads per call.
    """

    def __init__(self, ranker: FrozenRanker, threads: int) -> None:
        self._ranker, splitter = ranker, SharedItemSplitter(ranker.encoder)
        (frozen,) = ranker.models
        self._shared = EmbeddingLookup(splitter.shared, frozen.weights)
        self._items = EmbeddingLookup(splitter.items, frozen.weights)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
        options.log_severity_level = 3
        body = dense_body(ranker)
        self._session = onnxruntime.InferenceSession(body, options, ["CPUExecutionProvider"])

    def scores(self, batch: RequestBatch, _: Sequence[str]) -> object:
        """Return the scores [candidates, tasks] float32 of all tasks."""
        feeds = {"shared": self._shared(batch.shared), "items": self._items(batch.items)}
        request_index = batch.request_index[: 1 if len(batch.shared) == 1 else None]
        outputs = np.concatenate(self._session.run(None, feeds | {"request": request_index}), 1)
        return self._ranker.finished(outputs, self._ranker.schema.task_names)


def dense_body(ranker: FrozenRanker) -> bytes:
    """Return the exported ONNX body with its mixing step replaced.

    The new step is one product, [tasks, experts] times [experts, candidates · width].

    Args:
        ranker: ranker with a static gate whose tasks use all experts.
    """
    (graph,), tasks = ranker.graph.graphs, ranker.schema.task_names
    model = onnx.load_from_string(onnx_body(ranker, tasks))
    experts = list(graph.experts)
    layers = next(iter(graph.experts.values()))
    kept = [node for node in model.graph.node if not node.output[0].startswith("mixed.")]
    tower_inputs = {_tower_output(ranker, task): task for task in tasks}
    for node in kept:
        if node.output[0] in tower_inputs:
            node.input[0] = f"mixed.{tower_inputs[node.output[0]]}"
    position = next(i for i, node in enumerate(kept) if node.output[0] in tower_inputs)
    mixing = _mixing_nodes(tasks, [f"expert.{e}.{len(layers) - 1}.relu" for e in experts])
    weights = [weight for weight in model.graph.initializer if not weight.name.startswith("gate.")]
    constants: dict[str, Any] = {
        "gate": np.array([[graph.selection.tasks[task][e] for e in experts] for task in tasks], np.float32),
        "gate.axis": np.array([0]),
        "gate.flat_shape": np.array([len(experts), -1]),
        "gate.shape": np.array([len(tasks), -1, len(layers[-1][1])]),
        "gate.split": np.ones(len(tasks), np.int64),
    }
    weights += [numpy_helper.from_array(value, name) for name, value in constants.items()]
    del model.graph.node[:], model.graph.initializer[:]
    model.graph.node.extend([*kept[:position], *mixing, *kept[position:]])
    model.graph.initializer.extend(weights)
    onnx.checker.check_model(model)
    serialized: bytes = model.SerializeToString()
    return serialized


def _tower_output(ranker: FrozenRanker, task: str) -> str:
    """Return the name of the output of the first layer of a task's tower."""
    return f"tower.{task}.0" if len(ranker.graph.graphs[0].towers[task]) > 1 else f"output.{task}"


def _mixing_nodes(tasks: list[str], experts: list[str]) -> list[onnx.NodeProto]:
    expanded = [f"{expert}.expanded" for expert in experts]
    parts = [f"mixed.{task}.expanded" for task in tasks]
    return [
        *(
            helper.make_node("Unsqueeze", [expert, "gate.axis"], [output])
            for expert, output in zip(experts, expanded, strict=True)
        ),
        helper.make_node("Concat", expanded, ["experts"], axis=0),
        helper.make_node("Reshape", ["experts", "gate.flat_shape"], ["experts.flat"]),
        helper.make_node("MatMul", ["gate", "experts.flat"], ["mixed.flat"]),
        helper.make_node("Reshape", ["mixed.flat", "gate.shape"], ["mixed"]),
        helper.make_node("Split", ["mixed", "gate.split"], parts, axis=0),
        *(
            helper.make_node("Squeeze", [part, "gate.axis"], [f"mixed.{task}"])
            for part, task in zip(parts, tasks, strict=True)
        ),
    ]
