"""JSON objects of a store → columns that the ranker made by hand can read, whatever they hold."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from ranking import FrozenRanker
from ranking.schema import Owner
from service.feature_store.decode import Documents, Reader


def read(ranker: FrozenRanker, owner: Owner, *objects: Any) -> Documents:
    return Reader(ranker, owner).read([None if each is None else orjson.dumps(each) for each in objects])


def test_objects_become_columns_and_what_a_store_does_not_hold_is_none(hand_ranker: FrozenRanker) -> None:
    found = read(hand_ranker, "item", {"price": 3, "genres": ["news"]}, None, {"price": 2.5, "genres": None})
    assert found.columns == {"genres": [["news"], None, None], "price": [3, None, 2.5]}
    assert found.faults == {}


def test_objects_of_different_columns(hand_ranker: FrozenRanker) -> None:
    found = read(hand_ranker, "item", {"price": 3.0}, {"genres": ["news"]}, {"genres": [], "price": 1.0}, {})
    assert found.columns == {"genres": [None, ["news"], [], None], "price": [3.0, None, 1.0, None]}
    assert read(hand_ranker, "item", {"price": 3.0}, {"genres": []}).columns["price"] == [3.0, None]


def test_nothing_is_no_column(hand_ranker: FrozenRanker) -> None:
    assert read(hand_ranker, "item", None, None) == Documents({}, (), {})
    assert read(hand_ranker, "item") == Documents({}, (), {})


@pytest.mark.parametrize("value", [b"", b"oops", b'{"price": NaN}', b"[1]", b"3", b"null", b'{"price": 1', b"\xff"])
def test_a_value_that_is_no_object_is_left_out_alone(hand_ranker: FrozenRanker, value: bytes) -> None:
    found = Reader(hand_ranker, "item").read([b'{"price": 1.5}', value, None])
    assert found.columns == {"price": [1.5, None, None]}
    assert found.faults == {"undecodable": "1 of 3 items are no JSON objects"}


WRONG: list[tuple[Owner, str, Any]] = [
    *(("item", "price", value) for value in ("3", True, [1.0], {}, -1.0, -7)),  # log1p
    *(("user", "age", value) for value in ("old", False, [31])),
    *(("user", "country", value) for value in (1.5, True, ["C1"], {"id": "C1"}, 2**63)),
    *(("user", "liked", value) for value in ("7", 7, [1.5], [[1]], ["seven"], [2**63], ["9" * 5000])),  # integers
    *(("item", "genres", value) for value in ("news", [True], [None, {}])),
]


@pytest.mark.parametrize(("owner", "column", "value"), WRONG)
def test_a_value_of_a_wrong_type_is_left_out_alone(
    hand_ranker: FrozenRanker, owner: Owner, column: str, value: Any
) -> None:
    good: Any = {"price": 2.0, "age": 31.0, "country": "C1", "liked": [7], "genres": ["news"]}[column]
    found = read(hand_ranker, owner, {column: good}, {column: value}, {column: good})
    assert found.columns == {column: [good, None, good]}
    assert found.faults == {"wrong_type": f"values of {owner}s are of a wrong type in '{column}'"}


def test_ids_become_of_the_type_that_the_ranker_knows(hand_ranker: FrozenRanker) -> None:
    found = read(hand_ranker, "user", {"liked": [7, "8"], "country": "C1"}, {"liked": ["9", None], "country": 5})
    assert found.columns == {"liked": [[7, 8], [9]], "country": ["C1", "5"]}
    assert found.faults == {}


def test_columns_of_one_type_are_left_as_they_are_and_say_which(hand_ranker: FrozenRanker) -> None:
    texts = read(hand_ranker, "user", {"liked": [1], "country": "C1", "age": 3}, {"liked": None, "country": None})
    numbers = read(hand_ranker, "user", {"country": 5, "age": None})
    assert dict(texts.form) == {"liked": int, "country": str, "age": float}  # type: ignore[call-overload]
    assert dict(numbers.form) == {"country": int, "age": float}  # type: ignore[call-overload]
    assert numbers.columns["country"] == [5]


def test_a_column_that_no_feature_reads_is_told_and_the_id_is_not(hand_ranker: FrozenRanker) -> None:
    found = read(hand_ranker, "item", {"item_id": 7, "price": 1.0, "colour": "red", "age": 3})
    assert found.columns == {"price": [1.0]}
    assert found.faults == {"unknown_column": "no feature of items reads 'age', 'colour'"}
