"""Requests whose window has closed, as ``ranker counters follow`` reads them."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.loop import closed_requests
from pipelines.loop.closed_requests import USED, ClosedRequests, ClosedRows, Window
from pipelines.loop.sources import LoopSources
from ranking.served_log.reader import ServedFile
from tests.support.loop_folders import HOUR, LoopFolders, at

Row = tuple[str, Any, int, float | None]


def microseconds(seconds: float) -> int:
    return int(at(seconds).timestamp() * 1e6)


class Reader:
    """A reader with the positions that it has reached.

    Args:
        folders: what to read.
    """

    def __init__(self, folders: LoopFolders) -> None:
        self._sources = LoopSources(folders.served, folders.feedback, folders.repository, "feed")
        self.positions: dict[str, str] = {}
        self.rows: list[Row] = []
        self.restart()

    def restart(self) -> None:
        """Start a process that knows the positions only."""
        self.requests = ClosedRequests(self._sources, "1")

    def read(self, until: float, start: float = -1) -> Iterator[ClosedRows]:
        """Read until some seconds after the start, with a window of an hour; the caller uses each chunk."""
        closed = microseconds(until) - HOUR * 1_000_000
        for chunk in self.requests.read(
            [Window("hour", HOUR * 1_000_000, closed, microseconds(start), self.positions)]
        ):
            assert chunk.before == self.positions.get(chunk.file.path.name)
            yield chunk
            names = ("request_id", "iid", "is_click", "watch")
            if chunk.rows is not None:
                self.rows += zip(*(chunk.rows[name].to_pylist() for name in names), strict=True)
            self.positions[chunk.file.path.name] = chunk.position

    def step(self, until: float, start: float = -1) -> list[Row]:
        """Read until some seconds after the start and return the new rows."""
        before = len(self.rows)
        for _ in self.read(until, start):
            pass
        return self.rows[before:]


@pytest.fixture
def folders(tmp_path: Path) -> LoopFolders:
    return LoopFolders(tmp_path)


def test_request_is_read_once_when_its_window_has_closed(folders: LoopFolders) -> None:
    file = folders.serve({"r1": (0, ["a", "b"]), "r2": (60, ["a"])})
    folders.send(("r1", "b", {"is_click": 1.0, "watch": 2.5}, 30), ("r2", "a", {"is_click": 1.0}, 60 + HOUR + 1))
    reader = Reader(folders)
    assert reader.step(HOUR - 1) == []
    assert reader.step(HOUR) == [("r1", "a", 0, None), ("r1", "b", 1, 2.5)]
    assert reader.positions == {file.name: str(microseconds(0))}
    reader.restart()
    assert reader.step(HOUR + 60) == [("r2", "a", 0, None)]
    assert reader.positions == {file.name: USED}
    for _ in range(2):
        assert reader.step(9 * HOUR) == []
        reader.restart()


def test_requests_until_the_start_are_left_out(folders: LoopFolders) -> None:
    folders.serve({"r1": (0, ["a"]), "r2": (60, ["a"])})
    folders.serve({"r2": (70, ["b"])})  # repeats a request that is left out
    assert [row[:2] for row in Reader(folders).step(9 * HOUR, start=0)] == [("r2", "a")]
    assert Reader(folders).step(9 * HOUR, start=60) == []


def test_repeated_request_is_read_once_whatever_the_order_of_the_files(folders: LoopFolders) -> None:
    reader = Reader(folders)
    first = folders.serve({"r1": (10, ["a"]), "r2": (20, ["a"])})
    folders.serve({"r1": (15, ["b"])})
    first.rename(folders.served.parent / first.name)  # another process finishes this file later
    assert reader.step(2 * HOUR) == [("r1", "b", 0, None)]
    (folders.served.parent / first.name).rename(first)
    reader.restart()
    assert reader.step(2 * HOUR) == [("r2", "a", 0, None)]


def test_request_with_a_wrong_clock_delays_no_other_one(folders: LoopFolders) -> None:
    folders.serve({"r1": (0, ["a"]), "r2": (5 * HOUR, ["a"]), "r3": (1, ["a"])})
    folders.serve({"r4": (60, ["a"])})
    reader = Reader(folders)
    assert [row[0] for row in reader.step(2 * HOUR)] == ["r1", "r3", "r4"]
    assert reader.step(3 * HOUR) == []
    assert [row[0] for row in reader.step(6 * HOUR)] == ["r2"]


def test_chunks_have_requests_of_a_time_together_and_can_be_continued(
    folders: LoopFolders, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(closed_requests, "CHUNK_ROWS", 3)
    folders.serve({f"r{i}": (i // 2, ["a", "b"]) for i in range(9)})
    for chunks in range(6):
        reader = Reader(folders)
        for number, _ in enumerate(reader.read(3 * HOUR)):
            if number == chunks:  # killed before the chunk is used
                break
        assert len(reader.rows) == min(4 * chunks, 18)
        reader.restart()
        reader.step(3 * HOUR)
        assert sorted(reader.rows) == sorted((f"r{i}", item, 0, None) for i in range(9) for item in ("a", "b"))


def test_damaged_file_is_left_out_until_it_is_restored(folders: LoopFolders) -> None:
    file = folders.serve({"r1": (0, ["a"])})
    folders.serve({"r2": (0, ["a"])})
    content, reader = file.read_bytes(), Reader(folders)
    feedback = folders.send(("r1", "a", {"is_click": 1.0}, 1))
    feedback.write_text(feedback.read_text() + "torn\n")
    file.write_bytes(content[:-50])
    assert [row[0] for row in reader.step(2 * HOUR)] == ["r2"]
    left_out = reader.requests.left_out
    assert [message.partition(":")[0] for message in left_out] == [str(file), str(feedback)]
    assert reader.step(2 * HOUR) == []
    assert reader.requests.left_out == left_out
    file.write_bytes(content)
    feedback.write_text(feedback.read_text().removesuffix("torn\n"))
    assert reader.step(2 * HOUR) == [("r1", "a", 1, None)]
    assert reader.requests.left_out == []


def test_file_that_is_restored_while_it_is_read_is_read_again(
    folders: LoopFolders, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = folders.serve({"r1": (0, ["a"])})
    content, reader = file.read_bytes(), Reader(folders)
    file.write_bytes(content[:-50])
    opened = ServedFile.open

    def restore(path: Path) -> ServedFile:
        try:
            return opened(path)
        finally:
            file.write_bytes(content)

    monkeypatch.setattr(ServedFile, "open", restore)
    assert reader.step(2 * HOUR) == []
    assert [row[0] for row in reader.step(2 * HOUR)] == ["r1"]


def test_files_of_other_models_are_not_read(folders: LoopFolders) -> None:
    folders.serve({"r1": (0, ["a"])}, model="other")
    assert Reader(folders).step(9 * HOUR) == []
    folders.serve({"r1": (0, ["a"])})
    assert [row[0] for row in Reader(folders).step(9 * HOUR)] == ["r1"]


times = st.integers(0, 3 * HOUR)
served = st.dictionaries(st.sampled_from([f"r{i}" for i in range(12)]), times, min_size=1, max_size=6)
feedback_events = st.lists(st.tuples(st.integers(0, 11), st.sampled_from("abc"), times), max_size=8)


@settings(max_examples=settings.default.max_examples // 6)
@given(steps=st.lists(st.tuples(served, feedback_events, st.booleans()), min_size=1, max_size=4))
def test_rows_are_those_of_a_join_at_the_same_times(
    steps: list[tuple[dict[str, int], list[tuple[int, str, int]], bool]],
) -> None:
    """Protects training and serving from counting different impressions or labels."""
    with tempfile.TemporaryDirectory() as folder:
        folders = LoopFolders(Path(folder))
        reader = Reader(folders)
        for number, (requests, events, restarts) in enumerate(steps, 1):
            folders.serve({name: (time, ["a", "b"]) for name, time in requests.items()})
            folders.send(*((f"r{i}", item, {"is_click": 1.0, "watch": float(t)}, t) for i, item, t in events))
            if restarts:
                reader.restart()
            until = (number + 1) * HOUR
            folders.join(until)
            reader.step(until)
            joined = [(row["rid"], row["iid"], row["is_click"], row["watch"]) for row in folders.rows()]
            assert sorted(reader.rows, key=str) == sorted(joined, key=str)
