"""Requests are checked column by column, whatever holds their values."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from ranking.schema import CategoricalFeature, NumericFeature, SequenceFeature
from service.engine.errors import InvalidRequestError
from service.engine.request import FeatureRequest
from service.engine.validation import Candidates, ParsedRequest, Readable, validate
from service.protocol.messages import RankOptions

READABLE: Readable = {
    "user": {},
    "context": {},
    "item": {
        "brand": CategoricalFeature(kind="categorical", name="brand", column="brand", owner="item", dim=2),
        "price": NumericFeature(kind="numeric", name="price", column="price", owner="item"),
        "tags": SequenceFeature(kind="sequence", name="tags", column="tags", owner="item", dim=2, max_length=3),
    },
}


def request(ids: Any, **features: Any) -> FeatureRequest:
    return validate(ParsedRequest(RankOptions(), Candidates(ids, features)), READABLE)


@pytest.mark.parametrize("column", ["brand", "tags"])
def test_numbers_that_are_no_ids_name_their_row(column: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        request(np.array([1, 2]), **{column: np.array([0.5, 1.0])})
    assert caught.value.field == f"items[0].features.{column}"


def test_integers_are_numbers_too() -> None:
    assert request([1, 2], price=np.array([1, 2])).signature is not None


def test_a_candidate_that_stands_twice_in_an_array() -> None:
    with pytest.raises(InvalidRequestError, match="candidate 7 stands at 0 already"):
        request(np.array([7, 8, 7]))


def test_what_is_held_alike_is_joined_and_nothing_else() -> None:
    prices = [np.array([1.0, 2.0]), np.array([3.0, 4.0]), [1.0, None]]
    forms = [request(np.array([1, 2]), price=each).signature for each in prices]
    assert forms[0] == forms[1] != forms[2]
    assert request([1, 2], price=[1.0, 2.0]).signature != forms[2]
    assert request(["1", "2"]).signature != request(np.array([1, 2])).signature
    assert request(pa.array(["1", "2"])).signature is None
    assert request([1, "2"]).signature is None


def test_arrow_columns_of_numbers_become_arrays() -> None:
    columns = request(np.array([1, 2]), brand=pa.array([1, 2], pa.int8()), price=pa.array([1, None])).owners["item"]
    assert isinstance(columns.columns["brand"], np.ndarray)
    assert isinstance(columns.columns["price"], pa.Array)
