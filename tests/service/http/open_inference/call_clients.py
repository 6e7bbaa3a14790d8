"""Program that calls a service with the clients of Triton and KServe; the environment of the tests has neither.

Prints their results as JSON. Arguments: address of the service.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

import numpy as np
from kserve import InferenceRESTClient, InferInput, InferRequest, RESTConfig
from kserve.protocol.infer_type import RequestedOutput
from tritonclient import http as triton
from tritonclient.utils import InferenceServerException

COLUMNS: dict[str, tuple[str, Any]] = {
    "item_id": ("BYTES", np.array([f"v{i}" for i in range(12)], object)),
    "price": ("FP32", np.array([[i / 4] for i in range(12)], np.float32)),
    "user_id": ("BYTES", np.array(["u3"], object)),
    "age": ("INT64", np.array([31])),
    "surface": ("BYTES", np.array(["home"], object)),
    "hour": ("INT32", np.array([9], np.int32)),
}


def call_triton(url: str) -> dict[str, Any]:
    """Return the results of Triton's client."""
    results: dict[str, Any] = {}
    with triton.InferenceServerClient(url.removeprefix("http://")) as client:
        results["ready"] = [
            client.is_server_live(),
            client.is_server_ready(),
            client.is_model_ready("feed"),
            client.is_model_ready("feed", "1"),
            not client.is_model_ready("feed", "9"),
        ]
        results["server"] = client.get_server_metadata()
        results["outputs"] = [output["name"] for output in client.get_model_metadata("feed", "1")["outputs"]]
        for binary in (True, False):
            inputs = []
            for name, (datatype, values) in COLUMNS.items():
                tensor = triton.InferInput(name, list(values.shape), datatype)
                tensor.set_data_from_numpy(values, binary_data=binary)
                inputs.append(tensor)
            outputs = [triton.InferRequestedOutput(name, binary_data=binary) for name in results["outputs"]]
            response = client.infer("feed", inputs, "1", outputs, "r-1", timeout=20_000_000)
            scores = {name: response.as_numpy(name).tolist() for name in results["outputs"]}
            results["binary" if binary else "json"] = scores
        response = client.infer("feed", inputs)
        results["default"] = {name: response.as_numpy(name).tolist() for name in results["outputs"]}
        try:
            client.infer("feed", inputs[1:])
        except InferenceServerException as error:
            results["error"] = [error.status(), error.message()]
    return results


async def call_kserve(url: str, outputs: list[str]) -> dict[str, Any]:
    """Return the results of KServe's client."""
    client = InferenceRESTClient(RESTConfig(protocol="v2"))
    results: dict[str, Any] = {
        "ready": [await client.is_server_live(url), await client.is_server_ready(url)],
        "model": await client.is_model_ready(url, "feed"),
    }
    for binary in (True, False):
        inputs = []
        for name, (datatype, values) in COLUMNS.items():
            tensor = InferInput(name, list(values.shape), datatype)
            tensor.set_data_from_numpy(values, binary_data=binary)
            inputs.append(tensor)
        requested = [RequestedOutput(name, {"binary_data": binary}) for name in outputs]
        request = InferRequest("feed", inputs, request_id="r-1", request_outputs=requested)
        response = await client.infer(url, request, model_name="feed")
        scores = {output.name: output.as_numpy().tolist() for output in response.outputs}
        results["binary" if binary else "json"] = scores
    await client.close()
    return results


if __name__ == "__main__":
    results = {"triton": call_triton(sys.argv[1])}
    results["kserve"] = asyncio.run(call_kserve(sys.argv[1], results["triton"]["outputs"]))
    print(json.dumps(results))
