"""Preparation of a training: one pass over the log that profiles it and fits the encoders."""

from __future__ import annotations

import json
import math
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import torch

from pipelines.config.config import Config
from pipelines.console import print_status
from pipelines.counters.columns import belongs_to, write_joined_columns
from pipelines.data.index import LogIndex
from pipelines.data.joined import JoinedColumns
from pipelines.data.reader import LogReader, load_tables
from pipelines.inspection.label_bounds import estimate_label_bounds
from pipelines.inspection.profile import profile_log
from pipelines.inspection.quality import find_warnings, require_learnable
from pipelines.runs.run import RunFolder
from pipelines.training.distributed import DistContext
from pipelines.training.id_dropout import unknown_shares
from pipelines.training.memory import require_memory
from pipelines.training.model_factory import read_position_encoder
from pipelines.training.warm_start import WarmStart, extend_encoder
from ranking.artifacts.atomic_files import atomic_directory, write_json
from ranking.encoding.encoder import Encoder
from ranking.encoding.encoder_fitter import EncoderFitter
from ranking.errors import LogError
from ranking.schema import Schema

MIN_BASE_RATE = 1e-6
"""Base rates are clipped to this distance from 0 and 1, whose logits are infinite."""


@dataclass(frozen=True)
class TrainingData:
    """A log that is ready to train on.

    Attributes:
        reader: the log.
        encoder: encoder fitted on the training split.
        position_encoder: encoder of the position tower; None if the model has none.
        index: usable rows of the log.
        survey: profile of the log, the content of ``survey.json``.
    """

    reader: LogReader
    encoder: Encoder
    position_encoder: Encoder | None
    index: LogIndex
    survey: dict[str, Any]


def prepare(
    config: Config,
    run: RunFolder,
    context: DistContext,
    warm_start: WarmStart | None = None,
    columns_from: RunFolder | None = None,
) -> TrainingData:
    """Profile the log and fit the encoders on the main rank, then load the result on every rank.

    Args:
        config: the whole configuration.
        run: folder for profile and encoders; those of an earlier attempt are reused.
        context: the ranks, which must all see the run folder.
        warm_start: earlier run whose encoders are extended; None to fit new ones.
        columns_from: run whose columns of counters and histories are reused if they belong to this log and schema.

    Raises:
        LogError: the log cannot be used or contains nothing to learn.
        OutputError: the run folder cannot be written.
    """
    require_memory(config)
    schema = config.training_schema
    reader = LogReader(config.logs.path, schema, load_tables(config.logs, schema), until=config.logs.test_until)
    if context.is_main and not run.encoder.exists():
        _profile(config, run, reader, warm_start, columns_from)
    context.barrier()
    if not run.encoder.exists():
        raise LogError(
            f"rank {context.rank} cannot see {run.path}: put the run folder on a file system that all ranks share"
        )
    if schema.derived:
        reader = reader.with_joined(JoinedColumns.read(run.features))
    encoder, position_encoder = Encoder.read(run.encoder, config.serving_schema), read_position_encoder(run, config)
    return TrainingData(reader, encoder, position_encoder, LogIndex.read(run.index), json.loads(run.survey.read_text()))


def _profile(
    config: Config,
    run: RunFolder,
    reader: LogReader,
    warm_start: WarmStart | None,
    columns_from: RunFolder | None,
) -> None:
    """Profile the log and fit the encoders; the encoder is written last and marks the pass as complete."""
    fitter = EncoderFitter(config.serving_schema)
    position_fitter = None if config.position_schema is None else EncoderFitter(config.position_schema)

    def fit(rows: pa.Table) -> None:
        fitter.add(rows)
        if position_fitter is not None:
            position_fitter.add(rows)

    schema = estimate_label_bounds(reader, config.logs, config.training_schema)
    reader = reader.with_schema(schema).with_joined(_joined_columns(reader, schema, run, columns_from))
    profile = profile_log(reader, config.logs, schema, run.quarantine, on_train=fit)
    require_learnable(profile, config)
    if profile.bad:
        reasons = "; ".join(f"{count:,} × {reason}" for reason, count in profile.bad.most_common())
        print_status(f"{profile.bad.total():,} bad rows are skipped, see {run.quarantine}: {reasons}")
    for warning in find_warnings(profile, config):
        print_status(f"warning: {warning}")
    encoder = fitter.encoder()
    require_memory(config, {name: ids.size for name, ids in encoder.id_mappings.items()}, profile.rows["train"])
    earlier = None if warm_start is None else warm_start.run
    encoder = _extended(encoder, None if earlier is None else earlier.encoder)
    survey = profile.to_json()
    if config.training.oov_dropout == "measured":
        survey["unknown_ids"] = unknown_shares(reader, config.logs, encoder, fitter.rare_shares())
    write_json(survey, run.survey)
    profile.index.write(run.index)
    if position_fitter is not None:
        position_encoder = _extended(position_fitter.encoder(), None if earlier is None else earlier.position_encoder)
        _write_encoder(position_encoder, run.position_encoder)
    _write_encoder(encoder, run.encoder)


def _joined_columns(
    reader: LogReader, schema: Schema, run: RunFolder, earlier: RunFolder | None
) -> JoinedColumns | None:
    """Compute the columns of counters and histories and their state, unless an earlier attempt or run did."""
    if not schema.derived:
        return None
    if not (run.features.exists() and run.counters.exists()):
        for folder in (run.features, run.counters):
            shutil.rmtree(folder, ignore_errors=True)
        with atomic_directory(run.counters) as state, atomic_directory(run.features) as columns:
            if earlier is not None and belongs_to(JoinedColumns.read(earlier.features), reader, schema):
                shutil.copytree(earlier.features, columns, copy_function=os.link, dirs_exist_ok=True)
                shutil.copytree(earlier.counters, state, copy_function=os.link, dirs_exist_ok=True)
            else:
                write_joined_columns(reader, schema, columns, state)
    return JoinedColumns.read(run.features)


def _extended(fitted: Encoder, earlier: Path | None) -> Encoder:
    """Return the encoder of an earlier run extended by the new ids; without one, the fitted encoder."""
    return fitted if earlier is None else extend_encoder(Encoder.read(earlier, fitted.schema), fitted)


def _write_encoder(encoder: Encoder, folder: Path) -> None:
    """Write an encoder atomically."""
    if folder.exists():  # left by an attempt that was interrupted before the pass was complete
        shutil.rmtree(folder)
    with atomic_directory(folder) as draft:
        encoder.write(draft)


def base_rate_outputs(survey: dict[str, Any], config: Config) -> torch.Tensor:
    """Return the outputs [tasks] of a model that predicts the training split's base rates and means.

    A base rate refers to the labels that training uses: it includes the fraction ``Task.keep_negatives`` of the
    negatives.
    """
    outputs = []
    for task in config.tasks:
        mean = survey["labels"]["train"][task.name]["mean"] or 0.0
        rate = min(max(mean, MIN_BASE_RATE), 1 - MIN_BASE_RATE)
        outputs.append(math.log(rate / (1 - rate)) - math.log(task.keep_negatives) if task.kind == "binary" else mean)
    return torch.tensor(outputs)
