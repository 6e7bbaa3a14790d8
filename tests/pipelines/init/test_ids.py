from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from pipelines.init.column_profile import ColumnProfile, profile_columns
from pipelines.init.ids import guess_item, guess_request, guess_user, guess_weight
from ranking.errors import LogError

ROWS = 200


def profiles(**columns: Any) -> dict[str, ColumnProfile]:
    return profile_columns(pa.table(columns))


IDS = [i % 70 for i in range(ROWS)]


def test_guess_user_and_item_by_name() -> None:
    columns = profiles(movieId=IDS, userId=[i % 9 for i in range(ROWS)], rating=[1.0] * ROWS)
    assert guess_user(columns, (), None).column == "userId"
    assert guess_item(columns, {"userId"}, None).column == "movieId"


def test_plain_names_need_many_values_to_be_ids() -> None:
    assert guess_item(profiles(job=["a", "b"] * (ROWS // 2)), (), None).make is not None
    assert guess_item(profiles(movie=IDS), (), None).column == "movie"


def test_unnamed_item_is_the_id_with_most_values() -> None:
    item = guess_item(profiles(gadget_id=IDS, kind_id=[i % 3 for i in range(ROWS)]), (), None)
    assert item.column == "gadget_id"
    assert item.unsure == "no column is named like an item id"


def test_log_without_ids_gets_row_numbers_and_null_users() -> None:
    columns = profiles(age=[1.5] * ROWS)
    user, item = guess_user(columns, (), None), guess_item(columns, (), None)
    assert (user.column, item.column) == ("user_id", "item_id")
    assert user.make is not None
    assert item.make is not None


def test_missing_ids_are_uncertain_guesses() -> None:
    columns = profiles(age=[1.5] * ROWS)
    assert "(--user COLUMN names one)" in str(guess_user(columns, (), None).unsure)
    assert "(--item COLUMN names one)" in str(guess_item(columns, (), None).unsure)


def test_reviews_of_amazon_have_users_and_items() -> None:
    columns = profiles(reviewerID=[f"A{i % 9}" for i in range(ROWS)], asin=[f"B{i}" for i in IDS])
    assert guess_user(columns, (), None).column == "reviewerID"
    assert guess_item(columns, {"reviewerID"}, None).column == "asin"


def test_numbers_are_not_ids() -> None:
    assert guess_user(profiles(user_id=[0.5 + i for i in range(ROWS)]), (), None).column == "row_user_id"
    with pytest.raises(LogError, match="--user user_id: holds double: ids are integers or text"):
        guess_user(profiles(user_id=[0.5 + i for i in range(ROWS)]), (), "user_id")


def test_request_needs_several_rows_per_value() -> None:
    request = guess_request(profiles(session_id=[i // 5 for i in range(ROWS)]), set())
    assert request is not None
    assert request.unsure == "a session may contain several requests"
    assert guess_request(profiles(request_id=list(range(ROWS))), set()) is None


def test_weight_is_not_constant_per_item() -> None:
    columns = profiles(weight=[1.0 + i % 3 for i in range(ROWS)])
    weight = guess_weight(columns, lambda _: False)
    assert weight is not None
    assert weight.column == "weight"
    assert guess_weight(columns, lambda _: True) is None
    assert guess_weight(profiles(weight=[70_000.0 + i for i in range(ROWS)]), lambda _: False) is None


@pytest.mark.parametrize("name", ["instance weight", "sample_weight", "exampleWeight"])
def test_weight_with_a_clear_name_may_have_any_scale(name: str) -> None:
    columns = profiles(weight=[1.0, 2.0] * (ROWS // 2), **{name: [1_700.0 + i for i in range(ROWS)]})
    weight = guess_weight(columns, lambda _: True)
    assert weight is not None
    assert (weight.column, weight.unsure) == (name, None)


@pytest.mark.parametrize("value", [-1.0, float("nan"), 1e16])
def test_weight_that_training_rejects_is_not_guessed(value: float) -> None:
    assert guess_weight(profiles(sample_weight=[1.0, 2.0, value]), lambda _: False) is None
