"""Selects the backend of a bundle from its contents, the hardware and the settings."""

from __future__ import annotations

from collections.abc import Sequence
from glob import glob

from ranking.encoding.request_batch import RequestBatch, SharedItemSplitter
from ranking.errors import BundleError
from ranking.frozen.ranker import FrozenRanker
from service.backends.base import Backend, BackendName, Scores
from service.backends.onnx import OnnxBackend

GPU_DEVICE_PATTERNS = ("/dev/nvidia*", "/dev/nvhost*", "/dev/dxg")
"""Device files of GPU drivers. If none exists, PyTorch is not imported, which would take seconds and 200 MB."""


class TorchBackend:
    """The reference backend: the frozen graph in PyTorch and float64, slow but exact, for every gate.

    Args:
        ranker: ranker to execute.
    """

    name = "torch"

    def __init__(self, ranker: FrozenRanker) -> None:
        self._ranker, self._splitter = ranker, SharedItemSplitter(ranker.encoder)

    def scores(self, batch: RequestBatch, tasks: Sequence[str]) -> Scores:
        """Return scores [candidates, tasks] float32."""
        return self._ranker.finished(self._ranker.outputs(self._splitter.merge(batch), tasks), tasks)


def select_backend(ranker: FrozenRanker, backend: BackendName = "auto", threads: int = 1) -> Backend:
    """Create the backend of a ranker.

    Args:
        ranker: ranker to execute.
        backend: requested backend. ``auto`` selects ``torch`` for a per-example gate, else ``cuda`` if there is a GPU,
            else ``onnxruntime``.
        threads: number of CPU threads per call.

    Raises:
        BundleError: the backend cannot run the gate, or the machine has no GPU or no PyTorch.
    """
    if backend == "auto":
        backend = "torch" if ranker.per_example else "cuda" if has_gpu() else "onnxruntime"
    ranker.require_backend(backend)
    if backend == "onnxruntime":
        return OnnxBackend(ranker, threads)
    return _create_torch_backend(ranker, backend, threads)


def check_backend(backend: BackendName) -> None:
    """Check that this machine has what a requested backend needs.

    Raises:
        BundleError: there is no PyTorch or no GPU.
    """
    if backend not in ("torch", "cuda"):
        return
    try:
        import torch  # noqa: F401 — whether it can be imported
    except ImportError:
        raise BundleError(
            f"the {backend} backend needs PyTorch, which is not installed here: install it, or serve with onnxruntime"
        ) from None
    if backend == "cuda" and not has_gpu():
        raise BundleError(
            "the cuda backend needs an NVIDIA GPU and PyTorch's CUDA build, but PyTorch finds no GPU here"
        )


def has_gpu() -> bool:
    """Return whether PyTorch is installed and detects a GPU."""
    if not any(map(glob, GPU_DEVICE_PATTERNS)):
        return False
    try:
        import torch
    except ImportError:
        return False
    return torch.cuda.is_available()


def _create_torch_backend(ranker: FrozenRanker, backend: BackendName, threads: int) -> Backend:
    check_backend(backend)
    import torch

    from service.backends.cuda import CudaBackend

    if backend == "torch":
        torch.set_num_threads(threads)
        return TorchBackend(ranker)
    return CudaBackend(ranker, torch.device("cuda"))
