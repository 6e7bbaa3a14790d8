"""Splits the body of an inference request into its JSON and the elements of each tensor."""

from __future__ import annotations

import re

from service.engine.errors import InvalidRequestError
from service.http.decode import MAX_STRING_LENGTH, decode_message
from service.http.open_inference.fields import tensor_path
from service.http.open_inference.tensors import Elements, read_binary, read_json
from service.protocol.open_inference import HEADER_LENGTH, InferRequest
from service.protocol.problems import malformed, too_many_candidates
from service.settings import Settings

LENGTH = re.compile(r"[0-9]{1,19}")
"""A number of bytes."""


def read_body(body: bytes, header_length: str | None, settings: Settings) -> tuple[InferRequest, dict[str, Elements]]:
    """Read an inference request.

    Args:
        body: body of the request.
        header_length: value of the header ``HEADER_LENGTH``; None: the whole body is JSON.
        settings: limits of a request.

    Returns:
        The request and the elements of its tensors by name.

    Raises:
        Problem: 400 if the body cannot be parsed, 413 if there are too many candidates, 422 if fields are not valid.
        InvalidRequestError: a tensor is not valid.
    """
    json_bytes = len(body)
    if header_length is not None:
        if not LENGTH.fullmatch(header_length) or int(header_length) > len(body):
            reason = f"is {header_length!r:.40}: send the number of bytes of the JSON, at most {len(body)}"
            raise malformed(HEADER_LENGTH, reason)
        json_bytes = int(header_length)
    request = decode_message(body[:json_bytes], InferRequest, "body", settings)
    data, elements = memoryview(body)[json_bytes:], dict[str, Elements]()
    for tensor in request.inputs:
        if tensor.name in elements:
            raise InvalidRequestError(tensor_path(tensor.name), "is sent twice: send each tensor once")
        if tensor.shape[0] > settings.max_candidates:
            raise too_many_candidates(tensor.shape[0], settings.max_candidates)
        size = tensor.parameters.binary_data_size
        if (tensor.data is None) == (size is None):
            raise InvalidRequestError(
                tensor_path(tensor.name), "must have either data or the parameter binary_data_size"
            )
        if size is None:
            elements[tensor.name] = read_json(tensor)
            continue
        if size > len(data):
            reason = f"binary_data_size is {size}, but {len(data)} bytes are left after the tensors before it"
            raise InvalidRequestError(tensor_path(tensor.name), reason)
        elements[tensor.name] = read_binary(tensor, data[:size], MAX_STRING_LENGTH)
        data = data[size:]
    if data:
        raise malformed("body", f"has {len(data)} bytes after the last tensor: {HEADER_LENGTH} or a size is wrong")
    return request, elements
