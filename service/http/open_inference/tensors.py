"""Reads the elements of input tensors from JSON or binary data, and checks them against their data type."""

from __future__ import annotations

import math
import struct
from itertools import chain
from types import NoneType
from typing import Any

import numpy as np

from ranking.schema.value_text import value_text
from service.engine.errors import InvalidRequestError
from service.engine.values import Values
from service.http.open_inference.fields import tensor_path
from service.protocol.open_inference import InputTensor

INTEGERS: dict[str, type[np.integer[Any]]] = {
    "INT8": np.int8,
    "INT16": np.int16,
    "INT32": np.int32,
    "INT64": np.int64,
    "UINT8": np.uint8,
    "UINT16": np.uint16,
    "UINT32": np.uint32,
    "UINT64": np.uint64,
}
FLOATS: dict[str, type[np.floating[Any]]] = {"FP16": np.float16, "FP32": np.float32, "FP64": np.float64}
BINARY_TYPES: dict[str, type[np.generic[Any]]] = {"BOOL": np.bool_, **INTEGERS, **FLOATS}
"""NumPy type of each data type with elements of a fixed size, in little-endian order."""

MAX_INT64 = 2**63 - 1
TEXT_LENGTH = struct.Struct("<I")
"""Number of bytes of a text, which precedes it in binary data."""

Elements = Values
"""Elements in row-major order: a NumPy array of int64 or float64, or a list with None for absent ones."""


def count_elements(tensor: InputTensor) -> int:
    """Return the number of elements that a tensor must have."""
    return math.prod(tensor.shape)


def read_json(tensor: InputTensor) -> Elements:
    """Read the elements of a tensor from its ``data``; null and NaN are absent elements.

    Raises:
        InvalidRequestError: the number or the types of the elements differ from the shape and the data type.
    """
    elements: list[Any] = tensor.data or []
    for size in tensor.shape[1:]:
        if elements and set(map(type, elements)) == {list}:
            for row, values in enumerate(elements):
                if len(values) != size:
                    reason = f"has {len(values)} elements for the shape {tensor.shape}: send {size}"
                    raise InvalidRequestError(f"{tensor_path(tensor.name)}[{row}]", reason)
            elements = list(chain.from_iterable(elements))
    if len(elements) != count_elements(tensor):
        reason = f"has {len(elements)} elements for the shape {tensor.shape}: send {count_elements(tensor)}"
        raise InvalidRequestError(tensor_path(tensor.name), reason)
    _check_types(tensor, elements)
    if tensor.datatype == "BOOL":
        return [None if e is None else int(e) for e in elements]
    return [e if e == e else None for e in elements] if tensor.datatype in FLOATS else elements


def read_binary(tensor: InputTensor, data: memoryview, max_length: int) -> Elements:
    """Read the elements of a tensor from its binary data; NaN is an absent element.

    Args:
        tensor: tensor.
        data: its bytes.
        max_length: maximum number of characters of a text.

    Raises:
        InvalidRequestError: the data does not fit the shape and the data type.
    """
    if tensor.datatype == "BYTES":
        return _read_texts(tensor, data, max_length)
    dtype = np.dtype(BINARY_TYPES[tensor.datatype]).newbyteorder("<")
    if len(data) != count_elements(tensor) * dtype.itemsize:
        expected = (
            f"{count_elements(tensor)} elements of {tensor.datatype} take {count_elements(tensor) * dtype.itemsize}"
        )
        raise InvalidRequestError(tensor_path(tensor.name), f"has {len(data)} bytes of binary data, but {expected}")
    values = np.frombuffer(data, dtype)
    if tensor.datatype in FLOATS:
        numbers = values.astype(np.float64)
        absent = np.isnan(numbers)
        if absent.any():
            return [None if is_absent else n for n, is_absent in zip(numbers.tolist(), absent.tolist(), strict=True)]
        return numbers
    if tensor.datatype == "UINT64" and len(values) and values.max() > MAX_INT64:
        position = int(values.argmax())
        reason = f"{values[position]} does not fit into a signed 64-bit integer: send a smaller id, or text"
        raise InvalidRequestError(f"{tensor_path(tensor.name)}[{position}]", reason)
    return values.astype(np.int64)


def _check_types(tensor: InputTensor, elements: list[Any]) -> None:
    datatype = tensor.datatype
    allowed: set[type] = {NoneType}
    if datatype == "BYTES":
        allowed |= {str}
    elif datatype == "BOOL":
        allowed |= {bool}
    else:
        allowed |= {int, float} if datatype in FLOATS else {int}
    if not set(map(type, elements)) <= allowed:
        position = next(i for i, element in enumerate(elements) if type(element) not in allowed)
        reason = f"{value_text(elements[position], 'an object')} is not an element of {datatype}"
        raise InvalidRequestError(f"{tensor_path(tensor.name)}[{position}]", reason)
    if datatype in INTEGERS:
        limits = np.iinfo(INTEGERS[datatype])
        low, high = int(limits.min), min(int(limits.max), MAX_INT64)
        for position, element in enumerate(elements):
            if element is not None and not low <= element <= high:
                reason = f"{value_text(element)} is not between {low} and {high}"
                raise InvalidRequestError(f"{tensor_path(tensor.name)}[{position}]", reason)


def _read_texts(tensor: InputTensor, data: memoryview, max_length: int) -> list[str]:
    texts: list[str] = []
    start, end = 0, len(data)
    for position in range(min(count_elements(tensor), end // TEXT_LENGTH.size + 1)):
        if end - start < TEXT_LENGTH.size:
            break
        (size,) = TEXT_LENGTH.unpack_from(data, start)
        start += TEXT_LENGTH.size
        if size > end - start:
            break
        try:
            text = str(data[start : start + size], "utf-8")
        except UnicodeDecodeError:
            reason = "is not valid UTF-8: encode text as UTF-8"
            raise InvalidRequestError(f"{tensor_path(tensor.name)}[{position}]", reason) from None
        if len(text) > max_length:
            reason = f"has more than {max_length} characters: send a shorter one"
            raise InvalidRequestError(f"{tensor_path(tensor.name)}[{position}]", reason)
        texts.append(text)
        start += size
    if len(texts) != count_elements(tensor) or start != end:
        reason = f"binary data of {end} bytes is not {count_elements(tensor)} texts, each after its length in 4 bytes"
        raise InvalidRequestError(tensor_path(tensor.name), reason)
    return texts
