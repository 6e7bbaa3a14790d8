"""Which backend runs a bundle, by what it carries, what the machine has and what the operator says."""

from __future__ import annotations

from typing import Literal, get_args

import torch

from ranking.errors import BundleError
from ranking.frozen import FrozenRanker
from service.engine.runtimes.base import Precision, Runtime
from service.engine.runtimes.cuda_runtime import CudaRuntime
from service.engine.runtimes.onnx_runtime import OnnxRuntime
from service.engine.runtimes.reference import Reference

Backend = Literal["auto", "torch", "onnxruntime", "cuda"]
BACKENDS: tuple[str, ...] = get_args(Backend)


def choose(
    ranker: FrozenRanker, backend: Backend = "auto", threads: int = 1, precision: Precision = "float32"
) -> Runtime:
    """The runtime of a bundle.

    Args:
        ranker: what scores.
        backend: as the operator says; ``auto``: a GPU if there is one, else the ONNX body; the reference for a
            per-example gate, which neither can run, and for a bundle without a body.
        threads: that one call may use on a CPU.
        precision: of a GPU's products.

    Raises:
        BundleError: the bundle does not carry what this backend needs, or the machine has no GPU.
    """
    gpu = torch.cuda.is_available()
    if backend == "auto":
        backend = "torch" if ranker.body is None else "cuda" if gpu else "onnxruntime"
    if backend == "cuda":
        if not gpu:
            raise BundleError("the cuda backend needs an NVIDIA GPU and PyTorch's CUDA build, and finds none here")
        return CudaRuntime(ranker, torch.device("cuda"), precision)
    return Reference(ranker) if backend == "torch" else OnnxRuntime(ranker, threads)
