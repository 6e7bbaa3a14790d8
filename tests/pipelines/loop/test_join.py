"""Each rule of ``ranker join`` on small folders."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tomli_w

from pipelines.cli.main import main
from pipelines.data.reader import LogReader
from pipelines.jobs.forget import forget
from pipelines.loop import feedback_files, request_ids
from pipelines.loop.attribution import Attribution
from pipelines.loop.feedback_files import read_events
from ranking.errors import BundleError, LogError, OutputError, RankerError, UsageError
from ranking.schema import Schema
from tests.support.loop_folders import HOUR, SCHEMA, LoopFolders, at


@pytest.fixture
def loop(tmp_path: Path) -> LoopFolders:
    return LoopFolders(tmp_path)


def files_of(folder: Path) -> dict[str, bytes]:
    """Return the content of all files."""
    return {str(path): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


# Rows.


def test_rows_have_the_columns_of_the_schema_and_values_of_file_and_bundle(loop: LoopFolders) -> None:
    loop.serve({"r": (0, ["b", "a", "c"])})
    loop.send(("r", "a", {"is_click": 1, "watch": 2.5, "played": 1}, 60))
    loop.join()
    b, a, c = loop.rows()
    meta = {"position": 1, "request_id": "r", "model": "feed", "version": "1"}
    ids = {"ts": at(0), "uid": "u-r", "iid": "a", "rid": "r", "w": None}
    labels = {"is_click": 1, "played": 1, "watch": 2.5}
    assert a == {**meta, **ids, "price": 7.25, "tags": None, "age": 31.5, "tab": "home", **labels}
    assert (b["position"], b["price"], b["tags"]) == (0, 0.2, [])
    assert (c["position"], c["price"], c["tags"]) == (2, None, None)
    assert (b["is_click"], b["watch"], b["played"]) == (0, None, 0)


def test_log_reader_reads_the_log_with_the_schema_of_the_model(loop: LoopFolders) -> None:
    loop.serve({"r": (0, ["b", "a"])})
    loop.send(("r", "a", {"is_click": 1}, 60))
    loop.join()
    (chunk,) = LogReader(loop.log, Schema.model_validate(SCHEMA), {}).scan()
    assert chunk.rows["is_click"].to_pylist() == [0, 1]
    assert chunk.bad.num_rows == 0


def test_a_feature_that_a_version_lacks_is_null_in_its_rows(loop: LoopFolders) -> None:
    brand = {"name": "brand", "kind": "categorical", "owner": "item"}
    loop.publish("2", {**SCHEMA, "features": [*SCHEMA["features"], brand]})
    loop.serve({"r": (0, ["a"])}, version="1")
    loop.serve({"s": (0, ["b"])}, version="2")
    loop.join()
    assert [(row["version"], row["brand"]) for row in loop.rows()] == [("1", None), ("2", None)]
    schema = Schema.model_validate(json.loads((loop.repository / "feed/2/manifest.json").read_text())["schema"])
    assert sum(chunk.rows.num_rows for chunk in LogReader(loop.log, schema, {}).scan()) == 2


@pytest.mark.parametrize(("zone", "kind"), [(None, None), ("Europe/Berlin", "Europe/Berlin"), ("absent", "UTC")])
def test_times_are_in_the_time_zone_of_the_training_log(loop: LoopFolders, zone: str | None, kind: str | None) -> None:
    set_zone(loop, zone)
    loop.serve({"r": (0, ["a"])})
    loop.join()
    (file,) = loop.log.rglob("*.parquet")
    assert pq.read_schema(file).field("ts").type == pa.timestamp("us", kind)


@pytest.mark.parametrize(("zone", "hours"), [("Asia/Tokyo", 9), ("America/New_York", -5), ("UTC", 0)])
def test_local_times_are_those_of_the_machine_that_served(loop: LoopFolders, zone: str, hours: int) -> None:
    set_zone(loop, None)
    loop.serve({"r": (0, ["a"])}, zone=zone)
    loop.join()
    (row,) = loop.rows()
    assert row["ts"] == (at(0) + timedelta(hours=hours)).replace(tzinfo=None)


def test_unknown_zone_of_the_machine_that_served_is_an_error(loop: LoopFolders) -> None:
    set_zone(loop, None)
    loop.serve({"r": (0, ["a"])}, zone="Mars/Olympus")
    assert "the service ran in time zone 'Mars/Olympus', which this machine does not know" in error_of(loop, LogError)


def test_times_are_of_one_kind_in_a_log_that_an_earlier_version_began(loop: LoopFolders) -> None:
    loop.serve({"r": (0, ["a"])})
    loop.join()
    set_zone(loop, None)
    loop.serve({"s": (0, ["a"])})
    loop.join()
    assert {pq.read_schema(file).field("ts").type for file in loop.log.rglob("*.parquet")} == {
        pa.timestamp("us", "UTC")
    }


def set_zone(loop: LoopFolders, zone: str | None) -> None:
    """Let version 1 name the time zone of its training log; "absent": as a bundle that names none."""
    manifest = loop.repository / "feed" / "1" / "manifest.json"
    document = json.loads(manifest.read_text())
    document["details"] = {} if zone == "absent" else {"time_zone": zone}
    manifest.write_text(json.dumps(document))


# Labels.


def test_binary_label_is_1_if_any_event_says_1(loop: LoopFolders) -> None:
    loop.serve({"r": (0, ["a", "b"])})
    loop.send(("r", "a", {"is_click": 1}, 10), ("r", "a", {"is_click": 0}, 20), ("r", "b", {"is_click": 0}, 30))
    loop.join()
    assert loop.labels() == {("r", "a"): (1, None), ("r", "b"): (0, None)}


def test_numeric_label_is_the_last_value_by_time_of_the_event(loop: LoopFolders) -> None:
    loop.serve({"r": (0, ["a"])})
    loop.send(("r", "a", {"watch": 3.0}, 30), ("r", "a", {"watch": 1.0}, 10), ("r", "a", {"is_click": 1}, 40))
    loop.join()
    assert loop.labels() == {("r", "a"): (1, 3.0)}


def test_repeated_events_change_nothing_and_are_counted(loop: LoopFolders) -> None:
    loop.serve({"r": (0, ["a"])})
    event: tuple[str, Any, dict[str, float], float] = ("r", "a", {"watch": 3.0}, 30)
    loop.send(event, event)
    loop.send(event)
    counts = loop.join()
    assert loop.labels() == {("r", "a"): (0, 3.0)}
    assert (counts.used, counts.duplicates) == (3, 2)


@pytest.mark.parametrize("item", [7, "7"])
@pytest.mark.parametrize("sent", [7, "7"])
def test_integer_is_the_same_item_as_its_decimal_text(loop: LoopFolders, item: int | str, sent: int | str) -> None:
    loop.serve({"r": (0, [item])})
    loop.send(("r", sent, {"is_click": 1}, 30))
    loop.join()
    assert loop.labels() == {("r", item): (1, None)}


def test_late_early_and_unmatched_events_are_counted_and_not_used(loop: LoopFolders) -> None:
    loop.serve({"r": (0, ["a", "b"])})
    loop.send(("r", "a", {"is_click": 1}, HOUR + 1), ("r", "a", {"is_click": 1}, -301))
    loop.send(("r", "z", {"is_click": 1}, 5), ("other", "a", {"is_click": 1}, 5))
    counts = loop.join(until=3 * HOUR)
    assert (counts.used, counts.late, counts.early, counts.unmatched) == (0, 1, 1, 1)
    assert loop.labels() == {("r", "a"): (0, None), ("r", "b"): (0, None)}
    loop.serve({"s": (24 * HOUR, ["a"])})
    assert loop.join(until=25 * HOUR).unmatched == 0  # the request "other" may be in a file that is collected later
    loop.serve({"t": (26 * HOUR, ["a"])})
    assert loop.join(until=27 * HOUR).unmatched == 1


def test_events_at_the_ends_of_the_window_are_used(loop: LoopFolders) -> None:
    loop.serve({"r": (0, ["a", "b"])})
    loop.send(("r", "a", {"is_click": 1}, HOUR), ("r", "b", {"is_click": 1}, -300))
    assert loop.join().used == 2


def test_only_shown_items_become_rows_if_an_event_of_the_request_says_shown(loop: LoopFolders) -> None:
    loop.serve({"r": (0, ["a", "b", "c"]), "s": (0, ["a", "b"])})
    loop.send(("r", "b", {"shown": 1}, 1), ("r", "a", {"shown": 0}, 1), ("s", "a", {"is_click": 1}, 1))
    counts = loop.join()
    assert [*loop.labels()] == [("r", "b"), ("s", "a"), ("s", "b")]
    assert (counts.impressions, counts.rows) == (5, 3)


def test_shown_label_can_have_another_name(loop: LoopFolders) -> None:
    loop.serve({"r": (0, ["a", "b"])})
    loop.send(("r", "b", {"seen": 1}, 1))
    loop.join(shown="seen")
    assert [*loop.labels()] == [("r", "b")]


@pytest.mark.parametrize("events", [[("r", "b", {"shown": 0}, 1)], [("r", "unknown", {"shown": 1}, 1)], []])
def test_no_event_without_a_shown_item_removes_the_others(loop: LoopFolders, events: list[Any]) -> None:
    loop.serve({"r": (0, ["a", "b"])})
    loop.send(*events)
    loop.join()
    assert [*loop.labels()] == [("r", "a"), ("r", "b")]


def test_first_answer_counts_if_a_request_id_is_repeated(loop: LoopFolders) -> None:
    loop.serve({"r": (5, ["b"])})
    loop.serve({"r": (0, ["a"])})  # names an earlier time, but was served later
    counts = loop.join()
    assert [*loop.labels()] == [("r", "b")]
    assert counts.repeated_requests == 1


def test_request_id_of_an_earlier_run_is_repeated(loop: LoopFolders) -> None:
    loop.serve({"r": (0, ["b"]), "s": (0, ["a"])})
    loop.join()
    loop.serve({"r": (2 * HOUR, ["a"]), "t": (2 * HOUR, ["a"])})
    loop.send(("r", "a", {"is_click": 1}, 2 * HOUR + 1))
    counts = loop.join(until=4 * HOUR)
    assert (counts.requests, counts.repeated_requests) == (1, 1)
    loop.serve({"r": (4 * HOUR, ["a"]), "u": (4 * HOUR, ["a"])})
    assert loop.join(until=6 * HOUR).repeated_requests == 1
    assert loop.labels() == {("r", "b"): (0, None), ("s", "a"): (0, None), ("t", "a"): (0, None), ("u", "a"): (0, None)}
    assert len(list(loop.log.glob("run-*/_requests.npy"))) == 1


def test_only_the_newest_ids_are_remembered(loop: LoopFolders, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_ids, "MAX_IDS", 2)
    for hour, name in enumerate(["r", "s", "t", "t", "r"]):
        loop.serve({name: (hour * HOUR, ["a"])})
        loop.join(until=(hour + 1) * HOUR)
    assert [row["request_id"] for row in loop.rows()] == ["r", "r", "s", "t"]


def test_log_of_an_earlier_version_without_ids_continues(loop: LoopFolders) -> None:
    loop.serve({"r": (0, ["a"])})
    loop.join()
    (file,) = loop.log.glob("run-*/_requests.npy")
    file.unlink()
    loop.serve({"s": (2 * HOUR, ["a"])})
    assert loop.join(until=4 * HOUR).requests == 1


def test_requests_with_impossible_times_are_left_out_and_counted(loop: LoopFolders) -> None:
    year = 366 * 24 * HOUR
    loop.serve({"old": (-100 * year, ["a"]), "r": (0, ["a"]), "future": (100 * year, ["a"])})
    counts = loop.join()
    assert [*loop.labels()] == [("r", "a")]
    assert (counts.impossible_times, counts.open_requests) == (2, 0)
    assert counts.to_text().endswith("; left out for their time: 2")
    assert loop.join().impossible_times == 0


# Runs.


def test_requests_become_rows_when_their_window_has_closed(loop: LoopFolders) -> None:
    loop.serve({"r": (0, ["a"]), "s": (600, ["a"])})
    loop.send(("r", "a", {"is_click": 1}, 10), ("s", "a", {"is_click": 1}, 700))
    assert loop.join(until=HOUR - 1).open_requests == 2
    first = loop.join(until=HOUR)
    assert (first.requests, first.open_requests, [*loop.labels()]) == (1, 1, [("r", "a")])
    second = loop.join(until=HOUR + 600)
    assert (second.requests, second.open_requests) == (1, 0)
    assert loop.labels() == {("r", "a"): (1, None), ("s", "a"): (1, None)}


def test_runs_in_steps_write_the_same_rows_as_one_run(loop: LoopFolders, tmp_path: Path) -> None:
    other = LoopFolders(tmp_path / "other")
    for folders in (loop, other):
        for hour in range(4):
            folders.serve({f"{hour}-{i}": (hour * HOUR + i * 700, ["a", "b", "c"]) for i in range(5)})
            folders.send(*((f"{hour}-{i}", "b", {"is_click": 1, "watch": i}, hour * HOUR + i * 900) for i in range(5)))
    counts = [loop.join(until=step * 3_000) for step in range(14)]
    whole = other.join(until=39_000)
    assert loop.rows() == other.rows()
    assert len(loop.rows()) == 60
    for name in ("rows", "used", "late", "unmatched"):
        assert sum(getattr(count, name) for count in counts) == getattr(whole, name)


def test_second_run_without_new_data_changes_nothing(loop: LoopFolders) -> None:
    loop.serve({"r": (0, ["a"]), "s": (9 * HOUR, ["a"])})
    loop.send(("r", "a", {"is_click": 1}, 10))
    loop.join()
    before = files_of(loop.log)
    assert loop.join(until=3 * HOUR).rows == 0
    assert files_of(loop.log) == before


def test_feedback_in_an_unfinished_file_keeps_windows_open(loop: LoopFolders) -> None:
    loop.serve({"r": (0, ["a"])})
    loop.send(("r", "a", {"is_click": 1}, 10), suffix=".part")
    assert loop.join(until=None).open_requests == 1


def test_feedback_of_requests_that_are_collected_late_is_used(loop: LoopFolders) -> None:
    loop.serve({"r": (0, ["a"])})
    loop.send(("r", "a", {"is_click": 1}, 10))
    loop.send(("s", "a", {"is_click": 1}, 700))
    loop.serve({"t": (8 * HOUR, ["a"])})
    loop.join(until=9 * HOUR)
    loop.serve({"s": (600, ["a"])})
    loop.join(until=10 * HOUR)
    assert loop.labels() == {("r", "a"): (1, None), ("s", "a"): (1, None), ("t", "a"): (0, None)}


def test_feedback_of_files_that_arrive_during_the_join_is_used(
    loop: LoopFolders, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop.serve({"r": (0, ["a"])})
    resolve = Attribution.resolve

    def resolve_late(attribution: Attribution) -> None:
        loop.serve({"s": (HOUR, ["a"])})
        loop.send(("s", "a", {"is_click": 1}, HOUR + 1))
        resolve(attribution)

    loop.send(("s", "a", {"watch": 2.0}, HOUR + 2))
    monkeypatch.setattr(Attribution, "resolve", resolve_late)
    loop.join(until=12 * HOUR)
    monkeypatch.undo()
    loop.join(until=12 * HOUR)
    assert loop.labels() == {("r", "a"): (0, None), ("s", "a"): (1, 2.0)}


def test_feedback_whose_events_are_all_decided_is_not_read_again(loop: LoopFolders) -> None:
    loop.serve({"r": (0, ["a"])})
    path = loop.send(("r", "a", {"is_click": 1}, 10))
    loop.join()
    path.write_text("torn")
    loop.serve({"s": (2 * HOUR, ["a"])})
    assert loop.join(until=4 * HOUR).left_out == ()


def test_drafts_of_a_killed_run_are_removed(loop: LoopFolders) -> None:
    loop.serve({"r": (0, ["a"])})
    draft = loop.log / ".run-000001-x"
    draft.mkdir(parents=True)
    (draft / "rows.parquet").write_bytes(b"torn")
    loop.join()
    assert not draft.exists()
    assert len(loop.rows()) == 1


# Damaged files.


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-20])


def overwrite_rows(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[4:400] = b"\xff" * 396
    path.write_bytes(content)


def replace_by_a_foreign_file(path: Path) -> None:
    pq.write_table(pa.table({"iid": ["a"]}), path)


def drop_a_column(path: Path) -> None:
    pq.write_table(pq.read_table(path).drop_columns(["item_id"]), path)


def drop_the_sources(path: Path) -> None:
    pq.write_table(pq.read_table(path).drop_columns(["source.item"]), path)


def flatten_a_list(path: Path) -> None:
    table = pq.read_table(path)
    position = table.column_names.index("item.price")
    pq.write_table(table.set_column(position, "item.price", pa.array([1.0] * table.num_rows)), path)


def write_ids_that_are_not_text(path: Path) -> None:
    table = pq.read_table(path)
    ids = pa.Array.from_buffers(pa.string(), table.num_rows, pa.array([b"\xff"] * table.num_rows).buffers())
    pq.write_table(table.set_column(table.column_names.index("request_id"), "request_id", ids), path)


DAMAGE = [
    truncate,
    overwrite_rows,
    replace_by_a_foreign_file,
    drop_a_column,
    drop_the_sources,
    flatten_a_list,
    write_ids_that_are_not_text,
]


@pytest.mark.parametrize("damage", DAMAGE)
def test_damaged_served_file_is_left_out_until_it_is_restored(
    loop: LoopFolders, damage: Callable[[Path], None]
) -> None:
    damaged = loop.serve({"r": (0, ["a"])})
    content = damaged.read_bytes()
    damage(damaged)
    loop.serve({"s": (60, ["a"])})
    loop.send(("r", "a", {"is_click": 1}, 10), ("s", "a", {"is_click": 1}, 70))
    counts = loop.join()
    (message,) = counts.left_out
    assert message.startswith(f"{damaged}: is damaged, or is not part of a served log (")
    assert loop.labels() == {("s", "a"): (1, None)}
    loop.serve({"t": (8 * HOUR, ["a"])})
    assert len(loop.join(until=9 * HOUR).left_out) == 1
    damaged.write_bytes(content)
    assert loop.join(until=10 * HOUR).left_out == ()
    assert loop.labels() == {("r", "a"): (1, None), ("s", "a"): (1, None), ("t", "a"): (0, None)}


@pytest.mark.parametrize("model", [None, "feed"])
def test_damaged_file_does_not_choose_another_model(loop: LoopFolders, model: str | None) -> None:
    for name in ("feed", "other"):
        (loop.repository / name).mkdir(exist_ok=True)
        (loop.repository / name / "current.json").write_text('{"version": 1}')
    truncate(loop.serve({"r": (0, ["a"])}))
    loop.serve({"s": (0, ["a"])}, model="other")
    if model is None:
        assert "may be that of another model than the others: name one with --model" in error_of(loop, UsageError)
    else:
        assert len(loop.join(model=model).left_out) == 1


def test_served_file_that_is_damaged_between_two_runs_continues_where_it_was(loop: LoopFolders) -> None:
    damaged = loop.serve({"r": (0, ["a"]), "s": (2 * HOUR, ["a"])})
    loop.join(until=HOUR)
    content = damaged.read_bytes()
    truncate(damaged)
    loop.serve({"t": (60, ["a"])})
    assert len(loop.join(until=3 * HOUR).left_out) == 1
    damaged.write_bytes(content)
    assert loop.join(until=3 * HOUR).requests == 1
    assert [*loop.labels()] == [("r", "a"), ("s", "a"), ("t", "a")]


DAMAGED_LINES = [
    b'{"request_id": "r", "ev',
    b"\xff\xfe",
    b"[1]",
    b"{}",
    b'"text"',
    b'{"request_id": "r", "received": "2026-03-01T12:00:00Z", "events": null}',
    b'{"request_id": "r", "received": "yesterday", "events": [{"item": "a", "labels": {"is_click": 1}}]}',
    b'{"request_id": "r", "received": "2026-03-01T12:00:00Z", "events": [{"item": "a", "labels": {"is_click": "x"}}]}',
    b'{"request_id": "r", "received": "2026-03-01T12:00:00Z", "events": [{"item": "a", "labels": 1}]}',
    b'{"request_id": "r", "received": "2026-03-01T12:00:00Z", "events": [{"item": "a", "labels": {}, "time": "x"}]}',
    b'{"request_id": "r", "received": "2026-03-01T12:00:00Z", "events": [{"labels": {"is_click": 1}}]}',
    b'{"request_id": "r", "received": "2026-03-01T12:00:00Z", "events": [{"item": null, "labels": {"is_click": 1}}]}',
    b'{"request_id": "r", "received": "2026-03-01T12:00:00Z", "events": [{"item": "a"}]}',
    b"\x00" * 100,
]


@pytest.mark.parametrize("line", DAMAGED_LINES)
def test_damaged_line_of_feedback_is_left_out(loop: LoopFolders, line: bytes) -> None:
    loop.serve({"r": (0, ["a", "b"])})
    path = loop.send(("r", "a", {"is_click": 1}, 1), ("r", "b", {"watch": 2.5}, 2))
    first, second = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(first + line + b"\n" + second)
    loop.send(("r", "b", {"is_click": 1}, 3))
    counts = loop.join()
    assert counts.left_out == (f"{path}: line 2 is not feedback; correct or delete it",)
    assert counts.used == 3
    assert loop.labels() == {("r", "a"): (1, None), ("r", "b"): (1, 2.5)}


@pytest.mark.parametrize(
    "line",
    [line if i % 4 == 1 else pytest.param(line, marks=pytest.mark.nightly) for i, line in enumerate(DAMAGED_LINES)],
)
def test_damaged_file_of_feedback_is_named_in_each_run_until_it_is_restored(loop: LoopFolders, line: bytes) -> None:
    loop.serve({"r": (0, ["a"]), "s": (600, ["a"])})
    path = loop.send(("s", "a", {"is_click": 1}, 610))
    content = path.read_bytes()
    path.write_bytes(line)
    for seconds in (HOUR, HOUR, HOUR + 60):
        assert loop.join(until=seconds).left_out == (f"{path}: line 1 is not feedback; correct or delete it",)
    path.write_bytes(content)
    assert loop.join(until=2 * HOUR).left_out == ()
    assert loop.labels() == {("r", "a"): (0, None), ("s", "a"): (1, None)}


def test_lines_beside_damaged_ones_are_read_like_others(loop: LoopFolders) -> None:
    items = ["a", 7, "ü", "b"]
    loop.serve({"r": (0, ["a", "7", "ü", "b"])})
    path = loop.send(*(("r", item, {"is_click": 1, "watch": i / 3}, i + 0.123456) for i, item in enumerate(items)))
    events = read(path)
    assert len(events) == 4
    path.write_bytes(path.read_bytes() + b"\n{torn")
    assert read(path) == events


def read(path: Path) -> list[tuple[Any, ...]]:
    """Return the events of a file of feedback."""
    with duckdb.connect() as connection:
        read_events(connection, [path], path.parent)
        return connection.execute("SELECT * FROM events ORDER BY t").fetchall()


def test_many_damaged_lines_are_counted(loop: LoopFolders) -> None:
    loop.serve({"r": (0, ["a"])})
    path = loop.send(("r", "a", {"is_click": 1}, 1))
    path.write_text(path.read_text() + "torn\n" * 12)
    (message,) = loop.join().left_out
    assert message.startswith(f"{path}: lines 2, 3, 4, 5, 6 and 7 more are not feedback; ")


def test_file_of_something_else_is_not_searched_to_its_end(loop: LoopFolders, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feedback_files, "MAX_DAMAGED", 10)
    loop.serve({"r": (0, ["a"])})
    path = loop.send(("r", "a", {"is_click": 1}, 1))
    path.write_text("a,b\n" * 1_000)
    assert loop.join().left_out == (f"{path}: more than 10 lines are not feedback; restore or delete the file",)


# Errors.


def error_of(loop: LoopFolders, kind: type[RankerError], **options: Any) -> str:
    with pytest.raises(kind) as caught:
        loop.join(**options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("name", ["request_id=7", "events=none", "day=2026-01-01"])
def test_folders_with_names_like_partitions_are_not_columns(tmp_path: Path, name: str) -> None:
    loop = LoopFolders(tmp_path / name / "loop")
    loop.serve({"r": (0, ["a"])})
    loop.send(("r", "a", {"is_click": 1}, 1))
    assert loop.join().used == 1
    assert loop.labels() == {("r", "a"): (1, None)}


def test_missing_version_is_named(loop: LoopFolders) -> None:
    loop.serve({"r": (0, ["a"])}, version="9")
    assert error_of(loop, BundleError).startswith(f"{loop.repository}/feed/9: no such version")


def test_several_models_need_a_choice(loop: LoopFolders) -> None:
    loop.serve({"r": (0, ["a"])})
    loop.serve({"s": (0, ["a"])}, model="other")
    assert "(feed, other): name one with --model" in error_of(loop, UsageError)
    says = "--model third: the served log has requests of feed, other"
    assert error_of(loop, UsageError, model="third") == says
    assert loop.join(model="feed").rows == 1
    assert loop.join(model="feed").rows == 0
    says = f"{loop.log}: holds the rows of model feed: join other into another folder"
    assert error_of(loop, UsageError, model="other") == says


def test_folder_with_other_files_is_not_a_joined_log(loop: LoopFolders) -> None:
    loop.serve({"r": (0, ["a"])})
    loop.log.mkdir()
    pq.write_table(pa.table({"x": [1]}), loop.log / "part-0.parquet")
    assert "is not a log written by 'ranker join'" in error_of(loop, LogError)


def test_missing_folders_are_named(loop: LoopFolders) -> None:
    loop.serve({"r": (0, ["a"])})
    loop.feedback.rmdir()
    assert "name the feedback_dir of the service" in error_of(loop, LogError)
    loop.served = loop.served / "none"
    assert error_of(loop, LogError).startswith(f"{loop.served}: cannot be read")


def test_unwritable_log_is_an_output_error(loop: LoopFolders) -> None:
    loop.log.write_text("")
    assert error_of(loop, OutputError).startswith(f"{loop.log}: cannot be written")


# Command.


def test_command_prints_counts(loop: LoopFolders, capsys: pytest.CaptureFixture[str]) -> None:
    loop.serve({"r": (0, ["a", "b"])})
    loop.send(("r", "a", {"is_click": 1}, 10))
    command = ["join", "--served", str(loop.served), "--feedback", str(loop.feedback), "--window", "1h"]
    command += ["--out", str(loop.log), "--until", "2026-03-01T15:00:00Z"]
    assert main(command) == 0
    out = capsys.readouterr().out
    assert out.startswith("until 2026-03-01T15:00:00Z: 2 rows of 1 requests with 2 items\nlabels: is_click 1, ")
    assert main([*command, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["rows"] == 0


def test_command_exits_with_4_if_damaged_input_was_left_out(
    loop: LoopFolders, capsys: pytest.CaptureFixture[str]
) -> None:
    loop.serve({"r": (0, ["a"])})
    truncate(loop.serve({"s": (0, ["a"])}))
    path = loop.send(("r", "a", {"is_click": 1}, 10))
    path.write_text(path.read_text() + "torn\n")
    command = ["join", "--served", str(loop.served), "--feedback", str(loop.feedback), "--window", "1h"]
    command += ["--out", str(loop.log)]
    assert main([*command, "--json"]) == 4
    out, err = capsys.readouterr()
    assert [len(json.loads(out)["left_out"]), json.loads(out)["rows"]] == [2, 1]
    assert err.splitlines()[-1].startswith("ranker: damaged input was left out: ")
    assert err.splitlines()[-1].endswith("; and 1 more, see above")
    assert main(command) == 4
    assert capsys.readouterr().out.splitlines()[-1].startswith("damaged: ")


def daily(loop: LoopFolders, *options: str) -> int:
    """Run ``ranker daily`` for a day without rows."""
    splits = {"validation_from": datetime(2026, 3, 2), "test_from": datetime(2026, 3, 3)}
    config = loop.log.with_name("ranker.toml")
    config.write_text(tomli_w.dumps({**SCHEMA, "logs": {"path": str(loop.log), **splits}}))
    runs = str(loop.log.with_name("runs"))
    return main(
        ["daily", str(config), "--repository", str(loop.repository), "--runs", runs, "--day", "2026-03-04", *options]
    )


def test_daily_joins_before_it_trains(loop: LoopFolders, capsys: pytest.CaptureFixture[str]) -> None:
    loop.serve({"r": (0, ["a", "b"])})
    assert daily(loop, "--served", str(loop.served), "--feedback", str(loop.feedback), "--window", "1h") == 1
    err = capsys.readouterr().err
    assert "2 rows of 1 requests" in err
    assert err.splitlines()[-1] == f"ranker: {loop.log}: has no row of 2026-03-04 to evaluate the model on"
    assert len(loop.rows()) == 2


def test_daily_exits_with_4_after_publication_if_damaged_input_was_left_out(
    loop: LoopFolders, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipelines.jobs.daily.daily", lambda *_, **__: {"model": "feed", "version": 2})
    truncate(loop.serve({"r": (0, ["a", "b"])}))
    assert daily(loop, "--served", str(loop.served), "--feedback", str(loop.feedback), "--window", "1h") == 4
    out, err = capsys.readouterr()
    assert out == f"{loop.repository}/feed/2\n"
    assert err.splitlines()[-1].startswith(f"ranker: damaged input was left out: {loop.served}/served-")


def test_daily_needs_all_options_of_the_join(loop: LoopFolders, capsys: pytest.CaptureFixture[str]) -> None:
    assert daily(loop, "--served", str(loop.served)) == 2
    assert "--served, --feedback and --window belong together" in capsys.readouterr().err


def test_forgotten_rows_are_removed_and_the_join_continues(loop: LoopFolders) -> None:
    loop.serve({"r": (0, ["a"]), "s": (0, ["a"]), "t": (5 * HOUR, ["b"])})
    loop.send(("r", "a", {"is_click": 1}, 10), ("s", "a", {"is_click": 1}, 10))
    loop.join()
    removed = forget("u-r", served=loop.served, feedback=loop.feedback, logs=[loop.log], user_column="uid")
    assert removed == {"feedback_lines": 1, "log_rows": {str(loop.log): 1}, "served_requests": 1, "unreadable": []}
    assert loop.join(until=7 * HOUR).unmatched == 0
    assert [*loop.labels()] == [("s", "a"), ("t", "b")]


def test_join_until_an_earlier_time_than_before_repeats_no_request(loop: LoopFolders) -> None:
    """The mark of a topic whose collection has just begun moves the default of ``until`` back."""
    loop.serve({"early": (0, ["a"]), "late": (HOUR, ["a"])})
    assert loop.join(until=HOUR + 60).requests == 1
    loop.serve({"older": (-2 * HOUR, ["a"])})
    assert loop.join(until=0).requests == 1
    counts = loop.join(until=2 * HOUR + 60)
    assert (counts.requests, counts.repeated_requests) == (1, 0)
