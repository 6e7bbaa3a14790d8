"""Validation of requests in lists, NumPy arrays and Arrow arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from ranking.schema import CategoricalFeature, NumericFeature, SequenceFeature
from service.engine.errors import InvalidRequestError
from service.engine.request import FeatureRequest, RawFeatures
from service.engine.validation import Readable, validate
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


def validated(ids: Any, **features: Any) -> FeatureRequest:
    return validate(RankOptions(), RawFeatures(ids, features), READABLE)


@pytest.mark.parametrize("column", ["brand", "tags"])
def test_validate_float_array_for_ids_names_row(column: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        validated(np.array([1, 2]), **{column: np.array([0.5, 1.0])})
    assert caught.value.field == f"items[0].features.{column}"


def test_validate_accepts_integer_array_for_number() -> None:
    assert validated([1, 2], price=np.array([1, 2])).signature is not None


def test_validate_signature_is_equal_only_for_equal_column_types() -> None:
    prices = [np.array([1.0, 2.0]), np.array([3.0, 4.0]), [1.0, None]]
    signatures = [validated(np.array([1, 2]), price=values).signature for values in prices]
    assert signatures[0] == signatures[1] != signatures[2]
    assert validated([1, 2], price=[1.0, 2.0]).signature != signatures[2]
    assert validated(["1", "2"]).signature != validated(np.array([1, 2])).signature
    assert validated(pa.array(["1", "2"])).signature is None
    assert validated([1, "2"]).signature is None


def test_validate_converts_arrow_numbers_without_nulls_to_numpy() -> None:
    columns = validated(np.array([1, 2]), brand=pa.array([1, 2], pa.int8()), price=pa.array([1, None])).owners["item"]
    assert isinstance(columns.columns["brand"], np.ndarray)
    assert isinstance(columns.columns["price"], pa.Array)
