"""``ranker score``: scores a log or a table of candidates in batches."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa

from pipelines.config.uri import Uri, redact_uri
from pipelines.console import Progress, print_status
from pipelines.data.reader import LogReader, as_log_error
from pipelines.data.row_group_writer import RowGroupWriter
from pipelines.inspection.profile import open_quarantine, write_bad_rows
from ranking.artifacts.atomic_files import check_writable, os_error_text
from ranking.encoding.columns import canonical_ids
from ranking.errors import LogError, OutputError
from ranking.frozen.ranker import FrozenRanker
from ranking.schema import ID_OWNERS

MAX_EMPTY_SHARE = 0.5
"""Share of the feature columns above which a log without any of their values is taken for that of another model."""


def score_log(
    ranker: FrozenRanker,
    logs: Uri,
    out: Path,
    tasks: Sequence[str] | None = None,
    *,
    allow_missing: bool = False,
) -> dict[str, int]:
    """Score every row of a log; duplicates are kept, bad rows are written to ``OUT.quarantine.jsonl``.

    Args:
        ranker: the ranker.
        logs: Parquet file or folder; labels are not needed.
        out: Parquet file for the ids of each row, its time (if any), a column per task and ``score``, by which a
            service sorts.
        tasks: tasks to score; default: all.
        allow_missing: score although most feature columns have no value in any row.

    Returns:
        Number of ``scored`` and of ``bad`` rows, and of scored rows with ``unseen_users`` and ``unseen_items``, if the
        ranker knows the ids of users or items.

    Raises:
        LogError: the log cannot be read, is empty, or lacks the values of most feature columns.
        OutputError: ``out`` cannot be written.
        InvalidInputError: a task is unknown or named twice.
    """
    selected = ranker.tasks(tasks)
    check_writable(out)
    columns = ranker.schema.columns
    reader = LogReader(logs, ranker.schema, dict(ranker.tables), labels=False)
    draft, quarantine = out.with_name(f".{out.name}.draft"), out.with_name(f"{out.name}.quarantine.jsonl")
    counts, included = {"scored": 0, "bad": 0}, 0
    id_columns = {
        owner: str(ranker.schema.id_column(owner)) for owner in ID_OWNERS if ranker.known_ids(owner) is not None
    }
    given = {columns.user, columns.item, *ranker.schema.derived_columns}  # Ids, and columns that are computed.
    inputs = (feature for feature in ranker.schema.inputs if not feature.training_only)
    features = {feature.column: None for feature in inputs if feature.column not in given}
    empty = dict(features)
    progress = Progress("scoring", unit="rows")
    scored_schema = None
    try:
        with RowGroupWriter(draft) as writer, open_quarantine(quarantine) as bad_rows:
            for chunk in reader.scan(drop_duplicates=False):
                write_bad_rows(chunk.bad, bad_rows)
                names = [c for c in (columns.user, columns.item, columns.time) if c in chunk.rows.column_names]
                with as_log_error(chunk.file):
                    rows = ranker.derive(chunk.rows)
                    for column in [name for name in empty if rows[name].null_count < rows.num_rows]:
                        del empty[column]
                    included += ranker.derived.count_included(chunk.rows) if ranker.derived is not None else 0
                    scored = ranker.to_table(ranker.score_completed(rows, selected)[0], selected)
                table = pa.table({c: chunk.rows[c] for c in names} | {c: scored[c] for c in scored.column_names})
                scored_schema = scored_schema or table.schema
                writer.write(_cast(table, scored_schema, chunk.file))
                counts["scored"] += table.num_rows
                counts["bad"] += chunk.bad.num_rows
                for owner, column in id_columns.items():
                    if column in table.column_names:
                        with as_log_error(chunk.file):
                            unseen = ranker.count_unseen(owner, canonical_ids(table[column].combine_chunks(), column))
                        counts[f"unseen_{owner}s"] = counts.get(f"unseen_{owner}s", 0) + unseen
                progress.advance(table.num_rows)
        if scored_schema is None:
            raise LogError(f"{redact_uri(logs)}: the log is empty: there are no rows to score")
        if len(empty) > MAX_EMPTY_SHARE * len(features) and not allow_missing:
            raise LogError(
                f"{redact_uri(logs)}: {len(empty)} of {len(features)} feature columns have no value in any row "
                f"({', '.join(empty)}): is this a log of this model? If all its users and items are new, "
                "add --allow-missing"
            )
        draft.replace(out)
    except OSError as error:
        raise OutputError(f"{out}: cannot be written ({os_error_text(error)})") from None
    finally:
        draft.unlink(missing_ok=True)
        if not counts["bad"]:
            quarantine.unlink(missing_ok=True)
    progress.close()
    if counts["bad"]:
        print_status(f"{counts['bad']:,} bad rows were not scored, see {quarantine}")
    if empty:
        print_status(
            f"no row has a value of {', '.join(empty)}: is this a log of this model? Missing values were scored as such"
        )
    if included and ranker.derived is not None and ranker.derived.clock is not None:
        print_status(
            f"{included:,} rows are not after {ranker.derived.clock.text}, the end of the counters: their counters and "
            "histories contain impressions that were not known yet; do not measure the model with these scores"
        )
    return counts


def _cast(table: pa.Table, schema: pa.Schema, file: str) -> pa.Table:
    """Cast a table to the schema of the first file.

    Raises:
        LogError: the ids or the time of this file have other types.
    """
    try:
        return table.cast(schema)
    except (pa.ArrowException, ValueError) as error:
        raise LogError(
            f"{file}: its ids or time differ from those of earlier files ({error}); write the same types in all files"
        ) from None
