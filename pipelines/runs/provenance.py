"""Provenance of a run: the command, package versions, and environment variables that affect its numbers."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from functools import cache
from importlib.metadata import version
from typing import Any

import torch

DISTRIBUTIONS = ("dselect-ranker", "torch", "torchrec", "numpy", "pyarrow", "pydantic")
ENVIRONMENT = ("OMP_NUM_THREADS", "WORLD_SIZE", "CUBLAS_WORKSPACE_CONFIG")


def provenance(command: Sequence[str] = ()) -> dict[str, Any]:
    """Return the content of ``command.json``, which identifies neither the machine nor its user.

    Args:
        command: arguments of the command line; empty if the training was started from Python.
    """
    return {
        "argv": list(command),
        "versions": _versions(),
        "environment": {name: os.environ[name] for name in ENVIRONMENT if name in os.environ},
        "system": f"{platform.system()} {platform.machine()}",
        "threads": torch.get_num_threads(),
    }


@cache
def _versions() -> dict[str, str]:
    """Return the installed versions, which are read from files."""
    return {"python": platform.python_version()} | {name: version(name) for name in DISTRIBUTIONS}
