"""Offline scoring: a log or a table of candidates in, scores out, a batch at a time."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from pipelines.config.uri import Uri, redact_uri
from pipelines.console import Progress, print_status
from pipelines.data.profile import open_quarantine, write_bad_rows
from pipelines.data.reader import LogReader, as_log_error
from ranking.artifacts.atomic_files import os_error_text, check_writable
from ranking.errors import LogError, OutputError
from ranking.frozen.ranker import FrozenRanker, score_table


def score_log(ranker: FrozenRanker, logs: Uri, out: Path, tasks: Sequence[str] | None = None) -> dict[str, int]:
    """Scores every row of a log; duplicates are kept, bad rows go to ``OUT.quarantine.jsonl``.

    Args:
        ranker: what scores.
        logs: Parquet file or folder; labels are not needed.
        out: Parquet file with the row's ids (and time, if there is one) and a column for each task.
        tasks: which; default all.

    Returns:
        Numbers of ``scored`` and ``bad`` rows.

    Raises:
        LogError: the log cannot be read or is empty.
        OutputError: ``out`` cannot be written.
        InvalidInputError: an unknown task.
    """
    chosen = ranker.tasks(tasks)
    check_writable(out)
    columns = ranker.schema.columns
    reader = LogReader(logs, ranker.schema, dict(ranker.tables), labels=False)
    draft, quarantine = out.with_name(f".{out.name}.draft"), out.with_name(f"{out.name}.quarantine.jsonl")
    counts = {"scored": 0, "bad": 0}
    progress = Progress("scoring", unit="rows")
    writer = None
    try:
        with open_quarantine(quarantine) as bad_rows:
            for cleaned in reader.scan(drop_duplicates=False):
                write_bad_rows(cleaned.bad, bad_rows)
                names = [c for c in (columns.user, columns.item, columns.time) if c in cleaned.rows.column_names]
                with as_log_error(cleaned.file):
                    scored = score_table(ranker.score_completed(cleaned.rows, chosen)[0], chosen)
                table = pa.table({c: cleaned.rows[c] for c in names} | {c: scored[c] for c in scored.column_names})
                writer = writer or pq.ParquetWriter(draft, table.schema)
                writer.write_table(_as_before(table, writer.schema, cleaned.file))
                counts["scored"] += table.num_rows
                counts["bad"] += cleaned.bad.num_rows
                progress.advance(table.num_rows)
        if writer is None:
            raise LogError(f"{redact_uri(logs)}: the log is empty, there is nothing to score")
        writer.close()
        draft.replace(out)
    except OSError as error:
        raise OutputError(f"{out}: cannot be written ({os_error_text(error)})") from None
    finally:
        if writer is not None and writer.is_open:
            writer.close()
        draft.unlink(missing_ok=True)
        if not counts["bad"]:
            quarantine.unlink(missing_ok=True)
    progress.close()
    if counts["bad"]:
        print_status(f"{counts['bad']:,} bad rows are left out, see {quarantine}")
    return counts


def _as_before(table: pa.Table, schema: pa.Schema, file: str) -> pa.Table:
    """The table with the columns and types of the first file's.

    Raises:
        LogError: this file's ids or time are others.
    """
    try:
        return table.cast(schema)
    except (pa.ArrowException, ValueError) as error:
        raise LogError(f"{file}: its ids or time differ from the files before ({error}); write all alike") from None
