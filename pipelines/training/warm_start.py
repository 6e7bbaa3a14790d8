"""Warm start from an earlier run on new data: new ids get embedding rows, and known ids keep theirs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import torch
from torch import Tensor

from pipelines.config.config import Config, ConvergenceConfig
from pipelines.config.diff import diff_configs
from pipelines.runs.run import RunFolder
from pipelines.training.best_weights import TABLE_WEIGHT, damaged_run, load_best, load_optimizers
from ranking.encoding.columns import cast_ids
from ranking.encoding.encoder import Encoder
from ranking.encoding.id_rows import OOV
from ranking.encoding.vocabulary import Vocabulary
from ranking.errors import ConfigError, InvalidInputError, LogError
from ranking.model.embeddings import TABLES
from ranking.model.mmoe import MMoE
from ranking.schema.counters import HISTORY_POOLING
from ranking.schema.value_text import value_text
from ranking.settings.gate import AttentiveConfig, SingleTaskConfig

MIN_STEPS = 8
"""Number of steps per epoch that the batches of a warm start are made small enough for."""
MIN_BATCH_SIZE = 32
"""Smallest batch size that ``MIN_STEPS`` leads to; the statistics of batch norm are too noisy in smaller batches."""
MEMORY = 30
"""Earlier rows count at most as this many times the new rows, so that daily trainings keep following the log."""

MATCHING_SECTIONS = ("features", "counters", "histories", "tasks", "columns", "model")
"""Sections that must equal those of the earlier run, because its weights depend on them."""


@dataclass(frozen=True)
class Continuation:
    """State that a training takes over from an earlier run, besides its weights.

    Attributes:
        optimizers: state of the optimizers, see ``best_weights.load_optimizers``.
        rate: factor on all learning rates at the first step; it falls linearly to 0.
    """

    optimizers: Mapping[str, Tensor]
    rate: float


@dataclass(frozen=True)
class WarmStart:
    """An earlier run to start from.

    Attributes:
        run: its folder.
        reopen: let the gates select again among all experts; removed experts are initialized anew. Otherwise the
            selection of the earlier run is kept.
    """

    run: RunFolder
    reopen: bool

    def adapted(self, config: Config) -> Config:
        """Return a configuration to which the weights of the earlier run fit.

        Histories with the default pooling keep that of the earlier run, whose version may have had another default.

        Raises:
            ConfigError: names the setting that does not match.
        """
        earlier = self.run.load_config()
        histories = {history.name for history in config.histories}
        pooling = {bag.name: bag.pooling for bag in earlier.bags if bag.name in histories}
        features = tuple(
            feature.model_copy(update={"pooling": pooling[feature.name]})
            if feature.name in pooling and getattr(feature, "pooling", None) == HISTORY_POOLING
            else feature
            for feature in config.features
        )
        config = config.model_copy(update={"features": features})
        for section in MATCHING_SECTIONS:
            if getattr(config, section) != getattr(earlier, section):
                name, before, now = next(diff for diff in diff_configs(earlier, config) if diff[0].startswith(section))
                raise ConfigError(
                    f"[{section}] differs from that of {self.run.path}, whose weights do not fit it: {name} is "
                    f"{value_text(now)}, there {value_text(before)}; use the same section, or train from scratch"
                )
        if isinstance(config.model.gate, SingleTaskConfig):
            raise ConfigError(f"{self.run.path} contains one run per task: start from each of these separately")
        if self.reopen and isinstance(config.model.gate, AttentiveConfig):
            raise ConfigError("an attentive gate is distilled, which cannot be undone: omit --reopen")
        return config

    def trained_rows(self) -> int:
        """Return the number of rows behind the weights of the earlier run: its own, and those that it started from."""
        own: int = self.run.load_survey()["rows"]["train"]
        return int(self.run.load_selection().get("trained_rows", own))

    def continuation(self, rows: int, convergence: ConvergenceConfig) -> Continuation | None:
        """Return what a training on this number of new rows takes over; None if the gates select again.

        The learning rates are those of the last part of one training on the earlier and the new rows: they fall
        linearly to 0 once the experts are selected, and a share of new rows starts at that share of the decay.
        """
        if self.reopen:
            return None
        decayed = (1 - convergence.anneal_until) * min(self.trained_rows(), MEMORY * rows)
        return Continuation(load_optimizers(self.run), rate=rows / (rows + decayed))

    def initialize(self, model: MMoE) -> dict[str, Tensor]:
        """Load the earlier run's weights into an untrained model, except those of the embedding tables.

        Keeping the selection removes all other experts. With the tables, in which the rows of new ids are copies of the
        OOV row, all scores are those that the earlier run would return.

        Returns:
            Weights [known rows, dim] of each embedding table.

        Raises:
            LogError: the earlier run is damaged.
        """
        try:
            weights = load_best(self.run)
            tables = {name: weights.pop(TABLE_WEIGHT.format(name)) for name in model.embeddings.tables}
            experts: list[int] = weights["active"].tolist()
            if not self.reopen:
                model.gate = model.gate.serving_gate()
                model.keep_experts(experts)
            state = model.state_dict()
            for name, rows in tables.items():
                weights[TABLE_WEIGHT.format(name)] = state[TABLE_WEIGHT.format(name)]
                _require_fitting(name, rows, model.embeddings.weight(name))
            for name, table in state.items():
                if TABLES in name and len(table) > len(weights[name]):  # of the position tower
                    new_rows = weights[name][OOV].expand(len(table) - len(weights[name]), -1)
                    weights[name] = torch.cat([weights[name], new_rows])
            if self.reopen:
                weights = _restore_removed_experts(weights, model, experts)
            model.load_state_dict(weights)
        except (KeyError, RuntimeError) as error:
            raise damaged_run(self.run, error) from None
        return tables


def _require_fitting(name: str, known: Tensor, table: Tensor) -> None:
    """Check that the weights [known rows, dim] are those of the first rows of a table [rows, dim].

    Raises:
        RuntimeError: they are not.
    """
    if known.shape[1:] != table.shape[1:] or len(known) > len(table):
        raise RuntimeError(f"table {name} is {list(known.shape)}, which does not fit into {list(table.shape)}")


def extend_encoder(earlier: Encoder, fitted: Encoder) -> Encoder:
    """Append the ids that only ``fitted`` knows to the vocabularies of ``earlier``; numbers are encoded as before.

    Raises:
        LogError: the type of the ids differs.
    """
    spaces = dict(earlier.id_mappings)
    for name, space in fitted.id_mappings.items():
        known = spaces[name]
        if isinstance(space, Vocabulary) and isinstance(known, Vocabulary):
            spaces[name] = Vocabulary(_append_new_ids(known.ids(), space.ids(), name))
    numbers = {number.name: number for number in earlier.schema.numerics}
    features = tuple(numbers.get(feature.name, feature) for feature in fitted.schema.features)
    return Encoder(fitted.schema.model_copy(update={"features": features}), spaces, earlier.scales)


def _append_new_ids(known: pa.Array, ids: pa.Array, table: str) -> pa.Array:
    """Return ``known`` followed by the ids that it does not contain, in their order."""
    if not len(known):
        return ids
    if not len(ids):
        return known
    try:
        ids = cast_ids(ids, known.type, table)
    except InvalidInputError as error:
        raise LogError(f"the type of ids differs from the earlier run: {error}") from None
    new_ids = ids.filter(pa.compute.invert(pa.compute.is_in(ids, value_set=known)))
    return pa.concat_arrays([known, new_ids])


def _restore_removed_experts(weights: dict[str, Any], model: MMoE, experts: list[int]) -> dict[str, Tensor]:
    """Return weights for all experts: ``weights`` for those that were kept, those of ``model`` for the others."""
    state = model.state_dict()
    for name, value in weights.items():
        if name == "active":
            continue
        if value.shape != state[name].shape:  # The first dimension is that of the experts.
            state[name][experts] = value
        else:
            state[name] = value
    return state


def limit_batch_size(batch_size: int, rows: int, world_size: int) -> int:
    """Return the batch size of a warm start: halved until an epoch has ``MIN_STEPS`` steps.

    Args:
        batch_size: configured rows per step over all ranks.
        rows: number of new rows.
        world_size: number of ranks, which must divide the batch size.
    """
    while rows < MIN_STEPS * batch_size and batch_size // 2 >= MIN_BATCH_SIZE and batch_size % (2 * world_size) == 0:
        batch_size //= 2
    return batch_size
