"""Schema of a log: missing columns, wrong types, types that differ between files, masks and sample weights."""

from __future__ import annotations

from datetime import UTC, date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest

from pipelines.data.splits import TimeRange
from pipelines.inspection.profile import profile_log
from ranking.encoding.encoder import encode_labels, encode_weights
from ranking.encoding.feature_table import FeatureTable
from ranking.errors import LogError
from tests.pipelines.conftest import row_numbers, scan_error

if TYPE_CHECKING:
    from tests.pipelines.conftest import Shop

MORNING = datetime(2026, 1, 5)


def parameter_id(value: str | pa.Array) -> str:
    """Return the test id of a column name or of values."""
    return value if isinstance(value, str) else str(value.type)


# Missing columns.


@pytest.mark.parametrize(
    ("column", "found", "what"),
    [
        ("is_click", "is_clik", "label of task 'click'"),
        ("seconds", "second", "label of task 'watch'"),
        ("age", "agee", "feature 'age'"),
        ("tags", "tag", "feature 'tags'"),
        ("item_id", "itemid", "the item id"),
        ("user_id", "userid", "the user id"),
        ("time", "times", "the time"),
    ],
)
def test_missing_column_error_suggests_the_similar_column(shop: Shop, column: str, found: str, what: str) -> None:
    table = shop.table(5)
    file = shop.write(table.rename_columns([found if c == column else c for c in table.column_names]))
    assert scan_error(shop) == f"{file}: column '{column}' ({what}) is missing; did you mean '{found}'?"


def test_missing_column_error_without_similar_column_lists_all_columns(shop: Shop) -> None:
    shop.write(shop.table(5).drop_columns(["price"]))
    text = scan_error(shop)
    assert "'price'" in text
    assert "(found: age, is_click, item_id, n, seconds, tab, tags, time, user_id)" in text


def test_missing_columns_error_leaves_out_side_table_columns(shop: Shop) -> None:
    users = FeatureTable(pa.table({"user_id": ["u1"], "age": [1.0]}), "user_id")
    file = shop.write(shop.table(5).select(["n", "time", "user_id", "tags", "is_click", "seconds"]))
    with pytest.raises(LogError) as caught:
        list(shop.reader(tables={"user": users}).scan())
    assert str(caught.value) == (
        f"{file}: column 'item_id' (the item id), column 'price' (feature 'price'), column 'tab' (feature 'tab') "
        "are missing (found: is_click, n, seconds, tags, time, user_id)"
    )


def test_missing_columns_error_names_a_file_that_has_them(shop: Shop) -> None:
    first = shop.write(shop.table(5), "part-0.parquet")
    later = shop.write(shop.table(5).drop_columns(["age", "tab"]), "part-1.parquet")
    assert scan_error(shop) == (
        f"{later}: column 'age' (feature 'age'), column 'tab' (feature 'tab') are missing, "
        f"but {first} has them: write them in all files"
    )


def test_missing_column_of_later_file_names_that_file(shop: Shop) -> None:
    shop.write(shop.table(5), "part-0.parquet")
    later = shop.write(shop.table(5).drop_columns(["age"]), "part-1.parquet")
    assert scan_error(shop).startswith(f"{later}: column 'age' (feature 'age') is missing")


def test_missing_feature_column_is_taken_from_the_side_table(shop: Shop) -> None:
    table = shop.table(20)
    users = pa.table({"user_id": [f"u{i}" for i in range(20)], "age": [float(i) for i in range(20)]})
    shop.write(table.drop_columns(["age"]))
    (chunk,) = shop.reader(tables={"user": FeatureTable(users, "user_id")}).scan()
    assert chunk.rows["age"].to_pylist() == [float(user[1:]) for user in table["user_id"].to_pylist()]


def test_reader_without_labels_accepts_log_without_labels_time_and_user(shop: Shop) -> None:
    users = {"user": FeatureTable(pa.table({"user_id": ["u1"], "age": [1.0]}), "user_id")}
    shop.write(shop.table(5).drop_columns(["is_click", "seconds", "time"]))
    assert row_numbers(shop.reader(labels=False, tables=users).scan()) == list(range(5))


def test_reader_without_labels_requires_the_item_id(shop: Shop) -> None:
    file = shop.write(shop.table(5).drop_columns(["item_id"]))
    with pytest.raises(LogError) as caught:
        list(shop.reader(labels=False).scan())
    assert str(caught.value).startswith(f"{file}: column 'item_id'")


# Wrong types.


@pytest.mark.parametrize(
    ("column", "values", "fix"),
    [
        ("age", ["young", "old"], "write numbers"),
        ("tags", ["red", "new"], "write lists of ids"),
        ("tab", [0.5, 1.5], "must be integers or strings"),
        ("user_id", [b"u1", b"u2"], "write integers or strings"),
        ("is_click", ["yes", "no"], "write numbers"),
        ("seconds", ["1", "2"], "write numbers"),
    ],
)
def test_wrong_type_error_names_file_column_and_fix(shop: Shop, column: str, values: list[Any], fix: str) -> None:
    table = shop.table(2)
    file = shop.write(table.set_column(table.column_names.index(column), column, pa.array(values)))
    text = scan_error(shop)
    assert text.startswith(f"{file}: column '{column}'")
    assert fix in text


@pytest.mark.parametrize(
    ("column", "values"),
    [
        ("is_click", pa.array([True, False])),
        ("is_click", pa.array([1.0, None])),
        ("is_click", pa.array([1, 0], pa.uint64())),
        ("is_click", pa.nulls(2)),
        ("age", pa.array([True, None])),
        ("age", pa.array([30, 40], pa.uint8())),
        ("age", pa.array([1.5, None], pa.float32())),
        ("age", pa.array([1.5, None], pa.float16())),
        ("tab", pa.array([1.0, None])),
        ("tab", pa.array([True, False])),
        ("tab", pa.array(["1", "2"]).dictionary_encode()),
        ("user_id", pa.array(["u", None], pa.large_string())),
        ("tags", pa.array([["a"], None], pa.large_list(pa.string()))),
        ("tags", pa.array([["a", "b"], ["c", "d"]], pa.list_(pa.string(), 2))),
        ("tags", pa.array([["a"], ["b"]], pa.list_(pa.dictionary(pa.int32(), pa.string())))),
        ("tags", pa.nulls(2)),
    ],
    ids=parameter_id,
)
def test_other_widths_of_the_same_kind_are_accepted(shop: Shop, column: str, values: pa.Array) -> None:
    table = shop.table(2)
    shop.write(table.set_column(table.column_names.index(column), column, values))
    assert row_numbers(shop.reader().scan()) == [0, 1]


# Time column.


@pytest.mark.parametrize(
    "kind", [pa.int64(), pa.float64(), pa.string(), pa.time64("us")], ids=lambda kind: str(kind).split("[")[0]
)
def test_time_column_of_another_type_is_rejected(shop: Shop, kind: pa.DataType) -> None:
    table = shop.table(5)
    values = pa.array(range(5)).cast(pa.int64()).cast(kind, safe=False)
    file = shop.write(table.set_column(1, "time", values))
    text = scan_error(shop)
    assert text.startswith(f"{file}: column 'time'")
    assert "write timestamps" in text


def test_time_column_of_another_type_is_rejected_in_a_split(shop: Shop) -> None:
    file = shop.write(shop.table(5).set_column(1, "time", pa.array(range(5))))
    with pytest.raises(LogError, match="write timestamps") as caught:
        list(shop.reader().scan(TimeRange(since=MORNING)))
    assert str(caught.value).startswith(f"{file}: column 'time'")


# A column with different types in the files of a log.


def write_two_files(shop: Shop, column: str, values: pa.Array) -> tuple[Path, Path]:
    """Write two files; the second has these values in the column."""
    table = shop.table(20)
    later = table.slice(10).set_column(table.column_names.index(column), column, values)
    return shop.write(table.slice(0, 10), "part-0.parquet"), shop.write(later, "part-1.parquet")


@pytest.mark.parametrize(
    ("column", "values", "before", "after"),
    [
        ("tab", pa.array(list("0123456789")), "int64", "string"),
        ("user_id", pa.array(range(10)), "string", "int64"),
        ("user_id", pa.array([1.0] * 10), "string", "double"),
        ("age", pa.array(["30"] * 10), "double", "string"),
        ("is_click", pa.array(["1"] * 10), "int8", "string"),
        ("tags", pa.array(["red"] * 10), "list<element: string>", "string"),
        ("tags", pa.array([[1]] * 10), "list<element: string>", "list<element: int64>"),
        ("tags", pa.array([[["red"]]] * 10), "list<element: string>", "list<element: list<element: string>>"),
        ("tab", pa.array([{"id": 1}] * 10), "int64", "struct<id: int64>"),
        ("time", pa.array([datetime(2026, 1, 6, tzinfo=UTC)] * 10), "timestamp[us]", "timestamp[us, tz=UTC]"),
        ("time", pa.array([date(2026, 1, 6)] * 10), "timestamp[us]", "date32[day]"),
    ],
    ids=parameter_id,
)
def test_type_change_between_files_names_both_files(
    shop: Shop, column: str, values: pa.Array, before: str, after: str
) -> None:
    first, second = write_two_files(shop, column, values)
    assert scan_error(shop) == (
        f"{second}: column '{column}' holds {after}, but {before} in {first}: "
        "write one type in all files, or move the files of one type away"
    )


@pytest.mark.parametrize(
    ("column", "values"),
    [
        ("tab", pa.array(range(10), pa.int32())),
        ("tab", pa.array([float(i) for i in range(9)] + [None])),
        ("tab", pa.array([True] * 10)),
        ("tab", pa.nulls(10)),
        ("user_id", pa.array(["u1"] * 10).dictionary_encode()),
        ("user_id", pa.array(["u1"] * 10, pa.large_string())),
        ("age", pa.array(range(10), pa.int16())),
        ("is_click", pa.array([True] * 10)),
        ("tags", pa.array([["red"]] * 10, pa.large_list(pa.string()))),
        ("tags", pa.array([[]] * 10)),
        ("time", pa.array([datetime(2026, 1, 6)] * 10, pa.timestamp("ms"))),
    ],
    ids=parameter_id,
)
def test_type_change_within_a_kind_is_accepted(shop: Shop, column: str, values: pa.Array) -> None:
    write_two_files(shop, column, values)
    assert row_numbers(shop.reader().scan()) == list(range(20))


def test_fractional_numbers_in_an_id_column_are_rejected(shop: Shop) -> None:
    _, second = write_two_files(shop, "tab", pa.array([1.5] * 10))
    assert scan_error(shop).startswith(f"{second}: column 'tab': 'tab' is a categorical: its ids must be integers")


def test_type_change_outside_the_schema_is_accepted(shop: Shop) -> None:
    write_two_files(shop, "n", pa.array(["x"] * 10))
    assert sum(chunk.rows.num_rows for chunk in shop.reader().scan()) == 20


@pytest.mark.parametrize(("lacking", "named", "has"), [([0], 0, 2), ([1], 1, 0), ([0, 1], 0, 2)])
def test_column_missing_in_some_files_names_a_file_that_has_it(
    shop: Shop, lacking: list[int], named: int, has: int
) -> None:
    table = shop.table(30)
    parts = [table.slice(10 * i, 10).drop_columns(["price"] if i in lacking else []) for i in range(3)]
    files = [shop.write(part, f"part-{i}.parquet") for i, part in enumerate(parts)]
    assert scan_error(shop) == (
        f"{files[named]}: column 'price' (feature 'price') is missing, but {files[has]} has it: write it in all files"
    )


@pytest.fixture
def weighted_shop(shop: Shop) -> Shop:
    """A shop with mask ``asked`` for task click and sample weights in ``weight``."""
    click, watch = shop.schema.tasks
    columns = shop.schema.columns.model_copy(update={"weight": "weight"})
    tasks = (click.model_copy(update={"mask": "asked"}), watch)
    shop.schema = shop.schema.model_copy(update={"columns": columns, "tasks": tasks})
    return shop


def with_columns(table: pa.Table, asked: Any = None, weight: Any = None) -> pa.Table:
    rows = table.num_rows
    table = table.append_column("asked", pa.array([1] * rows) if asked is None else asked)
    return table.append_column("weight", pa.array([1.0] * rows) if weight is None else weight)


@pytest.mark.parametrize(
    ("column", "value", "reason"),
    [
        ("weight", -0.5, "weight 'weight' is negative, NaN, infinite or above 1e+15"),
        ("weight", float("nan"), "weight 'weight' is negative, NaN, infinite or above 1e+15"),
        ("weight", float("inf"), "weight 'weight' is negative, NaN, infinite or above 1e+15"),
        ("weight", 1e16, "weight 'weight' is negative, NaN, infinite or above 1e+15"),
        ("asked", 2, "mask 'asked' is neither 0 nor 1"),
    ],
)
def test_invalid_mask_or_weight_makes_a_bad_row(weighted_shop: Shop, column: str, value: Any, reason: str) -> None:
    weighted_shop.write(weighted_shop.with_value(with_columns(weighted_shop.table(4)), column, 2, value))
    (chunk,) = weighted_shop.reader().scan()
    assert chunk.bad.select(["file_row", "reason"]).to_pylist() == [{"file_row": 2, "reason": reason}]
    assert chunk.rows.num_rows == 3


@pytest.mark.parametrize("kind", [pa.bool_(), pa.int8(), pa.float32()])
def test_label_with_true_mask_is_kept_and_others_become_nan(weighted_shop: Shop, kind: pa.DataType) -> None:
    asked = pa.array([1, 0, None, 1]).cast(kind)
    weighted_shop.write(with_columns(weighted_shop.table(4), asked=asked))
    (chunk,) = weighted_shop.reader().scan()
    labels = encode_labels(chunk.rows, weighted_shop.schema.tasks)
    unmasked = encode_labels(chunk.rows, [t.model_copy(update={"mask": None}) for t in weighted_shop.schema.tasks])
    assert np.isnan(labels[:, 0]).tolist() == [False, True, True, False]
    assert np.array_equal(labels[[0, 3]], unmasked[[0, 3]])
    assert np.array_equal(labels[:, 1], unmasked[:, 1], equal_nan=True)


def test_label_above_2_to_53_is_rounded(shop: Shop) -> None:
    (regression,) = (task for task in shop.schema.tasks if task.kind == "regression")
    table = shop.table(2)
    large = pa.array([2**53 + 1, 1])
    shop.write(table.set_column(table.column_names.index(regression.label), regression.label, large))
    (chunk,) = shop.reader().scan()
    assert encode_labels(chunk.rows, [regression])[0, 0] == pytest.approx(np.log1p(2.0**53))


def test_null_mask_masks_every_label(weighted_shop: Shop) -> None:
    weighted_shop.write(with_columns(weighted_shop.table(4), asked=pa.nulls(4)))
    (chunk,) = weighted_shop.reader().scan()
    assert np.isnan(encode_labels(chunk.rows, weighted_shop.schema.tasks)[:, 0]).all()


@pytest.mark.parametrize(
    ("weight", "expected"),
    [
        (pa.array([0.0, 2.5, None, 1.0]), [0.0, 2.5, 1.0, 1.0]),
        (pa.array([0, 3, None, 1]), [0.0, 3.0, 1.0, 1.0]),
        (pa.nulls(4), [1.0] * 4),
    ],
)
def test_row_with_null_weight_has_weight_one(weighted_shop: Shop, weight: pa.Array, expected: list[float]) -> None:
    weighted_shop.write(with_columns(weighted_shop.table(4), weight=weight))
    (chunk,) = weighted_shop.reader().scan()
    found = encode_weights(chunk.rows, weighted_shop.schema.columns)
    assert found.dtype == np.float32
    assert found.tolist() == expected


def test_rows_without_weight_column_have_weight_one(shop: Shop) -> None:
    assert encode_weights(shop.table(3), shop.schema.columns).tolist() == [1.0] * 3


def test_masked_labels_are_excluded_from_the_base_rate(weighted_shop: Shop) -> None:
    table = weighted_shop.table(100)
    clicks = table["is_click"].to_pylist()
    weighted_shop.write(with_columns(table, asked=pa.array(clicks)))
    found = profile_log(weighted_shop.reader(), weighted_shop.logs(), weighted_shop.schema)
    assert found.labels["train"]["click"].rows == sum(clicks[:80])
    assert found.labels["train"]["click"].mean == 1.0


@pytest.mark.parametrize(("column", "what"), [("asked", "mask of task 'click'"), ("weight", "the sample weight")])
def test_missing_mask_or_weight_is_rejected_only_with_labels(weighted_shop: Shop, column: str, what: str) -> None:
    weighted_shop.write(with_columns(weighted_shop.table(4)).drop_columns([column]))
    with pytest.raises(LogError, match=f"column '{column}' \\({what}\\) is missing"):
        list(weighted_shop.reader().scan())
    (chunk,) = weighted_shop.reader(labels=False).scan()
    assert chunk.rows.num_rows == 4


@pytest.mark.parametrize(("column", "what"), [("asked", "the mask of 'click'"), ("weight", "the sample weight")])
def test_text_mask_or_weight_is_rejected(weighted_shop: Shop, column: str, what: str) -> None:
    weighted_shop.write(with_columns(weighted_shop.table(2), **{column: pa.array(["1", "1"])}))
    with pytest.raises(LogError, match=f"'{column}': holds string, but it is {what}: write numbers"):
        list(weighted_shop.reader().scan())
