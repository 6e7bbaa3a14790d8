"""``GET /`` with the addresses of the service, and ``GET /v1/models`` with the models that it serves."""

from __future__ import annotations

from importlib.metadata import version

from fastapi import APIRouter

from service.http.openapi import documented
from service.models.registry import LOADING, ModelRegistry, ModelUnavailableError
from service.protocol.messages import ModelList, ModelSummary, ServiceIndex

NAME = "dselect-ranker"

SERVICE_LINKS = {
    "documentation": "/docs",
    "openapi": "/openapi.json",
    "rank": "/v1/rank",
    "models": "/v1/models",
    "live": "/v2/health/live",
    "ready": "/v2/health/ready",
}
OPERATIONS_LINKS = {
    "documentation": "/docs",
    "openapi": "/openapi.json",
    "console": "/console",
    "metrics": "/metrics",
    "repository": "/v2/repository/index",
    "live": "/v2/health/live",
    "ready": "/v2/health/ready",
}


def index_routes(links: dict[str, str], operations_port: int | None = None) -> APIRouter:
    """``GET /``.

    Args:
        links: paths of the main operations of this port.
        operations_port: port of metrics and admin operations, if it is another one.
    """
    router = APIRouter(tags=["index"])
    answer = ServiceIndex(name=NAME, version=version(NAME), links=links, operations_port=operations_port)

    @router.get("/", response_model=ServiceIndex, response_model_exclude_none=True)
    async def index() -> ServiceIndex:
        """Return the name and version of the service and the paths of its main operations."""
        return answer

    return router


def model_list_routes(models: ModelRegistry) -> APIRouter:
    """``GET /v1/models``."""
    router = APIRouter(tags=["models"])

    @router.get("/v1/models", response_model=ModelList, responses=documented(503))
    async def list_models() -> ModelList:
        """List the models with their served versions, sorted by name."""
        if not models.names:
            raise ModelUnavailableError(LOADING)
        return ModelList(models=[summarize(models, name) for name in sorted(models.names)])

    return router


def summarize(models: ModelRegistry, name: str) -> ModelSummary:
    """Return the served versions of a model."""
    routing, default = models.routing(name), name == models.default
    if routing is None:
        return ModelSummary(name=name, ready=False, default=default)
    return ModelSummary(
        name=name,
        ready=True,
        default=default,
        version=routing.current.version,
        canary=routing.canary.version if routing.canary else None,
        canary_weight=routing.weight if routing.canary else None,
        shadow=routing.shadow.version if routing.shadow else None,
    )
