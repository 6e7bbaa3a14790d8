"""Errors and warnings about a log: bad rows, empty splits, absent, rare and constant labels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from pipelines.inspection.label_bounds import estimate_label_bounds
from pipelines.inspection.profile import LogProfile, profile_log
from pipelines.inspection.quality import find_errors, find_warnings, require_learnable
from ranking.errors import LogError

if TYPE_CHECKING:
    from tests.pipelines.conftest import Shop


def profile_table(shop: Shop, table: pa.Table) -> LogProfile:
    shop.write(table)
    schema = estimate_label_bounds(shop.reader(), shop.logs(), shop.schema)
    return profile_log(shop.reader().with_schema(schema), shop.logs(), schema)


def with_values(shop: Shop, rows: int, column: str, values: dict[int, Any]) -> pa.Table:
    table = shop.table(rows)
    for row, value in values.items():
        table = shop.with_value(table, column, row, value)
    return table


def test_more_bad_rows_than_allowed_are_an_error_with_counts_and_first_row(shop: Shop) -> None:
    table = with_values(shop, 400, "is_click", dict.fromkeys(range(30, 35), 7))
    profile = profile_table(shop, table)
    (error,) = find_errors(profile, shop.config())
    assert error == (
        "5 of 400 rows are bad, more than logs.max_bad_rows = 0.01 allows (5 × label 'is_click' is neither 0 nor 1; "
        f"the first is {shop.log}/part-0.parquet, row 30): "
        "fix the log, the features or the tasks, or raise the limit with --max-bad-rows; "
        "'ranker check --quarantine FILE' writes the bad rows"
    )
    assert find_errors(profile, shop.config(logs={"max_bad_rows": 0.0125})) == []


def test_share_of_bad_rows_at_the_limit_is_accepted(shop: Shop) -> None:
    profile = profile_table(shop, with_values(shop, 400, "is_click", dict.fromkeys(range(4), 7)))
    assert find_errors(profile, shop.config()) == []
    assert len(find_errors(profile, shop.config(logs={"max_bad_rows": 0.0}))) == 1


@pytest.mark.parametrize("value", [1e300, 1e30, 1e9])
def test_wrong_regression_labels_are_bad_rows(shop: Shop, value: float) -> None:
    profile = profile_table(shop, with_values(shop, 1000, "seconds", {5: value, 600: value, 950: value}))
    (reason,) = profile.bad
    assert reason.startswith("label 'seconds' is outside -")
    assert reason.endswith(", the range of task 'watch'")
    assert profile.bad[reason] == 3
    assert profile.rows == {"train": 798, "validation": 100, "test": 99}
    assert profile.labels["test"]["watch"].high < 20


def test_every_bad_label_is_counted_under_the_configured_bounds(shop: Shop) -> None:
    click, seconds = shop.schema.tasks
    bounded = seconds.model_copy(update={"min": 1.0, "max": 50.0})
    shop.schema = shop.schema.model_copy(update={"tasks": (click, bounded)})
    table = shop.table(500)
    expected = sum(1 for value in table["seconds"].to_pylist() if value is not None and not 1 <= value <= 50)
    profile = profile_table(shop, table)
    assert profile.bad == {"label 'seconds' is outside 1 to 50, the range of task 'watch'": expected}
    assert profile.label_bounds == {"watch": [1.0, 50.0]}


def test_several_errors_are_counted_in_the_message(shop: Shop) -> None:
    table = shop.table(400)
    constant = table.set_column(table.column_names.index("is_click"), "is_click", pa.array([1] * 400))
    profile = profile_table(shop, constant.slice(0, 300))
    errors = find_errors(profile, shop.config())
    assert len(errors) == 2
    with pytest.raises(LogError) as caught:
        require_learnable(profile, shop.config())
    assert str(caught.value) == f"{shop.log}: {errors[0]} (and 1 more; see 'ranker check')"


def test_empty_test_split_is_a_warning(shop: Shop) -> None:
    profile = profile_table(shop, shop.table(2000).slice(0, 1800))
    assert find_errors(profile, shop.config()) == []
    (warning,) = find_warnings(profile, shop.config())
    assert warning.startswith("no row from logs.test_from = 2026-01-10 00:00:00 on: the test split is empty")


@pytest.mark.parametrize(
    ("clicks", "expected"),
    [
        ([1, 0] * 800 + [0] * 200 + [1, 0] * 100, "label 'is_click' of task 'click' is 0 in every validation row"),
        ([1, 0] * 900 + [1] * 200, "label 'is_click' of task 'click' is 1 in every test row"),
        ([1, 0] * 800 + [None] * 200 + [1, 0] * 100, "label 'is_click' of task 'click' is absent in every validation"),
        ([1] * 50 + [0] * 1550 + [1, 0] * 200, "task 'click' has only 50 positive labels in the train split"),
        ([0] * 50 + [1] * 1550 + [1, 0] * 200, "task 'click' has only 50 negative labels in the train split"),
        ([1, 0] * 900 + [1] * 5 + [0] * 195, "task 'click' has only 5 positive labels in the test split"),
        ([1, 0] * 900 + [1] * 1 + [0] * 199, "task 'click' has only 1 positive label in the test split"),
    ],
)
def test_rare_or_absent_class_is_a_warning(shop: Shop, clicks: list[int | None], expected: str) -> None:
    table = shop.table(2000)
    table = table.set_column(table.column_names.index("is_click"), "is_click", pa.array(clicks, pa.int8()))
    (warning,) = find_warnings(profile_table(shop, table), shop.config())
    assert warning.startswith(expected)


def test_rare_regression_label_is_a_warning(shop: Shop) -> None:
    table = shop.table(2000)
    seconds = [float(n % 7) if n % 20 == 0 or n >= 1600 else None for n in range(2000)]
    table = table.set_column(table.column_names.index("seconds"), "seconds", pa.array(seconds))
    (warning,) = find_warnings(profile_table(shop, table), shop.config())
    assert warning.startswith("task 'watch' has only 80 labels in the train split, fewer than 100")


def test_clean_log_has_neither_errors_nor_warnings(shop: Shop) -> None:
    profile = profile_table(shop, shop.table(2000))
    assert find_errors(profile, shop.config()) == []
    assert find_warnings(profile, shop.config()) == []
