"""Encodes the response of an inference request as JSON, with tensors as binary data where requested."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson
from fastapi import Response

from service.engine.model import LoadedModel
from service.engine.response import RankResult
from service.http.media_types import JSON
from service.protocol.open_inference import HEADER_LENGTH

OCTETS = "application/octet-stream"


def encode_tensors(
    result: RankResult, outputs: Mapping[str, bool], model: LoadedModel, request_id: str | None, *, degraded: bool
) -> Response:
    """Encode a response; the scores have the order of the request.

    Args:
        result: all candidates of the request, ranked.
        outputs: names of the outputs, each with whether it is binary.
        model: model that scored the candidates.
        request_id: id of the request, if it has one.
        degraded: whether features are absent because of a failure, or a fallback answers.
    """
    tensors, binary = [], []
    for name, is_binary in outputs.items():
        scores = _in_request_order(result, name)
        tensor: dict[str, Any] = {"name": name, "datatype": "FP32", "shape": [len(scores)]}
        if is_binary:
            data = scores.astype("<f4").tobytes()
            binary.append(data)
            tensor["parameters"] = {"binary_data_size": len(data)}
        else:
            tensor["data"] = scores
        tensors.append(tensor)
    document = {"model_name": model.name, "model_version": model.version}
    if request_id is not None:
        document["id"] = request_id
    summary = {"parameters": {"degraded": degraded}, "outputs": tensors}
    header = orjson.dumps(document | summary, option=orjson.OPT_SERIALIZE_NUMPY)
    if not binary:
        return Response(header, media_type=JSON)
    return Response(b"".join([header, *binary]), headers={HEADER_LENGTH: str(len(header))}, media_type=OCTETS)


def _in_request_order(result: RankResult, name: str) -> npt.NDArray[np.float32]:
    """Return the scores of a task, or the objective [candidates], in the order of the request."""
    ranked = result.scores[:, result.tasks.index(name)] if name in result.tasks else result.total
    scores = np.empty(len(ranked), np.float32)
    scores[result.order] = ranked
    return scores
