"""What precedes training: one pass over the log that says what it holds and fits the encoder."""

from __future__ import annotations

import json
import math
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import torch

from pipelines.config.config import Config
from pipelines.console import print_status
from pipelines.data.index import LogIndex
from pipelines.data.profile import profile_log, require_learnable
from pipelines.data.reader import LogReader, load_tables
from pipelines.runs.run import RunFolder
from pipelines.training.distributed import DistContext
from pipelines.training.model_factory import read_side_encoder
from pipelines.training.warm_start import WarmStart, extended
from ranking.artifacts.atomic_files import atomic_directory, write_json
from ranking.encoding.encoder import Encoder
from ranking.encoding.encoder_fitter import EncoderFitter
from ranking.errors import LogError

BASE_RATE_FLOOR = 1e-6
"""A rate of 0 or 1 has no logit."""


@dataclass(frozen=True)
class TrainingData:
    """A log that is ready to train on.

    Attributes:
        reader: the log.
        encoder: fitted on the training split.
        side_encoder: the same for the side tower, if there is one.
        index: its usable rows.
        survey: what the log holds, see ``Survey.to_json``.
    """

    reader: LogReader
    encoder: Encoder
    side_encoder: Encoder | None
    index: LogIndex
    survey: dict[str, Any]


def prepare(config: Config, run: RunFolder, world: DistContext, warm: WarmStart | None = None) -> TrainingData:
    """Surveys the log on the first rank, unless an earlier attempt at this run did; the others read what it wrote.

    Args:
        config: the whole configuration.
        run: where survey and encoder go; what is there already is taken.
        world: all ranks see the same run folder.
        warm: whose encoder is extended instead of fitting a new one.

    Raises:
        LogError: the log cannot be used or cannot be learnt from.
        OutputError: the run folder cannot be written.
    """
    schema = config.training_schema
    reader = LogReader(config.logs.path, schema, load_tables(config.logs, schema))
    if world.first and not run.encoder.exists():
        _survey(config, run, reader, warm)
    world.wait()
    if not run.encoder.exists():
        raise LogError(
            f"{run.path} is not seen by rank {world.rank}: all ranks need one file system for the run folder"
        )
    encoder, side_encoder = Encoder.read(run.encoder, config.serving_schema), read_side_encoder(run, config)
    return TrainingData(reader, encoder, side_encoder, LogIndex.read(run.index), json.loads(run.survey.read_text()))


def _survey(config: Config, run: RunFolder, reader: LogReader, warm: WarmStart | None) -> None:
    """One pass over the log; writes what it finds, the encoder last: where that is, all is."""
    fitter = EncoderFitter(config.serving_schema)
    side = None if config.position_schema is None else EncoderFitter(config.position_schema)

    def fit(rows: pa.Table) -> None:
        fitter.add(rows)
        if side is not None:
            side.add(rows)

    found = profile_log(reader, config.logs, config.training_schema, run.quarantine, on_train=fit)
    require_learnable(found, config)
    if found.bad:
        print_status(f"{found.bad.total():,} bad rows are left out, see {run.quarantine}")
    write_json(found.to_json(), run.survey)
    found.index.write(run.index)
    if side is not None:
        _write(side.encoder(), run.side_encoder, None if warm is None else warm.run.side_encoder)
    _write(fitter.encoder(), run.encoder, None if warm is None else warm.run.encoder)


def _write(encoder: Encoder, folder: Path, earlier: Path | None) -> None:
    """Writes an encoder, whole or not at all; what an earlier one knows it keeps."""
    if earlier is not None:
        encoder = extended(Encoder.read(earlier, encoder.schema), encoder)
    if folder.exists():  # of an attempt that ended before the other encoder was written
        shutil.rmtree(folder)
    with atomic_directory(folder) as draft:
        encoder.write(draft)


def base_outputs(found: dict[str, Any], config: Config) -> torch.Tensor:
    """Outputs [tasks] of a model that knows only the training split's base rates and means.

    A base rate is that of the labels that training uses: of the negatives, ``Task.keep_negatives``.
    """
    outputs = []
    for task in config.tasks:
        mean = found["labels"]["train"][task.name]["mean"] or 0.0
        rate = min(max(mean, BASE_RATE_FLOOR), 1 - BASE_RATE_FLOOR)
        outputs.append(math.log(rate / (1 - rate)) - math.log(task.keep_negatives) if task.kind == "binary" else mean)
    return torch.tensor(outputs)
