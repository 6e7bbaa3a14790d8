"""Which backend runs a bundle, by what it carries, what the machine has and what the operator says."""

from __future__ import annotations

from typing import Literal, get_args

from ranking.frozen import FrozenRanker
from service.engine.runtimes.base import Runtime
from service.engine.runtimes.onnx_runtime import OnnxRuntime
from service.engine.runtimes.reference import Reference

Backend = Literal["auto", "torch", "onnxruntime"]
BACKENDS: tuple[str, ...] = get_args(Backend)


def choose(ranker: FrozenRanker, backend: Backend = "auto", threads: int = 1) -> Runtime:
    """The runtime of a bundle: as the setting says; ``auto``: the ONNX body if the bundle carries one, else torch.

    Args:
        ranker: what scores.
        backend: of the settings.
        threads: that one call may use.

    Raises:
        BundleError: the bundle does not carry what this backend needs.
    """
    if backend == "torch" or (backend == "auto" and ranker.body is None):
        return Reference(ranker)
    return OnnxRuntime(ranker, threads)
