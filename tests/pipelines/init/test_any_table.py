"""Any flat table with a label gives a configuration that ``ranker check`` accepts, or an error of one line."""

from __future__ import annotations

import io
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st

from pipelines.cli.main import main

NAMES = [
    "time", "timestamp", "date", "user_id", "userId", "item_id", "movieId", "session_id", "position", "weight", "price",
    "genres", "history", "age", "is_click", "rating", "watch_time", "label", "watch time", "ünï", "0", "category", "n",
    "is_hate", "revenue", "birth_date", "valid_from", "x.y", "user", "y", "clicks_7d", "id", "", "%", "a\nb", "\"q\"",
]  # fmt: skip
TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=8)


def column(rows: int) -> st.SearchStrategy[pa.Array]:
    """Columns of every type, with nulls, that repeat values or do not."""

    def values(element: st.SearchStrategy[Any], kind: pa.DataType) -> st.SearchStrategy[pa.Array]:
        pool = st.lists(element, min_size=1, max_size=max(1, rows))
        picked = pool.flatmap(lambda some: st.lists(st.sampled_from(some), min_size=rows, max_size=rows))
        return picked.map(lambda picks: pa.array(picks, kind))

    def nullable(element: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
        return st.one_of(element, element, element, st.none())

    whole = st.one_of(st.integers(0, 3), st.integers(-5, 5000), st.integers(-(2**63), 2**63 - 1))
    floats = st.one_of(st.floats(-10, 1000), st.floats(), st.integers(0, 9).map(float))
    unix = st.integers(1_000_000_000, 1_700_000_000)
    return st.one_of(
        values(nullable(whole), pa.int64()),
        values(unix, pa.int64()),
        values(unix.map(lambda second: second * 1000), pa.int64()),
        values(st.integers(0, 2**64 - 1), pa.uint64()),
        values(st.integers(0, 100), pa.int8()),
        values(nullable(floats), pa.float64()),
        values(nullable(st.booleans()), pa.bool_()),
        values(nullable(TEXT), pa.string()),
        values(st.sampled_from(["yes", "no"]), pa.string()),
        values(st.sampled_from(["a|b", "a", "b|c", "c|d|a", "d"]), pa.string()),
        values(st.dates(), pa.date32()),
        values(st.datetimes(), pa.timestamp("us")),
        values(nullable(unix), pa.timestamp("s", "UTC")),
        values(unix.map(lambda second: f"{pa.scalar(second, pa.timestamp('s'))}"), pa.string()),
        values(nullable(st.lists(st.integers(0, 9), max_size=3)), pa.list_(pa.int64())),
        values(nullable(st.lists(TEXT, max_size=3)), pa.list_(pa.string())),
        values(st.lists(st.floats(), max_size=3), pa.list_(pa.float64())),
        values(st.decimals(-100, 100, places=2), pa.decimal128(12, 2)),
        values(st.binary(max_size=4), pa.binary()),
        values(st.integers(0, 3).map(lambda value: {"a": value}), pa.struct({"a": pa.int64()})),
        st.just(pa.nulls(rows)),
        st.just(pa.array(range(rows))),
    )


@st.composite
def tables(draw: st.DrawFn) -> pa.Table:
    """Tables with up to eight columns, of which one may be a label."""
    rows = draw(st.sampled_from([60, 200, 25, 7, 0]))
    names = draw(st.lists(st.sampled_from(NAMES), min_size=1, max_size=7, unique=True))
    columns = {name: draw(column(rows)) for name in names}
    if draw(st.integers(0, 4)):
        columns["clicked"] = pa.array(draw(st.lists(st.integers(0, 1), min_size=rows, max_size=rows)), pa.int64())
    return pa.table(columns)


def ranker(*arguments: object) -> tuple[int, str, str]:
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = main([str(argument) for argument in arguments])
    return code, out.getvalue(), err.getvalue()


def assert_accepted_or_explained(folder: Path, log: Path) -> bool:
    """Run ``init`` and ``check``; return whether there is a configuration."""
    for file in folder.glob("ranker*"):
        file.unlink()
    before = set(folder.iterdir())
    out = folder / "ranker.toml"
    code, _, err = ranker("init", log, "--out", out)
    assert "Traceback" not in err
    if code:
        assert code == 1
        (error,) = (line for line in err.splitlines() if line.startswith("ranker: "))
        note(error)
        assert err.splitlines()[-1] == error
        assert set(folder.iterdir()) == before
        return False
    note(out.read_text())
    code, text, err = ranker("check", out)
    assert code == 0, text + err
    return True


@settings(max_examples=settings().max_examples // 2, suppress_health_check=list(HealthCheck))
@given(tables())
def test_any_parquet_table_gives_a_valid_configuration_or_one_line(
    tmp_path_factory: pytest.TempPathFactory, table: pa.Table
) -> None:
    folder = tmp_path_factory.mktemp("log")
    pq.write_table(table, folder / "table.parquet")
    assert_accepted_or_explained(folder, folder / "table.parquet")


@settings(max_examples=settings().max_examples // 3, suppress_health_check=list(HealthCheck))
@given(tables(), st.sampled_from([",", ";", "\t"]))
def test_any_csv_table_gives_a_valid_configuration_or_one_line(
    tmp_path_factory: pytest.TempPathFactory, table: pa.Table, delimiter: str
) -> None:
    flat = [f.name for f in table.schema if not pa.types.is_nested(f.type) and not pa.types.is_binary(f.type)]
    if not flat:
        return
    folder = tmp_path_factory.mktemp("log")
    pa_csv.write_csv(table.select(flat), folder / "table.csv", pa_csv.WriteOptions(delimiter=delimiter))
    assert_accepted_or_explained(folder, folder / "table.csv")
