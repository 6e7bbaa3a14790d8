"""Goes on from an earlier run on new days: new ids get rows, nothing that is known moves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import torch
from safetensors.torch import load_file
from torch import Tensor

from pipelines.config.config import Config
from pipelines.runs.run import RunFolder
from ranking.encoding.columns import as_type
from ranking.encoding.encoder import Encoder
from ranking.encoding.vocabulary import OOV, Vocabulary
from ranking.errors import ConfigError, InvalidInputError, LogError
from ranking.gates.config import AttentiveConfig, SingleTaskConfig
from ranking.model.mmoe import MMoE

TABLES = "embedding_bags."
"""In the names of all embedding tables, those of a side tower too."""

KEPT = ("features", "tasks", "columns", "model")
"""Sections that must be as the earlier run has them, or its weights would mean something else."""


@dataclass(frozen=True)
class WarmStart:
    """An earlier run to go on from.

    Attributes:
        run: its folder.
        reopened: the gates may choose anew; experts that were dropped start afresh. Else the choice is kept.
    """

    run: RunFolder
    reopened: bool

    def require_alike(self, config: Config) -> None:
        """Refuses a configuration that the earlier run's weights do not fit.

        Raises:
            ConfigError: names the section.
        """
        earlier = self.run.load_config()
        for section in KEPT:
            if getattr(config, section) != getattr(earlier, section):
                raise ConfigError(
                    f"[{section}] differs from that of {self.run.path}: its weights fit no other; "
                    "make them alike, or train from the start"
                )
        if isinstance(config.model.gate, SingleTaskConfig):
            raise ConfigError(f"{self.run.path} holds a run for each task: go on from these one by one")
        if self.reopened and isinstance(config.model.gate, AttentiveConfig):
            raise ConfigError("an attentive gate was distilled, which nothing undoes: go on without --reopen")

    def fill(self, model: MMoE) -> None:
        """Gives an untrained model the earlier run's weights; rows of new ids start as copies of the unseen one.

        A choice that is kept leaves only the chosen experts. Every score stays what the earlier run would give.
        """
        weights = load_file(self.run.best)
        experts: list[int] = weights["active"].tolist()
        for name, table in model.state_dict().items():
            if TABLES in name and len(table) > len(weights[name]):
                new = weights[name][OOV].expand(len(table) - len(weights[name]), -1)
                weights[name] = torch.cat([weights[name], new])
        if self.reopened:
            weights = _among_all(weights, model, experts)
        else:
            model.gate = model.gate.serving_gate()
            model.keep_experts(experts)
        try:
            model.load_state_dict(weights)
        except RuntimeError as error:
            raise LogError(f"{self.run.path}: the run is damaged, or of another version ({error})") from None


def extended(earlier: Encoder, fitted: Encoder) -> Encoder:
    """The earlier encoder, with the ids that only ``fitted`` knows behind its own; numbers scale as before.

    Raises:
        LogError: ids are of another type than they were.
    """
    spaces = dict(earlier.id_spaces)
    for name, space in fitted.id_spaces.items():
        known = spaces[name]
        if isinstance(space, Vocabulary) and isinstance(known, Vocabulary):
            spaces[name] = Vocabulary(_union(known.ids, space.ids, name))
    return Encoder(fitted.schema, spaces, earlier.scales)


def _union(known: pa.Array, found: pa.Array, table: str) -> pa.Array:
    """``known``, then what ``found`` adds, in its order."""
    if not len(known):
        return found
    if not len(found):
        return known
    try:
        found = as_type(found, known.type, table)
    except InvalidInputError as error:
        raise LogError(f"ids differ from the earlier run's: {error}") from None
    new = found.filter(pa.compute.invert(pa.compute.is_in(found, value_set=known)))
    return pa.concat_arrays([known, new])


def _among_all(weights: dict[str, Any], model: MMoE, experts: list[int]) -> dict[str, Tensor]:
    """The weights with the kept experts in their places among all; the others as ``model`` has them."""
    filled = model.state_dict()
    for name, value in weights.items():
        if name.startswith("experts."):
            filled[name][experts] = value
        elif name != "active":
            filled[name] = value
    return filled
