"""A model and its optimiser as named tensors: what checkpoints and the best weights are made of."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor, nn

from pipelines.runs.run import RunFolder
from pipelines.training.embedding_tables import EmbeddingTables
from ranking.model.mmoe import MMoE

TABLES = ("embeddings.", "model.embeddings.")
"""Where a model, and an objective that holds one, keep the embedding tables: these have their own state."""
TABLE = "embeddings.collection.embedding_bags.{}.weight"


def trunk(module: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """All parameters of a model or an objective but the embedding tables, by name."""
    for name, parameter in module.named_parameters():
        if not name.startswith(TABLES):
            yield name, parameter


def trunk_state(model: MMoE) -> dict[str, Tensor]:
    """Parameters and buffers but the embedding tables, by name; the model's own, to be read or filled."""
    passing = model._non_persistent_buffers_set
    state = {name: buffer for name, buffer in model.named_buffers(recurse=False) if name not in passing}
    for part, module in model.named_children():  # one by one: sharded tables would rename what lies beside them
        if f"{part}." not in TABLES:
            state |= {f"{part}.{name}": value for name, value in module.state_dict().items()}
    return state


def optimised(module: nn.Module, optimiser: torch.optim.Optimizer) -> list[str]:
    """Names of the parameters that the optimiser has a state of."""
    return [name for name, parameter in trunk(module) if optimiser.state.get(parameter)]


def optimiser_state(module: nn.Module, optimiser: torch.optim.Optimizer, names: list[str]) -> dict[str, Tensor]:
    """AdamW's state of these parameters, by name; made of zeros where there is none yet, to be filled."""
    state: dict[str, Tensor] = {}
    for name, parameter in trunk(module):
        if name in names:
            if not optimiser.state.get(parameter):
                moments = {key: torch.zeros_like(parameter) for key in ("exp_avg", "exp_avg_sq")}
                optimiser.state[parameter] = {"step": torch.zeros(()), **moments}
            state |= {f"optimiser.{name}.{key}": value for key, value in optimiser.state[parameter].items()}
    return state


def save_best(run: RunFolder, model: MMoE, tables: EmbeddingTables) -> None:
    """Replaces the best weights, at no moment leaving half of them; all ranks take part, the first writes.

    Raises:
        OutputError: they cannot be written; those before are still there.
    """
    whole: dict[str, Any] | None = tables.whole()
    if whole is not None:
        weights = {TABLE.format(name): weight for name, weight in whole.items()} | trunk_state(model)
        draft = run.best.with_suffix(".draft")
        try:
            save_file({name: tensor.contiguous() for name, tensor in weights.items()}, draft)
            draft.replace(run.best)
        except (OSError, SafetensorError) as error:
            draft.unlink(missing_ok=True)
            raise run.unwritable(run.best, error) from None
