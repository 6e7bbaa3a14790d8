"""Reading the elements of tensors from JSON and binary data."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import pytest

from service.engine.errors import InvalidRequestError
from service.http.open_inference.tensors import BINARY_TYPES, read_binary, read_json
from service.protocol.open_inference import InputTensor


def make(datatype: str, shape: list[int], data: list[Any] | None = None) -> InputTensor:
    return InputTensor.model_validate({"name": "x", "datatype": datatype, "shape": shape, "data": data})


def text(*values: bytes) -> bytes:
    return b"".join(struct.pack("<I", len(value)) + value for value in values)


@pytest.mark.parametrize("datatype", BINARY_TYPES)
def test_read_binary_of_fixed_sizes(datatype: str) -> None:
    data = np.array([0, 1, 1], BINARY_TYPES[datatype]).tobytes()
    assert list(read_binary(make(datatype, [3]), memoryview(data), 10)) == [0, 1, 1]


def test_read_binary_of_text() -> None:
    assert read_binary(make("BYTES", [3]), memoryview(text("é".encode(), b"", b"b")), 10) == ["é", "", "b"]


@pytest.mark.parametrize(
    ("datatype", "data", "message"),
    [
        ("FP32", b"123", "inputs.x: has 3 bytes of binary data, but 2 elements of FP32 take 8"),
        ("BYTES", text(b"a"), "inputs.x: binary data of 5 bytes is not 2 texts"),
        ("BYTES", text(b"a", b"b", b"c"), "inputs.x: binary data of 15 bytes is not 2 texts"),
        ("BYTES", text(b"a") + b"\xff\xff\xff\xffb", "is not 2 texts"),
        ("BYTES", text(b"a", b"\xff"), r"inputs.x\[1\]: is not valid UTF-8"),
        ("BYTES", text(b"a", b"b" * 11), r"inputs.x\[1\]: has more than 10 characters"),
        ("UINT64", struct.pack("<QQ", 1, 2**63), r"inputs.x\[1\]: 9223372036854775808 does not fit"),
    ],
)
def test_read_binary_invalid_data_is_named(datatype: str, data: bytes, message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        read_binary(make(datatype, [2]), memoryview(data), 10)


@pytest.mark.parametrize(
    ("datatype", "shape", "data", "elements"),
    [
        ("INT64", [2], [1, None], [1, None]),
        ("FP32", [2, 1], [[1.5], [2]], [1.5, 2]),
        ("BOOL", [2], [True, False], [1, 0]),
        ("FP64", [2], [float("nan"), None], [None, None]),
        ("BYTES", [2, 2], [["a", "b"], ["c", "d"]], ["a", "b", "c", "d"]),
        ("BYTES", [2, 2], ["a", "b", "c", "d"], ["a", "b", "c", "d"]),
    ],
)
def test_read_json_elements(datatype: str, shape: list[int], data: list[Any], elements: list[Any]) -> None:
    assert read_json(make(datatype, shape, data)) == elements


@pytest.mark.parametrize(
    ("datatype", "data", "message"),
    [
        ("INT64", [1], r"inputs.x: has 1 elements for the shape \[2\]: send 2"),
        ("INT64", [1, 1.5], r"inputs.x\[1\]: 1.5 is not an element of INT64"),
        ("INT64", [1, True], r"inputs.x\[1\]: true is not an element of INT64"),
        ("INT64", [1, {"items": [2]}], r"inputs.x\[1\]: an object is not an element of INT64"),
        ("INT8", [1, 128], r"inputs.x\[1\]: 128 is not between -128 and 127"),
        ("UINT8", [-1, 1], r"inputs.x\[0\]: -1 is not between 0 and 255"),
        ("FP32", [1.0, "a"], r"inputs.x\[1\]: 'a' is not an element of FP32"),
        ("BYTES", ["a", 1], r"inputs.x\[1\]: 1 is not an element of BYTES"),
        ("BYTES", ["a", ["b"]], r"inputs.x\[1\]: \['b'\] is not an element of BYTES"),
    ],
)
def test_read_json_invalid_element_is_named(datatype: str, data: list[Any], message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        read_json(make(datatype, [2], data))


@pytest.mark.parametrize("data", [[["a", "c"], []], [["a"], ["b", "c"]], [[], ["a", "b"]]])
def test_read_json_of_lists_of_another_length_than_the_shape_is_rejected(data: list[Any]) -> None:
    """An element would move to another candidate."""
    with pytest.raises(InvalidRequestError, match=r"inputs.x\[[01]\]: has \d elements for the shape \[2, 1\]: send 1"):
        read_json(make("BYTES", [2, 1], data))
