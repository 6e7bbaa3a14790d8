"""Checkpoints of a training and the named tensors in them.

All ranks write a checkpoint together; any number of ranks can load it. It appears only when it is complete.

checkpoints/step-N/   tensors/           written by torch.distributed.checkpoint, one file per rank
                      best.safetensors   the best weights at that step, if any
                      state.json         the rest of the state, and the SHA-256 of every other file

A checkpoint contains only numbers and text: loading it cannot execute code.
"""

from __future__ import annotations

import json
import logging
import math
import os
import shutil
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.checkpoint._hf_utils import CUSTOM_METADATA_KEY, SAVED_OFFSETS_KEY
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader, HuggingFaceStorageWriter
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future

from pipelines.console import print_status
from pipelines.training.distributed import DistContext
from pipelines.training.tensor_file import write_tensors
from ranking.artifacts.atomic_files import files_in, fsync, os_error_text, sha256
from ranking.errors import LogError, OutputError, single_line
from ranking.model.embeddings import stored_name
from ranking.model.mmoe import MMoE

TENSORS = "tensors"
"""Folder of the tensors. The loader reads every file of its folder, so nothing else may be stored there."""
STATE = "state.json"
BEST = "best.safetensors"

MAX_TIME_FRACTION = 0.1
"""Maximum fraction of the training time that writing checkpoints may take."""

EMBEDDING_PREFIXES = ("embeddings.", "model.embeddings.")
"""Name prefixes of the embedding tables in a model and in an objective; ``EmbeddingTables`` saves their state."""

logging.getLogger("c10d-NullHandler-dcp_logger").setLevel(logging.ERROR)  # by default it logs every tensor


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint whose checksums were verified.

    Attributes:
        folder: its folder.
        state: content of ``state.json``.
    """

    folder: Path
    state: dict[str, Any]

    def load(self, tensors: dict[str, Any]) -> None:
        """Load into these tensors in place; each is a whole tensor or a ``ShardedTensor``.

        Raises:
            LogError: the checkpoint contains other tensors.
        """
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                load(tensors, storage_reader=HuggingFaceStorageReader(str(self.folder / TENSORS)))
        except (RuntimeError, ValueError, KeyError, AssertionError, CheckpointException) as error:
            raise LogError(
                f"{self.folder} belongs to another model or version ({_root_cause(error)}); train again"
            ) from error


class _ShardWriter(HuggingFaceStorageWriter):
    """Writes the tensors of a rank without the three copies in memory that its base class makes."""

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """Write the file of this rank; see ``StorageWriter``."""
        tensors: dict[str, Any] = {item.index.fqn: planner.resolve_data(item) for item in plan.items}
        chunks = {item.index.fqn: item.tensor_data.chunk for item in plan.items if item.tensor_data is not None}
        offsets = {name: {SAVED_OFFSETS_KEY: list(chunk.offsets)} for name, chunk in chunks.items()}
        with (Path(self.path) / f"shard-{plan.storage_data['shard_index']}.safetensors").open("wb") as stream:
            write_tensors(tensors, stream, {CUSTOM_METADATA_KEY: json.dumps(offsets)})
            os.fsync(stream.fileno())
        written: Future[list[WriteResult]] = Future()
        written.set_result([])
        return written


class Checkpoints:
    """All checkpoints of one run.

    Args:
        folder: folder that contains the checkpoints.
        best: the run's best weights, of which each checkpoint keeps a copy.
        context: the ranks that write.
        keep: number of checkpoints to keep; older ones are deleted.
    """

    def __init__(self, folder: Path, best: Path, context: DistContext, keep: int) -> None:
        self._folder, self._best, self._context, self._keep = folder, best, context, keep
        self._saved_at, self._save_seconds = -math.inf, 0.0

    def due(self, *, final: bool) -> bool:
        """Return whether to write a checkpoint now: always at the end, otherwise within ``MAX_TIME_FRACTION``."""
        now = final or time.monotonic() - self._saved_at >= self._save_seconds / MAX_TIME_FRACTION
        return self._context.any(now and self._context.is_main)

    def save(self, step: int, tensors: dict[str, Any], state: dict[str, Any]) -> None:
        """Write a checkpoint; all ranks must call this.

        Raises:
            OutputError: the checkpoint cannot be written; earlier ones are unaffected.
        """
        draft, context, start = self._folder / f".step-{step}-draft", self._context, time.monotonic()
        try:
            if context.is_main:
                shutil.rmtree(draft, ignore_errors=True)
                (draft / TENSORS).mkdir(parents=True)
            context.barrier()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # torch warns when a single process saves
                save(tensors, storage_writer=_ShardWriter(str(draft / TENSORS), save_distributed=True))
            if context.is_main:
                self._commit(draft, step, state)
            context.barrier()
            self._saved_at, self._save_seconds = time.monotonic(), time.monotonic() - start
        except (OSError, CheckpointException) as error:
            shutil.rmtree(draft, ignore_errors=True)
            steps = self.steps()
            latest = f"the latest complete one is of step {steps[-1]}" if steps else "there is no earlier one"
            raise OutputError(
                f"{self._folder}: the checkpoint of step {step} cannot be written ({_root_cause(error)}); {latest}: "
                "free space, then run the same command with --resume"
            ) from error

    def _commit(self, draft: Path, step: int, state: dict[str, Any]) -> None:
        """Turn a draft that all ranks have written into a checkpoint, and delete the oldest checkpoints."""
        if self._best.exists():
            os.link(self._best, draft / BEST)  # a link suffices: best weights are replaced, never modified in place
        digests = {file.relative_to(draft).as_posix(): sha256(file) for file in files_in(draft)}
        (draft / STATE).write_text(json.dumps({**state, "step": step, "files": digests}))
        for path in [*files_in(draft), draft / TENSORS, draft]:
            fsync(path)
        shutil.rmtree(self._path(step), ignore_errors=True)
        draft.rename(self._path(step))
        fsync(self._folder)
        for old_step in self.steps()[: -self._keep]:
            shutil.rmtree(self._path(old_step))

    def latest(self) -> Checkpoint | None:
        """Return the latest intact checkpoint; log the damaged ones that are skipped."""
        for step in reversed(self.steps()):
            try:
                return self._verify(self._path(step))
            except (OSError, ValueError, KeyError) as error:
                if self._context.is_main:
                    print_status(f"{self._path(step)} is damaged and skipped ({error})")
        return None

    def restore_best(self, checkpoint: Checkpoint | None) -> None:
        """Restore the best weights of a checkpoint; None, or a checkpoint without them, leaves no best weights."""
        self._best.unlink(missing_ok=True)
        if checkpoint is not None and (checkpoint.folder / BEST).exists():
            os.link(checkpoint.folder / BEST, self._best)

    def remove(self) -> None:
        """Delete all checkpoints and drafts."""
        for path in [*self._folder.glob("step-*"), *self._folder.glob(".step-*-draft")]:
            shutil.rmtree(path)

    def steps(self) -> list[int]:
        """Return the steps that have a checkpoint, intact or not, in ascending order."""
        return sorted(int(path.name.removeprefix("step-")) for path in self._folder.glob("step-*"))

    def _path(self, step: int) -> Path:
        return self._folder / f"step-{step}"

    @staticmethod
    def _verify(folder: Path) -> Checkpoint:
        state = json.loads((folder / STATE).read_text())
        for name, digest in state["files"].items():
            if sha256(folder / name) != digest:
                raise ValueError(f"the checksum of {name} does not match")
        return Checkpoint(folder, state)


def dense_parameters(module: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """Yield (name in files, parameter) for all parameters of a model or an objective except the embedding tables."""
    for name, parameter in module.named_parameters():
        if not name.startswith(EMBEDDING_PREFIXES):
            yield stored_name(name), parameter


def dense_state(model: MMoE) -> dict[str, Tensor]:
    """Return the state dict of a model without its embedding tables; the tensors are not copies."""
    non_persistent = model._non_persistent_buffers_set
    state = {name: buffer for name, buffer in model.named_buffers(recurse=False) if name not in non_persistent}
    # Per child, because state_dict() of a module with sharded tables renames the other entries.
    for child, module in model.named_children():
        if f"{child}." not in EMBEDDING_PREFIXES:
            state |= {f"{child}.{name}": value for name, value in module.state_dict().items()}
    return state


def parameters_with_state(module: nn.Module, optimizer: torch.optim.Optimizer) -> list[str]:
    """Return the names of the dense parameters that have an optimizer state."""
    return [name for name, parameter in dense_parameters(module) if optimizer.state.get(parameter)]


def optimizer_state(module: nn.Module, optimizer: torch.optim.Optimizer, names: list[str]) -> dict[str, Tensor]:
    """Return AdamW's state of these parameters by name; a missing state is created as zeros, to be loaded into."""
    state: dict[str, Tensor] = {}
    for name, parameter in dense_parameters(module):
        if name in names:
            if not optimizer.state.get(parameter):
                moments = {key: torch.zeros_like(parameter) for key in ("exp_avg", "exp_avg_sq")}
                steps = torch.zeros((), device=parameter.device)  # where the fused AdamW counts them
                optimizer.state[parameter] = {"step": steps, **moments}
            state |= {f"optimiser.{name}.{key}": value for key, value in optimizer.state[parameter].items()}
    return state


def random_states(context: DistContext) -> dict[str, Tensor]:
    """Return the states of this rank's random number generators by name: that of the CPU and that of its GPU."""
    name = f"random.{context.rank}"
    states = {name: torch.get_rng_state()}
    if context.device.type == "cuda":
        states[f"{name}.cuda"] = torch.cuda.get_rng_state(context.device)
    return states


def restore_random_states(states: dict[str, Tensor], context: DistContext) -> None:
    """Restore the states that ``random_states`` returned."""
    for name, state in states.items():
        if name.endswith(".cuda"):
            torch.cuda.set_rng_state(state, context.device)
        else:
            torch.set_rng_state(state)


def _root_cause(error: BaseException) -> str:
    """Return the message of the first error that torch.distributed.checkpoint wraps."""
    if isinstance(error, CheckpointException):
        error = next(iter(error.failures.values()))[0]
    return os_error_text(error) if isinstance(error, OSError) else single_line(error)
