"""Converts the tensors of an inference request to a rank request."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ranking.schema import InputFeature, PooledFeature
from service.engine.errors import InvalidRequestError
from service.engine.model import LoadedModel
from service.engine.request import RawFeatures
from service.engine.values import Values, to_list
from service.http.decode import validate_message
from service.http.open_inference.fields import named_as_tensors, tensor_path
from service.http.open_inference.metadata import SHARED, output_names
from service.http.open_inference.tensors import INTEGERS, Elements
from service.protocol.messages import MAX_DEADLINE_MS, RankOptions
from service.protocol.open_inference import SCORE, InferRequest, InputTensor
from service.protocol.problems import MAX_QUOTED_LENGTH

BINARY_OUTPUT, DEADLINE, TIMEOUT, TIME, OBJECTIVE = "binary_data_output", "deadline_ms", "timeout", "time", "objective."
"""Parameters of a request; ``OBJECTIVE`` is followed by the name of a task."""

MAX_TIMEOUT = int(MAX_DEADLINE_MS * 1000)
"""Maximum deadline in microseconds."""

PADDING = (None, "", -1)
"""Elements that pad the shorter lists of a tensor."""


@dataclass(frozen=True)
class RankTensors:
    """A rank request from tensors.

    Attributes:
        options: everything but the candidates.
        items: the candidates.
        outputs: names of the outputs to return, each with whether it is returned as binary data.
    """

    options: RankOptions
    items: RawFeatures
    outputs: dict[str, bool]


def to_rank_request(request: InferRequest, elements: Mapping[str, Elements], model: LoadedModel) -> RankTensors:
    """Convert an inference request; the engine validates the values.

    Args:
        request: inference request.
        elements: elements of its tensors.
        model: model that will score the candidates.

    Raises:
        Problem: 422 if parameters are not valid.
        InvalidRequestError: a tensor, an output or a parameter is unknown, or a shape does not fit.
    """
    columns = model.ranker.schema.columns
    if columns.item not in elements:
        raise InvalidRequestError(f"inputs.{columns.item}", "is missing: send the ids of the candidates")
    options: dict[str, Any] = {"request_id": request.id or None, "user": {"features": {}}, "context": {}}
    ids: Values = []
    features: dict[str, Values] = {}
    count = next(tensor.shape[0] for tensor in request.inputs if tensor.name == columns.item)
    for tensor in request.inputs:
        values, name = elements[tensor.name], tensor.name
        if name == columns.item:
            ids = _ids(tensor, values)
        elif name == columns.user:
            options["user"]["id"] = _shared(tensor, _ids(tensor, values, or_null=True), count)
        elif (feature := model.encoder.readable["item"].get(name)) is not None:
            if tensor.shape[0] != count:
                reason = f"has the shape {tensor.shape}, but '{columns.item}' has {count} candidates"
                raise InvalidRequestError(tensor_path(tensor.name), reason)
            features[name] = _column(tensor, values, feature)
        else:
            owner, feature = _shared_feature(tensor, model)
            shared = options["user"]["features"] if owner == "user" else options["context"]
            shared[name] = _shared(tensor, _column(tensor, values, feature), count)
    outputs = _outputs(request, model)
    options["tasks"] = None if request.outputs is None or SCORE in outputs else list(outputs)
    options |= _options(request)
    with named_as_tensors(columns):
        message = validate_message(options, RankOptions)
    return RankTensors(message, RawFeatures(ids, features), outputs)


def _shared_feature(tensor: InputTensor, model: LoadedModel) -> tuple[str, InputFeature]:
    """Return the owner and the feature of a tensor of the user or the context."""
    for owner in SHARED:
        feature = model.encoder.readable[owner].get(tensor.name)
        if feature is not None:
            return owner, feature
    schema_columns = model.ranker.schema.columns
    names = [schema_columns.user, schema_columns.item, *(n for r in model.encoder.readable.values() for n in r)]
    raise InvalidRequestError(tensor_path(tensor.name), f"unknown tensor: this ranker reads {', '.join(names)}")


def _ids(tensor: InputTensor, elements: Elements, *, or_null: bool = False) -> Values:
    """Return the ids of the candidates, or those of the user, which may be null."""
    if tensor.datatype != "BYTES" and tensor.datatype not in INTEGERS:
        raise InvalidRequestError(
            tensor_path(tensor.name), f"has the data type {tensor.datatype}, but holds ids: send integers or BYTES"
        )
    ids = _column(tensor, elements, None)
    if not (or_null or isinstance(ids, np.ndarray)) and None in ids:
        raise InvalidRequestError(f"{tensor_path(tensor.name)}[{list(ids).index(None)}]", "is null: send an id")
    return ids


def _column(tensor: InputTensor, elements: Elements, feature: InputFeature | None) -> Values:
    """Return one value per row, for a pooled feature a list.

    Raises:
        InvalidRequestError: the shape does not fit the feature.
    """
    if isinstance(feature, PooledFeature):
        if len(tensor.shape) != 2:
            raise InvalidRequestError(
                tensor_path(tensor.name), f"has the shape {tensor.shape}: send [rows, length of lists]"
            )
        rows, length = tensor.shape
        flat = to_list(elements)
        lists = [flat[row * length : (row + 1) * length] for row in range(rows)]
        return [[value for value in values if value not in PADDING] for values in lists]
    if tensor.shape[1:] not in ([], [1]):
        raise InvalidRequestError(tensor_path(tensor.name), f"has the shape {tensor.shape}: send one value per row")
    return elements


def _shared(tensor: InputTensor, values: Values, count: int) -> Any:
    """Return the only value of a tensor of the user or the context."""
    if len(values) not in (1, count):
        reason = f"has the shape {tensor.shape}: send one value, or one per candidate ({count})"
        raise InvalidRequestError(tensor_path(tensor.name), reason)
    objects = to_list(values)
    for row, value in enumerate(objects):
        if value != objects[0]:
            reason = "differs from the value of row 0: send one request per user and context"
            raise InvalidRequestError(f"{tensor_path(tensor.name)}[{row}]", reason)
    return objects[0] if objects else None


def _outputs(request: InferRequest, model: LoadedModel) -> dict[str, bool]:
    """Return whether each requested output is binary."""
    binary = request.parameters.get(BINARY_OUTPUT, False)
    if not isinstance(binary, bool):
        raise InvalidRequestError(f"parameters.{BINARY_OUTPUT}", "must be true or false")
    names = output_names(model)
    if request.outputs is None:
        return dict.fromkeys(names, binary)
    outputs = {}
    for output in request.outputs:
        if output.name not in names or output.name in outputs:
            reason = "is requested twice" if output.name in outputs else f"unknown output: send {', '.join(names)}"
            raise InvalidRequestError(f"outputs.{output.name:.{MAX_QUOTED_LENGTH}}", reason)
        choice = output.parameters.binary_data
        outputs[output.name] = binary if choice is None else choice
    if not outputs:
        raise InvalidRequestError("outputs", f"must not be empty: leave it out, or send {', '.join(names)}")
    return outputs


def _options(request: InferRequest) -> dict[str, Any]:
    """Return the options of a rank request that are among the parameters."""
    options: dict[str, Any] = {}
    objective = {}
    for name, value in request.parameters.items():
        if name.startswith(OBJECTIVE):
            objective[name.removeprefix(OBJECTIVE)] = value
        elif name == TIMEOUT:
            if type(value) is not int or not 0 < value <= MAX_TIMEOUT:
                reason = f"must be an integer from 1 to {MAX_TIMEOUT}, in microseconds"
                raise InvalidRequestError(f"parameters.{TIMEOUT}", reason)
            options.setdefault(DEADLINE, value / 1000)
        elif name in (DEADLINE, TIME):
            options[name] = value
        elif name != BINARY_OUTPUT:
            known = f"{BINARY_OUTPUT}, {DEADLINE}, {TIMEOUT}, {TIME} or {OBJECTIVE}TASK"
            raise InvalidRequestError(f"parameters.{name:.{MAX_QUOTED_LENGTH}}", f"unknown parameter: send {known}")
    if objective:
        options["objective"] = objective
    return options
