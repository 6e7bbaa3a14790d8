"""The operations of the Open Inference Protocol, except the health of the process."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel

from service.http.media_types import JSON
from service.http.open_inference.encode import OCTETS
from service.http.open_inference.handler import InferHandler
from service.http.open_inference.metadata import model_metadata, server_metadata
from service.http.openapi import RawRoute, documented, documented_body
from service.models.registry import ModelRegistry, ModelRouting
from service.protocol.messages import ModelMetadata, ModelReady
from service.protocol.open_inference import InferRequest, InferResponse, ServerMetadata
from service.protocol.problems import ErrorDocument

MODEL = "/v2/models/{model}"
VERSION = MODEL + "/versions/{version}"
BINARY: dict[str, Any] = {
    "schema": {
        "type": "string",
        "format": "binary",
        "description": "JSON of the length in Inference-Header-Content-Length, then the binary data of the tensors",
    }
}


INFERENCE: dict[str, Any] = {
    "response_model": InferResponse,
    "response_model_exclude_none": True,
    "responses": {
        200: {"description": "Scores in the order of the request", "content": {OCTETS: BINARY}},
        **documented(400, 404, 408, 413, 415, 422, 429, 503, 504, error=ErrorDocument),
    },
    "openapi_extra": documented_body(InferRequest, required=True),
}
"""Arguments of FastAPI's decorators for the inference operations, which decode and encode their bodies themselves."""


def open_inference_routes(handler: InferHandler, models: ModelRegistry) -> APIRouter:
    """Metadata, readiness and inference of models and of their versions."""
    router = APIRouter(tags=["open inference protocol"], route_class=RawRoute)
    unserved = documented(404, 503, error=ErrorDocument)

    @router.get("/v2", response_model=ServerMetadata)
    async def server(_: Request) -> Response:
        """Return the name and version of the service, and the extensions of the protocol."""
        return _json(server_metadata())

    @router.get(MODEL, response_model=ModelMetadata, responses=unserved)
    async def metadata(_: Request, model: str) -> Response:
        """Return the inputs and outputs of the current version of a model."""
        routing = models.get(model)
        return _json(model_metadata(routing.current, routing.versions))

    @router.get(VERSION, response_model=ModelMetadata, responses=unserved)
    async def version_metadata(_: Request, model: str, version: str) -> Response:
        """Return the inputs and outputs of a loaded version of a model."""
        return _json(model_metadata(models.get_version(model, version), models.get(model).versions))

    @router.get(f"{MODEL}/ready", response_model=ModelReady, responses=unserved)
    async def ready(_: Request, model: str) -> Response:
        """Return 200 and the current version if a model is served."""
        current = models.get(model).current
        return _json(ModelReady(name=current.name, version=current.version, ready=True))

    @router.get(f"{VERSION}/ready", response_model=ModelReady, responses=unserved)
    async def version_ready(_: Request, model: str, version: str) -> Response:
        """Return 200 if a version of a model is served."""
        loaded = models.get_version(model, version)
        return _json(ModelReady(name=loaded.name, version=loaded.version, ready=True))

    @router.post(f"{MODEL}/infer", **INFERENCE)
    async def infer(http: Request, model: str) -> Response:
        """Score candidates with the current version of a model, or its canary."""
        return await handler.respond(http, models.get(model))

    @router.post(f"{VERSION}/infer", **INFERENCE)
    async def infer_with_version(http: Request, model: str, version: str) -> Response:
        """Score candidates with a loaded version of a model: current, canary or shadow."""
        return await handler.respond(http, ModelRouting(models.get_version(model, version)))

    return router


def _json(message: BaseModel) -> Response:
    return Response(message.model_dump_json(), media_type=JSON)
