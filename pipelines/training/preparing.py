"""What precedes training: one pass over the log that says what it holds and fits the encoder."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Any

import torch

from pipelines.config import Config
from pipelines.logs.index import Index
from pipelines.logs.reader import LogReader, load_tables
from pipelines.logs.survey import require_learnable, survey
from pipelines.progress import say
from pipelines.run_folder import RunFolder
from pipelines.training.warm_start import WarmStart
from pipelines.training.world import World
from ranking.encoding import Encoder
from ranking.errors import LogError
from ranking.files import appearing, write_json
from ranking.fitting import EncoderFitter

BASE_RATE_FLOOR = 1e-6
"""A rate of 0 or 1 has no logit."""


@dataclass(frozen=True)
class Prepared:
    """A log that is ready to train on.

    Attributes:
        reader: the log.
        encoder: fitted on the training split.
        index: its usable rows.
        survey: what the log holds, see ``Survey.to_json``.
    """

    reader: LogReader
    encoder: Encoder
    index: Index
    survey: dict[str, Any]


def prepare(config: Config, run: RunFolder, world: World, warm: WarmStart | None = None) -> Prepared:
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
    schema = config.schema_only
    reader = LogReader(config.logs.path, schema, load_tables(config.logs, schema))
    if world.first and not run.encoder.exists():
        fitter = EncoderFitter(schema)
        found = survey(reader, config.logs, schema, run.quarantine, on_train=fitter.add)
        require_learnable(found, config)
        if found.bad:
            say(f"{found.bad.total():,} bad rows are left out, see {run.quarantine}")
        write_json(found.to_json(), run.survey)
        found.index.write(run.index)
        encoder = fitter.encoder() if warm is None else warm.extend(fitter.encoder())
        with appearing(run.encoder) as draft:  # last: where it is, all is
            encoder.write(draft)
    world.wait()
    if not run.encoder.exists():
        raise LogError(
            f"{run.path} is not seen by rank {world.rank}: all ranks need one file system for the run folder"
        )
    return Prepared(
        reader, Encoder.read(run.encoder, schema), Index.read(run.index), json.loads(run.survey.read_text())
    )


def base_outputs(found: dict[str, Any], config: Config) -> torch.Tensor:
    """Outputs [tasks] of a model that knows only the training split's base rates and means."""
    outputs = []
    for task in config.tasks:
        mean = found["labels"]["train"][task.name]["mean"] or 0.0
        rate = min(max(mean, BASE_RATE_FLOOR), 1 - BASE_RATE_FLOOR)
        outputs.append(math.log(rate / (1 - rate)) if task.kind == "binary" else mean)
    return torch.tensor(outputs)
