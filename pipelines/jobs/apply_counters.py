"""``ranker counters apply``: adds the impressions of a log to the counters in the feature store."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from pipelines.config.uri import Uri
from pipelines.console import Progress, print_status
from pipelines.data.reader import LogReader
from pipelines.feature_store.bundle_sums import BundleSums
from pipelines.feature_store.counter_store import CounterStore, load_served
from pipelines.feature_store.counter_writer import CounterWriter
from pipelines.feature_store.positions import Positions
from ranking.errors import OutputError

READER, APPLIED = "log", "applied"
"""Reader of logs, whose inputs are chunks, and the position of one that is added."""


def apply_log(logs: Uri, path: Path, url: str, model: str | None, prefix: str) -> dict[str, Any]:
    """Add the impressions of a log that are newer than the loaded state.

    Each chunk of the log changes its sums, and is recorded as applied, in one transaction. A repeated call, also after
    a crash, skips the chunks that are applied.

    Args:
        logs: Parquet file or folder.
        path: the repository; the counters are those of the current version.
        url: address of the store, see ``ranking.artifacts.store_address``.
        model: name of the model; default: the default model of the repository.
        prefix: prefix of the keys.

    Returns:
        The address, the time of the state, and the number of impressions: ``applied``, ``old`` (not newer than the
        loaded state), ``repeated`` (in chunks that were applied before) and ``bad``.

    Raises:
        BundleError: the model cannot be read.
        LogError: the log cannot be read.
        OutputError: the store cannot be reached, rejects a command, holds no counters of this model, or is written by
            another program at the same time; the log can be applied again.
        UsageError: the address has an unsupported option, or the model has no counters.
    """
    served = load_served(path, model)
    schema = served.ranker.schema
    store = CounterStore(url, prefix, served.name)
    store.require_no_eviction()
    positions = Positions(store)
    writer = CounterWriter(store, schema, served.clock.zone, BundleSums(served.counter_features), positions)
    counts = {"applied": 0, "old": 0, "repeated": 0, "bad": 0}
    progress = Progress("applying", unit="rows")
    state = loaded = writer.read_state()
    applied_chunks = {*positions.read(READER)}
    for chunk in LogReader(logs, schema.logged, dict(served.ranker.tables)).scan():
        counts["bad"] += chunk.bad.num_rows
        if chunk.name in applied_chunks:
            counts["repeated"] += chunk.rows.num_rows
        else:
            position = READER, chunk.name, None, APPLIED
            state, applied = writer.add(chunk.rows, chunk.file, loaded.generation, *position)
            applied_chunks.add(chunk.name)
            counts["applied"] += applied
            counts["old"] += chunk.rows.num_rows - applied
        progress.advance(chunk.rows.num_rows)
    progress.close()
    if writer.read_state().generation != loaded.generation:
        raise OutputError(
            f"{store.address}: counters were loaded while the log was applied, and lack a part of it; apply it again"
        )
    if counts["bad"]:
        print_status(f"{counts['bad']:,} bad rows were not applied; 'ranker check' shows the reasons")
    return {"to": writer.store.address, "counters_as_of": replace(served.clock, until=state.until).text, **counts}
