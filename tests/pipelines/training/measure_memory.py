"""Script that profiles a log, reads it with a batch loader, and prints the growth of its peak memory as JSON."""

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


def peak_memory() -> int:
    """Return the peak resident memory of this process in bytes; getrusage would include the parent process."""
    status = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in status if line.startswith("VmHWM:")) * 1024


def main(toml: Path) -> None:
    config = load_config(toml)
    schema = config.serving_schema
    baseline = peak_memory()
    reader, fitter = LogReader(config.logs.path, schema, {}), EncoderFitter(schema)
    index = profile_log(reader, config.logs, schema, on_train=fitter.add).index
    profile_growth = peak_memory() - baseline
    encode = partial(LabeledBatch.from_table, encoder=fitter.encoder())
    loader = BatchLoader(reader, index, encode, config.logs, config.training)
    rows = sum(len(batch) for batch in loader.epoch(0))
    print(json.dumps({"rows": rows, "profile": profile_growth, "all": peak_memory() - baseline}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
