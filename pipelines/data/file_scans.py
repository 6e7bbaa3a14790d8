"""Calls a function with the rows of each file of a log, in this process or by the workers of an engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from itertools import groupby
from typing import Any, Generic, NamedTuple, TypeVar

from pipelines.console import Progress
from pipelines.data.dedup import DuplicateFilter, Hashes
from pipelines.data.joined import JoinedColumns
from pipelines.data.reader import LogReader, ScannedChunk
from pipelines.data.splits import ALL_TIME, TimeRange
from pipelines.engines import Engine
from pipelines.work_folder import WorkFolder, open_work_folder

CALL = "call"
"""Name of the call in the work folder."""

Result = TypeVar("Result")
Argument = TypeVar("Argument")
OnFile = Callable[[Iterator[ScannedChunk], int, Argument], Result]
"""Is called with the chunks of a file, the position of the file in the log, and an argument that all calls share."""


class FileCall(NamedTuple, Generic[Argument, Result]):
    """A call for each file of a log.

    Attributes:
        open_log: opens the log in a worker, without computed columns.
        function: function of a module. In this process it is not called for a file without a chunk in the time range.
        argument: its last argument; the calls of a worker share a copy of it.
        time_range: the rows to read.
        users: share of the users whose rows are read.
    """

    open_log: Callable[[], LogReader]
    function: OnFile[Argument, Result]
    argument: Argument
    time_range: TimeRange = ALL_TIME
    users: float = 1.0


class _Part(NamedTuple):
    """A file of a log, which a worker of an engine reads.

    Attributes:
        folder: folder of the call and of the results.
        number: position among the files of the log.
        file: name of the file.
        earlier: hashes of the rows of this file that also occur in an earlier file of its folder.
    """

    folder: WorkFolder
    number: int
    file: str
    earlier: Hashes | None = None

    @property
    def result(self) -> str:
        """Name of the result in the folder."""
        return f"result-{self.number}"

    @property
    def hashes(self) -> str:
        """Name of the hashes of the rows in the folder."""
        return f"hashes-{self.number}"


def scan_files(
    reader: LogReader, call: FileCall[Argument, Result], label: str, engine: Engine | None = None
) -> Iterator[Result]:
    """Call a function with the chunks of each file of a log, and yield its results in the order of the log.

    Args:
        reader: the log.
        call: the function and what it is called with.
        label: name of the operation, for the progress on the terminal.
        engine: lets its workers call the function, a file at a time; None: this process does. Workers must see the log
            and the folder for temporary files under the same paths as this process.

    Raises:
        LogError: the log cannot be used.
        OutputError: the folder for temporary files cannot be written.
    """
    if engine is not None:
        yield from _scan_parts(reader, call, label, engine)
        return
    numbers = {file.name: number for number, file in enumerate(reader.files)}
    progress = Progress(label, unit="rows")

    def counted(chunks: Iterator[ScannedChunk]) -> Iterator[ScannedChunk]:
        for chunk in chunks:
            progress.advance(chunk.rows.num_rows)
            yield chunk

    scan = reader.scan(call.time_range, users=call.users)
    with progress:
        for name, chunks in groupby(scan, key=lambda chunk: chunk.chunk.file):
            yield call.function(counted(chunks), numbers[name], call.argument)


def _scan_parts(reader: LogReader, call: FileCall[Argument, Result], label: str, engine: Engine) -> Iterator[Result]:
    """Let the workers of an engine call the function."""
    reader.check_files()  # a worker does not compare their columns with those of other files
    with open_work_folder("scan") as folder:
        folder.put(CALL, (call, reader.joined))
        parts = [_Part(folder, number, file.name) for number, file in enumerate(reader.files)]
        earlier = _repeated_rows(parts, reader, engine)
        parts = [part._replace(earlier=earlier.get(part.file)) for part in parts]
        with Progress(label, "files", len(parts)) as progress:
            for _ in engine(_scan_part, parts):
                progress.advance(1)
        for part in parts:
            yield folder.take(part.result)


def _repeated_rows(parts: Sequence[_Part], reader: LogReader, engine: Engine) -> dict[str, Hashes]:
    """Return, by name of the file, the hashes of its rows that also occur in an earlier file of its folder.

    A file that is alone in its folder has no entry.
    """
    folders = [[file.name for file in files] for files in reader.partitions() if len(files) > 1]
    names = {name for folder in folders for name in folder}
    compared = [part for part in parts if part.file in names]
    for _ in engine(_hash_part, compared) if compared else ():
        pass
    by_name, repeated = {part.file: part for part in compared}, {}
    for folder in folders:
        seen = DuplicateFilter()
        for name in folder:
            part = by_name[name]
            own: Hashes = part.folder.take(part.hashes)
            repeated[name] = own[seen.contains(own)]
            seen.add(own)
    return repeated


def _scan_part(part: _Part) -> None:
    """Call the function for a file in a worker of an engine."""
    call, reader = _opened(part.folder)
    chunks = reader.with_file(part.file).scan(call.time_range, users=call.users, earlier=part.earlier)
    part.folder.put(part.result, call.function(chunks, part.number, call.argument))


def _hash_part(part: _Part) -> None:
    """Hash the rows of a file in a worker of an engine."""
    call, reader = _opened(part.folder)
    part.folder.put(part.hashes, reader.with_file(part.file).row_hashes(call.time_range, users=call.users))


@lru_cache(maxsize=1)
def _opened(folder: WorkFolder) -> tuple[FileCall[Any, Any], LogReader]:
    """Return the call and the log, which a worker opens once for all of its files."""
    call: FileCall[Any, Any]
    joined: JoinedColumns | None
    call, joined = folder.get(CALL)
    return call, call.open_log().with_joined(joined)
