"""Where a run comes from: the command, the versions, and the settings of the environment that change its numbers."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

import torch

DISTRIBUTIONS = ("dselect-ranker", "torch", "torchrec", "numpy", "pyarrow", "pydantic")
ENVIRONMENT = ("OMP_NUM_THREADS", "WORLD_SIZE", "CUBLAS_WORKSPACE_CONFIG")


def provenance(command: Sequence[str] = ()) -> dict[str, Any]:
    """``command.json``; it names neither the machine nor its user.

    Args:
        command: what was given on the command line; nothing if the training was started from Python.
    """
    return {
        "argv": list(command),
        "versions": {"python": platform.python_version()} | {name: version(name) for name in DISTRIBUTIONS},
        "environment": {name: os.environ[name] for name in ENVIRONMENT if name in os.environ},
        "system": f"{platform.system()} {platform.machine()}",
        "threads": torch.get_num_threads(),
    }
