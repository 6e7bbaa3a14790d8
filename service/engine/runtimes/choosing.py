"""Which backend runs a bundle, by what it carries, what the machine has and what the operator says."""

from __future__ import annotations

from glob import glob
from typing import Literal, get_args

from ranking.errors import BundleError
from ranking.frozen import FrozenRanker
from service.engine.runtimes.base import Precision, Runtime
from service.engine.runtimes.onnx_runtime import OnnxRuntime

Backend = Literal["auto", "torch", "onnxruntime", "cuda"]
BACKENDS: tuple[str, ...] = get_args(Backend)

DEVICES = ("/dev/nvidia*", "/dev/nvhost*", "/dev/dxg")
"""One of these is there where there is a GPU; importing PyTorch to ask it takes seconds and 200 MB."""


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
        BundleError: the bundle does not carry what this backend needs, or the machine has no GPU, or no PyTorch.
    """
    if backend == "auto":
        backend = "torch" if ranker.body is None else "cuda" if has_gpu() else "onnxruntime"
    return OnnxRuntime(ranker, threads) if backend == "onnxruntime" else _on_torch(ranker, backend, threads, precision)


def has_gpu() -> bool:
    """Whether PyTorch is there and finds a GPU."""
    if not any(map(glob, DEVICES)):
        return False
    try:
        import torch
    except ImportError:
        return False
    return torch.cuda.is_available()


def _on_torch(ranker: FrozenRanker, backend: Backend, threads: int, precision: Precision) -> Runtime:
    try:
        import torch
    except ImportError:
        raise BundleError(
            f"the {backend} backend needs PyTorch, which is not installed here: install it, or serve a bundle with a "
            "body.onnx by onnxruntime"
        ) from None
    from service.engine.runtimes.cuda_runtime import CudaRuntime
    from service.engine.runtimes.reference import Reference

    if backend == "torch":
        torch.set_num_threads(threads)
        return Reference(ranker)
    if not has_gpu():
        raise BundleError("the cuda backend needs an NVIDIA GPU and PyTorch's CUDA build, and finds none here")
    return CudaRuntime(ranker, torch.device("cuda"), precision)
