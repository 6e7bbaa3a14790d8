"""Compare float32 with smaller types of weights: of the embedding tables, and of the ONNX body.

Embeddings are those that ``ranker freeze --embeddings`` writes. The variants of the body are not part of the product:
weights in float16; int8 with one scale per batch (``quantize_dynamic`` of ONNX Runtime); int8 with one scale per row,
made of standard operators; and ``MatMulNBits`` with 8 bits and a scale per 64 inputs of a row. All variants take turns,
one call each, on one thread.

Prints Markdown tables: the size of the weights, the median ratio of the time of a forward pass with float32 to that of
the variant in the same turn, and the largest change of a score. "by other rows" is the largest change of the scores of
a request by another request in its batch whose inputs are 1,000 times as large.

    python -m benchmarks.quantization BUNDLE
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import QuantType, quantize_dynamic

from pipelines.bench.requests import Requests
from ranking.artifacts import bundle
from ranking.frozen.embedding_rows import ROW_TYPES, encoded
from ranking.frozen.onnx_export import onnx_body
from ranking.frozen.ranker import FrozenRanker
from service.backends.onnx import OnnxBackend

COUNTS = (10, 100, 500)
"""Candidates per request."""
TURNS = 60
MIN_OUTPUTS = 16
"""Layers with fewer outputs stay in float32: the output layers of towers."""
BLOCK = 64
"""Inputs of a row that share a scale in ``MatMulNBits``."""
LARGE = 1_000.0

Array = npt.NDArray[Any]
Feeds = dict[str, Array]


class BodyRewriter:
    """Copies an ONNX body with other nodes in place of its ``Gemm`` nodes.

    Args:
        body: the body.
    """

    def __init__(self, body: bytes) -> None:
        self._model = onnx.load_from_string(body)
        self.weights = {weight.name: numpy_helper.to_array(weight) for weight in self._model.graph.initializer}
        self.nodes: list[onnx.NodeProto] = []
        self._quantized_rows: dict[str, tuple[str, str]] = {}

    def rewrite(self, gemm: Callable[[onnx.NodeProto], None]) -> bytes:
        """Return the body in which ``gemm`` has added the nodes for each large ``Gemm``."""
        for node in self._model.graph.node:
            if node.op_type == "Gemm" and self.weights[node.input[1]].shape[1] >= MIN_OUTPUTS:
                gemm(node)
            else:
                self.nodes.append(node)
        graph = self._model.graph
        used = {name for node in self.nodes for name in node.input}
        del graph.node[:], graph.initializer[:]
        graph.node.extend(self.nodes)
        graph.initializer.extend(numpy_helper.from_array(w, name) for name, w in self.weights.items() if name in used)
        self._model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
        serialized: bytes = self._model.SerializeToString()
        return serialized

    def add(self, kind: str, inputs: Sequence[str], output: str, **attributes: Any) -> str:
        """Add a node and return its output."""
        self.nodes.append(helper.make_node(kind, list(inputs), [output], **attributes))
        return output

    def half_weight(self, node: onnx.NodeProto) -> None:
        """Store the weight in float16."""
        x, weight, bias = node.input
        self.weights[f"{weight}.half"] = self.weights[weight].astype(np.float16)
        cast = self.add("Cast", [f"{weight}.half"], f"{weight}.float", to=TensorProto.FLOAT)
        self.add("Gemm", [x, cast, bias], node.output[0])

    def int8_by_row(self, node: onnx.NodeProto) -> None:
        """Multiply int8 numbers, with a scale per row of the input and per column of the weight."""
        x, weight, bias = node.input
        scale = np.abs(self.weights[weight]).max(0) / 127
        scale[scale == 0] = 1
        self.weights[f"{weight}.int8"] = np.rint(self.weights[weight] / scale).astype(np.int8)
        self.weights[f"{weight}.scale"] = scale.astype(np.float32)
        rows, row_scale = self._quantize_rows(x)
        product = self.add("MatMulInteger", [rows, f"{weight}.int8", "zero"], f"{node.output[0]}.int32")
        product = self.add("Cast", [product], f"{node.output[0]}.float", to=TensorProto.FLOAT)
        product = self.add("Mul", [product, row_scale], f"{node.output[0]}.rows")
        product = self.add("Mul", [product, f"{weight}.scale"], f"{node.output[0]}.columns")
        self.add("Add", [product, bias], node.output[0])

    def blocks(self, node: onnx.NodeProto) -> None:
        """Multiply with ``MatMulNBits``."""
        x, weight, bias = node.input
        inputs, outputs = self.weights[weight].shape
        count = -(-inputs // BLOCK)
        padded = np.zeros((count * BLOCK, outputs), np.float32)
        padded[:inputs] = self.weights[weight]
        parts = padded.reshape(count, BLOCK, outputs).transpose(2, 0, 1)
        scale = np.abs(parts).max(2) / 127
        scale[scale == 0] = 1
        self.weights[f"{weight}.bits"] = (np.rint(parts / scale[:, :, None]) + 128).astype(np.uint8)
        self.weights[f"{weight}.scale"] = scale.astype(np.float32)
        sizes = {"K": inputs, "N": outputs, "bits": 8, "block_size": BLOCK, "accuracy_level": 4}
        names = [x, f"{weight}.bits", f"{weight}.scale"]
        product = self.add("MatMulNBits", names, f"{node.output[0]}.product", domain="com.microsoft", **sizes)
        self.add("Add", [product, bias], node.output[0])

    def _quantize_rows(self, x: str) -> tuple[str, str]:
        """Return the rows of an input as uint8 with zero point 128, and their scales; added once per input."""
        if x not in self._quantized_rows:
            constants = {"step": 1 / 127, "tiny": 1e-30, "center": 128.5}
            self.weights |= {name: np.float32(value) for name, value in constants.items()}
            self.weights["zero"] = np.uint8(128)
            largest = self.add("ReduceMax", [self.add("Abs", [x], f"{x}.abs")], f"{x}.max", axes=[1], keepdims=1)
            scale = self.add("Max", [self.add("Mul", [largest, "step"], f"{x}.step"), "tiny"], f"{x}.scale")
            shifted = self.add("Add", [self.add("Div", [x, scale], f"{x}.divided"), "center"], f"{x}.shifted")
            self._quantized_rows[x] = self.add("Cast", [shifted], f"{x}.uint8", to=TensorProto.UINT8), scale
        return self._quantized_rows[x]


def bodies_of(body: bytes) -> dict[str, bytes]:
    """Return the variants of a body by name, the body itself first."""
    with TemporaryDirectory() as folder:
        source, target = Path(folder) / "body.onnx", Path(folder) / "int8.onnx"
        source.write_bytes(body)
        quantize_dynamic(source, target, weight_type=QuantType.QInt8, per_channel=True)
        by_batch = target.read_bytes()
    by_row, half, blocks = BodyRewriter(body), BodyRewriter(body), BodyRewriter(body)
    return {
        "float32": body,
        "float16 weights": half.rewrite(half.half_weight),
        "int8, scale per batch": by_batch,
        "int8, scale per row": by_row.rewrite(by_row.int8_by_row),
        "8 bits, scale per block": blocks.rewrite(blocks.blocks),
    }


def time_turns(calls: Mapping[str, Callable[[], object]]) -> dict[str, list[float]]:
    """Return the seconds of each call in each turn, by name."""
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        call()
    for _ in range(TURNS):
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            seconds[name].append(time.perf_counter() - start)
    return seconds


def speedup(seconds: Mapping[str, list[float]], name: str) -> float:
    """Return the median ratio of the time with float32 to that of a variant in the same turn."""
    return statistics.median(base / own for base, own in zip(seconds["float32"], seconds[name], strict=True))


def embedding_rows(ranker: FrozenRanker, requests: Requests) -> list[str]:
    """Return the rows of the table of embeddings."""
    rankers = {name: ranker.map_weights(partial(encoded, row_type=name)) for name in ROW_TYPES}
    backends, tasks = {name: OnnxBackend(one) for name, one in rankers.items()}, ranker.schema.task_names
    speedups: dict[str, list[float]] = {name: [] for name in rankers}
    changes = dict.fromkeys(rankers, 0.0)
    for count in COUNTS:
        batch = requests.encoded(count)
        seconds = time_turns({name: partial(backend.scores, batch, tasks) for name, backend in backends.items()})
        exact = backends["float32"].scores(batch, tasks)
        for name, backend in backends.items():
            speedups[name].append(speedup(seconds, name))
            changes[name] = max(changes[name], float(np.abs(backend.scores(batch, tasks) - exact).max()))
    rows = []
    for name, one in rankers.items():
        size = (
            sum(weight.nbytes for key, weight in one.models[0].weights.items() if key.startswith("embedding.")) / 2**20
        )
        cells = " | ".join(f"{ratio:.2f}" for ratio in speedups[name])
        rows.append(f"| {name} | {size:.1f} | {cells} | {changes[name]:.1e} |")
    return rows


def body_rows(ranker: FrozenRanker, requests: Requests) -> list[str]:
    """Return the rows of the table of bodies."""
    tasks = ranker.schema.task_names
    bodies = bodies_of(onnx_body(ranker, tasks))
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    sessions = {
        name: onnxruntime.InferenceSession(body, options, ["CPUExecutionProvider"]) for name, body in bodies.items()
    }
    backend, outputs = OnnxBackend(ranker), [f"output.{task}" for task in tasks]

    def scores(name: str, feeds: Feeds) -> Array:
        return ranker.finished(np.concatenate(sessions[name].run(outputs, feeds), 1), tasks)

    speedups: dict[str, list[float]] = {name: [] for name in bodies}
    changes, mixed = dict.fromkeys(bodies, 0.0), dict.fromkeys(bodies, 0.0)
    for count in COUNTS:
        feeds = backend.feeds(requests.encoded(count))
        seconds = time_turns({name: partial(sessions[name].run, outputs, feeds) for name in bodies})
        exact = scores("float32", feeds)
        # The same request beside one with large inputs in one batch.
        index = np.repeat(np.arange(2), count)
        doubled = {name: np.concatenate([feeds[name], LARGE * feeds[name]]) for name in ("shared", "items")}
        for name in bodies:
            speedups[name].append(speedup(seconds, name))
            alone = scores(name, feeds)
            together = scores(name, {**doubled, "request": index})[:count]
            changes[name] = max(changes[name], float(np.abs(alone - exact).max()))
            mixed[name] = max(mixed[name], float(np.abs(together - alone).max()))
    return [
        f"| {name} | {len(body) / 2**20:.2f} | {' | '.join(f'{ratio:.2f}' for ratio in speedups[name])} | "
        f"{changes[name]:.1e} | {mixed[name]:.1e} |"
        for name, body in bodies.items()
    ]


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle", type=Path, help="bundle with a static gate, whose items fill the requests")
    folder = parser.parse_args().bundle
    ranker = bundle.load(folder)
    requests = Requests(ranker, folder)
    head, line = "".join(f" speed, {count} |" for count in COUNTS), "---:|" * len(COUNTS)
    print(f"| embeddings | MiB |{head} change |\n|---|---:|{line}---:|")
    print("\n".join(embedding_rows(ranker, requests)))
    print(f"\n| body | MiB |{head} change | by other rows |\n|---|---:|{line}---:|---:|")
    print("\n".join(body_rows(ranker, requests)))


if __name__ == "__main__":
    main()
