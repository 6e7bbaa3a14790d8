"""Splitting the body of an inference request."""

from __future__ import annotations

from pathlib import Path

import pytest

from service.engine.errors import InvalidRequestError
from service.http.open_inference.body import read_body
from service.protocol.problems import Problem
from service.settings import Settings
from tests.service.http.open_inference.tensor_requests import tensor, to_binary

SETTINGS = Settings(repository=Path("repository"))
IDS = tensor("item_id", "INT64", [1, 2])


def test_read_body_of_binary_tensors_in_order() -> None:
    body, headers = to_binary({"inputs": [IDS, tensor("price", "FP32", [0.5, 1.5])]})
    request, elements = read_body(body, *headers.values(), SETTINGS)
    assert [part.name for part in request.inputs] == ["item_id", "price"]
    assert {name: list(values) for name, values in elements.items()} == {"item_id": [1, 2], "price": [0.5, 1.5]}


@pytest.mark.parametrize("length", ["", "-1", "x", "99999", "9" * 5000, "0" * 20 + "9", "²"])
def test_read_body_invalid_header_length_is_rejected(length: str) -> None:
    with pytest.raises(Problem, match="Inference-Header-Content-Length: is "):
        read_body(b"{}", length, SETTINGS)


def test_read_body_with_bytes_after_the_last_tensor_is_rejected() -> None:
    body, headers = to_binary({"inputs": [IDS]})
    with pytest.raises(Problem, match="body: has 3 bytes after the last tensor"):
        read_body(body + b"abc", *headers.values(), SETTINGS)


def test_read_body_with_too_little_binary_data_is_rejected() -> None:
    body, headers = to_binary({"inputs": [IDS]})
    with pytest.raises(InvalidRequestError, match="binary_data_size is 16, but 15 bytes are left"):
        read_body(body[:-1], *headers.values(), SETTINGS)


@pytest.mark.parametrize("fields", ['"parameters": {"binary_data_size": 0}, "data": []', '"parameters": {}'])
def test_read_body_tensor_needs_data_in_one_place(fields: str) -> None:
    body = f'{{"inputs": [{{"name": "x", "datatype": "INT64", "shape": [0], {fields}}}]}}'.encode()
    with pytest.raises(InvalidRequestError, match="must have either data or the parameter binary_data_size"):
        read_body(body, None, SETTINGS)
