"""Offline scoring: a log or a table of candidates in, scores out, a batch at a time."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pyarrow.parquet as pq

from pipelines.logs.reader import LogReader
from pipelines.logs.survey import write_bad
from pipelines.progress import Progress
from ranking.errors import InvalidInputError, LogError
from ranking.frozen import FrozenRanker, score_table


def score_log(ranker: FrozenRanker, logs: Path, out: Path, tasks: Sequence[str] | None = None) -> dict[str, int]:
    """Scores every row of a log; duplicates are kept, bad rows go to ``OUT.quarantine.jsonl``.

    Args:
        ranker: what scores.
        logs: Parquet file or folder; labels are not needed.
        out: Parquet file with the row's ids (and time, if there is one) and a column for each task.
        tasks: which; default all.

    Returns:
        Numbers of ``scored`` and ``bad`` rows.

    Raises:
        LogError: the log cannot be read, is empty, or ``out`` cannot be written.
        InvalidInputError: an unknown task.
    """
    chosen = ranker.tasks(tasks)
    columns = ranker.schema.columns
    reader = LogReader(logs, ranker.schema, dict(ranker.tables), labels=False)
    draft, quarantine = out.with_name(f".{out.name}.draft"), out.with_name(f"{out.name}.quarantine.jsonl")
    counts = {"scored": 0, "bad": 0}
    progress = Progress("scoring", unit="rows")
    writer = None
    try:
        with quarantine.open("w") as bad_rows:
            for cleaned in reader.clean(drop_duplicates=False):
                write_bad(cleaned.bad, bad_rows)
                scored = score_table(ranker.score_completed(cleaned.rows, chosen)[0], chosen)
                for position, column in enumerate((columns.user, columns.item, columns.time)):
                    if column in cleaned.rows.column_names:
                        scored = scored.add_column(min(position, scored.num_columns), column, cleaned.rows[column])
                writer = writer or pq.ParquetWriter(draft, scored.schema)
                writer.write_table(scored.cast(writer.schema))
                counts["scored"] += scored.num_rows
                counts["bad"] += cleaned.bad.num_rows
                progress.advance(cleaned.rows.num_rows)
        if writer is None:
            raise LogError(f"{logs}: the log is empty, there is nothing to score")
        writer.close()
        draft.replace(out)
    except OSError as error:
        raise LogError(f"{out}: cannot be written ({error.strerror or error})") from None
    except InvalidInputError as error:
        raise LogError(f"{logs}: column {error}") from None
    finally:
        if writer is not None and writer.is_open:
            writer.close()
        draft.unlink(missing_ok=True)
        if not counts["bad"]:
            quarantine.unlink(missing_ok=True)
    progress.close()
    return counts
