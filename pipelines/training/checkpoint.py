"""Checkpoints of a training: written by all ranks, whole or not at all, and loaded by any number of them.

checkpoints/step-N/   tensors/           written by torch.distributed.checkpoint, each rank a file of its own
                      best.safetensors   the best weights up to then, if there were any
                      state.json         what is not a tensor, and the SHA-256 of every other file

Only numbers and text: nothing in a checkpoint can execute when it is loaded.
"""

from __future__ import annotations

import json
import logging
import math
import os
import shutil
import time
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import HuggingFaceStorageReader, HuggingFaceStorageWriter

from pipelines.config.uri import single_line
from pipelines.console import print_status
from pipelines.training.distributed import DistContext
from ranking.artifacts.atomic_files import files_in, fsync, os_error_text, sha256
from ranking.errors import LogError, OutputError

TENSORS = "tensors"
"""A folder of its own: what loads it takes every file of that folder to be a part of it."""
STATE = "state.json"
BEST = "best.safetensors"

SHARE = 0.1
"""Of the time of a training that its checkpoints may take."""

logging.getLogger("c10d-NullHandler-dcp_logger").setLevel(logging.ERROR)  # it tells of every tensor


@dataclass(frozen=True)
class Checkpoint:
    """One that was verified.

    Attributes:
        folder: where it lies.
        state: what is not a tensor.
    """

    folder: Path
    state: dict[str, Any]

    def load(self, tensors: dict[str, Any]) -> None:
        """Fills these tensors (whole, or parts of sharded ones) in place.

        Raises:
            LogError: the checkpoint holds other tensors.
        """
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                dcp.load(tensors, storage_reader=HuggingFaceStorageReader(str(self.folder / TENSORS)))
        except (RuntimeError, ValueError, KeyError, AssertionError, dcp.CheckpointException) as error:
            raise LogError(f"{self.folder} is of another model or version ({_cause(error)}); train again") from error


class Checkpoints:
    """Those of one run.

    Args:
        folder: where they lie.
        best: the run's best weights, which a checkpoint keeps beside it.
        world: who writes.
        keep: how many are left; older ones are removed.
    """

    def __init__(self, folder: Path, best: Path, world: DistContext, keep: int) -> None:
        self._folder, self._best, self._world, self._keep = folder, best, world, keep
        self._saved, self._seconds = -math.inf, 0.0

    def due(self, *, over: bool) -> bool:
        """Whether it is time for another, so that they take a small share of the training; always once it is over."""
        now = over or time.monotonic() - self._saved >= self._seconds / SHARE
        return self._world.any(now and self._world.first)

    def save(self, step: int, tensors: dict[str, Any], state: dict[str, Any]) -> None:
        """Writes a checkpoint; it appears once all ranks have written their part. To be called by all of them.

        Raises:
            OutputError: it cannot be written; earlier ones are still there.
        """
        draft, world, begun = self._folder / f".step-{step}-draft", self._world, time.monotonic()
        try:
            if world.first:
                shutil.rmtree(draft, ignore_errors=True)
                (draft / TENSORS).mkdir(parents=True)
            world.wait()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # that one process saves alone is no mistake
                writer = HuggingFaceStorageWriter(str(draft / TENSORS), save_distributed=True)
                dcp.save(tensors, storage_writer=writer)
            if world.first:
                self._seal(draft, step, state)
            world.wait()
            self._saved, self._seconds = time.monotonic(), time.monotonic() - begun
        except (OSError, dcp.CheckpointException) as error:
            shutil.rmtree(draft, ignore_errors=True)
            left = self.steps()
            last = f"the last whole one is of step {left[-1]}" if left else "there is no earlier one"
            raise OutputError(
                f"{self._folder}: the checkpoint of step {step} cannot be written ({_cause(error)}); {last}: "
                "free space, then give the same command with --resume"
            ) from error

    def _seal(self, draft: Path, step: int, state: dict[str, Any]) -> None:
        """Makes a draft that all ranks have written a checkpoint, and removes the oldest."""
        if self._best.exists():
            os.link(self._best, draft / BEST)  # best weights are replaced, never changed: a link is a copy
        sums = {file.relative_to(draft).as_posix(): sha256(file) for file in files_in(draft)}
        (draft / STATE).write_text(json.dumps({**state, "step": step, "files": sums}))
        for path in [*files_in(draft), draft / TENSORS, draft]:
            fsync(path)
        shutil.rmtree(self._path(step), ignore_errors=True)
        draft.rename(self._path(step))
        fsync(self._folder)
        for old in self.steps()[: -self._keep]:
            shutil.rmtree(self._path(old))

    def latest(self) -> Checkpoint | None:
        """The newest that is whole; says which are skipped because they are not."""
        for step in reversed(self.steps()):
            try:
                return self._verified(self._path(step))
            except (OSError, ValueError, KeyError) as error:
                if self._world.first:
                    print_status(f"{self._path(step)} is torn and left aside ({error})")
        return None

    def restore_best(self, checkpoint: Checkpoint | None) -> None:
        """Puts the best weights back that there were at this checkpoint, or at the start; there may have been none."""
        self._best.unlink(missing_ok=True)
        if checkpoint is not None and (checkpoint.folder / BEST).exists():
            os.link(checkpoint.folder / BEST, self._best)

    def remove(self) -> None:
        """Removes them all, drafts too: the training is over."""
        for path in [*self._folder.glob("step-*"), *self._folder.glob(".step-*-draft")]:
            shutil.rmtree(path)

    def steps(self) -> list[int]:
        """Steps of which there is a checkpoint, torn or not, ascending."""
        return sorted(int(path.name.removeprefix("step-")) for path in self._folder.glob("step-*"))

    def _path(self, step: int) -> Path:
        return self._folder / f"step-{step}"

    @staticmethod
    def _verified(folder: Path) -> Checkpoint:
        state = json.loads((folder / STATE).read_text())
        for name, digest in state["files"].items():
            if sha256(folder / name) != digest:
                raise ValueError(f"{name} was altered")
        return Checkpoint(folder, state)


def _cause(error: BaseException) -> str:
    """The first reason behind what torch.distributed.checkpoint wraps."""
    if isinstance(error, dcp.CheckpointException):
        error = next(iter(error.failures.values()))[0]
    return os_error_text(error) if isinstance(error, OSError) else single_line(error)
