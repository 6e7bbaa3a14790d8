"""Preparation of a training: one pass over the log that profiles it and fits the encoders.

The log is read by this process or by an engine, or an earlier run has what the pass would find.
"""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from pipelines.config.config import Config
from pipelines.console import print_status
from pipelines.counters.columns import belongs_to, write_joined_columns
from pipelines.data.index import LogIndex
from pipelines.data.joined import JoinedColumns
from pipelines.data.reader import LogReader, open_log
from pipelines.engines import Engine, kept_processes
from pipelines.inspection.label_bounds import estimate_label_bounds
from pipelines.inspection.profile import profile_log
from pipelines.inspection.quality import find_warnings, require_learnable
from pipelines.runs.preparation import (
    Inputs,
    has_preparation,
    log_inputs,
    share_folder,
    share_preparation,
    write_inputs,
)
from pipelines.runs.run import RunFolder
from pipelines.training.distributed import DistContext
from pipelines.training.id_dropout import unknown_shares
from pipelines.training.memory import require_memory
from pipelines.training.model_factory import read_position_encoder
from pipelines.training.warm_start import WarmStart, extend_encoder
from ranking.artifacts.atomic_files import atomic_directory, write_json
from ranking.encoding.encoder import Encoder
from ranking.encoding.encoder_fitter import EncoderFitter
from ranking.errors import LogError, OutputError, single_line
from ranking.regular_files import is_damage
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
    prepared: RunFolder | None = None,
    engine: Engine | None = None,
) -> TrainingData:
    """Prepare the log on the main rank, then load the result on every rank; see ``prepare_log``.

    Args:
        config: the whole configuration.
        run: the run folder.
        context: the ranks, which must all see the run folder.
        warm_start: earlier run whose encoders are extended; None to fit new ones.
        prepared: run whose preparation is used if it fits, or at least its columns of counters and histories.
        engine: lets its workers read the files of the log, which gives the same result; None: this process does.

    Raises:
        LogError: the log cannot be used or contains nothing to learn.
        OutputError: the run folder cannot be written.
        ConfigError: the training does not fit into the memory of this machine.
    """
    require_memory(config)
    if context.is_main:
        prepare_log(config, run, warm_start, prepared, engine, check_memory=partial(_require_memory, config))
    context.barrier()
    if not run.encoder.exists():
        raise LogError(
            f"rank {context.rank} cannot see {run.path}: put the run folder on a file system that all ranks share"
        )
    reader, index = open_log(config.logs, config.training_schema), LogIndex.read(run.index)
    if reader.schema.counter_features:
        reader = reader.with_joined(JoinedColumns.read(run.features))
    encoder, position_encoder = Encoder.read(run.encoder, config.serving_schema), read_position_encoder(run, config)
    _require_memory(config, encoder, index.num_rows("train"))  # the log may have been prepared on another machine
    return TrainingData(reader, encoder, position_encoder, index, json.loads(run.survey.read_text()))


def prepare_log(
    config: Config,
    run: RunFolder,
    warm_start: WarmStart | None = None,
    prepared: RunFolder | None = None,
    engine: Engine | None = None,
    check_memory: Callable[[Encoder, int], None] | None = None,
) -> None:
    """Profile the log and fit the encoders, unless an earlier attempt did; see ``prepare``.

    ``check_memory`` is called with the encoder and the number of training rows before the preparation is complete.

    Raises:
        As ``prepare``.
    """
    if run.encoder.exists():
        return
    reader = open_log(config.logs, config.training_schema)
    inputs = log_inputs(reader, config.logs)
    # A warm start adds new ids to the encoder of the run that it continues.
    if prepared is not None and warm_start is None and _share(prepared, run, config, inputs, check_memory):
        print_status(f"the log was prepared in {prepared.path}")
    else:
        _profile(config, run, reader, inputs, warm_start, prepared, engine, check_memory)


def _share(
    prepared: RunFolder,
    run: RunFolder,
    config: Config,
    inputs: Inputs,
    check_memory: Callable[[Encoder, int], None] | None,
) -> bool:
    """Use the preparation of another run; return whether that was possible."""
    if not has_preparation(prepared, config, inputs):
        return False
    if check_memory is not None:
        rows = prepared.load_survey()["rows"]["train"]
        check_memory(Encoder.read(prepared.encoder, config.serving_schema), rows)
    try:
        share_preparation(prepared, run)
    except OutputError:
        if has_preparation(prepared, config, inputs):
            raise
        return False  # the other run was deleted meanwhile
    return True


def _require_memory(config: Config, encoder: Encoder, rows: int) -> None:
    """Check that a training on so many rows fits into the memory of this machine, see ``require_memory``."""
    require_memory(config, {name: ids.size for name, ids in encoder.id_mappings.items()}, rows)


@kept_processes()
def _profile(
    config: Config,
    run: RunFolder,
    reader: LogReader,
    inputs: Inputs,
    warm_start: WarmStart | None,
    prepared: RunFolder | None,
    engine: Engine | None,
    check_memory: Callable[[Encoder, int], None] | None,
) -> None:
    """Profile the log and fit the encoders; the encoder is written last and marks the pass as complete."""
    for file in (run.index, run.survey, run.quarantine, run.inputs):
        file.unlink(missing_ok=True)  # an attempt that was interrupted may have linked them to those of another run
    fitter = EncoderFitter(config.serving_schema)
    position_fitter = None if config.position_schema is None else EncoderFitter(config.position_schema)
    fitters = [fitter] if position_fitter is None else [fitter, position_fitter]
    schema = estimate_label_bounds(reader, config.logs, config.training_schema)
    joined = _joined_columns(reader, schema, run, prepared)
    reader = reader.with_schema(schema).with_joined(joined)
    profile = profile_log(reader, config.logs, schema, run.quarantine, fitters, engine)
    require_learnable(profile, config)
    if profile.bad:
        reasons = "; ".join(f"{count:,} × {reason}" for reason, count in profile.bad.most_common())
        print_status(f"{profile.bad.total():,} bad rows are skipped, see {run.quarantine}: {reasons}")
    for warning in find_warnings(profile, config):
        print_status(f"warning: {warning}")
    encoder = fitter.encoder()
    if check_memory is not None:
        check_memory(encoder, profile.rows["train"])
    earlier = None if warm_start is None else warm_start.run
    encoder = _extended(encoder, None if earlier is None else earlier.encoder)
    survey = profile.to_json()
    if config.training.oov_dropout == "measured":
        survey["unknown_ids"] = unknown_shares(reader, config.logs, encoder, fitter.rare_shares(), engine)
    write_json(survey, run.survey)
    write_inputs(run, inputs, earlier)
    profile.index.write(run.index)
    if position_fitter is not None:
        position_encoder = _extended(position_fitter.encoder(), None if earlier is None else earlier.position_encoder)
        _write_encoder(position_encoder, run.position_encoder)
    _write_encoder(encoder, run.encoder)


def _joined_columns(
    reader: LogReader, schema: Schema, run: RunFolder, earlier: RunFolder | None
) -> JoinedColumns | None:
    """Compute the columns of counters and histories and their state, unless an earlier attempt or run did."""
    if not schema.counter_features:
        return None
    if not _has_columns(run, reader, schema):
        for folder in (run.features, run.counters):
            shutil.rmtree(folder, ignore_errors=True)
        if earlier is not None and _has_columns(earlier, reader, schema):
            share_folder(earlier.features, run.features)
            share_folder(earlier.counters, run.counters)
        else:
            with atomic_directory(run.counters) as state, atomic_directory(run.features) as columns:
                write_joined_columns(reader, schema, columns, state)
    return JoinedColumns.read(run.features)


def _has_columns(run: RunFolder, reader: LogReader, schema: Schema) -> bool:
    """Return whether a run has the columns of counters and histories of this log and schema."""
    found = run.features.is_dir() and run.counters.is_dir()
    return found and belongs_to(JoinedColumns.read(run.features), reader, schema)


def _extended(fitted: Encoder, earlier: Path | None) -> Encoder:
    """Return the encoder of an earlier run extended by the new ids; without one, the fitted encoder.

    Raises:
        LogError: the encoder of the earlier run is damaged or cannot be read, or has ids of another type.
    """
    if earlier is None:
        return fitted
    try:
        return extend_encoder(Encoder.read(earlier, fitted.schema), fitted)
    except (OSError, ValueError, KeyError) as error:
        reason = single_line(error)
        if not is_damage(error):
            raise LogError(f"{earlier}: cannot be read ({reason})") from None
        raise LogError(f"{earlier}: is damaged ({reason}); train the earlier run again") from None


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
