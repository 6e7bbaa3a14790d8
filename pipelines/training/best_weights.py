"""The best weights of a run, with the state of the optimizers from which a warm start continues."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from pipelines.runs.run import RunFolder
from pipelines.training.checkpoint import dense_parameters, dense_state, optimizer_state, parameters_with_state
from pipelines.training.distributed import DistContext
from pipelines.training.embedding_tables import EmbeddingTables
from pipelines.training.objective import Objective
from pipelines.training.tensor_file import TensorBlocks, write_tensors
from ranking.errors import LogError, single_line

TABLE_WEIGHT = "embeddings.collection.embedding_bags.{}.weight"
"""Name of an embedding table's weights in the model's state dict."""

ADAM_PREFIX, ADAGRAD_PREFIX = "optimiser.", "adagrad."
"""Prefixes of the names of optimizer states: ``optimiser.PARAMETER.exp_avg``, ``adagrad.TABLE``."""


def save_best(
    run: RunFolder,
    context: DistContext,
    objective: Objective,
    tables: EmbeddingTables,
    optimizer: torch.optim.Optimizer,
) -> None:
    """Replace the run's best weights atomically; all ranks must call this, the main rank writes.

    The file holds the state dict of the model, the moments of AdamW, and the sums of Adagrad.

    Raises:
        OutputError: the file cannot be written; the previous one is unaffected.
    """
    tensors: dict[str, Tensor | TensorBlocks] = {
        **{TABLE_WEIGHT.format(name): weights for name, weights in tables.weights().items()},
        **{ADAGRAD_PREFIX + name: sums for name, sums in tables.sums().items()},
        **dense_state(objective.model),
        **optimizer_state(objective, optimizer, parameters_with_state(objective, optimizer)),
    }
    if not context.is_main:
        write_tensors(tensors, None)
        return
    draft = run.best.with_suffix(".draft")
    try:
        with draft.open("wb") as stream:
            write_tensors(tensors, stream)
        draft.replace(run.best)
    except OSError as error:
        raise run.write_error(run.best, error) from None
    finally:
        draft.unlink(missing_ok=True)  # of a full disk, or of another rank that failed


def load_best(run: RunFolder) -> dict[str, Tensor]:
    """Return the state dict of the model; the tensors are parts of the file, which are read where they are used.

    Raises:
        LogError: the file is missing or damaged.
    """
    return _load(run, optimizers=False)


def load_optimizers(run: RunFolder) -> dict[str, Tensor]:
    """Load the state of the optimizers by name; empty for a run of version 0.1.0, which did not save it.

    Raises:
        LogError: the file is missing or damaged.
    """
    return _load(run, optimizers=True)


def _load(run: RunFolder, *, optimizers: bool) -> dict[str, Tensor]:
    try:
        with safe_open(run.best, framework="pt") as file:
            names = [name for name in list(file.keys()) if name.startswith((ADAM_PREFIX, ADAGRAD_PREFIX)) == optimizers]
            return {name: file.get_tensor(name) for name in names}
    except (OSError, SafetensorError) as error:
        raise damaged_run(run, error) from None


def damaged_run(run: RunFolder, error: Exception) -> LogError:
    """Return the error of a run whose files cannot be used, with the reason."""
    return LogError(f"{run.path}: the run is damaged or of another version ({single_line(error)}); train again")


def restore_optimizers(
    state: Mapping[str, Tensor], objective: Objective, optimizer: torch.optim.Optimizer, tables: EmbeddingTables
) -> None:
    """Continue with the state of the optimizers that ``load_optimizers`` returned.

    A parameter of the model without a state, or of another shape, starts without one. So do the weights of the losses,
    which a warm start does not take over.
    """
    names = [
        name
        for name, parameter in dense_parameters(objective)
        if name.startswith("model.")
        and (moment := state.get(f"{ADAM_PREFIX}{name}.exp_avg")) is not None
        and moment.shape == parameter.shape
    ]
    for key, target in optimizer_state(objective, optimizer, names).items():
        target.copy_(state[key])
    tables.load_sums({key.removeprefix(ADAGRAD_PREFIX): sums for key, sums in state.items() if ADAGRAD_PREFIX in key})
