"""CSV file as a typed table: a first pass finds the type of each column, later passes read it in chunks.

A type holds for the whole file: a column is an integer only if every value is one. Pyarrow would decide by the first
block of the file and fail at a later value.
"""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
from pyarrow.fs import FileSystem

from pipelines.console import Progress
from pipelines.data.parquet import check_unique_names
from pipelines.init.sampling import BlockSample, LogSample
from ranking.errors import LogError

UNKNOWN = ("?", "NA", "N/A", "n/a", "NULL", "null", "NaN", "nan", "None", r"\N")
"""Spellings of an unknown value; they become null, as does empty text."""
DELIMITERS = (",", ";", "\t", "|")
UNSUPPORTED = "::"
"""Delimiter of the files of MovieLens 1M."""
HEADER_BYTES = 1 << 20
"""Maximum length of the first line in bytes."""
BLOCK_BYTES = 4 << 20
"""Bytes of the file that are parsed at once."""
CODES = r"^[+-]?(0[0-9]|[0-9]{19,}$)"
"""Pattern of numbers that are codes: leading zeros would be lost, and 64 bits do not hold more than 18 digits."""
RAGGED = re.compile(r"Row #(\d+): Expected (\d+) columns, got (\d+): (.*)", re.DOTALL)
"""Pattern of the error of pyarrow for a row with too few or too many values: row, columns, values, text.

Pyarrow would also call a function with such a row, but a thread that still holds one can abort the exiting process.
"""
TYPES: dict[str, pa.DataType] = {
    "integer": pa.int64(),
    "number": pa.float64(),
    "boolean": pa.bool_(),
    "text": pa.string(),
}


class CsvSource:
    """A CSV file with column names in its first line.

    Args:
        filesystem: filesystem of the file.
        path: path on the filesystem.
        location: name of the file in messages.

    Raises:
        LogError: the file has no column names or cannot be parsed; names the file and the row.
    """

    is_csv = True

    def __init__(self, filesystem: FileSystem, path: str, location: str) -> None:
        self.location = location
        self._filesystem, self._path = filesystem, path
        self._delimiter, self._names = self._read_header()
        self._types, self.notes, self.sample = self._inspect()

    def chunks(self) -> Iterator[tuple[int, pa.Table]]:
        """Yield the position of the first row and the typed rows of each chunk."""
        first_row = 0
        for table in self._texts():
            yield first_row, self._typed(table)
            first_row += table.num_rows

    def _inspect(self) -> tuple[dict[str, str], dict[str, str], LogSample]:
        """Read the file once; return the type of each column, notes about unknown values, and a sample."""
        possible = {name: {"integer", "number", "boolean"} for name in self._names}
        unknown: dict[str, Counter[str]] = {name: Counter() for name in self._names}
        known = dict.fromkeys(self._names, 0)
        sample, total = BlockSample(), 0
        progress = Progress(f"reading {self.location}", unit="rows")
        for table in self._texts():
            sample.add(table, total)
            total += table.num_rows
            progress.advance(table.num_rows)
            for name in self._names:
                spelled = pc.utf8_trim_whitespace(table[name])
                masked = pc.is_in(spelled, pa.array(UNKNOWN))
                counts = pc.value_counts(spelled.filter(masked)) if pc.any(masked).as_py() else []
                unknown[name].update({entry["values"].as_py(): entry["counts"].as_py() for entry in counts})
                column = _known(table[name]).drop_null()
                known[name] += len(column)
                possible[name] = {kind for kind in possible[name] if _fits(column, kind)}
        progress.close()
        types = {
            name: next((kind for kind in TYPES if kind in kinds and known[name]), "text")
            for name, kinds in possible.items()
        }
        notes = {}
        for name, counts_of_name in unknown.items():
            if counts_of_name:
                spellings = ", ".join(f'"{text}"' for text, _ in counts_of_name.most_common(3))
                notes[name] = f"{spellings} in {counts_of_name.total():,} rows read as null"
        self._types = types
        if not total:
            return types, notes, LogSample(pa.table({}), pa.array([], pa.int64()).to_numpy(), 0)
        texts = sample.sample(total, self.location)
        return types, notes, LogSample(self._typed(texts.rows).combine_chunks(), texts.positions, total)

    def _typed(self, table: pa.Table) -> pa.Table:
        return pa.table({name: _cast(_known(table[name]), self._types[name]) for name in self._names})

    def _texts(self) -> Iterator[pa.Table]:
        """Yield the rows of the file as text."""
        try:
            with (
                self._filesystem.open_input_stream(self._path) as stream,
                pa_csv.open_csv(
                    stream,
                    pa_csv.ReadOptions(
                        block_size=BLOCK_BYTES, column_names=self._names, skip_rows=1, use_threads=False
                    ),
                    pa_csv.ParseOptions(delimiter=self._delimiter, newlines_in_values=True),
                    pa_csv.ConvertOptions(column_types=dict.fromkeys(self._names, pa.string())),
                ) as reader,
            ):
                for batch in reader:
                    yield pa.Table.from_batches([batch])
        except (OSError, pa.ArrowException) as error:
            raise self._error(error) from None

    def _error(self, error: Exception) -> LogError:
        ragged = RAGGED.search(str(error))
        if ragged:
            row, columns, values, text = ragged.groups()
            return LogError(
                f"{self.location}, row {row}: has {values} values, but there are {columns} columns: {text!r:.80}; "
                "fix the row"
            )
        reason = " ".join(str(error).split())
        if "UTF8" in reason or "UTF-8" in reason:
            row = self._first_invalid_text()
            return LogError(f"{self.location}{row}: is not UTF-8 text: convert it with iconv -t UTF-8")
        if "Empty CSV" in reason:
            return LogError(f"{self.location}: has no rows; name a log with impressions")
        return LogError(f"{self.location}: cannot be read as CSV ({reason})")

    def _first_invalid_text(self) -> str:
        with self._filesystem.open_input_stream(self._path) as stream:
            rest, line = b"", 1
            while block := stream.read(BLOCK_BYTES):
                *lines, rest = (rest + block).split(b"\n")
                for text in lines:
                    try:
                        text.decode()
                    except UnicodeDecodeError:
                        return f", line {line}"
                    line += 1
        return f", line {line}"

    def _read_header(self) -> tuple[str, list[str]]:
        """Return the delimiter and the column names."""
        try:
            with self._filesystem.open_input_stream(self._path) as stream:
                head = stream.read(HEADER_BYTES)
            first, _, rest = head.partition(b"\n")
            line = first.decode("utf-8-sig").rstrip("\r")
        except UnicodeDecodeError:
            raise LogError(f"{self.location}, line 1: is not UTF-8 text: convert it with iconv -t UTF-8") from None
        except (OSError, pa.ArrowException) as error:
            raise LogError(f"{self.location}: cannot be read ({' '.join(str(error).split())})") from None
        if not line.strip():
            raise LogError(f"{self.location}: has no column names in its first line; write them there")
        delimiter = max(DELIMITERS, key=line.count)
        names = [name.strip() for name in next(csv.reader([line], delimiter=delimiter, skipinitialspace=True))]
        if len(names) == 1 and UNSUPPORTED.encode() in first + rest.partition(b"\n")[0]:
            raise LogError(
                f"{self.location}: the delimiter '{UNSUPPORTED}' is not supported: convert MovieLens 1M with "
                "ranker logs movielens --raw FOLDER --out LOG, and write other files with a comma, semicolon, tab or |"
            )
        numbers = [name for name in names if _is_number(name)]
        if numbers:
            raise LogError(
                f"{self.location}: the first line has the value {numbers[0]} instead of a column name; "
                "write the column names in the first line"
            )
        check_unique_names(names, self.location)
        return delimiter, names


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _known(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return the texts without white space around them; null where empty or unknown."""
    column = pc.utf8_trim_whitespace(column)
    unknown = pc.or_(pc.equal(column, ""), pc.is_in(column, pa.array(UNKNOWN)))
    return pc.if_else(unknown, pa.scalar(None, pa.string()), column)


def _fits(column: pa.ChunkedArray, kind: str) -> bool:
    if kind == "boolean":
        lower = pc.utf8_lower(column)
        return bool(pc.all(pc.is_in(lower, pa.array(["true", "false"])), min_count=0).as_py())
    if pc.any(pc.match_substring_regex(column, CODES)).as_py():
        return False
    try:
        column.cast(TYPES[kind])
    except pa.ArrowInvalid:
        return False
    return True


def _cast(column: pa.ChunkedArray, kind: str) -> pa.ChunkedArray:
    return pc.equal(pc.utf8_lower(column), "true") if kind == "boolean" else column.cast(TYPES[kind])
