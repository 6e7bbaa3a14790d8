"""Compare settings of ONNX Runtime's sessions, and I/O binding, with the session of the service.

Each contender scores the same encoded requests of the reference model on one thread, in turns. Prints a Markdown table
of the time of each relative to that of the service, the median of the turns.

    python -m benchmarks.onnx_sessions [--turns 40]
"""

from __future__ import annotations

import argparse
import itertools
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime
from onnxruntime import ExecutionMode, GraphOptimizationLevel, InferenceSession

from benchmarks.serving.interleave import interleave, ratios
from benchmarks.serving.reference import write_reference
from pipelines.bench.requests import DISTINCT_REQUESTS, Requests
from ranking.artifacts import bundle
from ranking.frozen.onnx_export import OUTPUT, onnx_body
from ranking.frozen.ranker import FrozenRanker
from ranking.temporary_folders import temporary_folder
from service.backends.onnx import OnnxBackend

CANDIDATES = (10, 100, 500)
SECONDS = 0.05
"""Seconds of a contender's turn."""
REFERENCE_IDS = 1_000
"""Number of users and of items of the reference model, whose tables do not affect the session."""

SERVICE, BINDING, OWN_BUFFERS = "the service", "I/O binding", "I/O binding, outputs into own buffers"
OPTIONS: Mapping[str, Mapping[str, Any]] = {
    SERVICE: {},
    "no memory arena": {"enable_cpu_mem_arena": False},
    "no memory pattern": {"enable_mem_pattern": False},
    "parallel execution": {"execution_mode": ExecutionMode.ORT_PARALLEL},
    "fewer graph optimizations": {"graph_optimization_level": GraphOptimizationLevel.ORT_ENABLE_EXTENDED},
}
"""Attributes of the session options of each contender."""
ENTRIES: Mapping[str, tuple[str, str]] = {
    "no spinning threads": ("session.intra_op.allow_spinning", "0"),
    "denormals are zero": ("session.set_denormal_as_zero", "1"),
    "weights outside the arena": ("session.use_device_allocator_for_initializers", "1"),
    "weights not packed in advance": ("session.disable_prepacking", "1"),
}
"""Entry of the session configuration of further contenders."""

Feeds = Mapping[str, npt.NDArray[Any]]
Score = Callable[[Feeds], list[npt.NDArray[np.float32]]]


def contenders(ranker: FrozenRanker, candidates: int) -> dict[str, Score]:
    """Return the functions that score the inputs of a request with so many candidates, the service first."""
    tasks = ranker.schema.task_names
    body, outputs = onnx_body(ranker, sorted(tasks)), [f"{OUTPUT}{task}" for task in tasks]

    def session(attributes: Mapping[str, Any], *entries: tuple[str, str]) -> InferenceSession:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.log_severity_level = 3
        for name, value in attributes.items():
            setattr(options, name, value)
        for entry in entries:
            options.add_session_config_entry(*entry)
        return InferenceSession(body, options, ["CPUExecutionProvider"])

    sessions = {name: session(attributes) for name, attributes in OPTIONS.items()}
    sessions |= {name: session({}, entry) for name, entry in ENTRIES.items()}
    scores: dict[str, Score] = {
        name: lambda feeds, session=session: session.run(outputs, feeds)  # type: ignore[misc]
        for name, session in sessions.items()
    }
    return scores | {
        BINDING: _binding(sessions[SERVICE], outputs),
        OWN_BUFFERS: _binding(sessions[SERVICE], outputs, candidates),
    }


def _binding(session: InferenceSession, outputs: Sequence[str], rows: int | None = None) -> Score:
    """Return a function that binds inputs and outputs, the latter to buffers of so many rows if given."""
    binding = session.io_binding()
    buffers = {} if rows is None else {output: np.empty((rows, 1), np.float32) for output in outputs}

    def score(feeds: Feeds) -> list[npt.NDArray[np.float32]]:
        for name, values in feeds.items():
            binding.bind_cpu_input(name, values)
        for output in outputs:
            if output in buffers:
                values = buffers[output]
                binding.bind_output(output, "cpu", 0, np.float32, values.shape, values.ctypes.data)
            else:
                binding.bind_output(output)
        session.run_with_iobinding(binding)
        return list(buffers.values()) or binding.copy_outputs_to_cpu()

    return score


def compare(folder: Path, candidates: int, turns: int) -> dict[str, list[float]]:
    """Return the time of each contender in each turn relative to the service.

    Args:
        folder: a bundle.
        candidates: candidates per request.
        turns: number of turns.

    Raises:
        AssertionError: the scores of a contender differ from those of the service.
    """
    ranker = bundle.load(folder)
    requests, backend = Requests(ranker, folder), OnnxBackend(ranker)
    feeds = [backend.feeds(requests.encoded(candidates)) for _ in range(DISTINCT_REQUESTS)]
    scores = contenders(ranker, candidates)
    expected = np.concatenate(scores[SERVICE](feeds[0]), 1)
    for score in scores.values():
        np.testing.assert_allclose(np.concatenate(score(feeds[0]), 1), expected, rtol=1e-5, atol=1e-5)

    def call(score: Score) -> Callable[[], object]:
        following = itertools.cycle(feeds)
        return lambda: score(next(following))

    times = interleave({name: call(score) for name, score in scores.items()}, turns, SECONDS)
    return {name: ratios(seconds, times[SERVICE]) for name, seconds in times.items()}


def main() -> None:
    """Write the reference model, compare the contenders and print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.onnx_sessions", description=__doc__)
    parser.add_argument("--turns", type=int, default=40, help="turns of each contender (default: 40)")
    turns = parser.parse_args().turns
    with temporary_folder("bench") as work:
        write_reference(work / "reference", REFERENCE_IDS, REFERENCE_IDS)
        results = {count: compare(work / "reference", count, turns) for count in CANDIDATES}
    print(f"| session | {' | '.join(f'{count} candidates' for count in CANDIDATES)} |")
    print("|---|" + "---:|" * len(CANDIDATES))
    for name in next(iter(results.values())):
        cells = (f"{statistics.median(results[count][name]):.2f}" for count in CANDIDATES)
        print(f"| {name} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
