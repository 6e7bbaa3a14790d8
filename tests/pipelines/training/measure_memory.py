"""Script that profiles and reads a small and a large log, and prints the peak memory of each step as JSON."""

from __future__ import annotations

import json
import sys
import tracemalloc
from functools import partial
from pathlib import Path

import pyarrow as pa

from pipelines.config.config import load_config
from pipelines.data.index import LogIndex
from pipelines.data.reader import LogReader
from pipelines.inspection.profile import profile_log
from pipelines.training.dataloader import BatchLoader
from pipelines.training.labeled_batch import LabeledBatch
from ranking.encoding.encoder_fitter import EncoderFitter


class Log:
    """A log that is profiled and then read; the methods return peaks in bytes and numbers of rows."""

    def __init__(self, toml: Path) -> None:
        self.config = load_config(toml)
        self.reader = LogReader(self.config.logs.path, self.config.serving_schema, {})
        self.fitter = EncoderFitter(self.config.serving_schema)

    def profile(self) -> int:
        tracemalloc.reset_peak()
        profile = profile_log(self.reader, self.config.logs, self.config.serving_schema, fitters=[self.fitter])
        self.index: LogIndex = profile.index
        return peak_memory()

    def read(self) -> tuple[int, int]:
        tracemalloc.reset_peak()
        encode = partial(LabeledBatch.from_table, encoder=self.fitter.encoder())
        loader = BatchLoader(self.reader, self.index, encode, self.config.logs, self.config.training)
        rows = sum(len(batch) for batch in loader.epoch(0))
        return peak_memory(), rows


def peak_memory() -> int:
    """Return what the allocators of Arrow, since the start of the process, and of Python had allocated at most."""
    return int(pa.default_memory_pool().max_memory()) + tracemalloc.get_traced_memory()[1]


tracemalloc.start()
logs = [Log(Path(toml)) for toml in sys.argv[1:]]
profiles, reads = [log.profile() for log in logs], [log.read() for log in logs]
print(json.dumps([{"profile": p, "read": read, "rows": rows} for p, (read, rows) in zip(profiles, reads, strict=True)]))
