"""Forms in which servers expect a request, and in which they respond. Needs the standard library only."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from benchmarks.serving.peers.protocol import HEALTH, PATH, Body

MODEL, INPUT, OUTPUT = "ranker", "request", "response"
"""Names of the model and of its tensors in the Open Inference Protocol."""


@dataclass(frozen=True)
class Form:
    """The form of requests and responses of a server.

    Attributes:
        path: path of requests.
        ready_path: path that returns status 200 once the server is ready.
        wrap: returns the body of a request for a body of ``POST /v1/rank``.
        unwrap: returns the response, with the items, in the body of a response.
    """

    path: str
    ready_path: str
    wrap: Callable[[bytes], bytes]
    unwrap: Callable[[bytes], Body]


def _wrap_tensor(data: bytes) -> bytes:
    tensor = {"name": INPUT, "shape": [1, 1], "datatype": "BYTES", "data": [data.decode()]}
    return json.dumps({"inputs": [tensor]}).encode()


def _unwrap_tensor(data: bytes) -> Body:
    (tensor,) = json.loads(data)["outputs"]
    response: Body = json.loads(tensor["data"][0])
    return response


def _unwrap_list(data: bytes) -> Body:
    (response,) = json.loads(data)
    return dict[str, Any](response)


PLAIN = Form(PATH, HEALTH, lambda data: data, json.loads)
"""The form of ``POST /v1/rank``."""
TENSOR = Form(f"/v2/models/{MODEL}/infer", f"/v2/models/{MODEL}/ready", _wrap_tensor, _unwrap_tensor)
"""The Open Inference Protocol, with the request and the response as text tensors."""
LIST = Form(PATH, "/readyz", lambda data: b'{"requests":[' + data + b"]}", _unwrap_list)
"""A list of requests in a parameter ``requests``; a list of responses."""
