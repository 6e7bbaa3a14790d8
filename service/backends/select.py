"""Which backend runs a bundle, by what it carries, what the machine has and what the operator says."""

from __future__ import annotations

from glob import glob
from typing import Literal, get_args

from ranking.errors import BundleError
from ranking.frozen.ranker import FrozenRanker
from service.backends.base import Backend, Precision
from service.backends.onnx import OnnxBackend

BackendName = Literal["auto", "torch", "onnxruntime", "cuda"]
BACKENDS: tuple[str, ...] = get_args(BackendName)

DEVICES = ("/dev/nvidia*", "/dev/nvhost*", "/dev/dxg")
"""One of these is there where there is a GPU; importing PyTorch to ask it takes seconds and 200 MB."""


def select_backend(
    ranker: FrozenRanker, backend: BackendName = "auto", threads: int = 1, precision: Precision = "float32"
) -> Backend:
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
    return OnnxBackend(ranker, threads) if backend == "onnxruntime" else _on_torch(ranker, backend, threads, precision)


def has_gpu() -> bool:
    """Whether PyTorch is there and finds a GPU."""
    if not any(map(glob, DEVICES)):
        return False
    try:
        import torch
    except ImportError:
        return False
    return torch.cuda.is_available()


def _on_torch(ranker: FrozenRanker, backend: BackendName, threads: int, precision: Precision) -> Backend:
    try:
        import torch
    except ImportError:
        raise BundleError(
            f"the {backend} backend needs PyTorch, which is not installed here: install it, or serve a bundle with a "
            "body.onnx by onnxruntime"
        ) from None
    from service.backends.cuda import CudaBackend
    from service.backends.torch import TorchBackend

    if backend == "torch":
        torch.set_num_threads(threads)
        return TorchBackend(ranker)
    if not has_gpu():
        raise BundleError("the cuda backend needs an NVIDIA GPU and PyTorch's CUDA build, and finds none here")
    return CudaBackend(ranker, torch.device("cuda"), precision)
