from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from pipelines.init.column_profile import profile_columns
from pipelines.init.owners import OwnerGuesser, constancy

ROWS = 2000


@pytest.fixture
def guesser() -> OwnerGuesser:
    random = np.random.default_rng(0)
    user, item = random.integers(50, size=ROWS), random.integers(80, size=ROWS)
    request = np.arange(ROWS) // 4
    table = pa.table(
        {
            "user_id": user,
            "item_id": item,
            "request_id": request,
            "country": random.integers(5, size=50)[user],
            "price": random.random(80)[item],
            "device": random.integers(3, size=ROWS // 4)[request],
            "match": random.integers(5, size=ROWS),
            "rare": (random.random(ROWS) < 0.005).astype(int),
        }
    )
    return OwnerGuesser(profile_columns(table), "user_id", "item_id", "request_id")


@pytest.mark.parametrize(
    ("column", "owner"),
    [("country", "user"), ("price", "item"), ("device", "context"), ("match", "item")],
)
def test_owner_is_the_entity_whose_rows_agree(guesser: OwnerGuesser, column: str, owner: str) -> None:
    guess = guesser.guess(column)
    assert (guess.owner, guess.sure) == (owner, True)


def test_owner_reason_names_the_share(guesser: OwnerGuesser) -> None:
    assert guesser.guess("price").reason.startswith("constant per item_id in 100.0% of ")
    assert guesser.guess("match").reason == "varies between the rows of one request_id"


def test_rare_events_are_not_constant(guesser: OwnerGuesser) -> None:
    assert not guesser.is_attribute("rare")


def test_few_repeated_ids_are_judged_by_name() -> None:
    table = pa.table({"user": range(9), "item": range(9), "user_age": range(9), "x": range(9)})
    guesser = OwnerGuesser(profile_columns(table), "user", "item", None)
    assert (guesser.guess("user_age").owner, guesser.guess("user_age").sure) == ("user", False)
    assert (guesser.guess("x").owner, guesser.guess("x").sure) == ("context", False)


def test_rows_without_item_ids_are_items() -> None:
    table = pa.table({"age": range(9)})
    assert OwnerGuesser(profile_columns(table), None, None, None).guess("age").owner == "item"


def test_constancy_of_nulls_is_zero() -> None:
    none = np.full(5, -1)
    assert constancy(none, np.arange(5)).ids == 0
    assert constancy(np.zeros(5, np.int64), none).rows == 0
