"""Warnings about features of the training split: absent, constant, and copies of a label."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from pipelines.inspection.feature_inspection import FeatureInspector

if TYPE_CHECKING:
    from tests.pipelines.conftest import Shop


def warnings(shop: Shop, table: pa.Table, chunk: int = 1000) -> list[str]:
    """Return the warnings about a table that is added in chunks."""
    shop.write(table)
    inspector = FeatureInspector(shop.schema)
    for scanned in shop.reader().scan():
        for start in range(0, scanned.rows.num_rows, chunk):
            inspector.add(scanned.rows.slice(start, chunk), scanned.positions[start : start + chunk])
    return list(inspector.warnings())


def with_column(table: pa.Table, column: str, values: Any) -> pa.Table:
    return table.set_column(table.column_names.index(column), column, values)


def test_clean_log_has_no_warnings(shop: Shop) -> None:
    assert warnings(shop, shop.table(2000)) == []


@pytest.mark.parametrize(
    ("column", "value"),
    [("age", 5.0), ("price", 0.0), ("tab", 3), ("user_id", "u"), ("tags", ["a", "b"]), ("tags", [])],
)
def test_constant_feature_is_named_with_its_value(shop: Shop, column: str, value: Any) -> None:
    table = shop.table(500)
    values = pa.array([value] * 500, table.schema.field(column).type)
    (warning,) = warnings(shop, with_column(table, column, values), chunk=100)
    assert warning.startswith(f"feature '{column}' is {value!r} in every training row")


def test_feature_that_changes_only_in_the_last_row_is_not_constant(shop: Shop) -> None:
    table = shop.table(500)
    assert warnings(shop, with_column(table, "tab", pa.array([3] * 499 + [4])), chunk=100) == []


@pytest.mark.parametrize("column", ["age", "tab", "tags"])
def test_absent_feature_is_named(shop: Shop, column: str) -> None:
    table = shop.table(500)
    (warning,) = warnings(shop, with_column(table, column, pa.nulls(500, table.schema.field(column).type)))
    assert warning.startswith(f"feature '{column}' is null in every training row")


@pytest.mark.parametrize(("nulls", "named"), [(4, True), (5, False)])
def test_nulls_that_are_too_rare_to_be_learned_are_named(shop: Shop, nulls: int, named: bool) -> None:
    table = shop.table(500)
    prices = pa.array([None] * nulls + [float(i) for i in range(500 - nulls)])
    message = (
        "nulls in less than 1% of the 500 training rows are read as the mean, because the model cannot learn what so "
        "few mean: 'price' in 4"
    )
    assert warnings(shop, with_column(table, "price", prices), chunk=100) == [message] * named


def test_constant_feature_with_nulls_has_information(shop: Shop) -> None:
    table = shop.table(500)
    assert warnings(shop, with_column(table, "age", pa.array([5.0, None] * 250))) == []


def copies(table: pa.Table) -> dict[str, tuple[str, pa.Array]]:
    """Return columns that copy the label of click in several ways."""
    click = table["is_click"].combine_chunks()
    noise = np.random.default_rng(0).random(len(click))
    return {
        "number": ("age", click.cast(pa.float64())),
        "inverted": ("age", pc.subtract(5.0, click.cast(pa.float64()))),
        "with nulls": ("age", pc.if_else(pa.array(noise < 0.3), None, click.cast(pa.float64()))),
        "known only for positives": ("age", pc.if_else(pc.equal(click, 1), pa.array(noise), None)),
        "integer id": ("tab", click.cast(pa.int64())),
        "list": ("tags", pa.array([["yes"] if value else ["no"] for value in click.to_pylist()])),
    }


@pytest.mark.parametrize("how", ["number", "inverted", "with nulls", "known only for positives", "integer id", "list"])
def test_copy_of_a_binary_label_is_named(shop: Shop, how: str) -> None:
    table = shop.table(2000)
    column, values = copies(table)[how]
    (warning,) = warnings(shop, with_column(table, column, values))
    assert warning.startswith(f"feature '{column}' predicts label 'is_click' of task 'click' almost perfectly (AUC 1.0")


def test_copy_of_a_regression_label_is_named(shop: Shop) -> None:
    table = shop.table(2000)
    copy = pc.multiply(table["seconds"], 3.0)
    (warning,) = warnings(shop, with_column(table, "price", copy))
    assert "feature 'price' predicts label 'seconds' of task 'watch' almost perfectly (rank correlation 1.0" in warning


def test_strong_but_honest_feature_is_not_a_copy(shop: Shop) -> None:
    table = shop.table(2000)
    noise = np.random.default_rng(0).normal(0, 0.5, 2000)
    strong = pa.array(table["is_click"].to_numpy() + noise)
    assert warnings(shop, with_column(table, "age", strong)) == []


def test_unique_ids_are_not_copies(shop: Shop) -> None:
    table = shop.table(2000)
    table = with_column(table, "user_id", pa.array([f"u{n}" for n in range(2000)]))
    assert warnings(shop, with_column(table, "tab", pa.array(range(2000)))) == []
