"""The files of a log, scored by the workers of an engine, give the predictions of one process."""

from __future__ import annotations

import dataclasses
import errno
import json
import shutil
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import ranking
from pipelines.cli.main import main
from pipelines.data.splits import TimeRange
from pipelines.evaluation.compare import compare
from pipelines.evaluation.evaluate import evaluate
from pipelines.evaluation.predict import predict
from pipelines.evaluation.predictions import Predictions
from pipelines.evaluation.sources import LogRange, Scorer, bundle_scorer, run_scorers
from pipelines.jobs.train import train
from pipelines.runs.run import RunFolder
from ranking.errors import LogError, OutputError
from tests.pipelines.conftest import FIRST_DAY, QUICK
from tests.support.spilled import values_of

if TYPE_CHECKING:
    from tests.pipelines.conftest import Shop

SLICES = ["country", "age", "new_user", "missing"]


def from_last_to_first(function: Callable[[Any], Any], parts: Sequence[Any]) -> Iterable[Any]:
    """An engine that returns the results in another order."""
    return [function(part) for part in reversed(parts)]


@pytest.fixture(scope="module")
def source(bundle: Path) -> Scorer:
    """The scorer of the bundle; read only."""
    return bundle_scorer(ranking.load(bundle), str(bundle))


@pytest.fixture(scope="module")
def parted(logs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log of several files in a folder, one of them empty, with bad rows and rows that repeat others; read only."""
    log = tmp_path_factory.mktemp("parted") / "log"

    def write(day: str, file: int, rows: pa.Table) -> None:
        (log / day).mkdir(parents=True, exist_ok=True)
        pq.write_table(rows, log / day / f"part-{file}.parquet", row_group_size=50)

    days = ("date=2026-01-09", "date=2026-01-10")
    first, second = (pq.read_table(logs / "log" / day, partitioning=None) for day in days)
    bad = first.slice(0, 2).set_column(
        first.column_names.index("click"), "click", pa.array([7, 7], first["click"].type)
    )
    write(days[0], 0, pa.concat_tables([first[:60], first[10:15], bad]))
    write(days[0], 1, pa.concat_tables([bad, first[40:]]))
    write(days[0], 2, first[50:70])
    write(days[1], 0, second)
    write(days[1], 1, second[:0])
    return log


def assert_same(parts: Predictions, whole: Predictions) -> None:
    for name in ("labels", "outputs"):
        np.testing.assert_array_equal(values_of(getattr(parts, name)), values_of(getattr(whole, name)))
    for name in ("users", "days", "positions"):
        np.testing.assert_array_equal(getattr(parts, name), getattr(whole, name))
    assert (parts.files, parts.bad_rows) == (whole.files, whole.bad_rows)
    assert parts.without_row.keys() == whole.without_row.keys()
    for owner, outputs in whole.without_row.items():
        np.testing.assert_array_equal(values_of(parts.without_row[owner]), values_of(outputs))
    for of_parts, of_whole in zip(parts.slices, whole.slices, strict=True):
        assert {name: rows.tolist() for name, rows in of_parts.groups().items()} == {
            name: rows.tolist() for name, rows in of_whole.groups().items()
        }


def warnings(printed: str) -> list[str]:
    """Messages without those about progress, which contain durations."""
    return [line for line in printed.splitlines() if " rows are " in line]


def test_parts_have_the_predictions_of_the_whole_log(
    source: Scorer, parted: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = predict(source, LogRange(parted), SLICES)
    messages = warnings(capsys.readouterr().err)
    assert messages[0].startswith("2 bad rows are not evaluated: 2 × label 'click' is neither 0 nor 1 (the first is ")
    assert whole.bad_rows == {"label 'click' is neither 0 nor 1": 2}
    for engine in (map, from_last_to_first):
        parts = predict(source, LogRange(parted), SLICES, engine=engine)
        assert_same(parts, whole)
        assert parts.gates.to_json() == whole.gates.to_json()
        assert warnings(capsys.readouterr().err) == messages


@pytest.mark.nightly(short="test_parts_have_the_predictions_of_the_whole_log")
def test_parts_of_a_share_of_the_users_in_a_time_range_have_their_predictions(source: Scorer, parted: Path) -> None:
    log_range = LogRange(parted, TimeRange(until=datetime(2026, 1, 10, 12)), users=0.5)
    some = predict(source, log_range, SLICES)
    assert 0 < len(some) < len(predict(source, LogRange(parted)))
    assert_same(predict(source, log_range, SLICES, engine=map), some)


@pytest.mark.nightly(short="test_parts_have_the_predictions_of_the_whole_log")
def test_parts_of_a_per_example_gate_have_its_statistics(run_of: Callable[[str], RunFolder], parted: Path) -> None:
    (source,) = run_scorers(run_of("dselect_k per example"))
    whole, parts = (predict(source, LogRange(parted), engine=engine) for engine in (None, map))
    assert_same(parts, whole)
    assert parts.gates.to_json() == whole.gates.to_json()


@pytest.mark.nightly(short="test_parts_have_the_predictions_of_the_whole_log")
def test_parts_have_the_predictions_of_the_baselines(run: RunFolder) -> None:
    (source,) = run_scorers(run)
    source = dataclasses.replace(source, settings=source.settings.model_copy(update={"bootstrap": 10}))
    whole, parts = (evaluate(source, baselines=True, engine=engine) for engine in (None, map))
    assert parts == whole
    assert {"linear", "lightgbm", "user_mean"} <= set(whole["baselines"]["tasks"]["click"])


def test_parts_leave_out_rows_that_a_later_folder_replaces(shop: Shop) -> None:
    table = shop.table(400).append_column("request_id", pa.array([f"r{n}" for n in range(400)]))
    folders = shop.folder / "history", shop.folder / "joined"
    for folder, rows in zip(folders, (table, table.slice(300, 80)), strict=True):
        folder.mkdir()
        for number in range(2):
            half = rows.slice(number * len(rows) // 2, len(rows) // 2)
            pq.write_table(half, folder / f"part-{number}.parquet")
    config = shop.config(logs={"path": folders, "test_from": FIRST_DAY.replace(day=10)}, **QUICK)
    run = train(config, shop.folder / "run")
    (source,) = run_scorers(run)
    whole, parts = (predict(source, LogRange(folders), engine=engine) for engine in (None, map))
    assert len(whole) == 400
    assert_same(parts, whole)


@pytest.mark.nightly(short="test_parts_have_the_predictions_of_the_whole_log")
def test_compare_by_parts_equals_one_process(run: RunFolder, source: Scorer, logs: Path) -> None:
    whole, parts = (compare(run_scorers(run), [source], logs / "log", engine=engine) for engine in (None, map))
    assert parts == whole


def test_file_that_is_damaged_before_its_worker_reads_it_is_named(source: Scorer, parted: Path, tmp_path: Path) -> None:
    log = shutil.copytree(parted, tmp_path / "log")
    damaged = log / "date=2026-01-09" / "part-2.parquet"

    def engine(function: Callable[[Any], Any], parts: Sequence[Any]) -> Iterable[Any]:
        damaged.write_bytes(b"not Parquet")
        return map(function, parts)

    with pytest.raises(LogError, match=f"{damaged}: "):
        predict(source, LogRange(log), engine=engine)


@pytest.fixture(scope="module")
def run_of_one_file(shared_shop: Shop) -> RunFolder:
    """A run on the log of ``shared_shop``, which has one file; read only."""
    return train(shared_shop.config(**QUICK), shared_shop.folder / "run")


@pytest.mark.parametrize("other", [pa.array(["9"] * 20), None], ids=["type", "missing"])
def test_columns_of_a_file_are_compared_with_those_of_others(
    other: pa.Array | None, shop: Shop, run_of_one_file: RunFolder
) -> None:
    """A worker reads one file only."""
    (source,) = run_scorers(run_of_one_file)
    shop.write(shop.table(200))
    rows = shop.table(20)
    place = rows.column_names.index("tab")
    shop.write(rows.remove_column(place) if other is None else rows.set_column(place, "tab", other), "part-1.parquet")
    messages = []
    for engine in (None, map):
        with pytest.raises(LogError, match=r"part-1\.parquet: column 'tab' ") as caught:
            predict(source, LogRange(shop.log), engine=engine)
        messages.append(str(caught.value))
    assert messages[0] == messages[1]
    assert "part-0.parquet" in messages[0]


def test_full_folder_for_temporary_files_is_named(
    source: Scorer, parted: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    def engine(function: Callable[[Any], Any], parts: Sequence[Any]) -> Iterable[Any]:
        monkeypatch.setattr(Path, "write_bytes", full)
        return map(function, parts)

    message = rf"^{tmp_path}: cannot be written or read \(No space left on device\); free space, or set TMPDIR"
    with pytest.raises(OutputError, match=message):
        predict(source, LogRange(parted), engine=engine)
    assert not list(tmp_path.glob("ranker-*"))


@pytest.mark.nightly(short="test_parts_have_the_predictions_of_the_whole_log")
@pytest.mark.usefixtures("programs")
def test_evaluate_with_workers_prints_the_measures_of_one_process(
    bundle: Path, parted: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Protects the command: workers load the model themselves, which takes seconds."""
    arguments = ["evaluate", str(bundle), "--logs", str(parted), "--json"]
    printed = []
    for workers in ([], ["--workers", "2"]):
        assert main([*arguments, *workers]) == 0
        printed.append(json.loads(capsys.readouterr().out))
    assert printed[0] == printed[1]
