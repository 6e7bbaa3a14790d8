"""A child process of test_memory.py: surveys a log, feeds it twice, prints by how much its peak memory grew."""

from __future__ import annotations

import json
import sys
from functools import partial
from pathlib import Path

from pipelines.config.config import load_config
from pipelines.data.profile import profile_log
from pipelines.data.reader import LogReader
from pipelines.training.dataloader import BatchLoader
from pipelines.training.labeled_batch import LabeledBatch
from ranking.encoding.encoder_fitter import EncoderFitter


def peak() -> int:
    """Largest resident size of this process so far, in bytes; getrusage would count the process that started it."""
    status = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in status if line.startswith("VmHWM:")) * 1024


def main(toml: Path) -> None:
    config = load_config(toml)
    schema = config.serving_schema
    before = peak()
    reader, fitter = LogReader(config.logs.path, schema, {}), EncoderFitter(schema)
    index = profile_log(reader, config.logs, schema, on_train=fitter.add).index
    surveyed = peak() - before
    feed = BatchLoader(
        reader, index, partial(LabeledBatch.from_table, encoder=fitter.encoder()), config.logs, config.training
    )
    rows = sum(len(batch) for batch in feed.epoch(0))
    print(json.dumps({"rows": rows, "survey": surveyed, "all": peak() - before}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
