"""Messages of the Open Inference Protocol; their docstrings and descriptions appear in the OpenAPI document."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StrictBool, StrictFloat, StrictInt, StrictStr

HEADER_LENGTH = "Inference-Header-Content-Length"
"""Header with the number of bytes of the JSON that precedes binary tensor data."""

SCORE = "score"
"""Output with the objective of each candidate."""

Datatype = Literal[
    "BOOL", "INT8", "INT16", "INT32", "INT64", "UINT8", "UINT16", "UINT32", "UINT64", "FP16", "FP32", "FP64", "BYTES"
]


def _check_parameter(value: Any) -> Any:
    if not isinstance(value, bool | int | float | str):
        raise ValueError("must be true or false, a number or a string")
    return value


Parameter = Annotated[StrictBool | StrictInt | StrictFloat | StrictStr, BeforeValidator(_check_parameter)]
Size = Annotated[StrictInt, Field(ge=0, lt=2**31)]


class _OpenMessage(BaseModel):
    model_config = ConfigDict(extra="forbid", protected_namespaces=())


class TensorParameters(_OpenMessage):
    """Parameters of an input tensor."""

    binary_data_size: Annotated[
        Size | None, Field(description="bytes of the tensor after the JSON; the tensor then has no `data`")
    ] = None


class InputTensor(_OpenMessage):
    """One column of the request: its first dimension is the number of candidates, or 1 for user and context."""

    name: str
    shape: Annotated[list[Size], Field(min_length=1, max_length=2)]
    datatype: Datatype
    parameters: TensorParameters = TensorParameters()
    data: Annotated[list[Any] | None, Field(description="elements in row-major order, flat or nested")] = None


class OutputParameters(_OpenMessage):
    """Parameters of a requested output."""

    binary_data: Annotated[StrictBool | None, Field(description="return the tensor as binary data")] = None


class RequestedOutput(_OpenMessage):
    """An output to return: a task, or `score`."""

    name: str
    parameters: OutputParameters = OutputParameters()


class InferRequest(_OpenMessage):
    """Columns of candidates, of their user and of their context.

    ``parameters``: ``binary_data_output``, ``deadline_ms``, ``timeout`` (the same in microseconds), ``time``, and
    ``objective.TASK`` with the weight of a task.
    """

    id: Annotated[str, Field(max_length=256)] | None = None
    model_name: Annotated[str | None, Field(description="ignored, KServe sends it: the path names the model")] = None
    model_version: Annotated[str | None, Field(description="ignored, as `model_name`")] = None
    parameters: dict[str, Parameter] = {}
    inputs: Annotated[list[InputTensor], Field(min_length=1)]
    outputs: list[RequestedOutput] | None = None


class OutputTensor(BaseModel):
    """Scores [candidates] in the order of the request; binary data instead of ``data`` if the request asks for it."""

    name: str
    datatype: Literal["FP32"]
    shape: list[int]
    data: list[float] | None = None
    parameters: dict[str, Parameter] = {}


class InferResponse(BaseModel):
    """Scores of the candidates. ``degraded`` among the parameters: as in the response of a rank request."""

    model_config = ConfigDict(protected_namespaces=())

    model_name: str
    model_version: str
    id: str | None = None
    parameters: dict[str, Parameter] = {}
    outputs: list[OutputTensor]


class ServerMetadata(BaseModel):
    """Name and version of the service, and the extensions of the protocol that it supports."""

    name: str
    version: str
    extensions: list[str]
