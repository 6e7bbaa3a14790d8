"""Stored JSON objects are decoded into columns that the ranker can read, whatever they contain."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from ranking import FrozenRanker
from ranking.schema import Owner
from service.feature_store.decode import DecodedColumns, ObjectDecoder


def decode(ranker: FrozenRanker, owner: Owner, *objects: Any) -> DecodedColumns:
    values = [None if document is None else orjson.dumps(document) for document in objects]
    return ObjectDecoder(ranker, owner).decode(values)


def test_decode_returns_one_value_per_id_with_none_for_absent_ids(hand_ranker: FrozenRanker) -> None:
    decoded = decode(hand_ranker, "item", {"price": 3, "genres": ["news"]}, None, {"price": 2.5, "genres": None})
    assert decoded.columns == {"genres": [["news"], None, None], "price": [3, None, 2.5]}
    assert decoded.faults == {}


def test_decode_objects_with_different_columns(hand_ranker: FrozenRanker) -> None:
    decoded = decode(hand_ranker, "item", {"price": 3.0}, {"genres": ["news"]}, {"genres": [], "price": 1.0}, {})
    assert decoded.columns == {"genres": [None, ["news"], [], None], "price": [3.0, None, 1.0, None]}
    assert decode(hand_ranker, "item", {"price": 3.0}, {"genres": []}).columns["price"] == [3.0, None]


def test_decode_without_objects_returns_no_columns(hand_ranker: FrozenRanker) -> None:
    assert decode(hand_ranker, "item", None, None) == DecodedColumns({}, (), {})
    assert decode(hand_ranker, "item") == DecodedColumns({}, (), {})


@pytest.mark.parametrize("value", [b"", b"oops", b'{"price": NaN}', b"[1]", b"3", b"null", b'{"price": 1', b"\xff"])
def test_decode_ignores_only_the_value_that_is_not_an_object(hand_ranker: FrozenRanker, value: bytes) -> None:
    decoded = ObjectDecoder(hand_ranker, "item").decode([b'{"price": 1.5}', value, None])
    assert decoded.columns == {"price": [1.5, None, None]}
    assert decoded.faults == {"undecodable": "1 of 3 items are not JSON objects"}


WRONG: list[tuple[Owner, str, Any]] = [
    *(("item", "price", value) for value in ("3", True, [1.0], {}, -1.0, -7)),  # log1p
    *(("user", "age", value) for value in ("old", False, [31])),
    *(("user", "country", value) for value in (1.5, True, ["C1"], {"id": "C1"}, 2**63)),
    *(
        ("user", "liked", value)
        for value in ("7", 7, [1.5], [[1]], ["seven"], ["07"], ["+7"], ["1_0"], [2**63], ["9" * 5000])
    ),
    *(("item", "genres", value) for value in ("news", [True], [None, {}])),
]


@pytest.mark.parametrize(("owner", "column", "value"), WRONG)
def test_decode_ignores_only_the_value_of_the_wrong_type(
    hand_ranker: FrozenRanker, owner: Owner, column: str, value: Any
) -> None:
    valid: Any = {"price": 2.0, "age": 31.0, "country": "C1", "liked": [7], "genres": ["news"]}[column]
    decoded = decode(hand_ranker, owner, {column: valid}, {column: value}, {column: valid})
    assert decoded.columns == {column: [valid, None, valid]}
    assert decoded.faults == {"wrong_type": f"values of {owner}s are of the wrong type in '{column}'"}


def test_decode_converts_ids_to_the_type_of_the_ranker(hand_ranker: FrozenRanker) -> None:
    decoded = decode(hand_ranker, "user", {"liked": [7, "8"], "country": "C1"}, {"liked": ["9", None], "country": 5})
    assert decoded.columns == {"liked": [[7, 8], [9]], "country": ["C1", "5"]}
    assert decoded.faults == {}


def test_decode_signature_has_the_type_of_each_column(hand_ranker: FrozenRanker) -> None:
    texts = decode(hand_ranker, "user", {"liked": [1], "country": "C1", "age": 3}, {"liked": None, "country": None})
    numbers = decode(hand_ranker, "user", {"country": 5, "age": None})
    assert dict(texts.signature) == {"liked": int, "country": str, "age": float}  # type: ignore[call-overload]
    assert dict(numbers.signature) == {"country": int, "age": float}  # type: ignore[call-overload]
    assert numbers.columns["country"] == [5]


def test_decode_reports_unread_columns_except_the_id(hand_ranker: FrozenRanker) -> None:
    decoded = decode(hand_ranker, "item", {"item_id": 7, "price": 1.0, "color": "red", "age": 3})
    assert decoded.columns == {"price": [1.0]}
    assert decoded.faults == {"unknown_column": "no feature of items reads 'age', 'color'"}
