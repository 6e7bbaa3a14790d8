"""Builds inference requests with the same candidates as rank requests."""

from __future__ import annotations

import json
import struct
from typing import Any

import numpy as np

URL = "/v2/models/feed/infer"
NUMPY = {"INT64": "<i8", "FP32": "<f4", "FP64": "<f8"}


def tensor(name: str, datatype: str, data: list[Any], shape: list[int] | None = None) -> dict[str, Any]:
    return {"name": name, "datatype": datatype, "shape": shape or [len(data)], "data": data}


def inputs() -> list[dict[str, Any]]:
    """The tensors of ``rank_body``."""
    return [
        tensor("item_id", "BYTES", [f"v{i}" for i in range(12)]),
        tensor("price", "FP32", [i / 4 for i in range(12)], [12, 1]),
        tensor("user_id", "BYTES", ["u3"]),
        tensor("age", "INT64", [31]),
        tensor("surface", "BYTES", ["home"] * 12),
        tensor("hour", "INT64", [9]),
    ]


def rank_body() -> dict[str, Any]:
    return {
        "user": {"id": "u3", "features": {"age": 31}},
        "context": {"surface": "home", "hour": 9},
        "items": [{"id": f"v{i}", "features": {"price": i / 4}} for i in range(12)],
    }


def expected(response: dict[str, Any], output: str) -> list[float]:
    """The scores of a rank response in the order of the candidates."""
    items = {item["id"]: item for item in response["items"]}
    rows = [items[f"v{i}"] for i in range(len(items))]
    return [row["score"] if output == "score" else row["scores"][output] for row in rows]


def to_binary(request: dict[str, Any]) -> tuple[bytes, dict[str, str]]:
    """The body and headers of a request with its tensors as binary data."""
    parts, tensors = [], []
    for part in request["inputs"]:
        if part["datatype"] == "BYTES":
            data = b"".join(struct.pack("<I", len(text.encode())) + text.encode() for text in part["data"])
        else:
            data = np.array(part["data"], NUMPY[part["datatype"]]).tobytes()
        fields = {name: value for name, value in part.items() if name != "data"}
        tensors.append(fields | {"parameters": {"binary_data_size": len(data)}})
        parts.append(data)
    header = json.dumps(request | {"inputs": tensors}).encode()
    return b"".join([header, *parts]), {"Inference-Header-Content-Length": str(len(header))}
