"""What an operator may set."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, PositiveInt, model_validator

from service.engine.runtimes import Backend, Precision


class Settings(BaseModel):
    """Settings of a service.

    Attributes:
        repository: folder of published bundles; each model's current version is served.
        default_model: answers ``POST /v1/rank``; may be left out if the repository holds one model.
        max_candidates: items of one request; more are refused with 413.
        max_batch_rows: candidates, of one request or many, that are scored at a time; with more each costs hardly less,
            and whoever comes next waits for longer.
        max_body_bytes: size of a request; more is refused with 413.
        backend: what executes the models; ``auto``: a GPU if there is one, else ONNX Runtime, else PyTorch.
        precision: of a GPU's products.
        workers: processes.
        threads: of each process that score; default: the cores divided by the workers. More than there are cores
            makes everything slower by far.
        server_timing: answers say in a Server-Timing header how long each stage of the request took.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    repository: Path
    default_model: str | None = None
    max_candidates: PositiveInt = 5_000
    max_batch_rows: PositiveInt = 500
    max_body_bytes: PositiveInt = 8 * 1024 * 1024
    backend: Backend = "auto"
    precision: Precision = "float32"
    workers: PositiveInt = 1
    threads: PositiveInt = 1
    server_timing: bool = False

    @model_validator(mode="before")
    @classmethod
    def _threads_fill_the_cores(cls, given: dict[str, Any]) -> dict[str, Any]:
        workers = given.get("workers", 1)
        if given.get("threads") is None and isinstance(workers, int) and workers > 0:
            return given | {"threads": max(1, len(os.sched_getaffinity(0)) // workers)}
        return given
