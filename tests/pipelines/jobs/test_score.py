from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import ranking
from pipelines.data.parquet import CHUNK_ROWS
from pipelines.engines import run_in_processes
from pipelines.jobs.freeze import freeze_run
from pipelines.jobs.log_scorer import ScoringCounts
from pipelines.jobs.score import Engine, Part, score_log, score_parts
from pipelines.jobs.train import train
from ranking.errors import InvalidInputError, LogError, OutputError
from ranking.frozen.ranker import FrozenRanker
from tests.conftest import Once

if TYPE_CHECKING:
    from tests.pipelines.conftest import Shop

TASKS = ["click", "long_view", "share", "like", "follow", "dislike", "watch_time", "rating"]
IDS = ["user_id", "item_id", "time"]


@pytest.fixture(scope="module")
def ranker(bundle: Path) -> FrozenRanker:
    return ranking.load(bundle)


@pytest.fixture(scope="module")
def day(logs: Path) -> pa.Table:
    """Ids, context and time of the rows of one day in random order, without labels."""
    table = pq.read_table(logs / "log" / "date=2026-01-10" / "part-0.parquet", partitioning=None)
    shuffled = table.take(pa.array(np.random.default_rng(0).permutation(table.num_rows)))
    return shuffled.select([*IDS, "surface", "hour"])


def write(table: pa.Table, folder: Path, name: str = "log.parquet") -> Path:
    pq.write_table(table, folder / name)
    return folder / name


def same_scores(scored: pa.Table, ranker: FrozenRanker, rows: pa.Table) -> bool:
    """Return whether the scores equal those of the library for these rows, in the same order."""
    expected = ranker.score(rows)
    return all(
        np.allclose(scored[task].to_numpy(), expected[task].to_numpy(), rtol=0, atol=1e-6)
        for task in expected.column_names
    )


# Scores.


def test_scores_equal_the_library_in_the_order_of_the_log(ranker: FrozenRanker, day: pa.Table, tmp_path: Path) -> None:
    counts = score_log(ranker, write(day, tmp_path), tmp_path / "scores.parquet")
    scored = pq.read_table(tmp_path / "scores.parquet")
    assert (counts["scored"], counts["bad"]) == (day.num_rows, 0)
    assert scored.column_names == [*IDS, *TASKS, "score"]
    assert scored.select(IDS).to_pylist() == day.select(IDS).to_pylist()
    assert same_scores(scored, ranker, day)


def test_scores_of_several_files_and_chunks_equal_the_library(
    ranker: FrozenRanker, day: pa.Table, tmp_path: Path
) -> None:
    many = day.take(pa.array(np.arange(CHUNK_ROWS + 1000) % day.num_rows))
    (tmp_path / "log").mkdir()
    write(day, tmp_path / "log", "a.parquet")
    write(many, tmp_path / "log", "b.parquet")
    write(day.slice(0, 3), tmp_path / "log", "c.parquet")
    score_log(ranker, tmp_path / "log", tmp_path / "scores.parquet", ["click"])
    whole = pa.concat_tables([day, many, day.slice(0, 3)])
    scored = pq.read_table(tmp_path / "scores.parquet")
    assert scored.select(IDS).equals(whole.select(IDS))
    expected = ranker.score(day, ["click"])["click"].to_numpy()
    rows = np.concatenate([np.arange(day.num_rows), np.arange(len(many)) % day.num_rows, np.arange(3)])
    assert np.allclose(scored["click"].to_numpy(), expected[rows], rtol=0, atol=1e-6)


def test_duplicates_are_scored(ranker: FrozenRanker, day: pa.Table, tmp_path: Path) -> None:
    twice = pa.concat_tables([day, day])
    counts = score_log(ranker, write(twice, tmp_path), tmp_path / "scores.parquet")
    assert counts["scored"] == 2 * day.num_rows
    assert same_scores(pq.read_table(tmp_path / "scores.parquet"), ranker, twice)


def test_scores_have_the_requested_tasks_in_order(ranker: FrozenRanker, day: pa.Table, tmp_path: Path) -> None:
    score_log(ranker, write(day, tmp_path), tmp_path / "scores.parquet", ["watch_time", "click"])
    scored = pq.read_table(tmp_path / "scores.parquet")
    assert scored.column_names == [*IDS, "watch_time", "click", "score"]
    expected = ranker.score(day)
    for task in ("watch_time", "click"):
        assert np.allclose(scored[task].to_numpy(), expected[task].to_numpy(), rtol=0, atol=1e-6)


def test_features_in_the_log_override_the_side_tables(ranker: FrozenRanker, day: pa.Table, tmp_path: Path) -> None:
    rows = day.append_column("price", pa.array([500.0] * day.num_rows))
    score_log(ranker, write(rows, tmp_path), tmp_path / "scores.parquet", ["click"])
    scored = pq.read_table(tmp_path / "scores.parquet")["click"].to_numpy()
    assert np.allclose(scored, ranker.score(rows)["click"].to_numpy(), atol=1e-6)
    assert not np.allclose(scored, ranker.score(day)["click"].to_numpy(), atol=1e-6)


def test_unseen_users_and_items_are_counted(ranker: FrozenRanker, day: pa.Table, tmp_path: Path) -> None:
    rows = day.slice(0, 4).set_column(0, "user_id", pa.array(["u1", "nobody", None, "7"]))
    rows = rows.set_column(1, "item_id", pa.array(["v1", "v2", "v3", "never"]))
    counts = score_log(ranker, write(rows, tmp_path), tmp_path / "scores.parquet")
    assert counts == {"scored": 4, "bad": 0, "unseen_users": 2, "unseen_items": 1}
    integers = rows.set_column(0, "user_id", pa.array([1, 2, 3, 4])).set_column(1, "item_id", pa.array([1, 2, 3, 4]))
    counts = score_log(ranker, write(integers, tmp_path), tmp_path / "scores.parquet", allow_missing=True)
    assert counts == {"scored": 4, "bad": 0, "unseen_users": 4, "unseen_items": 4}


def test_columns_without_any_value_are_named(
    ranker: FrozenRanker, day: pa.Table, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    nulls = day.set_column(day.column_names.index("hour"), "hour", pa.nulls(day.num_rows, pa.int64()))
    score_log(ranker, write(nulls, tmp_path), tmp_path / "scores.parquet")
    assert "no row has a value of hour: is this a log of this model?" in capsys.readouterr().err
    score_log(ranker, write(day, tmp_path), tmp_path / "scores.parquet")
    assert "no row has a value" not in capsys.readouterr().err


def test_log_without_values_of_most_columns_is_rejected_unless_allowed(
    ranker: FrozenRanker, day: pa.Table, tmp_path: Path
) -> None:
    strangers = day.set_column(0, "user_id", pa.array(["nobody"] * day.num_rows))
    strangers = strangers.set_column(1, "item_id", pa.array(["nothing"] * day.num_rows))
    (tmp_path / "scores.parquet").write_text("old")
    with pytest.raises(LogError, match=r"of \d+ feature columns have no value in any row \(.*price.*--allow-missing"):
        score_log(ranker, write(strangers, tmp_path), tmp_path / "scores.parquet")
    assert {file.name for file in tmp_path.iterdir()} == {"log.parquet", "scores.parquet"}
    assert (tmp_path / "scores.parquet").read_text() == "old"
    score_log(ranker, write(strangers, tmp_path), tmp_path / "scores.parquet", allow_missing=True)
    assert same_scores(pq.read_table(tmp_path / "scores.parquet"), ranker, strangers)


def test_time_and_user_columns_are_optional(ranker: FrozenRanker, day: pa.Table, tmp_path: Path) -> None:
    timeless = day.drop_columns(["time"])
    score_log(ranker, write(timeless, tmp_path), tmp_path / "scores.parquet")
    assert pq.read_table(tmp_path / "scores.parquet").column_names == ["user_id", "item_id", *TASKS, "score"]


def test_scores_replace_an_existing_file(ranker: FrozenRanker, day: pa.Table, tmp_path: Path) -> None:
    (tmp_path / "scores.parquet").write_text("old")
    score_log(ranker, write(day, tmp_path), tmp_path / "scores.parquet")
    assert pq.read_table(tmp_path / "scores.parquet").num_rows == day.num_rows


# Bad rows.


@pytest.fixture
def rows(day: pa.Table) -> pa.Table:
    """The rows of ``day``; row 4 has a price of NaN and row 7 has no item."""
    prices = [float("nan") if n == 4 else 3.0 for n in range(day.num_rows)]
    items = [None if n == 7 else item for n, item in enumerate(day["item_id"].to_pylist())]
    return day.append_column("price", pa.array(prices)).set_column(1, "item_id", pa.array(items))


def test_bad_rows_are_quarantined_and_the_others_scored(ranker: FrozenRanker, rows: pa.Table, tmp_path: Path) -> None:
    log = write(rows, tmp_path)
    counts = score_log(ranker, log, tmp_path / "scores.parquet")
    assert (counts["scored"], counts["bad"]) == (rows.num_rows - 2, 2)
    lines = (tmp_path / "scores.parquet.quarantine.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in lines]
    assert [(record["file"], record["file_row"]) for record in records] == [(str(log), 4), (str(log), 7)]
    assert ["NaN" in record["reason"] for record in records] == [True, False]
    good = rows.take([n for n in range(rows.num_rows) if n not in (4, 7)])
    scored = pq.read_table(tmp_path / "scores.parquet")
    assert scored.select(IDS).to_pylist() == good.select(IDS).to_pylist()
    assert same_scores(scored, ranker, good)


def test_log_without_bad_rows_leaves_no_quarantine_file(ranker: FrozenRanker, day: pa.Table, tmp_path: Path) -> None:
    score_log(ranker, write(day, tmp_path), tmp_path / "scores.parquet")
    assert {file.name for file in tmp_path.iterdir()} == {"log.parquet", "scores.parquet"}


# A failure leaves neither scores nor a temporary file.


def test_unknown_task_is_rejected_with_the_known_tasks(ranker: FrozenRanker, day: pa.Table, tmp_path: Path) -> None:
    log = write(day, tmp_path)
    with pytest.raises(InvalidInputError, match="unknown task 'clack': choose from click, long_view"):
        score_log(ranker, log, tmp_path / "scores.parquet", ["click", "clack"])
    assert list(tmp_path.iterdir()) == [log]


def test_duplicate_task_is_rejected(ranker: FrozenRanker, day: pa.Table, tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="is repeated"):
        score_log(ranker, write(day, tmp_path), tmp_path / "scores.parquet", ["click", "click"])


def test_damaged_later_file_leaves_no_scores(ranker: FrozenRanker, day: pa.Table, tmp_path: Path) -> None:
    (tmp_path / "log").mkdir()
    write(day, tmp_path / "log", "part-0.parquet")
    (tmp_path / "log" / "part-1.parquet").write_text("not Parquet")
    with pytest.raises(LogError, match=r"part-1\.parquet"):
        score_log(ranker, tmp_path / "log", tmp_path / "scores.parquet")
    assert [file.name for file in tmp_path.iterdir()] == ["log"]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda day: day.drop_columns(["surface"]), r"column 'surface' \(feature 'surface'\) is missing"),
        (lambda day: day.append_column("age", pa.array(["old"] * day.num_rows)), "column 'age'.*write numbers"),
        (lambda day: day.slice(0, 0), "the log is empty: there are no rows to score"),
    ],
    ids=["missing column", "wrong type", "no rows"],
)
def test_unusable_log_is_named(
    ranker: FrozenRanker, day: pa.Table, tmp_path: Path, change: Callable[[pa.Table], pa.Table], reason: str
) -> None:
    log = write(change(day), tmp_path)
    with pytest.raises(LogError, match=f"^{log}: {reason}"):
        score_log(ranker, log, tmp_path / "scores.parquet")
    assert list(tmp_path.iterdir()) == [log]


def test_missing_log_is_rejected(ranker: FrozenRanker, tmp_path: Path) -> None:
    with pytest.raises(LogError, match="no such log"):
        score_log(ranker, tmp_path / "nothing", tmp_path / "scores.parquet")
    assert list(tmp_path.iterdir()) == []


def test_missing_output_folder_is_rejected(ranker: FrozenRanker, day: pa.Table, tmp_path: Path) -> None:
    out = tmp_path / "nowhere" / "scores.parquet"
    with pytest.raises(OutputError, match="cannot be written") as caught:
        score_log(ranker, write(day, tmp_path), out)
    assert str(caught.value).startswith(f"{out}: ")


def test_failure_keeps_an_existing_output_file(ranker: FrozenRanker, day: pa.Table, tmp_path: Path) -> None:
    (tmp_path / "scores.parquet").write_text("old")
    (tmp_path / "log").mkdir()
    write(day, tmp_path / "log", "part-0.parquet")
    (tmp_path / "log" / "part-1.parquet").write_text("not Parquet")
    with pytest.raises(LogError):
        score_log(ranker, tmp_path / "log", tmp_path / "scores.parquet")
    assert (tmp_path / "scores.parquet").read_text() == "old"


# Differing files.


def test_files_may_differ_in_unused_columns(ranker: FrozenRanker, day: pa.Table, tmp_path: Path) -> None:
    (tmp_path / "log").mkdir()
    write(day.slice(0, 10), tmp_path / "log", "part-0.parquet")
    extra = day.slice(10).append_column("note", pa.array(["new"] * (day.num_rows - 10)))
    write(extra, tmp_path / "log", "part-1.parquet")
    score_log(ranker, tmp_path / "log", tmp_path / "scores.parquet")
    assert same_scores(pq.read_table(tmp_path / "scores.parquet"), ranker, day)


def test_files_may_differ_in_the_unit_of_time(ranker: FrozenRanker, day: pa.Table, tmp_path: Path) -> None:
    (tmp_path / "log").mkdir()
    write(day.slice(0, 10), tmp_path / "log", "part-0.parquet")
    finer = day.slice(10).set_column(2, "time", day["time"].slice(10).cast(pa.timestamp("ns")))
    write(finer, tmp_path / "log", "part-1.parquet")
    score_log(ranker, tmp_path / "log", tmp_path / "scores.parquet")
    assert pq.read_table(tmp_path / "scores.parquet")["time"].to_pylist() == day["time"].to_pylist()


def test_time_that_the_type_of_the_first_file_cannot_represent_is_rejected(
    ranker: FrozenRanker, day: pa.Table, tmp_path: Path
) -> None:
    (tmp_path / "log").mkdir()
    write(day.slice(0, 10), tmp_path / "log", "part-0.parquet")
    odd = [time + timedelta(microseconds=7) for time in day["time"].slice(10).to_pylist()]
    later = write(
        day.slice(10).set_column(2, "time", pa.array(odd, pa.timestamp("us"))), tmp_path / "log", "part-1.parquet"
    )
    with pytest.raises(LogError) as caught:
        score_log(ranker, tmp_path / "log", tmp_path / "scores.parquet")
    assert str(later) in str(caught.value)


def test_time_column_in_only_some_files_is_rejected(ranker: FrozenRanker, day: pa.Table, tmp_path: Path) -> None:
    (tmp_path / "log").mkdir()
    write(day.slice(0, 10), tmp_path / "log", "part-0.parquet")
    later = write(day.slice(10).drop_columns(["time"]), tmp_path / "log", "part-1.parquet")
    with pytest.raises(LogError, match="time") as caught:
        score_log(ranker, tmp_path / "log", tmp_path / "scores.parquet")
    assert str(later) in str(caught.value)
    assert [file.name for file in tmp_path.iterdir()] == ["log"]


def test_output_has_the_available_ids_before_the_scores(shop: Shop) -> None:
    features = [f.model_dump(exclude_none=True) for f in shop.schema.features if f.name in ("item_id", "tab")]
    rows = shop.table(200)
    shop.write(rows)
    run = train(shop.config(features=features), shop.folder / "run")
    ranker = freeze_run(run.path, shop.folder / "bundle")
    for ids in (["user_id", "item_id", "time"], ["user_id", "item_id"], ["item_id", "time"], ["item_id"]):
        log = write(rows.select([*ids, "tab"]), shop.folder)
        score_log(ranker, log, shop.folder / "scores.parquet")
        assert pq.read_table(shop.folder / "scores.parquet").column_names == [*ids, "click", "watch", "score"]


def test_time_column_with_the_name_of_a_score_is_rejected(shop: Shop) -> None:
    log = shop.write(shop.table(200).rename_columns({"time": "score"}))
    run = train(shop.config(columns={"time": "score"}), shop.folder / "run")
    ranker = freeze_run(run.path, shop.folder / "bundle")
    with pytest.raises(LogError, match=rf"^{log}: column 'score' has the name of a score: rename it in the log and in"):
        score_log(ranker, shop.log, shop.folder / "scores.parquet")
    assert not list(shop.folder.glob("*scores*"))


# By parts, as engines do.


def write_parted(day: pa.Table, rows: pa.Table, log: Path, large_rows: int) -> None:
    """Write a log in hive folders with an integer key, an empty file, two types of ids, and bad rows."""
    large = day.take(pa.array(np.arange(large_rows) % day.num_rows)).drop_columns(["hour"])
    dictionary = day.set_column(0, "user_id", day["user_id"].dictionary_encode()).drop_columns(["hour"])
    tables = {"hour=7": large, "hour=8": day.slice(0, 0).drop_columns(["hour"]), "hour=11": dictionary}
    for name, table in {**tables, "hour=9": rows.drop_columns(["hour"])}.items():
        (log / name).mkdir(parents=True)
        write(table, log / name, "part-0.parquet")


@pytest.fixture
def parted(day: pa.Table, rows: pa.Table, tmp_path: Path) -> Path:
    """A log of several parts that a test may change."""
    write_parted(day, rows, tmp_path / "log", 2_000)
    return tmp_path / "log"


@pytest.fixture
def whole(ranker: FrozenRanker, day: pa.Table, rows: pa.Table, once: Once) -> Path:
    """A folder with a log of several parts, one of them with several chunks, and its scores and counts; read only."""

    def score_whole(folder: Path) -> None:
        write_parted(day, rows, folder / "log", CHUNK_ROWS + 1_000)
        counts = score_log(ranker, folder / "log", folder / "scores.parquet", ["click", "like"])
        (folder / "counts.json").write_text(json.dumps(counts))

    return once("scores of a parted log", score_whole)


def check_parts(bundle: Path, whole: Path, folder: Path, engine: Engine) -> None:
    """Check that parts have the scores, counts and bad rows of the whole log."""
    counts = json.loads((whole / "counts.json").read_text())
    assert score_parts(bundle, whole / "log", folder / "scores", engine, ["click", "like"]) == counts
    assert counts["bad"] == 2
    scores = pq.read_table(whole / "scores.parquet")
    parts = sorted((folder / "scores").iterdir())
    assert [part.name for part in parts] == [f"part-0000{number}.parquet" for number in range(4)]
    assert pa.concat_tables([pq.read_table(part) for part in parts]).equals(scores)
    bad_rows = [whole / "scores.parquet.quarantine.jsonl", folder / "scores.quarantine.jsonl"]
    assert bad_rows[0].read_text() == bad_rows[1].read_text()
    assert set(folder.iterdir()) == {folder / "scores", bad_rows[1]}
    assert set(whole.iterdir()) == {whole / name for name in ("log", "scores.parquet", "counts.json")} | {bad_rows[0]}


def test_parts_have_the_scores_of_the_whole_log(bundle: Path, whole: Path, tmp_path: Path) -> None:
    check_parts(bundle, whole, tmp_path, map)


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.nightly)])
def test_parts_in_processes_have_the_scores_of_the_whole_log(
    bundle: Path, whole: Path, tmp_path: Path, workers: int
) -> None:
    """Protects the workers: they import the packages, which takes seconds."""
    check_parts(bundle, whole, tmp_path, partial(run_in_processes, workers))


def test_part_that_is_scored_twice_is_counted_once(bundle: Path, parted: Path, tmp_path: Path) -> None:
    """As if an engine had lost sight of a worker that still runs."""

    def repeat(function: Callable[[Part], ScoringCounts], parts: Sequence[Part]) -> Iterator[ScoringCounts]:
        for part in parts:
            (part.out.parent / ".killed").write_bytes(b"PAR1")
            function(part)
            yield function(part)

    counts = score_parts(bundle, parted, tmp_path / "scores", repeat)
    assert counts["scored"] == sum(pq.read_metadata(part).num_rows for part in (tmp_path / "scores").iterdir())


def test_file_that_disappears_before_its_worker_reads_it_is_reported(
    bundle: Path, parted: Path, tmp_path: Path
) -> None:
    def remove(function: Callable[[Part], ScoringCounts], parts: Sequence[Part]) -> Iterator[ScoringCounts]:
        (parted / "hour=8" / "part-0.parquet").unlink()
        return map(function, parts)

    with pytest.raises(LogError, match=r"^hour=8/part-0\.parquet: was removed after the log was listed"):
        score_parts(bundle, parted, tmp_path / "scores", remove)
    assert [file.name for file in tmp_path.iterdir()] == ["log"]


def test_parts_with_a_damaged_file_leave_nothing(bundle: Path, parted: Path, tmp_path: Path) -> None:
    (parted / "hour=11" / "part-0.parquet").write_text("not Parquet")
    with pytest.raises(LogError, match=r"hour=11/part-0\.parquet"):
        score_parts(bundle, parted, tmp_path / "scores", map)
    assert [file.name for file in tmp_path.iterdir()] == ["log"]


def test_parts_whose_ids_have_other_types_are_rejected(bundle: Path, day: pa.Table, tmp_path: Path) -> None:
    (tmp_path / "log").mkdir()
    write(day.set_column(0, "user_id", pa.array(range(day.num_rows))), tmp_path / "log", "a.parquet")
    write(day, tmp_path / "log", "b.parquet")
    with pytest.raises(LogError, match=r"b\.parquet: column 'user_id' holds string, but int64 in .*a\.parquet: "):
        score_parts(bundle, tmp_path / "log", tmp_path / "scores", map)


def test_parts_without_rows_or_into_an_existing_folder_are_rejected(
    bundle: Path, day: pa.Table, tmp_path: Path
) -> None:
    with pytest.raises(LogError, match="the log is empty: there are no rows to score"):
        score_parts(bundle, write(day.slice(0, 0), tmp_path), tmp_path / "scores", map)
    with pytest.raises(OutputError, match="exists and is never overwritten"):
        score_parts(bundle, write(day, tmp_path), tmp_path, map)


def test_parts_of_strangers_are_rejected_unless_allowed(bundle: Path, day: pa.Table, tmp_path: Path) -> None:
    strangers = day.set_column(0, "user_id", pa.array(["nobody"] * day.num_rows))
    strangers = strangers.set_column(1, "item_id", pa.array(["nothing"] * day.num_rows))
    log = write(strangers, tmp_path)
    with pytest.raises(LogError, match=r"of \d+ feature columns have no value in any row"):
        score_parts(bundle, log, tmp_path / "scores", map)
    assert list(tmp_path.iterdir()) == [log]
    score_parts(bundle, log, tmp_path / "scores", map, allow_missing=True)
